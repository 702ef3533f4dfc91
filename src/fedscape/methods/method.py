"""What a method is: a line of the table, and what it may be told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fedscape.core.engine import Engine
from fedscape.core.sampling import Sampler
from fedscape.types import Array

if TYPE_CHECKING:
    from fedscape.learning.local import LocalSGD
    from fedscape.learning.server import Rule
    from fedscape.temporal.priors import Prior

FAMILIES = ("global", "personal", "temporal")


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a method may be told beside how a client trains; one that a method does not take is refused or unused.

    Parameters
    ----------
    server, server_lr
        The server's rule, or the learning rate of the one that the method has by default.
    weighting
        "samples" or "equal", where the method has a choice; a private training weighs clients equally.
    initial
        "given" or "seed"; None is the method's own: "seed" for personalised methods, "given" for others.
    q
        Of qfedavg.
    prior, period, modes
        What methods on a schedule believe of it, how many rounds it repeats after, and how many branches there are.
    strength, smoothing, hours, inertia, scatter
        As for FedTEM.
    centres
        Of t-shot; None collects them from the clients of `engine`.
    column
        What fedgmm fits its Gaussians to; None is the features.
    engine, sampler, seed, progress
        The clients, who takes part, the seed, and whether a bar is shown: for methods that collect something first.

    >>> Options(q=2.0).q
    2.0
    """

    server: Rule | None = None
    server_lr: float | None = None
    weighting: str = "samples"
    initial: str | None = None
    q: float | None = None
    prior: Prior | None = None
    period: float = 256.0
    modes: int = 2
    strength: float = 0.5
    smoothing: float = 0.1
    hours: str = "all"
    inertia: float = 0.0
    scatter: str = "all"
    centres: Array | None = None
    column: str | None = None
    engine: Engine | None = None
    sampler: Sampler | None = None
    seed: int = 0
    progress: bool | None = False


Maker = Callable[["LocalSGD", Options], Any]


@dataclass(frozen=True, kw_only=True)
class Method:
    """One training method: a line of the table.

    Parameters
    ----------
    name, title, sentence
        What commands call it, what people call it, and what it does.
    family
        "global": one model for all. "personal": clients keep something of their own. "temporal": branches on a
        schedule.
    make
        Makes the computation from how a client trains and the options.
    takes
        Options that it takes and others do not: "proximal", "server_lr", "q", "prior".
    reveals
        What the server sees client by client, all phases together.
    exact
        Why it cannot be private: what noise on its sums does not cover, or what is lost in it; empty where it can.
    tunes
        Whether every client trains the common model on its own rows at the end, and keeps it.
    command
        Whether `fedscape train` has it; why not is said in its sentence.

    >>> from fedscape.methods import METHODS
    >>> METHODS["fedem"].title, METHODS["fedem"].family
    ('FedEM', 'personal')
    """

    name: str
    title: str
    sentence: str
    make: Maker = field(repr=False)
    family: str = "global"
    takes: tuple[str, ...] = ()
    reveals: tuple[str, ...] = ()
    exact: str = ""
    tunes: bool = False
    command: bool = True

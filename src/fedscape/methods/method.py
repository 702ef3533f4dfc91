"""A training method: a line of the table, and its options."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fedscape.core.engine import Engine
from fedscape.core.sampling import Sampler
from fedscape.types import Array

if TYPE_CHECKING:
    from fedscape.learning.server import Rule
    from fedscape.temporal.covariates import Harmonics
    from fedscape.temporal.priors import Prior

FAMILIES = ("global", "personal", "temporal", "tabular")


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of a method beside local training. An option that the method does not take is refused or ignored.

    Parameters
    ----------
    server, server_lr
        The server's rule, or the learning rate of the method's default rule.
    weighting
        "samples" or "equal", where the method has a choice; private training weighs clients equally.
    initial
        "given" or "seed"; None is the method's default: "seed" for personalised methods, "given" for others.
    q
        The exponent q of qfedavg.
    prior, period, modes
        For methods on a schedule: the prior of the server, the period in rounds, and the number of branches.
    strength, smoothing, hours, inertia, scatter
        As for FedTEM.
    centres
        Centres for t-shot; None collects them from the clients of `engine`.
    column
        The column to which fedgmm fits its Gaussians; None is the features.
    trees, learning_rate
        For trees: how many, and the share of each Newton step that is taken.
    law
        For trees and glm: the law of the target, "gaussian", "logistic", "poisson" or (glm) "gamma". By default
        logistic for classes, Gaussian for numbers.
    l2
        For glm: half of it times the squared coefficients is taken from the log-likelihood.
    ranges
        For trees and glm: the least and greatest value of columns of numbers. Private training needs them.
    engine, sampler, seed, progress, private
        The clients, the sampler, the seed, whether a bar is shown, and whether the rounds are private: for methods with
        a first phase.

    >>> Options(q=2.0).q
    2.0
    """

    server: Rule | None = None
    server_lr: float | None = None
    weighting: str = "samples"
    initial: str | None = None
    q: float | None = None
    prior: Prior | Harmonics | None = None
    period: float = 256.0
    modes: int = 2
    strength: float = 0.5
    smoothing: float = 0.1
    hours: str = "all"
    inertia: float = 0.0
    scatter: str = "all"
    centres: Array | None = None
    column: str | None = None
    trees: int = 100
    learning_rate: float = 0.1
    law: str | None = None
    l2: float = 0.0
    ranges: Mapping[str, Sequence[float]] | None = None
    engine: Engine | None = None
    sampler: Sampler | None = None
    seed: int = 0
    progress: bool | None = False
    private: bool = False


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Features and target of a method that trains no network; it also takes a LocalSGD, of which it reads these.

    >>> Columns(features="x", target="y").target
    'y'
    """

    features: str | tuple[str, ...] = "x"
    target: str = "y"


Maker = Callable[[Any, Options], Any]


@dataclass(frozen=True, kw_only=True)
class Method:
    """One training method: a line of the table.

    Parameters
    ----------
    name, title, sentence
        Its name in commands, its title, and one sentence on what it does.
    family
        "global": one network for all. "personal": clients keep a part of their own. "temporal": branches on a
        schedule. "tabular": trees or a GLM for all.
    make
        Builds the computation from the local training (of "tabular": the columns) and the options.
    takes
        Options that only some methods take: "proximal", "server_lr", "q", "prior", "trees", "law", "l2", "ranges".
    reveals
        What the server sees of single clients, in all phases.
    exact
        Why it cannot be private: what noise on its sums does not cover or would destroy; empty if it can.
    tunes
        Whether every client fine-tunes the common model on its own rows at the end, and keeps it.
    command
        Whether `fedscape train` offers it; if not, its sentence says why.

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

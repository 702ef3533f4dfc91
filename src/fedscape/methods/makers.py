"""Build methods from their options. Importing a class, and torch, waits until it is built."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedscape.errors import DataError
from fedscape.methods.method import Maker, Options

if TYPE_CHECKING:
    from fedscape.learning.local import LocalSGD


def a_class(path: str, arguments: Callable[[Options], dict[str, Any]], *, branches: bool = False) -> Maker:
    """A maker for the class at "module:Class" of fedscape; with `branches` it gets a network with branches."""

    def make(local: LocalSGD, how: Options) -> Any:
        module, _, name = path.partition(":")
        kind = getattr(import_module(f"fedscape.{module}"), name)
        return kind(_branched(local, how) if branches else local, **arguments(how))

    return building(path)(make)


def building(*paths: str) -> Callable[[Maker], Maker]:
    """Say which classes a maker builds, so that its line of the table is found from an object, too."""

    def note(make: Maker) -> Maker:
        make.paths = paths  # type: ignore[attr-defined]
        return make

    return note


def _branched(local: LocalSGD, how: Options) -> LocalSGD:
    """The same training for a network with one branch per mode."""
    from fedscape.learning.branches import MultiBranch

    if isinstance(local.model, MultiBranch):
        return local
    return replace(local, model=MultiBranch(local.model, n_branches=how.modes, seed=how.seed))


def _server(how: Options, rule: str = "Mean") -> Any:
    from fedscape.learning import server

    return how.server or getattr(server, rule)(*(() if how.server_lr is None else (how.server_lr,)))


def plain(how: Options, *, rule: str = "Mean", initial: str = "given") -> dict[str, Any]:
    """Arguments of FedAvg and of all methods built on it."""
    return {"server": _server(how, rule), "weighting": how.weighting, "initial": how.initial or initial}


def fair(how: Options) -> dict[str, Any]:
    return {"q": 1.0 if how.q is None else how.q, "server": _server(how), "initial": how.initial or "given"}


def drifting(how: Options) -> dict[str, Any]:
    """Arguments of SCAFFOLD: also the share of clients in a round, if the sampler fixes it."""
    from fedscape.core.sampling import FixedSize, Poisson

    share = 1.0
    if isinstance(how.sampler, Poisson):
        share = how.sampler.rate
    elif isinstance(how.sampler, FixedSize) and how.engine is not None:
        share = min(1.0, how.sampler.size / max(len(how.engine.clients.keys), 1))
    return {**plain(how), "participation": share}


def drawn(how: Options) -> dict[str, Any]:
    """First weights drawn from the seed of the run."""
    return {"initial": how.initial or "seed"}


def drawn_plain(how: Options) -> dict[str, Any]:
    return plain(how, initial="seed")


def on_a_day(how: Options) -> dict[str, Any]:
    """Arguments of FedAvg; with a server learning rate the server rule is Adam."""
    return plain(how, rule="Mean" if how.server_lr is None else "Adam")


def smooth(how: Options) -> dict[str, Any]:
    return {**on_a_day(how), "strength": how.strength, "smoothing": how.smoothing}


def timed(how: Options) -> dict[str, Any]:
    return {**smooth(how), "prior": how.prior, "hours": how.hours, "inertia": how.inertia}


def scattered(how: Options) -> dict[str, Any]:
    return {**timed(how), "scatter": how.scatter}


def unguided(how: Options) -> dict[str, Any]:
    return {**smooth(how), "prior": None, "scatter": how.scatter}


def clocked(how: Options) -> dict[str, Any]:
    return {**on_a_day(how), "prior": how.prior}


def halved(how: Options) -> dict[str, Any]:
    from fedscape.temporal.methods import halves

    return {**on_a_day(how), "schedule": halves(how.prior)}


@building("personal.fedgmm:FedGMM")
def fedgmm(local: LocalSGD, how: Options) -> Any:
    from fedscape.personal.methods import make_fedgmm

    if how.engine is None:
        raise DataError("fedgmm first fits Gaussians to the clients' features: give the clients as engine=")
    return make_fedgmm(local, how.engine, how.seed, column=how.column, progress=how.progress)


@building("personal.profiles:ProfiledFL")
def profiled(local: LocalSGD, how: Options) -> Any:
    from fedscape.personal.methods import make_profiled

    if how.engine is None:
        raise DataError("profiles first finds groups of clients by their data: give the clients as engine=")
    return make_profiled(local, how.engine, how.seed, **drawn(how))


def vanilla(local: LocalSGD, how: Options) -> Any:
    from fedscape.learning.branches import MeanOfBranches
    from fedscape.learning.fedavg import FedAvg

    branched = _branched(local, how)
    return FedAvg(replace(branched, model=MeanOfBranches(branched.model)), **on_a_day(how))


def single(local: LocalSGD, how: Options) -> Any:
    from fedscape.learning.fedavg import FedAvg

    branched = _branched(local, how)
    return FedAvg(replace(branched, model=branched.model.first()), **on_a_day(how))


@building("temporal.baselines:NearestCentre")
def t_shot(local: LocalSGD, how: Options) -> Any:
    from fedscape.temporal.baselines import NearestCentre
    from fedscape.temporal.methods import collect_centres

    branched, centres = _branched(local, how), how.centres
    if centres is None:
        if how.engine is None:
            raise DataError("t-shot needs centres: run collect_centres() over a period, or give the clients as engine=")
        settings: dict[str, Any] = {
            "n_rounds": int(how.period),
            "sampler": how.sampler,
            "seed": how.seed,
            "column": local.features,
        }
        centres = collect_centres(how.engine, branched.model.n_branches, **settings)
    return NearestCentre(branched, centres, **on_a_day(how))

"""All methods by name, in one harness: the same training, the same evaluation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import cast

import numpy as np

from fedscape.core.computation import Computation
from fedscape.core.engine import Engine, as_engine
from fedscape.core.federation import Federation
from fedscape.core.progress import shown
from fedscape.core.rounds import rounds
from fedscape.core.sampling import Sampler
from fedscape.core.validate import check_whole
from fedscape.errors import DataError
from fedscape.learning.evaluation import model_arrays
from fedscape.learning.fedavg import FedAvg
from fedscape.learning.local import LocalSGD, check_local
from fedscape.mixtures.gaussian.model import GaussianMixture
from fedscape.personal.clustered import ClusteredFL
from fedscape.personal.features import principal_directions, projected
from fedscape.personal.fedem import IFCA, FedEM
from fedscape.personal.fedgmm import FedGMM
from fedscape.personal.fedrep import FedRep
from fedscape.personal.own_models import Ditto, LocalOnly, PFedMe
from fedscape.personal.personalised import Personalised
from fedscape.personal.shared import class_column, forward, stacked, with_kept_of
from fedscape.statistics.moments import Moments
from fedscape.types import Array

WIDE = 128  # features, above which FedGMM's Gaussians are of their leading directions
DIRECTIONS = 32

Maker = Callable[[LocalSGD, Engine, int], Computation]


class Common(FedAvg):
    """FedAvg in this harness: every client has the common model, and there is nothing to keep.

    >>> from fedscape.learning import cross_entropy, models
    >>> step = LocalSGD(models.linear(4, 2), cross_entropy, lr=1.0, epochs=1, batch_size=2)
    >>> Common(step).adapt({}, Federation({}, [0, 0]), None)
    {}
    """

    name = "common-model"

    def log_probs(self, state: dict[str, Array], clients: Federation) -> Array:
        """log p(class | x) of each row: [rows, classes]."""
        params = stacked(self.local, {f"model.{n}": p for n, p in model_arrays(state).items()})
        return forward(self.local, [params], clients, slice(0, clients.n_rows), loss=False)[:, 0]

    def adapt(self, state: object, clients: Federation, key: object) -> dict[str, Array]:
        """Nothing: newcomers have the common model."""
        return {}


def is_wide(clients: object, column: str) -> bool:
    """Whether rows of this column are too wide for Gaussians of them."""
    return isinstance(clients, Federation) and int(np.prod(clients[column].shape[1:])) > WIDE


def make_fedgmm(
    local: LocalSGD,
    engine: Engine,
    seed: int,
    *,
    gaussians: int = 3,
    learners: int = 3,
    column: str | None = None,
    sampler: Sampler | None = None,
    n_rounds: int = 30,
    progress: bool | None = False,
) -> FedGMM:
    """FedGMM from scratch: its Gaussians are first fitted to this column (by default the features) in a few rounds.

    Gaussians of more than WIDE features would cost minutes a round: they are of DIRECTIONS leading ones instead.
    `progress` shows the rounds of that fit, as for `train`.
    """
    if column is None and is_wide(engine.clients, local.features):
        clients = cast(Federation, engine.clients)
        moments = Moments(column=local.features).fit(engine, sampler=sampler, progress=progress)
        place = principal_directions(moments, DIRECTIONS)
        seen = projected(clients[local.features], *place, residual=True)
        mixture = GaussianMixture(gaussians, column="z", rounds=n_rounds, seed=seed)
        mixture.fit(Federation({"z": seen}, clients.offsets, clients.ids), sampler=sampler, progress=progress)
        return FedGMM(local, mixture, learners, projection=place)
    mixture = GaussianMixture(gaussians, column=column or local.features, rounds=n_rounds, seed=seed)
    mixture.fit(engine, sampler=sampler, progress=progress)
    return FedGMM(local, mixture, learners)


#: A computation for `rounds`, from (how a client trains, the clients, seed); only "fedgmm" looks at the clients.
METHODS: dict[str, Maker] = {
    "local": lambda local, engine, seed: LocalOnly(local, initial="seed"),
    "fedavg": lambda local, engine, seed: Common(local, initial="seed"),
    "fedavg+": lambda local, engine, seed: Common(local, initial="seed"),
    "clustered": lambda local, engine, seed: ClusteredFL(local, initial="seed"),
    "ifca": lambda local, engine, seed: IFCA(local),
    "pfedme": lambda local, engine, seed: PFedMe(local, initial="seed"),
    "fedem": lambda local, engine, seed: FedEM(local),
    "fedgmm": make_fedgmm,
    "ditto": lambda local, engine, seed: Ditto(local, initial="seed"),
    "fedrep": lambda local, engine, seed: FedRep(local, initial="seed"),
}

#: Methods that end with rounds of another computation, which begins with the last state.
FINISH: dict[str, Callable[[LocalSGD], LocalOnly]] = {"fedavg+": LocalOnly}

#: What these have for a client that never trained is no use to it.
_POOR_FOR_NEWCOMERS = (LocalOnly, Ditto, PFedMe, FedRep, ClusteredFL)


def train(
    method: str | Computation,
    local: LocalSGD,
    data: Engine | Federation,
    *,
    n_rounds: int,
    sampler: Sampler | None = None,
    seed: int = 0,
    finish_rounds: int = 1,
    progress: bool | None = False,
) -> Personalised:
    """Train a method by name (or as made by hand) to the end, all its phases.

    Where clients keep models of their own, one that no round has drawn trains its own once at the end.

    Parameters
    ----------
    method
        A name in METHODS, or a computation of this package.
    local
        How a client trains.
    data
        The clients.
    n_rounds
        Rounds of the method itself.
    sampler, seed
        As for `rounds`.
    finish_rounds
        Rounds of what follows (fine-tuning in "fedavg+").
    progress
        True shows a bar, None one on a terminal and a line a minute elsewhere.

    >>> from fedscape.learning import cross_entropy, models
    >>> fed = Federation({"x": np.eye(4), "y": [0, 1, 1, 0]}, [0, 2, 4])
    >>> step = LocalSGD(models.linear(4, 2), cross_entropy, lr=1.0, epochs=1, batch_size=2)
    >>> float(train("fedavg+", step, fed, n_rounds=9).evaluate(fed).accuracy.mean())
    1.0
    """
    check_whole("n_rounds", n_rounds, least=0)
    check_whole("finish_rounds", finish_rounds, least=0)
    engine, clients = _checked_engine(data)
    how = _checked_local(method, local)
    class_column(how, clients)  # what is trained here is evaluated as a classifier
    if method == "fedgmm":
        made: Computation = make_fedgmm(local, engine, seed, progress=progress)
    else:
        made = METHODS[method](local, engine, seed) if isinstance(method, str) else method
    loop = rounds(made, engine, n_rounds=n_rounds, sampler=sampler, seed=seed, measure=0, allow=made.reveals)
    for _ in shown(loop, n_rounds=n_rounds, label=type(made).__name__, progress=progress):
        pass
    state = loop.state
    if isinstance(method, str) and method in FINISH:
        made = FINISH[method](local)
        begin = {**{n: v for n, v in state.items() if n.startswith("model.")}, "rows": made.start(seed)["rows"]}
        loop = rounds(made, engine, n_rounds=finish_rounds, seed=seed, state=begin, measure=0)
        for _ in shown(loop, n_rounds=finish_rounds, label=type(made).__name__, progress=progress):
            pass
        state = loop.state
    trained = Personalised(made, state, clients.ids, dict(engine.kept()), names=clients.names.get(how.target))
    return _with_undrawn(trained, clients, seed) if isinstance(made, _POOR_FOR_NEWCOMERS) else trained


def _checked_engine(data: Engine | Federation) -> tuple[Engine, Federation]:
    if not isinstance(data, Federation) and not hasattr(data, "run"):
        raise DataError(f"data must be a Federation or an engine such as Local, not a {type(data).__name__}")
    engine = as_engine(data)
    if not isinstance(engine.clients, Federation):
        raise DataError("train() is for clients whose data are here; elsewhere use rounds() with the method itself")
    return engine, engine.clients


def _checked_local(method: str | Computation, local: LocalSGD) -> LocalSGD:
    """How clients will train: as the method made by hand says, or as given."""
    if isinstance(method, str) and method not in METHODS:
        raise DataError(f"method must be one of {', '.join(METHODS)}, not {method!r}")
    if not isinstance(method, str | Computation):
        raise DataError(f"method must be a name or a computation of this package, not of type {type(method).__name__}")
    found = local if isinstance(method, str) else getattr(method, "local", None)
    return check_local(found)


def _with_undrawn(trained: Personalised, clients: Federation, seed: int) -> Personalised:
    """The same with models of the clients that no round has drawn, each from one training on its own rows.

    Clients of no known cluster take the one that fits them best at the end.
    """
    if isinstance(trained.method, ClusteredFL):
        drawn = ~trained.method.undecided(dict(trained.state), clients)
    else:
        lengths = [ragged.lengths for ragged in trained.kept.values()]
        drawn = np.any(lengths, axis=0) if lengths else np.zeros(len(clients), dtype=bool)
    if drawn.all():
        return trained
    more = trained.adapt(clients.take(np.flatnonzero(~drawn)), seed=seed)
    kept = with_kept_of(clients, more.ids, more.kept).kept  # in the clients' own order
    return replace(trained, ids=clients.ids, kept=dict(kept))

"""Before and after the rounds of personalised methods: first Gaussians, fine-tuning, undrawn clients."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, cast

import numpy as np

from fedscape.core.arrays import Ragged
from fedscape.core.blocks import as_ragged
from fedscape.core.engine import Engine, as_engine
from fedscape.core.federation import Federation
from fedscape.core.random import Key
from fedscape.core.rounds import rounds
from fedscape.core.sampling import Sampler
from fedscape.errors import DataError
from fedscape.learning.evaluation import model_arrays
from fedscape.learning.fedavg import FedAvg
from fedscape.learning.local import LocalSGD
from fedscape.mixtures.gaussian.model import GaussianMixture
from fedscape.personal.clustered import ClusteredFL
from fedscape.personal.features import principal_directions, projected
from fedscape.personal.fedala import FedALA
from fedscape.personal.fedgmm import FedGMM
from fedscape.personal.fedper import FedPer
from fedscape.personal.own_models import Ditto, LocalOnly, PFedMe
from fedscape.personal.personalised import Personalised
from fedscape.personal.profiles import ProfiledFL, Profiles
from fedscape.personal.shared import COMMON_MODEL, forward, stacked, with_kept_of
from fedscape.statistics.moments import Moments
from fedscape.types import Array, Arrays

WIDE = 128  # with more features, FedGMM's Gaussians use their leading directions
DIRECTIONS = 32
_ENOUGH = 16


class Common(FedAvg):
    """FedAvg among the personalised methods: every client has the common model and keeps nothing.

    >>> from fedscape.learning import cross_entropy, models
    >>> step = LocalSGD(models.linear(4, 2), cross_entropy, lr=1.0, epochs=1, batch_size=2)
    >>> Common(step).adapt({}, Federation({}, [0, 0]), None)
    {}
    """

    name = "common-model"
    #: The model that an unknown client gets; None if it gets none.
    newcomers: ClassVar[str | None] = COMMON_MODEL

    def log_probs(self, state: dict[str, Array], clients: Federation) -> Array:
        """log p(class | x) of each row: [rows, classes]."""
        params = stacked(self.local, {f"model.{n}": p for n, p in model_arrays(state).items()})
        return forward(self.local, [params], clients, slice(0, clients.n_rows), loss=False)[:, 0]

    def adapt(self, state: object, clients: Federation, key: object) -> dict[str, Array]:
        """Nothing: newcomers have the common model."""
        return {}


def is_wide(clients: object, column: str) -> bool:
    """Whether rows of this column are too wide for Gaussians."""
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
    """FedGMM from scratch: first fit its Gaussians to this column (by default the features) in a few rounds.

    Gaussians of more than WIDE features would cost minutes a round: they use DIRECTIONS leading directions instead.
    `progress` shows the rounds of that fit, as for `train`.
    """
    if column is None and is_wide(engine.clients, local.features):
        clients = cast(Federation, engine.clients)
        moments = Moments(column=local.features).fit(engine, sampler=sampler, progress=progress)
        basis = principal_directions(moments, DIRECTIONS)
        projection = projected(clients[local.features], *basis, residual=True)
        mixture = GaussianMixture(gaussians, column="z", rounds=n_rounds, seed=seed)
        mixture.fit(Federation({"z": projection}, clients.offsets, clients.ids), sampler=sampler, progress=progress)
        return FedGMM(local, mixture, learners, projection=basis)
    mixture = GaussianMixture(gaussians, column=column or local.features, rounds=n_rounds, seed=seed)
    mixture.fit(engine, sampler=sampler, progress=progress)
    return FedGMM(local, mixture, learners)


def make_profiled(local: LocalSGD, engine: Engine, seed: int, *, initial: str = "seed") -> ProfiledFL:
    """ProfiledFL from scratch: first find the groups of these clients by their rows and labels.

    Of fewer than 16 clients none are kept out to learn when to abstain, so that there is something to group.
    """
    clients = cast(Federation, engine.clients)
    few = int((clients.sizes > 0).sum()) < _ENOUGH
    profiles = Profiles(column=local.features, target=local.target, alpha=0.0 if few else 0.05, seed=seed)
    return ProfiledFL(local, profiles.fit(clients), initial=initial)


#: Methods whose model for a client that never trained is of no use to it.
_POOR_FOR_NEWCOMERS = (LocalOnly, Ditto, PFedMe, FedPer, FedALA, ClusteredFL)


def finished(
    method: Any, state: Arrays, engine: Engine, *, seed: int, tune: int | None = None, private: bool = False
) -> Personalised:
    """The model of a training that ends with this state, with the arrays that each client keeps.

    If clients keep models of their own, a client that no round has drawn trains its model now. The run is unchanged
    and can continue.

    Parameters
    ----------
    method
        The trained method.
    state
        Its last state.
    engine
        The clients, with the arrays they keep.
    seed
        Seed of the run.
    tune
        Rounds in which every client then trains the common model on its own rows and keeps it, as in FedAvg+; None
        skips fine-tuning.
    private
        Whether nothing may be sent during fine-tuning, not even the number of rows.
    """
    clients, kept = cast(Federation, engine.clients), dict(engine.kept())
    if tune is not None:
        method, state, kept = _tuned(method.local, state, engine, seed, tune, private)
    model = Personalised(method, state, clients.ids, kept, names=clients.names.get(method.local.target))
    return _with_undrawn(model, clients, seed) if isinstance(method, _POOR_FOR_NEWCOMERS) else model


def _tuned(
    local: LocalSGD, state: Arrays, engine: Engine, seed: int, n_rounds: int, private: bool
) -> tuple[LocalOnly, Arrays, dict[str, Ragged]]:
    """Fine-tune: rounds of local training from the common model; the engine is restored afterwards."""
    work, before = LocalOnly(local), dict(engine.kept())
    begin = {**{n: v for n, v in state.items() if n.startswith("model.")}, "rows": work.start(seed)["rows"]}
    if private:
        clients = cast(Federation, engine.clients).with_kept({})
        for r in range(n_rounds):
            clients = clients.with_kept(as_ragged(work.adapt(begin, clients, Key(seed, r)), len(clients)))
        return work, begin, dict(clients.kept)
    loop = rounds(work, engine, n_rounds=n_rounds, seed=seed, state=begin, measure=0)
    for _ in loop:
        pass
    kept = dict(engine.kept())
    engine.restore(before)
    return work, loop.state, kept


def check_clients(data: Engine | Federation) -> Engine:
    """The engine of clients with local data; others are refused."""
    if not isinstance(data, Federation) and not hasattr(data, "run"):
        raise DataError(f"data must be a Federation or an engine such as Local, not a {type(data).__name__}")
    engine = as_engine(data)
    if not isinstance(engine.clients, Federation):
        raise DataError("train() is for clients whose data are here; elsewhere use rounds() with the method itself")
    return engine


def _with_undrawn(trained: Personalised, clients: Federation, seed: int) -> Personalised:
    """Add models for the clients that no round has drawn, each trained once on its own rows.

    Clients without a known cluster take the one that fits them best at the end.
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

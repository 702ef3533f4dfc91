"""All methods by name on one network: the same training, the same evaluation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from fedscape.core.engine import Engine, as_engine
from fedscape.core.federation import Federation
from fedscape.core.rounds import rounds
from fedscape.core.sampling import Sampler
from fedscape.core.schedule import cut
from fedscape.errors import DataError
from fedscape.learning.evaluation import Evaluation
from fedscape.learning.evaluation import evaluate as evaluate_model
from fedscape.learning.fedavg import FedAvg
from fedscape.learning.local import LocalSGD
from fedscape.learning.server import Rule
from fedscape.temporal.baselines import BranchFedEM, LocalCentres, MinLoss, NearestCentre, SemiCyclic, centres_of
from fedscape.temporal.branched import MEAN, Branched
from fedscape.temporal.branches import MeanOfBranches, MultiBranch
from fedscape.temporal.curves import Blocks, Curve
from fedscape.temporal.fedtem import FedTEM, FedTEMBySums
from fedscape.temporal.fedtkm import FedTKM
from fedscape.temporal.priors import Prior, Soft
from fedscape.types import Array, Arrays

#: Every method; "single" is the network with one branch, "t-shot" collects for a period before it trains.
METHODS = ("fedtem", "fedtem-sums", "fedtkm", "em-only", "vanilla", "single", "scsgd", "ifca", "t-shot", "fedem")
_BLOCK = 2**13  # rows evaluated at once


def method_for(
    name: str,
    local: LocalSGD,
    prior: Prior | None = None,
    *,
    strength: float = 0.5,
    smoothing: float = 0.1,
    server: Rule = MEAN,
    weighting: str = "samples",
    initial: str = "given",
    hours: str = "all",
    inertia: float = 0.0,
    centres: Array | None = None,
) -> FedAvg:
    """A method of METHODS as a computation for `rounds`.

    Parameters
    ----------
    name
        A name of METHODS.
    local
        How a client trains; its model is a MultiBranch (for "single" its first branch is used).
    prior
        For "fedtem", "fedtem-sums" and "fedtkm"; for "scsgd" which branch is trained when.
    strength, smoothing
        lambda and epsilon of equation (4), for the methods that smooth labels.
    server, weighting, initial
        As for FedAvg.
    hours, inertia
        When and how fast "fedtem", "fedtem-sums" and "fedtkm" learn their modes; as for FedTEM.
    centres
        For "t-shot": what `collect_centres` found.

    >>> from fedscape.learning import cross_entropy, models
    >>> step = LocalSGD(MultiBranch(models.mlp(4, 3, 2)), cross_entropy, lr=1.0, epochs=1, batch_size=2)
    >>> type(method_for("ifca", step)).__name__
    'MinLoss'
    """
    if name not in METHODS:
        raise DataError(f"method must be one of {', '.join(METHODS)}, not {name!r}")
    if not isinstance(local.model, MultiBranch):
        raise DataError(f"the model must be a MultiBranch(model, layer), not {type(local.model).__name__}")
    plain: dict[str, Any] = {"server": server, "weighting": weighting, "initial": initial}
    smooth = {**plain, "strength": strength, "smoothing": smoothing}
    timed = {**smooth, "hours": hours, "inertia": inertia}
    if name == "t-shot" and centres is None:
        raise DataError("t-shot needs centres: run collect_centres() over a period first")
    made: dict[str, Callable[[], FedAvg]] = {
        "fedtem": lambda: FedTEM(local, prior, **timed),
        "fedtem-sums": lambda: FedTEMBySums(local, prior, **timed),
        "fedtkm": lambda: FedTKM(local, prior, **timed),
        "em-only": lambda: FedTEM(local, None, **smooth),
        "vanilla": lambda: FedAvg(replace(local, model=MeanOfBranches(local.model)), **plain),
        "single": lambda: FedAvg(replace(local, model=local.model.first()), **plain),
        "scsgd": lambda: SemiCyclic(local, _halves(prior), **plain),
        "ifca": lambda: MinLoss(local, **smooth),
        "t-shot": lambda: NearestCentre(local, np.asarray(centres), **plain),
        "fedem": lambda: BranchFedEM(local, **plain),
    }
    return made[name]()


def _halves(prior: Prior | None) -> Curve:
    """Which branch semi-cyclic SGD trains when."""
    return Blocks(getattr(prior, "period", 256.0)) if prior is None or isinstance(prior, Soft) else prior


def collect_centres(
    data: Engine | Federation,
    n_modes: int,
    *,
    n_rounds: int,
    sampler: Sampler | None = None,
    seed: int = 0,
    column: str,
) -> Array:
    """Centres of raw rows from all clients of a period, which the server sees one by one: T-shot k-means, [K, d]."""
    work, engine = LocalCentres(column=column), as_engine(data)
    state: Arrays = work.start(seed)
    for r in rounds(work, engine, n_rounds=n_rounds, sampler=sampler, seed=seed, measure=0, allow=work.reveals):
        state = r.state
    return centres_of(state, n_modes, seed=seed)


def evaluate(
    method: FedAvg, state: Arrays, federation: Federation, *, unit: str = "batch", batch: int = 64
) -> Evaluation:
    """Loss and accuracy of every client, each unit under the branch that it chooses without labels.

    Nothing is kept of test clients, and their true group is not known here. (`BranchFedEM` alone looks at labels.)

    Parameters
    ----------
    method
        What was trained; one without branches to choose from is evaluated as it is.
    state
        Its state.
    federation
        The rows to evaluate on.
    unit
        Who chooses a branch: "sample", "batch" (of a client's rows) or "client".
    batch
        Rows of a batch.

    >>> from fedscape.learning import cross_entropy, models
    >>> fed = Federation({"x": np.eye(4), "y": [0, 1, 0, 1]}, [0, 2, 4])
    >>> step = LocalSGD(MultiBranch(models.mlp(4, 3, 2)), cross_entropy, lr=1.0, epochs=1, batch_size=2)
    >>> method = FedTKM(step)
    >>> evaluate(method, method.start(0), fed).rows.tolist()
    [2, 2]
    """
    if not isinstance(method, Branched):
        return evaluate_model(method.local, state, federation)
    if len(federation) == 0:
        raise DataError("federation must have a client to evaluate, it has none")
    blocks = [federation.take(slice(*b)) for b in cut(federation.sizes, 4096, _BLOCK)]
    parts = [method.losses_and_hits(state, part, unit=unit, batch=batch) for part in blocks]
    loss, right = (np.concatenate([p[i] for p in parts]) for i in (0, 1))
    rows = federation.sizes
    with np.errstate(invalid="ignore", divide="ignore"):
        return Evaluation(federation.ids, rows, loss / rows, right / rows)

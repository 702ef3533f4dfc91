"""Before and after the rounds of methods with branches: first centres, halves of a day, evaluation."""

from __future__ import annotations

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
from fedscape.temporal.baselines import LocalCentres, centres_of
from fedscape.temporal.branched import Branched
from fedscape.temporal.covariates import Harmonics
from fedscape.temporal.curves import Blocks, Curve
from fedscape.temporal.priors import Prior, Soft
from fedscape.types import Array, Arrays

_BLOCK = 2**13  # rows evaluated at once


def halves(prior: Prior | Harmonics | None) -> Curve:
    """The schedule by which semi-cyclic SGD picks the branch to train."""
    return Blocks(getattr(prior, "period", 256.0)) if prior is None or isinstance(prior, Soft | Harmonics) else prior


def collect_centres(
    data: Engine | Federation,
    n_modes: int,
    *,
    n_rounds: int,
    sampler: Sampler | None = None,
    seed: int = 0,
    column: str,
) -> Array:
    """Collect k-means centres of raw rows from all clients of a period, each visible to the server; return [K, d]."""
    work, engine = LocalCentres(column=column), as_engine(data)
    state: Arrays = work.start(seed)
    for r in rounds(work, engine, n_rounds=n_rounds, sampler=sampler, seed=seed, measure=0, allow=work.reveals):
        state = r.state
    return centres_of(state, n_modes, seed=seed)


def evaluate(
    method: FedAvg, state: Arrays, federation: Federation, *, unit: str = "batch", batch: int = 64
) -> Evaluation:
    """Loss and accuracy of every client, each unit under the branch that it chooses without labels.

    Nothing is kept of test clients, and their true group stays unknown. (Only `BranchFedEM` uses labels.)

    Parameters
    ----------
    method
        The trained method; one without branches is evaluated as it is.
    state
        Its state.
    federation
        The rows to evaluate on.
    unit
        The unit that chooses a branch: "sample", "batch" (of a client's rows) or "client".
    batch
        Rows of a batch.

    >>> from fedscape.learning import LocalSGD, cross_entropy, models
    >>> from fedscape.temporal import FedTKM, MultiBranch
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

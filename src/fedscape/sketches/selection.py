"""Select clients near the whole more often (Algorithm 3); also by sums only."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from fedscape.core.arrays import Ragged
from fedscape.core.computation import Computation
from fedscape.core.federation import Federation
from fedscape.core.random import Key
from fedscape.errors import DataError
from fedscape.sketches.distances import normalise
from fedscape.sketches.distribution import DistributionSketch
from fedscape.types import Array, Arrays, HasKeys, Kept

_STEEPEST = 50.0  # cap on a summed logit: exp(50) is near certainty, and sums do not overflow


def logits(distances: npt.ArrayLike, *, scale: float | None = None, temperature: float = 1.0) -> Array:
    """scale / (distance x temperature), the logits of the softmax in Algorithm 3; -inf without a distance.

    The paper's distance has no scale. With its Frobenius norm (scale 1) all clients are nearly alike; with the mean
    norm of a row, as in its code (sqrt(rows) times smaller), the nearest is nearly certain. By default distances are
    divided by their root mean square, which removes rows and cells. A client at half the usual distance has e = 2.7
    times the usual weight, and e**(1 / t) times at temperature t.

    >>> logits([1.0, 2.0], scale=2.0).tolist()
    [2.0, 1.0]
    """
    d = np.asarray(distances, dtype=float)
    if not (temperature > 0 and (scale is None or scale > 0)):
        raise DataError(f"temperature and scale must be positive, got {temperature} and {scale}")
    finite = np.isfinite(d)
    if (d[finite] < 0).any():
        raise DataError(f"distances must not be negative, got {d[finite].min()}")
    usual = float(np.sqrt((d[finite] ** 2).mean())) if scale is None and finite.any() else scale or 1.0
    return np.where(finite, usual / np.maximum(np.where(finite, d, np.inf), 1e-12) / temperature, -np.inf)


@dataclass(frozen=True, eq=False, repr=False)
class NearTheWhole:
    """A sampler: draws `active` clients uniformly, and `size` of them without replacement, preferring near ones.

    Algorithm 3 with the weights exp(scale / (distance x temperature)), drawn sequentially as in its text. Gumbel's
    trick makes the draw a function of seed, round and client. Clients without a distance (no rows) never take part. The
    cohort depends on everyone's data, which no accountant covers: refused under privacy.

    Parameters
    ----------
    distances
        Distance of each client's sketch to the pooled one, in the order of the clients; NaN if undefined.
    size
        K, the size of the cohort.
    active
        L, the number of candidates; by default 3 K.
    scale, temperature
        As in `logits`.

    >>> sampler = NearTheWhole([0.1, 9.0, 9.0, 0.1], size=2, active=4, temperature=0.01)
    >>> sampler.draw(Federation({}, [0] * 5), Key(0))
    array([0, 3])
    """

    distances: npt.ArrayLike
    size: int
    active: int | None = None
    scale: float | None = None
    temperature: float = 1.0
    reads_data: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.size < 1 or (self.active is not None and self.active < self.size):
            raise DataError(f"size must be at least 1 and active not below it, got {self.size} and {self.active}")
        logits(self.distances, scale=self.scale, temperature=self.temperature)

    def __repr__(self) -> str:
        parts = f"size={self.size}, active={self.active}, scale={self.scale}, temperature={self.temperature}"
        return f"NearTheWhole({_digest(self.distances)}, {parts})"

    def draw(self, clients: HasKeys, key: Key) -> Array:
        weight = logits(self.distances, scale=self.scale, temperature=self.temperature)
        if len(weight) != len(clients.keys):
            raise DataError(f"there are {len(weight):,} distances for {len(clients.keys):,} clients")
        able = np.isfinite(weight)
        if able.sum() < self.size:
            raise DataError(f"a cohort of {self.size:,} cannot be drawn from {int(able.sum()):,} clients with rows")
        active = min(self.active or 3 * self.size, int(able.sum()))
        turn = np.where(able, key.to("active").uniform(clients), np.inf)
        awake = np.sort(np.argsort(turn, kind="stable")[:active])
        u = np.maximum(key.to("selected").uniform(clients)[awake], 1e-300)
        score = weight[awake] - np.log(-np.log(u))
        return np.sort(awake[np.argsort(-score, kind="stable")[: self.size]])


class OwnWeights(Computation):
    """Selection by sums only, in two rounds: no sketch leaves its client.

    The server broadcasts the pooled sketch. Each client computes its distance d to it and keeps it. Round one sums d^2,
    which gives the scale; round two sums the weights exp(scale / (d x temperature)). A client knows its own weight and
    the total, and joins a round by its own coin (`KeyedCoin`).

    Parameters
    ----------
    sketch
        The hash functions, ready to use.
    whole
        The sketch of all clients, normalised.
    temperature
        As in `logits`.

    >>> OwnWeights(DistributionSketch(rows=2, bits=1), [[0.5, 0.5], [1.0, 0.0]]).start(0)["scale"]
    array(0.)
    """

    name = "sketch-own-weights"

    block_clients = 64

    def __init__(self, sketch: DistributionSketch, whole: npt.ArrayLike, *, temperature: float = 1.0) -> None:
        self.sketch = sketch
        self.whole = np.asarray(whole, dtype=float)
        self.temperature = temperature

    def start(self, seed: int) -> Arrays:
        return {"whole": self.whole, "scale": np.zeros(()), "weight": np.zeros(())}

    def step(self, state: Arrays, clients: Federation, key: Key) -> tuple[Arrays, Kept]:
        own = normalise(self.sketch.counts(clients))
        d = np.sqrt(((own - state["whole"]) ** 2).sum(axis=(1, 2)))
        has_rows = clients.sizes > 0
        scale = float(state["scale"])
        if scale == 0:
            return {"square": np.where(has_rows, d**2, 0.0), "there": has_rows.astype(np.int64), "weight": 0.0 * d}, {}
        steep = logits(np.where(has_rows, d, np.nan), scale=scale, temperature=self.temperature)
        weight = np.exp(np.minimum(steep, _STEEPEST))
        zero = np.zeros(len(clients))
        kept = {"weight": Ragged(weight, np.arange(len(clients) + 1))}
        return {"square": zero, "there": zero.astype(np.int64), "weight": weight}, kept

    def update(self, state: Arrays, total: Arrays, key: Key) -> Arrays:
        scale = state["scale"]
        if float(scale) == 0:
            scale = np.sqrt(np.maximum(total["square"], 1e-24) / np.maximum(total["there"], 1))
        return {"whole": state["whole"], "scale": np.asarray(scale), "weight": np.asarray(total["weight"])}

    def valid_rows(self, state: Arrays, clients: Federation) -> Array | None:
        return self.sketch.valid_rows(state, clients)

    @classmethod
    def examples(cls) -> Sequence[tuple[OwnWeights, Federation]]:
        sketch, fed = DistributionSketch.examples()[0]
        return [(cls(sketch, normalise(sketch.count(fed["x"]))), fed)]


@dataclass(frozen=True, eq=False, repr=False)
class KeyedCoin:
    """A sampler: each client joins by its own coin, with probability min(1, size x weight / total).

    In a deployment each client tosses it alone, from its own weight and the broadcast total; here `weights` holds what
    the clients keep. About `size` clients join, fewer if a weight above total / size is capped at certainty. Like
    `NearTheWhole` it is refused under privacy.

    >>> KeyedCoin([0.0, 1.0], total=1.0, size=1).draw(Federation({}, [0] * 3), Key(0))
    array([1])
    """

    weights: npt.ArrayLike
    total: float
    size: int
    reads_data: ClassVar[bool] = True

    def __repr__(self) -> str:
        return f"KeyedCoin({_digest(self.weights)}, total={self.total}, size={self.size})"

    def draw(self, clients: HasKeys, key: Key) -> Array:
        weights = np.asarray(self.weights, dtype=float)
        if len(weights) != len(clients.keys) or not self.total > 0:
            raise DataError(
                f"there are {len(weights):,} weights for {len(clients.keys):,} clients, and their total is {self.total}"
            )
        return np.flatnonzero(key.to("selected").uniform(clients) < self.size * weights / self.total)


def _digest(values: npt.ArrayLike) -> str:
    """A short digest, by which a resumed run notices changed numbers."""
    numbers = np.ascontiguousarray(values, dtype=float)
    return f"{len(numbers)} numbers {hashlib.sha256(numbers.tobytes()).hexdigest()[:12]}"

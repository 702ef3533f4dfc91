"""Statistics of the target, from which boosting starts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedscape.core.computation import Computation
from fedscape.core.federation import Federation
from fedscape.core.random import Key
from fedscape.tabular.growing import TreeRounds
from fedscape.tabular.losses import check_loss, target_values, valid_targets
from fedscape.types import Array, Arrays, Kept


class TargetSurvey(Computation):
    """Class counts, or number, sum and sum of squares of a numeric target: the initial margins of boosting.

    Parameters
    ----------
    loss, target
        As for `BoostedTrees`.
    classes
        Number of classes; 0 for numbers.
    ends
        The least and greatest target, to which it is clipped; sums are then in units of half the range.
    """

    name = "tree-survey"

    def __init__(self, loss: str, *, target: str = "y", classes: int = 0, ends: Sequence[float] | None = None) -> None:
        self.loss = loss
        self.target = target
        self.classes = classes
        self.ends = ends

    def start(self, seed: int) -> Arrays:
        check_loss(self.loss)
        return {"sums": np.zeros(self.classes or 3)}

    def step(self, state: Arrays, clients: Federation, key: Key) -> tuple[Arrays, Kept]:
        y = target_values(clients, self.target, self.loss, self.classes)
        if self.classes:
            rows: Array = (y[:, None] == np.arange(self.classes)).astype(np.int64)
        else:
            low, high = self.ends or (-1.0, 1.0)
            y = y if self.ends is None else np.clip(y, low, high)
            unit = (y - (low + high) / 2) / ((high - low) / 2)
            rows = np.column_stack([np.ones(len(y)), unit, unit**2])
        return {"sums": clients.segment_sum(rows)}, {}

    def update(self, state: Arrays, total: Arrays, key: Key) -> Arrays:
        return {"sums": np.asarray(total["sums"], dtype=float)}

    def row_bound(self, state: Arrays, norm: int, clients: Federation | None = None) -> float | None:
        if self.classes:
            return 1.0
        return None if self.ends is None else (float(np.sqrt(3)) if norm == 2 else 3.0)

    def valid_rows(self, state: Arrays, clients: Federation) -> Array | None:
        return valid_targets(clients[self.target], self.loss, self.classes)

    def coded_columns(self) -> Sequence[str]:
        return (self.target,) if self.classes else ()

    def begin(self, sums: Array) -> tuple[Array, float]:
        """Initial margins, and the unit of gradients: a power of two near the standard deviation of the target."""
        if self.classes:
            shares = np.maximum(sums, 0.5) / np.maximum(sums, 0.5).sum()
            base = np.log(shares[1:] / shares[:1]) if self.loss == "logistic" else np.log(shares)
            return base, 1.0
        low, high = self.ends or (-1.0, 1.0)
        n, half = max(float(sums[0]), 1.0), (high - low) / 2
        mean = float(np.clip(sums[1] / n, -1e300, 1e300))
        spread = np.sqrt(max(float(sums[2]) / n - mean**2, 0.0)) * half
        mean = mean * half + (low + high) / 2
        if self.loss == "poisson":
            mean = max(mean, 1e-9)
            return np.array([np.log(mean)]), _power(max(mean, 1.0))
        return np.array([mean]), _power(max(spread, 1e-30))

    @classmethod
    def examples(cls) -> Sequence[tuple[TargetSurvey, Federation]]:
        fed = TreeRounds.examples()[0][1]
        return [(cls("softmax", target="kind", classes=3), fed), (cls("squared", ends=(-9.0, 9.0)), fed)]


def _power(value: float) -> float:
    return float(2.0 ** np.ceil(np.log2(value)))

"""Learning rates that change from round to round: a factor as a function of the round."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedscape.errors import DataError


@dataclass(frozen=True)
class CosineDecay:
    """Falls from 1 to `end` over `n_rounds` along half a cosine, and stays there.

    >>> [round(CosineDecay(4)(r), 3) for r in (0, 2, 4, 9)]
    [1.0, 0.5, 0.0, 0.0]
    """

    n_rounds: int
    end: float = 0.0

    def __post_init__(self) -> None:
        if self.n_rounds < 1 or not 0 <= self.end <= 1:
            raise DataError(f"n_rounds must be at least 1 and end between 0 and 1, not {self.n_rounds} and {self.end}")

    def __call__(self, index: int) -> float:
        return self.end + (1 - self.end) * (1 + math.cos(math.pi * min(index / self.n_rounds, 1.0))) / 2


@dataclass(frozen=True)
class StepDecay:
    """Multiplied by `factor` after every `every` rounds.

    >>> [StepDecay(0.5, every=2)(r) for r in range(5)]
    [1.0, 1.0, 0.5, 0.5, 0.25]
    """

    factor: float
    every: int = 1

    def __post_init__(self) -> None:
        if self.every < 1 or not 0 < self.factor <= 1:
            raise DataError(
                f"every must be at least 1 and factor above 0 and at most 1, not {self.every}, {self.factor}"
            )

    def __call__(self, index: int) -> float:
        return float(self.factor ** (index // self.every))

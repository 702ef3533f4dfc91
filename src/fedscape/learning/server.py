"""What the server makes of the mean of the clients' moves (Reddi et al. 2021, algorithm 2).

With d the mean move: Mean x += lr d; Momentum m = beta m + d, x += lr m; the adaptive rules
m = beta1 m + (1 - beta1) d, x += lr m / (sqrt(v) + epsilon), and differ in v. Rules use operators only, so they take
arrays as well as tensors on any device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from fedscape.errors import DataError
from fedscape.types import Array, Arrays


class Rule(Protocol):
    """Turns a mean move into the server's own move; what it remembers is part of the state."""

    def memory(self, params: Arrays) -> Arrays:
        """What it remembers before the first round."""
        ...

    def move(self, memory: Arrays, mean: Arrays) -> tuple[Arrays, Arrays]:
        """The moves of the parameters, and what it remembers then."""
        ...


@dataclass(frozen=True)
class Mean:
    """The mean itself, times `lr`: FedAvg (McMahan et al. 2017).

    >>> Mean(lr=0.5).move({}, {"w": np.array([2.0])})[0]["w"]
    array([1.])
    """

    lr: float = 1.0

    def __post_init__(self) -> None:
        _check(self.lr)

    def memory(self, params: Arrays) -> Arrays:
        return {}

    def move(self, memory: Arrays, mean: Arrays) -> tuple[Arrays, Arrays]:
        return {name: d if self.lr == 1 else self.lr * d for name, d in mean.items()}, {}


@dataclass(frozen=True)
class Momentum:
    """A running sum of means: FedAvgM (Hsu et al. 2019).

    >>> Momentum(beta=0.5).move({"m.w": np.array([2.0])}, {"w": np.array([1.0])})[0]["w"]
    array([2.])
    """

    lr: float = 1.0
    beta: float = 0.9

    def __post_init__(self) -> None:
        _check(self.lr, self.beta)

    def memory(self, params: Arrays) -> Arrays:
        return {f"m.{name}": np.zeros_like(p) for name, p in params.items()}

    def move(self, memory: Arrays, mean: Arrays) -> tuple[Arrays, Arrays]:
        new = {f"m.{name}": self.beta * memory[f"m.{name}"] + d for name, d in mean.items()}
        return {name: self.lr * new[f"m.{name}"] for name in mean}, new


@dataclass(frozen=True)
class _Adaptive:
    """What the adaptive rules share: two moments; `floor` is the square root of the second one's first value.

    The paper asks for a floor of at least epsilon; 0, the default, agrees with FLamby's published runs.
    """

    lr: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.99
    epsilon: float = 1e-3
    floor: float = 0.0

    def __post_init__(self) -> None:
        _check(self.lr, self.beta1, self.beta2)
        if not (self.epsilon > 0 and self.floor >= 0):
            raise DataError(f"epsilon must be above 0 and floor at least 0, not {self.epsilon} and {self.floor}")

    def memory(self, params: Arrays) -> Arrays:
        first = {f"m.{name}": np.zeros_like(p) for name, p in params.items()}
        return {**first, **{f"v.{name}": np.full_like(p, self.floor**2) for name, p in params.items()}}

    def move(self, memory: Arrays, mean: Arrays) -> tuple[Arrays, Arrays]:
        moves, new = {}, {}
        for name, d in mean.items():
            m = self.beta1 * memory[f"m.{name}"] + (1 - self.beta1) * d
            v = self._second(memory[f"v.{name}"], d * d)
            moves[name] = self.lr * m / (v**0.5 + self.epsilon)
            new[f"m.{name}"], new[f"v.{name}"] = m, v
        return moves, new

    def _second(self, v: Array, square: Array) -> Array:
        raise TypeError("use Adam, Yogi or Adagrad")


@dataclass(frozen=True)
class Adam(_Adaptive):
    """v = beta2 v + (1 - beta2) d^2: FedAdam.

    `correction="bias"` multiplies lr by sqrt(1 - beta2^t) / (1 - beta1^t), epsilon staying beside the uncorrected
    sqrt(v), as Keras does; the round counts as t = 1 + `steps_before`. The FedTEM paper's FedAdam is
    Adam(lr, beta2=0.999, epsilon=..., correction="bias", steps_before=1): its optimiser had taken one step of zero.

    >>> rule = Adam(1.0, beta2=0.999, epsilon=1e-12, correction="bias", steps_before=1)
    >>> w = {"w": np.ones(1)}
    >>> rule.move(rule.memory(w), w)[0]["w"].round(3)
    array([0.744])
    """

    correction: str = "none"
    steps_before: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.correction not in ("none", "bias"):
            raise DataError(f"correction must be 'none' or 'bias', not {self.correction!r}")
        if self.steps_before < 0:
            raise DataError(f"steps_before must be at least 0, not {self.steps_before}")

    def memory(self, params: Arrays) -> Arrays:
        counted = {"t": np.asarray(self.steps_before, dtype=np.int64)} if self.correction == "bias" else {}
        return {**super().memory(params), **counted}

    def move(self, memory: Arrays, mean: Arrays) -> tuple[Arrays, Arrays]:
        moves, new = super().move(memory, mean)
        if self.correction == "none":
            return moves, new
        t = int(memory["t"]) + 1
        factor = np.sqrt(1 - self.beta2**t) / (1 - self.beta1**t)
        return {name: factor * move for name, move in moves.items()}, {**new, "t": np.asarray(t)}

    def _second(self, v: Array, square: Array) -> Array:
        return self.beta2 * v + (1 - self.beta2) * square


@dataclass(frozen=True)
class Yogi(_Adaptive):
    """v = v - (1 - beta2) d^2 sign(v - d^2): FedYogi.

    >>> Yogi(beta2=0.5)._second(np.array([1.0, 4.0]), np.array([4.0, 1.0]))
    array([3. , 3.5])
    """

    def _second(self, v: Array, square: Array) -> Array:
        sign = (v > square) * 1.0 - (v < square) * 1.0
        return v - (1 - self.beta2) * square * sign


@dataclass(frozen=True)
class Adagrad(_Adaptive):
    """v = v + d^2: FedAdagrad (with beta1 = 0 by default).

    >>> Adagrad()._second(np.array([1.0]), np.array([4.0]))
    array([5.])
    """

    beta1: float = 0.0

    def _second(self, v: Array, square: Array) -> Array:
        return v + square


def _check(lr: float, *betas: float) -> None:
    if not 0 <= lr < np.inf or any(not 0 <= b < 1 for b in betas):
        raise DataError(f"lr must be at least 0 and betas at least 0 and below 1, not {lr} and {betas}")

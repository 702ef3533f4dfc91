"""The mean of a network over rounds, as part of the state: `mean.<parameter>` beside `model.<parameter>`."""

from __future__ import annotations

import numpy as np

from fedscape.learning.evaluation import model_arrays
from fedscape.learning.local import LocalSGD
from fedscape.learning.trainer import trainer_of
from fedscape.types import Arrays

_YOUNG = 10  # in the first rounds t the mean keeps (t + 1) / (t + 10) of itself


def first_mean(state: Arrays) -> Arrays:
    """The mean before the first round: the network itself."""
    return {f"mean.{name}": np.array(values) for name, values in model_arrays(state).items()}


def next_mean(local: LocalSGD, state: Arrays, after: Arrays, inertia: float, t: int) -> Arrays:
    """The mean after round t: the one in `state` with weight `inertia`, less in the first rounds, and the network.

    >>> from torch import nn
    >>> from fedscape.learning import cross_entropy
    >>> one = {"model.weight": np.ones((1, 1)), "mean.weight": np.zeros((1, 1))}
    >>> step = LocalSGD(nn.Linear(1, 1, bias=False), cross_entropy, lr=1.0, epochs=1, batch_size=2)
    >>> next_mean(step, one, one, 0.5, 9)["mean.weight"].tolist()
    [[0.5]]
    """
    kept, device = min(inertia, (t + 1) / (t + _YOUNG)), trainer_of(local)
    names = [(f"mean.{name}", f"model.{name}") for name in local.names]
    if device.holds:
        return device.arrays(
            {m: device.tensor(m, state[m]) * kept + device.tensor(n, after[n]) * (1 - kept) for m, n in names}
        )
    mean = {}
    for m, n in names:
        mean[m] = values = np.empty_like(state[m])  # without `out` shape () would give a number, not an array
        np.multiply(state[m], kept, out=values, dtype=values.dtype)
        values += np.asarray(after[n]) * (1 - kept)
    return mean


def has_mean(state: Arrays) -> bool:
    """Whether a state has a mean beside its network."""
    return any(name.startswith("mean.") for name in reversed(state))


def with_mean(state: Arrays) -> Arrays:
    """The state with the mean in place of the network; unchanged if it has none.

    >>> with_mean({"model.w": np.ones(1), "mean.w": np.zeros(1)})["model.w"].tolist()
    [0.0]
    """
    return {**state, **{f"model.{n}": state[f"mean.{n}"] for n in model_arrays(state) if f"mean.{n}" in state}}

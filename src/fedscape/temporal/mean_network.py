"""The mean of a network over rounds, as part of the state: `mean.<parameter>` beside `model.<parameter>`."""

from __future__ import annotations

import numpy as np

from fedscape.learning.evaluation import model_arrays
from fedscape.types import Arrays

_YOUNG = 10  # in the first rounds t the mean keeps (t + 1) / (t + 10) of itself


def first_mean(state: Arrays) -> Arrays:
    """The mean before the first round: the network itself."""
    return {f"mean.{name}": np.array(values) for name, values in model_arrays(state).items()}


def next_mean(state: Arrays, after: Arrays, inertia: float, t: int) -> Arrays:
    """The mean after round t: the one in `state` with weight `inertia`, less in the first rounds, and the network.

    >>> one = {"model.w": np.ones(1), "mean.w": np.zeros(1)}
    >>> next_mean(one, one, 0.5, 9)["mean.w"].tolist()
    [0.5]
    """
    kept = min(inertia, (t + 1) / (t + _YOUNG))
    old = {name: state[f"mean.{name}"] for name in model_arrays(state)}
    new = model_arrays(after)
    return {f"mean.{n}": (kept * v + (1 - kept) * np.asarray(new[n])).astype(v.dtype) for n, v in old.items()}


def with_mean(state: Arrays) -> Arrays:
    """The state with the mean in place of the network; unchanged if it has none.

    >>> with_mean({"model.w": np.ones(1), "mean.w": np.zeros(1)})["model.w"].tolist()
    [0.0]
    """
    return {**state, **{f"model.{n}": state[f"mean.{n}"] for n in model_arrays(state) if f"mean.{n}" in state}}

"""How the weights of many clients lie in memory."""

from __future__ import annotations

from collections.abc import Collection

from fedscape.learning.fast.gradients import member
from fedscape.learning.layers import Module
from fedscape.types import Tensor


def rows_like(twin: Module | None, start: Tensor, rows: int, name: str) -> Tensor:
    """Zeros for this many rows; kernels of folded convolutions in the order that their products want."""
    shape = start.shape[1:]
    if len(shape) < 4 or twin is None:
        return start.new_zeros((rows, *shape))
    order = getattr(twin.get_submodule(name.rpartition(".")[0]), "order", (0, 1, 2, 3))
    back = [1 + order.index(axis) for axis in range(4)]
    return start.new_zeros((rows, *(shape[axis] for axis in order))).permute(0, *back)


def shortened(twin: Module | None, paths: Collection[str], precision: str) -> list[str]:
    """Weights of layers that take their own step, whose products are of shorter numbers."""
    if twin is None or precision != "bf16":
        return []
    return [member(path, "weight") for path in paths if hasattr(twin.get_submodule(path), "short")]


def take_turns(rows: Tensor, start: Tensor) -> None:
    """Fill rows from `start`, round-robin; a remainder is left unchanged."""
    many = len(rows) // len(start) * len(start)
    rows[:many].unflatten(0, (-1, len(start))).copy_(start)


def is_smaller(places: int, start: Tensor) -> bool:
    """Whether low-rank factors of this many rows take less memory than the weights [..., out, features]."""
    out, features = start.shape[-2:]
    return bool(places * (out + features) <= out * features)

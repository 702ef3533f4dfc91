"""Types that annotations everywhere share; nothing here does anything."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

import numpy.typing as npt

if TYPE_CHECKING:
    from fedscape.core.arrays import Ragged
    from fedscape.core.kept import Pages

#: A NumPy array of any type and shape.
Array = npt.NDArray[Any]
#: Arrays by name: a state, what clients send, a total.
Arrays = dict[str, Array]
#: What clients keep, by name: [clients, ...] (as Pages where a device holds it), or a Ragged where lengths differ.
Kept = Mapping[str, "Array | Ragged | Pages"]
#: A tensor of torch, which is an optional dependency: its types are not checked.
Tensor = Any
#: Tensors by name: parameters of a model, their gradients.
Tensors = dict[str, Tensor]


class HasKeys(Protocol):
    """Anything whose clients have 64-bit keys: a Federation, for one."""

    @property
    def keys(self) -> Array: ...


class HasRows(HasKeys, Protocol):
    """Clients with rows."""

    @property
    def offsets(self) -> Array: ...

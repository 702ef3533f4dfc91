"""Programs as CUDA graphs: captured once, then replayed.

benchmarks/fast_paths.py, row "recorded step": 3.8 times.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from fedscape.learning.local import LocalSGD
from fedscape.types import Tensor, Tensors


def records(local: LocalSGD) -> bool:
    """Whether programs are captured as CUDA graphs and replayed."""
    return local.on_gpu


class Pool(NamedTuple):
    """A memory pool and a stream shared by CUDA graphs; freed with the last of them."""

    memory: Any
    stream: Any


def new_pool() -> Pool:
    """A pool of its own."""
    return Pool(torch.cuda.graph_pool_handle(), torch.cuda.Stream())


def copy_all(to: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    """Copy tensors into others; those of one type by few kernels for all."""
    kinds = {(a.dtype, b.dtype) for a, b in zip(to, values, strict=True)}
    for kind in kinds:
        pairs = [(a, b) for a, b in zip(to, values, strict=True) if (a.dtype, b.dtype) == kind]
        torch._foreach_copy_([a for a, _ in pairs], [b for _, b in pairs])


def clones(tensors: Mapping[str, Tensor]) -> Tensors:
    """Copies that lie as one piece each."""
    copies = {n: torch.empty(v.shape, dtype=v.dtype, device=v.device) for n, v in tensors.items()}
    copy_all(list(copies.values()), list(tensors.values()))
    return copies


class Recorded:
    """A CUDA graph, captured at the first call and replayed from then on: the host launches copies only."""

    def __init__(self, program: Callable[..., Any], moved: list[Tensor], pool: Pool | None) -> None:
        self.program = program
        self.moved = moved  # what the program changes in its memory
        self.pool = pool  # where others that never run at the same time are recorded as well
        self.graph: Any = None

    def __call__(self, *arguments: Tensor) -> Any:
        """Replay with these arguments; the result is overwritten by the next call of any program of this pool."""
        if self.graph is None:
            self._record(arguments)
        copy_all(self.held, arguments)
        self.graph.replay()
        return self.output

    def _record(self, arguments: tuple[Tensor, ...]) -> None:
        self.held = [values.clone() for values in arguments]
        before = [values.clone() for values in self.moved]
        memory, beside = self.pool or new_pool()
        beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(beside):
            for _ in range(2):  # compiles, and lets libraries take their memory
                self.program(*self.held)
        torch.cuda.current_stream().wait_stream(beside)
        torch.cuda.synchronize()
        if self.moved:
            torch._foreach_copy_(self.moved, before)
        del before
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, pool=memory, stream=beside, capture_error_mode="thread_local"):
            self.output = self.program(*self.held)

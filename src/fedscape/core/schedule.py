"""How a cohort is cut into blocks, and how threads take them in order."""

from __future__ import annotations

import os
import sys
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from fedscape.core.computation import Computation
from fedscape.types import Array

if TYPE_CHECKING:
    from fedscape.privacy.release import Release

T = TypeVar("T")
S = TypeVar("S")


@lru_cache(maxsize=1)
def _libraries(n_modules: int) -> Any:
    """What limits the libraries that are loaded; they are looked for again when modules were imported since."""
    try:
        from threadpoolctl import ThreadpoolController
    except ImportError:  # a machine with NumPy and torch alone
        return None
    return ThreadpoolController()


def cores() -> int:
    """How many this process may use; where the system does not say, how many there are.

    >>> cores() >= 1
    True
    """
    allowed = getattr(os, "sched_getaffinity", None)  # not on macOS
    return len(allowed(0)) if allowed is not None else os.cpu_count() or 1


def one_library_thread() -> AbstractContextManager[Any]:
    """Within it BLAS uses one thread: a block is the work of one thread, and the threads are ours."""
    libraries = _libraries(len(sys.modules))
    return nullcontext() if libraries is None else libraries.limit(limits=1)


@contextmanager
def without_warnings(release: Release | None) -> Iterator[None]:
    """Within it nothing warns where there is a release: a warning may depend on rows, and where it goes is not known.

    Filters are those of the process: enter it before blocks are handed to threads.
    """
    if release is None:
        yield
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def cut(sizes: Array, clients: int, rows: int) -> list[tuple[int, int]]:
    """Cut clients of these sizes into blocks with caps on clients and on rows (one large client may exceed the latter).

    >>> cut(np.array([3, 3, 9, 1]), clients=2, rows=6)
    [(0, 2), (2, 3), (3, 4)]
    """
    ends = np.concatenate(([0], np.cumsum(sizes)))
    edges = np.append(np.arange(0, len(sizes), clients), len(sizes))
    if np.all(np.diff(ends[edges]) <= rows):  # the usual case: clients alone decide
        return list(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True))
    blocks, begin = [], 0
    while begin < len(sizes):
        full = int(np.searchsorted(ends, ends[begin] + rows, side="right")) - 1
        end = max(begin + 1, min(begin + clients, full, len(sizes)))
        blocks.append((begin, end))
        begin = end
    return blocks


def blocks_of(computation: Computation, sizes: Array, *, clipped: bool) -> list[tuple[int, int]]:
    """The blocks of a cohort of these sizes, which depend on the computation and the cohort alone.

    >>> blocks_of(Computation(), np.ones(1000), clipped=False)
    [(0, 512), (512, 1000)]
    """
    size = computation.block_clients
    if not clipped and not computation.reveals and computation.total_clients is not None:
        size = computation.total_clients
    return cut(sizes, size, computation.block_rows)


def as_slice(positions: Array) -> Array | slice:
    """A slice where the positions follow one another, so that rows are viewed and not copied."""
    first, last = int(positions[0]), int(positions[-1])
    if last - first == len(positions) - 1 and np.all(positions[1:] > positions[:-1]):
        return slice(first, last + 1)
    return positions


def in_order(work: Callable[[S], T], items: Sequence[S], pool: ThreadPoolExecutor | None, threads: int) -> Iterator[T]:
    """The results in the order of the items, never more than a few ahead of the consumer."""
    if pool is None or len(items) == 1:
        yield from map(work, items)
        return
    several = 1 if len(items) < 64 else 8  # handing over a task costs as much as a small block
    waiting: deque[Future[list[T]]] = deque()
    try:
        for begin in range(0, len(items), several):
            waiting.append(pool.submit(lambda group: [work(item) for item in group], items[begin : begin + several]))
            if len(waiting) > 2 * threads:
                yield from waiting.popleft().result()
        while waiting:
            yield from waiting.popleft().result()
    finally:
        for future in waiting:  # an error or Ctrl-C: start nothing more, and leave nothing running
            future.cancel()
        wait(waiting)

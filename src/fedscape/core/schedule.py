"""How a cohort is cut into blocks, how threads take them in order, and in which order their sums are added.

Up to 256 blocks are added one after the other. Of more, sixteen blocks that follow one another are a node, sixteen
nodes are a node of the next level, and so on; the children of a node are added in order. So any number of threads or
machines can add nodes of their own, and the result is the same to the byte.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from fedscape.core.blocks import Answer
from fedscape.core.computation import Computation
from fedscape.types import Array

if TYPE_CHECKING:
    from fedscape.privacy.release import Release

T = TypeVar("T")
S = TypeVar("S")

LEAVES = 256  # up to this many blocks are added one after the other
BRANCHES = 16  # children of a node where there are more blocks


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


# -- the order of addition ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tree:
    """The tree over a number of blocks.

    >>> tree = Tree(1000)
    >>> [tree.nodes(level) for level in range(4)]
    [1000, 63, 4, 1]
    """

    blocks: int

    @property
    def branches(self) -> int:
        """The most children of a node."""
        return BRANCHES if self.blocks > LEAVES else LEAVES

    def nodes(self, level: int) -> int:
        """Number of nodes of a level; those of level 0 are the blocks."""
        return -(-self.blocks // int(self.branches**level))

    def level(self, wanted: int) -> int:
        """The highest level with this many nodes, 0 if none has."""
        level = 0
        while self.nodes(level + 1) >= max(wanted, 2):
            level += 1
        return level

    def blocks_of(self, level: int, node: int) -> range:
        """The blocks of a node."""
        width = int(self.branches**level)
        return range(node * width, min((node + 1) * width, self.blocks))


class Fold:
    """Adds the nodes of a tree as they come, in order; nodes of several levels may come.

    >>> import numpy as np
    >>> fold = Fold(Tree(2))
    >>> for number in (1, 2):
    ...     fold.add(0, Answer({"n": np.array(number)}))
    >>> int(fold.finish().sent["n"])
    3
    """

    def __init__(self, tree: Tree) -> None:
        self._branches = tree.branches
        self._levels: list[_Node] = []

    def add(self, level: int, answer: Answer) -> None:
        """Add the next node of a level; nodes of lower levels before it must be complete."""
        while len(self._levels) <= level:
            self._levels.append(_Node())
        node = self._levels[level]
        node.add(answer)
        if node.children == self._branches:
            self._levels[level] = _Node()
            self.add(level + 1, node.answer)

    def finish(self) -> Answer:
        """The sum of all."""
        carried: Answer | None = None
        for node in self._levels:
            if carried is not None:
                node.add(carried)
            carried = node.answer if node.children else None
        return Answer() if carried is None else carried


@dataclass
class _Node:
    answer: Answer = field(default_factory=Answer)
    children: int = 0

    def add(self, child: Answer) -> None:
        self.answer.add(child)
        self.children += 1


class Partial:
    """Adds the nodes first to last - 1 of a level as far as can be without their neighbours.

    They come in order; where some were added to a node of a higher level already, that node comes instead. `nodes` are
    those that are left, with their levels and numbers: a `Fold` that is given them adds up the same.

    >>> import numpy as np
    >>> partial = Partial(Tree(1000), 0, 14, 48)
    >>> for number in range(14, 48):
    ...     partial.add(0, number, Answer({"n": np.array(1)}))
    >>> [(level, number, int(answer.sent["n"])) for level, number, answer in partial.nodes]
    [(0, 14, 1), (0, 15, 1), (1, 1, 16), (1, 2, 16)]
    """

    def __init__(self, tree: Tree, level: int, first: int, last: int) -> None:
        self.tree, self.level, self.first, self.last = tree, level, first, last
        self.nodes: list[tuple[int, int, Answer]] = []
        self._open: dict[int, Answer] = {}  # the sum of the children so far, by level

    def add(self, level: int, number: int, answer: Answer) -> None:
        """Add the next node."""
        parent, wide = number // self.tree.branches, self.tree.branches ** (level + 1 - self.level)
        begin, end = parent * wide, min((parent + 1) * wide, self.tree.nodes(self.level))
        if self.tree.nodes(level) == 1 or begin < self.first or end > self.last:
            self.nodes.append((level, number, answer))
            return
        total = self._open.setdefault(level + 1, Answer())
        total.add(answer)
        if number + 1 == min((parent + 1) * self.tree.branches, self.tree.nodes(level)):
            self.add(level + 1, parent, self._open.pop(level + 1))

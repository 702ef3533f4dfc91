"""The order in which the sums of blocks are added: a tree that depends on the number of blocks alone.

Up to 256 blocks are added one after the other. Of more, sixteen blocks that follow one another are a node, sixteen
nodes are a node of the next level, and so on; the children of a node are added in order. So any number of threads or
machines can add nodes of their own, and the result is the same to the byte.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from fedscape.core.blocks import Answer

LEAVES = 256  # up to so many blocks are added one after the other
BRANCHES = 16  # children of a node where there are more


@dataclass(frozen=True)
class Tree:
    """The tree over so many blocks.

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

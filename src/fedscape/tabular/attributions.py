"""What each feature adds to a prediction of boosted trees: Shapley values, exact for each tree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fedscape.core.computation import Computation
from fedscape.core.federation import Federation
from fedscape.core.kernel import kernel
from fedscape.core.random import Key
from fedscape.errors import DataError
from fedscape.tabular.binning import Bins, binned, column_values
from fedscape.tabular.forest import Forest
from fedscape.tabular.growing import TreeRounds
from fedscape.tabular.splits import descend
from fedscape.types import Array, Arrays, Kept


class Paths(NamedTuple):
    """The leaves of one tree, and the features on the way to each.

    `node` and `left` [leaves, depth] are the splits and which way they are taken, -1 beyond a leaf. `feature` and
    `share` [leaves, depth] are the distinct features and which share of rows follows the path at their splits. `slot`
    [leaves, depth] says which of those a split belongs to.
    """

    node: Array
    left: Array
    slot: Array
    feature: Array
    share: Array
    n_features: Array  # [leaves]
    value: Array  # [leaves]


class LeafCounts(Computation):
    """How many rows come to every leaf of every tree: what attributions weigh a path by.

    Parameters
    ----------
    edges, feature, left
        Bin edges, and the trees, as a `Forest` has them.
    categories, features
        As for `TreeRounds`.
    """

    name = "tree-leaf-counts"
    block_clients = 64

    def __init__(
        self,
        edges: npt.ArrayLike,
        feature: npt.ArrayLike,
        left: npt.ArrayLike,
        *,
        categories: Sequence[int] = (),
        features: str | Sequence[str] = "x",
    ) -> None:
        self.edges = edges
        self.feature = feature
        self.left = left
        self.categories = categories
        self.features = features

    def start(self, seed: int) -> Arrays:
        check_trees(self.trees(), len(np.asarray(self.edges)))
        trees, outputs, inner = np.shape(self.feature)
        return {"server.counts": np.zeros((trees, outputs, 2 * inner + 1))}

    def trees(self) -> Arrays:
        """The trees as arrays of the types that compiled loops want."""
        return {"feature": np.asarray(self.feature, np.int32), "left": np.asarray(self.left, np.uint8)}

    def step(self, state: Arrays, clients: Federation, key: Key) -> tuple[Arrays, Kept]:
        own = self.trees()
        check_trees(own, len(np.asarray(self.edges)))
        codes = binned(column_values(clients, self.features), bins_of(self.edges, self.categories))
        trees, outputs, inner = own["feature"].shape
        counts = np.zeros((len(clients), trees, outputs, 2 * inner + 1), dtype=np.int64)
        for t in range(trees):
            for k in range(outputs):
                leaf = leaves(codes, own["feature"][t, k], own["left"][t, k])
                np.add.at(counts[:, t, k], (clients.client_of_row, leaf), 1)
        return {"counts": counts}, {}

    def update(self, state: Arrays, total: Arrays, key: Key) -> Arrays:
        return {"server.counts": np.maximum(np.asarray(total["counts"], dtype=float), 0.0)}

    def row_bound(self, state: Arrays, norm: int, clients: Federation | None = None) -> float | None:
        """A row is in one leaf of each tree."""
        trees = float(np.prod(np.shape(self.feature)[:2]))
        return trees if norm == 1 else float(np.sqrt(trees))

    def coded_columns(self) -> Sequence[str]:
        return (self.features,) if isinstance(self.features, str) else tuple(self.features)

    @classmethod
    def examples(cls) -> Sequence[tuple[LeafCounts, Federation]]:
        edges, trees, fed = example_forest()
        return [(cls(edges, trees["feature"], trees["left"]), fed)]


class AttributionSums(Computation):
    """Sums over rows of the features' attributions and of their sizes, apart for each kind of client.

    Parameters
    ----------
    edges, feature, left, value
        Bin edges, and the trees, as a `Forest` has them.
    counts
        Rows at each leaf: what `LeafCounts` adds up.
    categories, features
        As for `TreeRounds`.
    kind
        A column with the number of each row's kind; None for one kind.
    kinds
        How many there are; a row of another is not counted.
    """

    name = "tree-attributions"
    block_clients = 64

    def __init__(
        self,
        edges: npt.ArrayLike,
        feature: npt.ArrayLike,
        left: npt.ArrayLike,
        value: npt.ArrayLike,
        counts: npt.ArrayLike,
        *,
        categories: Sequence[int] = (),
        features: str | Sequence[str] = "x",
        kind: str | None = None,
        kinds: int = 1,
    ) -> None:
        self.edges = edges
        self.feature = feature
        self.left = left
        self.value = value
        self.counts = counts
        self.categories = categories
        self.features = features
        self.kind = kind
        self.kinds = kinds

    def start(self, seed: int) -> Arrays:
        check_trees(self.trees(), len(np.asarray(self.edges)))
        shape = (self.kinds, np.shape(self.feature)[1], len(np.asarray(self.edges)))
        return {
            "server.rows": np.zeros(self.kinds),
            "server.attribution": np.zeros(shape),
            "server.size": np.zeros(shape),
        }

    def trees(self) -> Arrays:
        """The trees as arrays of the types that compiled loops want."""
        return {
            "feature": np.asarray(self.feature, np.int32),
            "left": np.asarray(self.left, np.uint8),
            "value": np.asarray(self.value, np.float64),
            "counts": np.asarray(self.counts, np.float64),
        }

    def step(self, state: Arrays, clients: Federation, key: Key) -> tuple[Arrays, Kept]:
        trees = self.trees()
        check_trees(trees, len(np.asarray(self.edges)))
        codes = binned(column_values(clients, self.features), bins_of(self.edges, self.categories))
        phi = attributions(codes, trees, len(np.asarray(self.edges)))  # [rows, outputs, features]
        size = np.abs(phi)
        kind = np.zeros(clients.n_rows, dtype=np.int64) if self.kind is None else clients[self.kind].astype(np.int64)
        own = kind[:, None] == np.arange(self.kinds)  # [rows, kinds]
        sent: Arrays = {"rows": clients.segment_sum(own.astype(np.int64))}
        for name, values in (("attribution", phi), ("size", size)):
            parts = [clients.segment_sum(np.where(own[:, g, None, None], values, 0.0)) for g in range(self.kinds)]
            sent[name] = np.stack(parts, axis=1)  # [clients, kinds, outputs, features]
        return sent, {}

    def update(self, state: Arrays, total: Arrays, key: Key) -> Arrays:
        return {f"server.{name}": np.asarray(total[name], dtype=float) for name in ("rows", "attribution", "size")}

    def coded_columns(self) -> Sequence[str]:
        names = (self.features,) if isinstance(self.features, str) else tuple(self.features)
        return names if self.kind is None else (*names, self.kind)

    @classmethod
    def examples(cls) -> Sequence[tuple[AttributionSums, Federation]]:
        edges, trees, fed = example_forest()
        return [(cls(edges, *trees.values(), kind="kind", kinds=3), fed)]


def example_forest() -> tuple[Array, Arrays, Federation]:
    """Bin edges, two trees of two levels with counts, and rows for them."""
    fed = TreeRounds.examples()[0][1]
    edges = np.tile(np.linspace(-1.5, 1.5, 7), (3, 1))
    bits = np.zeros((2, 1, 3, 256), dtype=np.uint8)
    bits[..., :4], bits[:, :, 1, 8] = 1, 1  # below the middle goes left, once with the missing
    trees: Arrays = {
        "feature": np.array([[[0, 1, 2]], [[2, 0, -1]]], dtype=np.int32),
        "left": np.packbits(bits, axis=-1, bitorder="little"),
        "value": np.linspace(-1, 1, 14).reshape(2, 1, 7),
        "counts": np.array([[[0, 0, 0, 10, 20, 30, 40]], [[0, 0, 50, 20, 30, 0, 0]]], dtype=float),
    }
    return edges, trees, fed


def bins_of(edges: npt.ArrayLike, categories: Sequence[int]) -> Bins:
    """Bins from the arguments of a computation."""
    rows = np.asarray(edges, dtype=float)
    return Bins(rows, np.asarray(categories or [0] * len(rows), dtype=np.int64))


def check_trees(trees: Arrays, n_features: int) -> None:
    """Refuse a forest that compiled loops would follow beyond the end of an array."""
    feature, left = trees["feature"], trees["left"]
    inner = feature.shape[-1]
    shaped = feature.ndim == 3 and left.shape == (*feature.shape, 32) and inner > 0 and not (inner + 1) & inner
    for name in ("value", "counts"):
        shaped = shaped and (name not in trees or trees[name].shape == (*feature.shape[:2], 2 * inner + 1))
    if not shaped or inner >= 2**12 or feature.max(initial=-1) >= n_features:
        raise DataError("feature, left, value or counts are of no forest with these edges")


def leaves(codes: Array, feature: Array, left: Array) -> Array:
    """The leaf of each row in one tree."""
    node = np.zeros(len(codes), dtype=np.int16)
    descend(codes, node, feature, left, int(np.log2(len(feature) + 1)))
    return node


def node_counts(counts: Array) -> Array:
    """Rows that pass each node, from those that end there: [..., nodes] in the order of a heap."""
    passing = np.array(counts, dtype=float)
    for node in range(passing.shape[-1] - 1, 0, -1):
        passing[..., (node - 1) // 2] += passing[..., node]
    return passing


def paths(feature: Array, value: Array, counts: Array) -> Paths:
    """All leaves of a tree with their paths; `counts` are of nodes, a leaf that nobody reached has share 0."""
    depth = int(np.log2(len(feature) + 1))
    leaves: list[tuple[list[tuple[int, int]], int]] = []
    waiting: list[tuple[int, list[tuple[int, int]]]] = [(0, [])]
    while waiting:
        at, way = waiting.pop()
        if at >= len(feature) or feature[at] < 0:
            leaves.append((way, at))
        else:
            waiting += [(2 * at + 2, [*way, (at, 0)]), (2 * at + 1, [*way, (at, 1)])]
    shape = (len(leaves), depth)
    node, left, slot = (np.full(shape, -1, dtype=np.int64) for _ in range(3))
    features, share = np.zeros(shape, dtype=np.int64), np.ones(shape)
    number = np.zeros(len(leaves), dtype=np.int64)
    for i, (way, _) in enumerate(leaves):
        slots: dict[int, int] = {}
        for j, (at, side) in enumerate(way):
            mine = slots.setdefault(int(feature[at]), len(slots))
            child = 2 * at + 2 - side
            node[i, j], left[i, j], slot[i, j], features[i, mine] = at, side, mine, feature[at]
            share[i, mine] *= counts[child] / counts[at] if counts[at] > 0 else 0.5
        number[i] = len(slots)
    return Paths(node, left, slot, features, share, number, value[[at for _, at in leaves]].astype(float))


def attributions(codes: Array, forest: Arrays, n_features: int) -> Array:
    """Shapley values [rows, outputs, features] of the margins, for a forest and `counts` of rows at its leaves."""
    trees, outputs = forest["feature"].shape[:2]
    passing = node_counts(forest["counts"])
    phi = np.zeros((len(codes), outputs, n_features))
    for t in range(trees):
        for k in range(outputs):
            if forest["feature"][t, k, 0] < 0:
                continue
            way = paths(forest["feature"][t, k], forest["value"][t, k], passing[t, k])
            add_shapley(codes, forest["feature"][t, k], forest["left"][t, k], *way, phi[:, k])
    return phi


def expected_margins(forest: Forest, counts: Array) -> Array:
    """The margins of the counted rows on average, [outputs]: what attributions add to."""
    weight = np.asarray(counts, dtype=float)
    weight = weight / np.maximum(weight.sum(axis=-1, keepdims=True), 1.0)
    return np.asarray(forest.base + (weight * forest.value).sum(axis=(0, 2)))


@kernel
def add_shapley(
    codes: Array, feature: Array, bits: Array, node: Array, left: Array, slot: Array, features: Array, share: Array,
    n_features: Array, value: Array, phi: Array,
) -> None:  # fmt: skip
    """phi[row, feature] += the Shapley values of one tree, exactly.

    In the game of a leaf, a feature of the coalition follows the row (1 if it goes to the leaf there, else 0), another
    the share of rows that do. The leaf's worth is the product times its value. A feature's weighted sum over coalitions
    comes from the coefficients of the product of (share + t follow) over the others (Lundberg et al. 2020, Yang 2021).
    """
    depth = node.shape[1]
    follow, poly = np.empty(depth), np.empty(depth + 1)
    for row in range(codes.shape[0]):
        for leaf in range(len(value)):
            m = n_features[leaf]
            for j in range(m):
                follow[j] = 1.0
            for j in range(depth):
                at = node[leaf, j]
                if at < 0:
                    break
                code = codes[row, feature[at]]
                goes_left = (bits[at, code >> 3] >> (code & 7)) & 1
                if goes_left != left[leaf, j]:
                    follow[slot[leaf, j]] = 0.0
            for i in range(m):
                if follow[i] == share[leaf, i]:
                    continue
                poly[0], degree = 1.0, 0
                for j in range(m):
                    if j != i:
                        degree += 1
                        poly[degree] = 0.0
                        for d in range(degree, 0, -1):
                            poly[d] = poly[d] * share[leaf, j] + poly[d - 1] * follow[j]
                        poly[0] *= share[leaf, j]
                weight, total = 1.0 / m, 0.0  # of coalitions of d others: d! (m - 1 - d)! / m!
                for d in range(m):
                    total += weight * poly[d]
                    if d < m - 1:
                        weight *= (d + 1.0) / (m - 1.0 - d)
                phi[row, features[leaf, i]] += (follow[i] - share[leaf, i]) * total * value[leaf]

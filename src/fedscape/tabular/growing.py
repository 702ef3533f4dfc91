"""Grow trees level by level, all nodes of a level in one round."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fedscape.core.arrays import Ragged, offsets_of
from fedscape.core.computation import Computation
from fedscape.core.federation import Federation
from fedscape.core.random import Key
from fedscape.errors import DataError
from fedscape.tabular.binning import Bins, binned, column_values
from fedscape.tabular.losses import GRID, bounds, check_loss, derivatives, row_losses, target_values, valid_targets
from fedscape.tabular.splits import Rules, add_histograms, best_splits, descend, rows_in_slots
from fedscape.types import Array, Arrays, Kept

_CACHE = 2**21  # bytes of histograms that stay near a core
_FREE = 1e100  # bound on a leaf's value where there is no constraint


class RowState(NamedTuple):
    """The rows of some clients: bin codes, margins, nodes in the current trees, gradients; `changed` names new ones."""

    codes: Array  # [rows, features] uint8
    margin: Array  # [rows, outputs]
    node: Array  # [rows, outputs] int16
    g: Array  # [rows, outputs]
    h: Array  # [rows, outputs]
    changed: tuple[str, ...]


class TreeRounds(Computation):
    """Boosting by histograms of gradients: a round grows all trees of a step by one level.

    The state is the forest, one tree per output and step, nodes in heap order. A client moves its rows down to the
    nodes of the current level and sends the sums of first and second derivatives per node, feature and bin. The server
    splits every node. Only the smaller child of a split is sent; the other is parent minus sibling. Clients keep the
    position of their rows; one that kept nothing, or missed a round, runs its rows through the whole forest.

    Parameters
    ----------
    edges
        Bin edges [features, edges], ascending; a row's bin is the number of edges below its value.
    categories
        Number of categories of each feature, one bin each; 0 for numbers.
    loss
        "squared", "logistic", "softmax" or "poisson".
    base
        Initial margins, [outputs].
    unit
        Unit of the gradients.
    features, target
        Columns.
    n_trees, depth, learning_rate, l2, least_weight, least_gain, monotone
        As for `BoostedTrees`.
    parallel, subsample
        How many trees a step has for each output, all of one round, and the share of rows that each of them learns
        from, drawn anew. The state has them as outputs of their own: tree j of output k is the (j x outputs + k)th.
    held_out
        Share of rows that is held out; their loss is sent too.
    subtract
        Whether only one child of each split is sent. Under privacy both are: a difference would have the noise of two.
    """

    name = "tree-rounds"
    block_clients = 16  # a client sends nodes x features x bins x 2 numbers
    total_clients = 2**20

    def __init__(
        self,
        edges: npt.ArrayLike,
        *,
        categories: Sequence[int] = (),
        loss: str = "squared",
        base: npt.ArrayLike = (0.0,),
        unit: float = 1.0,
        features: str | Sequence[str] = "x",
        target: str = "y",
        n_trees: int = 100,
        depth: int = 6,
        learning_rate: float = 0.1,
        l2: float = 1.0,
        least_weight: float = 1.0,
        least_gain: float = 0.0,
        monotone: Sequence[int] = (),
        parallel: int = 1,
        subsample: float = 1.0,
        held_out: float = 0.0,
        subtract: bool = True,
        seed: int = 0,
    ) -> None:
        self.edges = edges
        self.categories = categories
        self.loss = loss
        self.base = base
        self.unit = unit
        self.features = features
        self.target = target
        self.n_trees = n_trees
        self.depth = depth
        self.learning_rate = learning_rate
        self.l2 = l2
        self.least_weight = least_weight
        self.least_gain = least_gain
        self.monotone = monotone
        self.parallel = parallel
        self.subsample = subsample
        self.held_out = held_out
        self.subtract = subtract
        self.seed = seed

    @property
    def bins(self) -> Bins:
        """Bin edges and categories."""
        edges = np.asarray(self.edges, dtype=float)
        return Bins(edges, np.asarray(self.categories or [0] * len(edges), dtype=np.int64))

    @property
    def outputs(self) -> int:
        """Margins of a row."""
        return len(np.atleast_1d(self.base))

    def _rules(self) -> Rules:
        bins = self.bins
        monotone = np.asarray(self.monotone or [0] * len(bins.edges), dtype=np.int64)
        return Rules(self.l2, self.least_weight, self.least_gain, monotone, bins.n_bins, bins.categories > 0)

    # -- the server ----------------------------------------------------------------------------------------------------

    def start(self, seed: int) -> Arrays:
        check_loss(self.loss)
        outputs, inner = self.outputs * self.parallel, 2**self.depth - 1
        return self._rooted(outputs) | {
            "feature": np.full((self.n_trees, outputs, inner), -1, dtype=np.int32),
            "left": np.zeros((self.n_trees, outputs, inner, 32), dtype=np.uint8),
            "value": np.zeros((self.n_trees, outputs, 2 * inner + 1)),
            "trees": np.zeros((), dtype=np.int64),
            "server.losses": np.zeros(0),
        }

    def _rooted(self, outputs: int) -> Arrays:
        """Reset the part of the state that belongs to one tree: a single slot, for the root."""
        slots = np.full((outputs, 2 ** (self.depth - 1)), -1, dtype=np.int32)
        slots[:, 0] = 0 if outputs == 1 else np.arange(outputs)
        width = self.bins.width + 1
        return {
            "level": np.zeros((), dtype=np.int64),
            "slots": slots,
            "server.parents": np.zeros((outputs, 0, len(self.bins.edges), width, 2)),
            "server.low": np.full((outputs, 1), -_FREE),
            "server.high": np.full((outputs, 1), _FREE),
        }

    def update(self, state: Arrays, total: Arrays, key: Key) -> Arrays:
        if int(state["trees"]) >= self.n_trees:
            return dict(state)
        losses = state["server.losses"]
        if self.held_out and int(state["level"]) == 0:
            losses = np.append(losses, total["loss"] / max(float(total["held_out"]), 1.0))
        hist = self._whole(state, total["histograms"])
        forest = {name: state[name].copy() for name in ("feature", "left", "value")}
        outputs, nodes = len(state["slots"]), 2 ** int(state["level"])
        slots = np.full((outputs, max(2 * nodes, state["slots"].shape[1])), -1, dtype=np.int32)
        low, high = (np.repeat(state[f"server.{name}"], 2, axis=1) for name in ("low", "high"))
        parents = np.zeros((outputs, 2 * nodes, *hist.shape[2:]))
        last, sent = int(state["level"]) == self.depth - 1, 0
        for k in range(outputs):
            for node, sums in self._split(state, forest, hist, k, low, high):
                smaller = int(sums[1, 1] < sums[0, 1])
                for side in (smaller, 1 - smaller):
                    if side == smaller or not self.subtract:
                        slots[k, 2 * node + side], sent = sent, sent + 1
                    else:
                        slots[k, 2 * node + side] = -2  # parent minus sibling
                    parents[k, 2 * node + side] = hist[k, node]
        ready = {**state, **forest}
        if last or not sent:
            return ready | self._rooted(outputs) | {"trees": state["trees"] + 1, "server.losses": losses}
        return ready | {
            "level": state["level"] + 1,
            "slots": slots,
            "server.parents": parents if self.subtract else parents[:, :0],
            "server.low": low,
            "server.high": high,
            "server.losses": losses,
        }

    def _whole(self, state: Arrays, sent: Array) -> Array:
        """Histograms of all nodes of the level, [outputs, nodes, features, bins + 1, 2], curvature at least 0."""
        slots = state["slots"][:, : 2 ** int(state["level"])]
        hist = np.zeros((*slots.shape, *sent.shape[1:]))
        hist[slots >= 0] = sent[slots[slots >= 0]]
        k, node = np.nonzero(slots == -2)
        hist[k, node] = state["server.parents"][k, node] - hist[k, node ^ 1]
        hist[..., 1] = np.maximum(hist[..., 1], 0.0)
        return hist

    def _split(
        self, state: Arrays, forest: Arrays, hist: Array, k: int, low: Array, high: Array
    ) -> list[tuple[int, Array]]:
        """Split the nodes of one output's tree and write leaf values; return split nodes and sums of their children."""
        tree, first = int(state["trees"]), 2 ** int(state["level"]) - 1
        active = np.flatnonzero(state["slots"][k] != -1)  # empty if only another output's tree still grows
        mine = hist[k, active]
        splits = best_splits(mine, state["server.low"][k, active], state["server.high"][k, active], self._rules())
        if first == 0 and splits.feature[0] < 0:  # nothing to split: the tree is one leaf
            g, h = mine[0, 0].sum(axis=0)
            forest["value"][tree, k, 0] = self._leaf(g, h, -_FREE, _FREE)
        split_nodes = []
        for i, node in enumerate(active):
            f = int(splits.feature[i])
            if f < 0:
                continue
            forest["feature"][tree, k, first + node] = f
            forest["left"][tree, k, first + node] = splits.left[i]
            ends = float(low[k, 2 * node]), float(high[k, 2 * node])
            values = [self._raw(float(g), float(h), *ends) for g, h in splits.sums[i]]
            child = 2 * (first + node) + 1
            forest["value"][tree, k, child : child + 2] = [self._rate(v) for v in values]
            direction = int(self._rules().monotone[f])
            if direction:
                middle = (values[0] + values[1]) / 2
                (high if direction > 0 else low)[k, 2 * node] = middle
                (low if direction > 0 else high)[k, 2 * node + 1] = middle
            split_nodes.append((int(node), splits.sums[i]))
        return split_nodes

    def _raw(self, g: float, h: float, low: float, high: float) -> float:
        return float(np.clip(-g / max(h + self.l2, 1e-12), low, high))

    def _rate(self, value: float) -> float:
        """Scale a Newton step to a leaf's value: times the learning rate, in the units of the margins."""
        return float(value * self.learning_rate * (self.unit if self.loss == "squared" else 1.0) / self.parallel)

    def _leaf(self, g: float, h: float, low: float, high: float) -> float:
        return self._rate(self._raw(g, h, low, high))

    # -- the clients ---------------------------------------------------------------------------------------------------

    def step(self, state: Arrays, clients: Federation, key: Key) -> tuple[Arrays, Kept]:
        return self._answer(state, clients, clients.client_of_row, len(clients))

    def total(self, state: Arrays, clients: Federation, key: Key) -> Arrays | tuple[Arrays, Kept] | None:
        sent, kept = self._answer(state, clients, np.zeros(clients.n_rows, dtype=np.int64), 1)
        return {name: values[0] for name, values in sent.items()}, kept

    def _answer(self, state: Arrays, clients: Federation, owner: Array, n: int) -> tuple[Arrays, Kept]:
        self._check_forest(state)
        rows = self._row_state(state, clients)
        slots, level = state["slots"], int(state["level"])
        judged = self._judged(clients)
        n_slots, first = int(slots.max(initial=-1)) + 1, 2**level - 1
        bins = self.bins
        hist = np.zeros((n * n_slots, len(bins.edges), bins.width + 1, 2))
        near = hist.nbytes <= n * _CACHE
        learned = self._learned(clients, int(state["trees"]), ~judged)
        for k in range(slots.shape[0]):
            node = np.ascontiguousarray(rows.node[:, k])
            which, slot = rows_in_slots(node, first, slots[k], owner, n_slots, learned[k // self.outputs], near)
            g, h = (np.ascontiguousarray(part[:, k % self.outputs]) for part in (rows.g, rows.h))
            add_histograms(rows.codes, which, slot, g, h, hist)
        sent: Arrays = {"histograms": hist.reshape(n, n_slots, *hist.shape[1:])}
        if self.held_out:
            loss = np.zeros(clients.n_rows)
            if level == 0:
                loss[judged] = row_losses(self.loss, self._y(clients)[judged], rows.margin[judged])
            loss = np.rint(np.clip(loss, -(2.0**20), 2.0**20) / GRID) * GRID
            sent["loss"] = np.bincount(owner, loss, minlength=n).astype(
                np.float64
            )  # bincount of no rows is an integer array
            sent["held_out"] = np.bincount(owner, judged, minlength=n).astype(np.int64)
        stamp = np.tile([int(state["trees"]), level], (len(clients), 1))
        kept: dict[str, Array | Ragged] = {
            f"trees.{name}": Ragged(getattr(rows, name), clients.offsets) for name in rows.changed
        }
        return sent, kept | {"trees.stamp": stamp}

    def _check_forest(self, state: Arrays) -> None:
        """Refuse a state that would make compiled loops read out of bounds, or put two nodes into one slot."""
        outputs, leaves, inner = self.outputs * self.parallel, 2 ** (self.depth - 1), 2**self.depth - 1
        trees = (self.n_trees, outputs)
        shapes = {"feature": (*trees, inner), "left": (*trees, inner, 32), "value": (*trees, 2 * inner + 1)}
        inside = all(state[name].shape == shape for name, shape in {**shapes, "slots": (outputs, leaves)}.items())
        inside = inside and 0 <= int(state["trees"]) <= self.n_trees and 0 <= int(state["level"]) < self.depth
        used = state["slots"][state["slots"] >= 0]  # in a shared slot a row would count twice, and exceed its bound
        apart = len(np.unique(used)) == used.size and used.max(initial=-1) < outputs * leaves
        if not (inside and apart) or state["feature"].max(initial=-1) >= len(self.bins.edges):
            raise DataError("the state names features, nodes or trees that this forest cannot have")

    def _row_state(self, state: Arrays, clients: Federation) -> RowState:
        """Advance the kept row state by a round, or recompute it through the whole forest."""
        tree, level = int(state["trees"]), int(state["level"])
        kept = {name: clients.kept.get(f"trees.{name}") for name in ("codes", "margin", "node", "g", "h", "stamp")}
        stamps = None if kept["stamp"] is None else kept["stamp"].flat
        held = {name: values.flat for name, values in kept.items() if values is not None}
        lengths = kept["codes"].lengths if kept["codes"] is not None else np.zeros(0)
        has_kept = stamps is not None and len(stamps) == len(clients) and np.array_equal(lengths, clients.sizes)
        if has_kept and stamps is not None and (stamps == [tree, level - 1]).all() and level:
            node = self._down(state, tree, held["codes"], held["node"], 1)
            return RowState(held["codes"], held["margin"], node, held["g"], held["h"], ("node",))
        replayed = has_kept and stamps is not None and (stamps == [tree, level]).all()
        if replayed:
            return RowState(held["codes"], held["margin"], held["node"], held["g"], held["h"], ())
        margin: Array
        changed: tuple[str, ...] = ("margin", "node", "g", "h")
        if has_kept and stamps is not None and not level and (stamps[:, 0] == tree - 1).all():
            codes = held["codes"]
            margin = held["margin"] + self._values(state, tree - 1, codes, held["node"])
        else:
            codes, changed = binned(column_values(clients, self.features), self.bins), ("codes", *changed)
            margin = np.repeat(np.atleast_1d(np.asarray(self.base, dtype=float))[None], len(codes), axis=0)
            for t in range(tree):
                margin = margin + self._values(state, t, codes, self._roots(len(codes)))
        node = self._roots(len(codes))
        if level:
            node = self._down(state, tree, codes, node, level)
        g, h = derivatives(self.loss, self._y(clients), margin, self.unit)
        return RowState(codes, margin, node, g, h, changed)

    def _down(self, state: Arrays, tree: int, codes: Array, node: Array, steps: int) -> Array:
        """Nodes of the rows after `steps` more splits, [rows, outputs]."""
        out = np.empty_like(node)
        for k in range(node.shape[1]):
            own = np.ascontiguousarray(node[:, k])
            if own is node or not own.flags.writeable or np.shares_memory(own, node):
                own = own.copy()
            descend(codes, own, state["feature"][tree, k], state["left"][tree, k], steps)
            out[:, k] = own
        return out

    def _values(self, state: Arrays, tree: int, codes: Array, node: Array) -> Array:
        """Leaf values of the rows, which start at these nodes, [rows, outputs]."""
        leaf = self._down(state, tree, codes, node, self.depth)
        added = np.stack([state["value"][tree, k][leaf[:, k]] for k in range(leaf.shape[1])], axis=1)
        if self.parallel == 1:
            return added
        return np.asarray(added.reshape(len(added), self.parallel, self.outputs).sum(axis=1))

    def _roots(self, n: int) -> Array:
        return np.zeros((n, self.outputs * self.parallel), dtype=np.int16)

    def _learned(self, clients: Federation, step: int, free: Array) -> list[Array]:
        """Which rows each of the parallel trees of a step learns from."""
        if self.subsample >= 1:
            return [free] * self.parallel
        draws = [Key(self.seed, step, f"rows of parallel tree {j}") for j in range(self.parallel)]
        return [free & (draw.uniform_rows(clients) < self.subsample) for draw in draws]

    def _judged(self, clients: Federation) -> Array:
        if not self.held_out:
            return np.zeros(clients.n_rows, dtype=bool)
        return Key(self.seed, purpose="held-out rows").uniform_rows(clients) < self.held_out

    def _y(self, clients: Federation) -> Array:
        return target_values(clients, self.target, self.loss, self.outputs)

    def valid_rows(self, state: Arrays, clients: Federation) -> Array | None:
        return valid_targets(clients[self.target], self.loss, self.outputs)

    def coded_columns(self) -> Sequence[str]:
        names = (self.features,) if isinstance(self.features, str) else tuple(self.features)
        return (*names, self.target) if self.loss in ("logistic", "softmax") else names

    def row_bound(self, state: Arrays, norm: int, clients: Federation | None = None) -> float | None:
        """A row is in one bin of each feature and output; losses on numbers have unbounded gradients.

        Nor has a draw of rows a bound: one row more moves the draws of those after it.
        """
        most = bounds(self.loss)
        if most is None or self.held_out or self.subsample < 1:
            return None
        d, outputs = len(self.bins.edges), self.outputs * self.parallel
        return float(np.sqrt(d * outputs) * np.hypot(*most) if norm == 2 else d * outputs * sum(most))

    @classmethod
    def examples(cls) -> Sequence[tuple[TreeRounds, Federation]]:
        rng = np.random.default_rng(4)
        offsets = offsets_of(rng.integers(0, 9, 30))
        n = int(offsets[-1])
        x = np.column_stack([rng.normal(0, 1, (n, 2)), rng.integers(0, 4, n)])
        x[rng.random(n) < 0.2, 1] = np.nan
        label = (x[:, 0] + (x[:, 2] == 1) > 0.5).astype(int)
        kind = np.clip(np.floor(x[:, 0] + 1.5), 0, 2).astype(int)
        fed = Federation({"x": x, "y": x[:, 0] * 2 + x[:, 2], "label": label, "kind": kind}, offsets)
        edges = np.tile(np.linspace(-1.5, 1.5, 7), (3, 1))
        grown: dict[str, Any] = {"categories": (0, 0, 4), "n_trees": 2, "depth": 2, "learning_rate": 0.5}
        few = grown | {"least_weight": 0.1}
        return [
            (cls(edges, target="y", unit=2.0, held_out=0.2, monotone=(1, 0, 0), **grown), fed),
            (cls(edges, loss="logistic", target="label", **few), fed),
            (cls(edges, loss="softmax", target="kind", base=(0.0, 0.1, 0.0), **few), fed),
            (cls(edges, loss="logistic", target="label", parallel=3, subsample=0.7, **few), fed),
        ]

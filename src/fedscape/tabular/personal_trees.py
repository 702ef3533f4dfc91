"""Boosted trees of each client's own: leaves fitted again, or a few trees more, judged on its held-out rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from fedscape.core.computation import Computation
from fedscape.core.estimator import Estimator, Fit
from fedscape.core.federation import Federation
from fedscape.core.random import Key
from fedscape.core.validate import check_whole
from fedscape.errors import DataError
from fedscape.tabular.attributions import bins_of, check_trees, example_forest, leaves
from fedscape.tabular.binning import binned, column_values
from fedscape.tabular.boosting import BoostedTrees
from fedscape.tabular.losses import (
    check_loss,
    gradients,
    probabilities,
    row_losses,
    target_values,
    valid_targets,
)
from fedscape.tabular.splits import Rules, add_histograms, best_splits, descend, placed
from fedscape.types import Array, Arrays, Kept

if TYPE_CHECKING:
    from fedscape.core.engine import Engine

FORMS = ("leaves", "trees")
_FREE = 1e100


class PersonalLosses(Computation):
    """How clients' own trees do on rows that they held out, at several strengths; the first is the common forest.

    Parameters
    ----------
    edges, feature, left, value
        Bin edges, and the common trees, as a `Forest` has them.
    categories, loss, base, features, target, learning_rate
        As for `TreeRounds`.
    form, strengths, n_trees, depth, held_out, seed
        As for `PersonalTrees`.
    """

    name = "personal-trees"
    block_clients = 64

    def __init__(
        self,
        edges: npt.ArrayLike,
        feature: npt.ArrayLike,
        left: npt.ArrayLike,
        value: npt.ArrayLike,
        *,
        categories: Sequence[int] = (),
        loss: str = "squared",
        base: npt.ArrayLike = (0.0,),
        features: str | Sequence[str] = "x",
        target: str = "y",
        learning_rate: float = 0.1,
        form: str = "leaves",
        strengths: Sequence[float] = (16.0,),
        n_trees: int = 10,
        depth: int = 3,
        held_out: float = 0.3,
        seed: int = 0,
    ) -> None:
        self.edges = edges
        self.feature = feature
        self.left = left
        self.value = value
        self.categories = categories
        self.loss = loss
        self.base = base
        self.features = features
        self.target = target
        self.learning_rate = learning_rate
        self.form = form
        self.strengths = strengths
        self.n_trees = n_trees
        self.depth = depth
        self.held_out = held_out
        self.seed = seed

    def start(self, seed: int) -> Arrays:
        check_loss(self.loss)
        check_whole("n_trees", self.n_trees, least=1)
        check_whole("depth", self.depth, least=1)
        if self.form not in FORMS:
            raise DataError(f"form must be one of {', '.join(FORMS)}, not {self.form!r}")
        if not len(self.strengths) or min(self.strengths) <= 0:
            raise DataError(f"strengths must be positive numbers, not {self.strengths!r}")
        if not 0 < self.held_out < 1:
            raise DataError(f"held_out must be between 0 and 1, not {self.held_out!r}")
        check_trees(self.common(), len(np.asarray(self.edges)))
        tried, nothing = np.zeros(len(self.strengths) + 1), np.zeros(())
        many = {f"server.{name}": tried for name in ("loss", "right", "better")}
        return {**many, "server.rows": nothing, "server.judging": nothing}

    def common(self) -> Arrays:
        """The common trees as arrays of the types that compiled loops want."""
        return {
            "feature": np.asarray(self.feature, np.int32),
            "left": np.asarray(self.left, np.uint8),
            "value": np.asarray(self.value, np.float64),
        }

    def step(self, state: Arrays, clients: Federation, key: Key) -> tuple[Arrays, Kept]:
        judged = Key(self.seed, purpose="rows to judge own trees").uniform_rows(clients) < self.held_out
        y = self.targets(clients)
        tried = [self.margins(clients, ~judged, s) for s in (np.inf, *self.strengths)]
        loss = np.stack([row_losses(self.loss, y, margin) for margin in tried], axis=1)
        right = np.stack([self._right(y, margin) for margin in tried], axis=1)
        of_client = clients.segment_sum(np.where(judged[:, None], loss, 0.0))
        return {
            "loss": of_client,
            "right": clients.segment_sum((right & judged[:, None]).astype(np.int64)),
            "better": (of_client < of_client[:, :1]).astype(np.int64),
            "rows": clients.segment_sum(judged.astype(np.int64)),
            "judging": (clients.segment_sum(judged.astype(np.int64)) > 0).astype(np.int64),
        }, {}

    def update(self, state: Arrays, total: Arrays, key: Key) -> Arrays:
        names = ("loss", "right", "better", "rows", "judging")
        return {f"server.{name}": np.asarray(total[name], dtype=float) for name in names}

    def targets(self, clients: Federation) -> Array:
        """The targets as numbers."""
        return target_values(clients, self.target, self.loss, len(np.atleast_1d(self.base)))

    def _right(self, y: Array, margin: Array) -> Array:
        """Which rows are predicted right; of numbers none is."""
        if self.loss in ("squared", "poisson"):
            return np.zeros(len(y), dtype=bool)
        return np.asarray(probabilities(self.loss, margin).argmax(axis=1) == y)

    def margins(self, clients: Federation, used: Array, strength: float) -> Array:
        """Margins [rows, outputs] of all rows by trees that each client fits to its `used` ones."""
        check_trees(self.common(), len(np.asarray(self.edges)))
        codes = binned(column_values(clients, self.features), bins_of(self.edges, self.categories))
        y = np.where(used, self._known_targets(clients), 0.0)
        refits = np.isfinite(strength) and self.form == "leaves"
        margin = self._forest_margins(codes, y, clients, used, strength if refits else np.inf)
        if np.isfinite(strength) and self.form == "trees":
            for a, b in zip(clients.offsets[:-1], clients.offsets[1:], strict=True):
                margin[a:b] = self._grown(codes[a:b], y[a:b], margin[a:b], used[a:b], strength)
        return margin

    def _known_targets(self, clients: Federation) -> Array:
        """Targets where there are any: rows to predict have none."""
        values = clients[self.target] if self.target in clients.columns else np.zeros(clients.n_rows)
        return np.nan_to_num(values.astype(np.float64))

    def _forest_margins(self, codes: Array, y: Array, clients: Federation, used: Array, strength: float) -> Array:
        """The common forest's margins; with a finite strength each leaf is a mean of its value and the client's own.

        The common value counts like `strength` of curvature: v' = (strength v - rate G) / (strength + H).
        """
        forest = self.common()
        trees, outputs, inner = forest["feature"].shape
        margin = np.repeat(np.atleast_1d(np.asarray(self.base, dtype=float))[None], len(codes), axis=0)
        n, nodes = len(clients), 2 * inner + 1
        for t in range(trees):
            added = np.empty_like(margin)
            g, h = gradients(self.loss, y, margin) if np.isfinite(strength) else (margin, margin)
            for k in range(outputs):
                leaf = leaves(codes, forest["feature"][t, k], forest["left"][t, k]).astype(np.int64)
                value = forest["value"][t, k]
                if np.isfinite(strength):
                    place = clients.client_of_row * nodes + leaf
                    own_g, own_h = (np.bincount(place[used], part[used, k], minlength=n * nodes) for part in (g, h))
                    value = (strength * np.tile(value, n) - self.learning_rate * own_g) / (strength + own_h)
                    leaf = place
                added[:, k] = value[leaf]
            margin = margin + added
        return margin

    def _grown(self, codes: Array, y: Array, margin: Array, used: Array, l2: float) -> Array:
        """Margins after a few trees more, which one client grows on its used rows."""
        bins = bins_of(self.edges, self.categories)
        rules = Rules(l2, 1e-3, 0.0, np.zeros(len(bins.edges), dtype=np.int64), bins.n_bins, bins.categories > 0)
        margin = margin.copy()
        for _ in range(self.n_trees if used.any() else 0):
            g, h = gradients(self.loss, y, margin)
            for k in range(margin.shape[1]):
                own_g, own_h = (np.ascontiguousarray(part[:, k]) for part in (g, h))
                margin[:, k] += self.learning_rate * grow_tree(codes, own_g, own_h, used, rules, self.depth)
        return margin

    def valid_rows(self, state: Arrays, clients: Federation) -> Array | None:
        return valid_targets(clients[self.target], self.loss, len(np.atleast_1d(self.base)))

    def coded_columns(self) -> Sequence[str]:
        names = (self.features,) if isinstance(self.features, str) else tuple(self.features)
        return (*names, self.target) if self.loss in ("logistic", "softmax") else names

    @classmethod
    def examples(cls) -> Sequence[tuple[PersonalLosses, Federation]]:
        edges, trees, fed = example_forest()
        common = [trees[name] for name in ("feature", "left", "value")]
        return [
            (cls(edges, *common), fed),
            (cls(edges, *common, loss="logistic", target="label", form="trees", n_trees=2, depth=2), fed),
        ]


def grow_tree(codes: Array, g: Array, h: Array, used: Array, rules: Rules, depth: int) -> Array:
    """Grow one tree on the used rows, and give the value of its leaf to every row."""
    inner, width = 2**depth - 1, int(rules.n_bins.max(initial=1)) + 1
    feature, left = np.full(inner, -1, dtype=np.int32), np.zeros((inner, 32), dtype=np.uint8)
    value, node = np.zeros(2 * inner + 1), np.zeros(len(codes), dtype=np.int16)
    nobody = np.zeros(len(codes), dtype=np.int64)
    value[0] = -g[used].sum() / (h[used].sum() + rules.l2)
    for level in range(depth):
        nodes, first = 2**level, 2**level - 1
        hist = np.zeros((nodes, codes.shape[1], width, 2))
        rows, slots = placed(node, first, np.arange(nodes, dtype=np.int32), nobody, nodes, used)
        add_histograms(codes, rows, slots, g, h, hist)
        splits = best_splits(hist, np.full(nodes, -_FREE), np.full(nodes, _FREE), rules)
        for i in np.flatnonzero(splits.feature >= 0).tolist():
            feature[first + i], left[first + i] = splits.feature[i], splits.left[i]
            value[2 * (first + i) + 1 : 2 * (first + i) + 3] = [-a / (b + rules.l2) for a, b in splits.sums[i]]
        descend(codes, node, feature, left, 1)
    return np.asarray(value[node])


class PersonalTrees(Estimator):
    """Trees of each client's own, from common ones and its rows; nothing of them leaves the client.

    With "leaves" a client fits every leaf again: the mean of the common value, which counts like `strength` of
    curvature, and of its own Newton step. With "trees" it grows a few more, `strength` added to their leaves'
    curvature. `fit` is one round: every client tries all strengths on part of its rows and sends the loss of the
    others; the lowest sum wins, and the common forest takes part.

    Parameters
    ----------
    trees
        Fitted boosted trees.
    form
        "leaves" or "trees".
    strengths
        What is tried.
    n_trees, depth
        How many trees more, and their levels.
    held_out, seed
        The share of rows to judge by, and the seed of their draw.

    Learns `strength_` (infinite if the common forest is best), `losses_` and `accuracies_` of held-out rows (the first
    of the common forest), and `improved_`: the share of clients with a lower loss.

    >>> fed = Federation({"x": [0.0, 1.0] * 40, "y": [0.0, 1.0] * 20 + [5.0, 6.0] * 20}, [0, 40, 80])
    >>> own = PersonalTrees(BoostedTrees(20, loss="squared").fit(fed)).fit(fed)
    >>> own.predict(fed.take([1]), train=fed).round(0)[:2].tolist(), bool(own.losses_[0] > 5 * own.losses_.min())
    ([5.0, 6.0], True)
    """

    name = "own-trees"

    def __init__(
        self,
        trees: BoostedTrees,
        *,
        form: str = "leaves",
        strengths: Sequence[float] = (1.0, 4.0, 16.0, 64.0, 256.0),
        n_trees: int = 10,
        depth: int = 3,
        held_out: float = 0.3,
        seed: int = 0,
    ) -> None:
        self.trees = trees
        self.form = form
        self.strengths = strengths
        self.n_trees = n_trees
        self.depth = depth
        self.held_out = held_out
        self.seed = seed

    def _work(self) -> PersonalLosses:
        self.trees._check_fitted("forest_")
        forest = self.trees.forest_
        own = {name: value for name, value in self.get_params().items() if name != "trees"}
        return PersonalLosses(
            forest.bins.edges,
            forest.feature,
            forest.left,
            forest.value,
            categories=tuple(int(c) for c in forest.bins.categories),
            loss=forest.loss,
            base=forest.base,
            features=forest.columns,
            target=forest.target,
            learning_rate=self.trees.learning_rate,
            **own,
        )

    def _fit(self, engine: Engine, column: str | None, how: Fit) -> None:
        work = self._work()
        work.start(0)
        state = self._run(work, engine, how, n_rounds=1, measure=0)
        rows = max(float(state["server.rows"]), 1.0)
        self.losses_ = state["server.loss"] / rows
        self.accuracies_ = state["server.right"] / rows
        best = int(np.argmin(self.losses_))
        self.strength_ = float((np.inf, *self.strengths)[best])
        self.improved_ = float(state["server.better"][best]) / max(float(state["server.judging"]), 1.0)

    def predict(self, test: Federation, *, train: Federation | None = None) -> Array:
        """As `BoostedTrees.predict`, each client's rows by its own trees."""
        margin = self.margins(test, train=train)
        loss = self.trees.forest_.loss
        if loss in ("squared", "poisson"):
            return np.exp(np.clip(margin[:, 0], -30, 30)) if loss == "poisson" else margin[:, 0]
        return np.asarray(probabilities(loss, margin).argmax(axis=1))

    def margins(self, test: Federation, *, train: Federation | None = None) -> Array:
        """Margins [rows, outputs] of the test rows; clients without rows in `train`, by id, have the common forest.

        A client that did not take part in any fit is no different: it needs rows in `train`.
        """
        self._check_fitted("strength_")
        columns, target = self.trees.forest_.columns, self.trees.forest_.target
        if train is not None and any(train.names.get(c) != test.names.get(c) for c in columns):
            raise DataError("the categories of train and test differ: declare the same names for both")
        place = {key: i for i, key in enumerate([] if train is None else train.ids.tolist())}
        work, out = self._work(), np.zeros((test.n_rows, len(self.trees.forest_.base)))
        for i, name in enumerate(test.ids.tolist()):
            mine = test.take([i])
            own_rows = train.take([place[name]]) if train is not None and name in place else None
            n = 0 if own_rows is None else own_rows.n_rows
            parts = {c: mine[c] if own_rows is None else np.concatenate([own_rows[c], mine[c]]) for c in columns}
            y = np.zeros(mine.n_rows) if own_rows is None else np.append(work.targets(own_rows), np.zeros(mine.n_rows))
            names = {c: v for c, v in test.names.items() if c in columns}
            both = Federation({**parts, target: y}, [0, n + mine.n_rows], names=names)
            used = np.arange(n + mine.n_rows) < n
            strength = self.strength_ if n else np.inf
            a, b = test.offsets[i], test.offsets[i + 1]
            out[a:b] = work.margins(both, used, strength)[n:]
        return out

    @classmethod
    def examples(cls) -> Sequence[tuple[PersonalTrees, Federation]]:
        return []  # its phase has its own

"""Gradient boosting with histograms, which are sums over clients."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fedscape.core.estimator import Fit
from fedscape.core.federation import Federation
from fedscape.core.sampling import All
from fedscape.core.validate import check_whole, column_names
from fedscape.errors import DataError, PrivacyError
from fedscape.statistics.quantiles import Quantiles
from fedscape.tabular.binning import MOST, column_values
from fedscape.tabular.design import range_of
from fedscape.tabular.estimator import TableEstimator
from fedscape.tabular.forest import Forest
from fedscape.tabular.growing import TreeRounds
from fedscape.tabular.losses import check_loss
from fedscape.tabular.schema import Schema, declared_schema, seen_schema
from fedscape.tabular.survey import TargetSurvey
from fedscape.types import Array, Arrays

if TYPE_CHECKING:
    from fedscape.core.engine import Engine

Ranges = Mapping[str, Sequence[float]]
_ROWS = 200_000.0  # bin edges are quantiles of a sample of about this many rows, as in scikit-learn


class BoostedTrees(TableEstimator):
    """Gradient boosted trees over all clients' rows: a histogram of gradients is a sum.

    Phases: a survey of the target (one round), bin edges by `Quantiles` (a few rounds), then one round per level of
    each boosting step, all nodes at once. Gradients are rounded to a grid, so the forest does not depend on how rows
    are distributed over clients. Missing values go to the better side; categories (columns with names) are split by
    subsets.

    Parameters
    ----------
    n_trees, depth, learning_rate
        Boosting steps, levels of a tree, and the factor on each Newton step (shrinkage).
    l2, least_weight, least_gain
        L2 penalty on leaf values; the least sum of second derivatives in a leaf; the least gain of a split.
    bins
        Bins per feature, at most 255; their edges are quantiles of all rows, or of a sample of about 200,000.
    loss
        "squared", "logistic", "softmax" or "poisson". By default a target of names or whole numbers is classified, and
        other numbers get the squared error. For counts pass "poisson".
    monotone
        Constraint by feature name: 1 for predictions that must not fall with it, -1 for ones that must not rise.
    parallel, subsample
        How many trees grow at once for each output, as one step in as many rounds as one tree, and the share of rows
        that each of them sees. A step adds their mean: fewer rounds, and less noise of single trees, for a slower
        descent a tree. Several need a subsample below 1, or they would be the same tree.
    held_out, patience
        Early stopping: the share of each client's rows held out, and the number of steps without a lower loss after
        which to stop; the forest is cut at its best step. By default all rows are used for training.
    ranges
        The least and greatest value of feature columns and of a numeric target, to which values are clipped. A private
        fit needs them.
    categories
        Names of the categories of columns, the target's classes among them, for an engine that holds no rows (Flower):
        all nodes declare the same. Elsewhere the columns themselves say so.
    features, target
        Columns; features are one column of any trailing shape or several.

    Learns `forest_`, `n_trees_`, `losses_` (on held-out rows before each step), `classes_` and `feature_names_`. Every
    round of a private fit is a release; `n_releases` counts them.

    >>> fed = Federation({"x": [[0.0], [1.0], [2.0], [3.0]] * 9, "y": [0, 0, 1, 1] * 9}, [0, 16, 36])
    >>> trees = BoostedTrees(seed=0).fit(fed, features="x", target="y")
    >>> trees.predict([[0.5], [2.5]]).tolist(), len(trees.forest_.value)
    ([0, 1], 100)
    """

    name = "boosted-trees"

    def __init__(
        self,
        n_trees: int = 100,
        *,
        depth: int = 5,
        learning_rate: float = 0.1,
        l2: float = 1.0,
        least_weight: float = 1.0,
        least_gain: float = 0.0,
        bins: int = 255,
        loss: str | None = None,
        monotone: Mapping[str, int] | None = None,
        parallel: int = 1,
        subsample: float = 1.0,
        held_out: float = 0.0,
        patience: int = 10,
        ranges: Ranges | None = None,
        categories: Mapping[str, Sequence[str]] | None = None,
        features: str | Sequence[str] = "x",
        target: str = "y",
        seed: int = 0,
    ) -> None:
        self.n_trees = n_trees
        self.depth = depth
        self.learning_rate = learning_rate
        self.l2 = l2
        self.least_weight = least_weight
        self.least_gain = least_gain
        self.bins = bins
        self.loss = loss
        self.monotone = monotone
        self.parallel = parallel
        self.subsample = subsample
        self.held_out = held_out
        self.patience = patience
        self.ranges = ranges
        self.categories = categories
        self.features = features
        self.target = target
        self.seed = seed

    def _check(self) -> None:
        for name, least in (("n_trees", 1), ("depth", 1), ("bins", 2), ("patience", 1), ("parallel", 1)):
            check_whole(name, getattr(self, name), least=least)
        if self.bins > MOST or self.depth > 10:
            raise DataError(f"bins must be at most {MOST} and depth at most 10, not {self.bins} and {self.depth}")
        if not (0 < self.learning_rate <= 1 and self.l2 >= 0 and 0 <= self.held_out < 1):
            raise DataError(
                f"learning_rate must be in (0, 1], l2 not negative and held_out in [0, 1), not {self.learning_rate}, "
                f"{self.l2} and {self.held_out}"
            )
        if not 0 < self.subsample <= 1 or (self.parallel > 1 and self.subsample == 1):
            raise DataError(
                f"subsample must be in (0, 1], and below 1 for parallel trees, which are the same tree else, not "
                f"{self.subsample!r} with parallel={self.parallel}"
            )
        if self.loss is not None:
            check_loss(self.loss)

    @property
    def _steps(self) -> int:
        return -(-self.n_trees // self.parallel)

    def n_releases(self) -> int:
        """Largest number of releases of a private fit: the `rounds` of `calibrate`.

        >>> BoostedTrees(10, depth=3, ranges={"x": (0, 1)}).n_releases()
        34
        """
        return 1 + self._quantiles((), private=True, ranges=(0.0, 1.0)).n_rounds() + self._steps * self.depth

    def _quantiles(self, columns: Sequence[str], *, private: bool, ranges: Any) -> Quantiles:
        """Quantiles for the bin edges; their resolution is relative to the value, or to the range if there is one."""
        shares = (np.arange(1, self.bins) / self.bins).tolist()
        if ranges is None:
            return Quantiles(shares, column=tuple(columns), resolution=2.0**-12, cells=16)
        width = np.ptp(np.atleast_2d(np.asarray(ranges, dtype=float)), axis=1).max()
        cells = 4 if private else 16
        return Quantiles(shares, column=tuple(columns), ranges=ranges, resolution=float(width) * 2.0**-14, cells=cells)

    # -- learning ------------------------------------------------------------------------------------------------------

    def _fit(self, engine: Engine, column: str | None, how: Fit) -> None:
        everyone = isinstance(how.sampler or All(), All)  # a parent of another cohort minus a child is no child
        work, schema = self._plan(engine, how, subtract=everyone)
        state = self._run(
            work, engine, how.phase(".trees"), n_rounds=self._steps * self.depth, seed=self.seed, measure=0,
            done=lambda old, new: self.is_done(new),
        )  # fmt: skip
        self._take(work, state, schema)

    def growing(self, engine: Engine, how: Fit | None = None, *, subtract: bool = True) -> TreeRounds:
        """The rounds that grow the forest, after a survey of the target and of the bins.

        Parameters
        ----------
        engine
            The clients.
        how
            The options of the fit that this is part of; by default all clients take part, without privacy.
        subtract
            Whether only one child of a split is sent; the cohort of all rounds must then be the same.
        """
        how = self._begin(Fit(progress=False)) if how is None else how
        return self._plan(engine, how, subtract=subtract)[0]

    def _plan(self, engine: Engine, how: Fit, *, subtract: bool = True) -> tuple[TreeRounds, Schema]:
        self._check()
        private = how.privacy is not None
        if private and self.held_out:
            raise PrivacyError("held-out rows have no private loss: use held_out=0 in a private fit")
        if how.privacy is not None and how.privacy.unit == "row" and self.subsample < 1:
            raise PrivacyError("one row moves the draw of all others: use subsample=1 for unit='row', or unit='client'")
        schema = self._schema(engine, private)
        ends = self._ends(self.target, private, schema.classes)
        survey = TargetSurvey(schema.loss, target=self.target, classes=schema.classes, ends=ends)
        sums = self._run(survey, engine, how.phase(".target"), n_rounds=1, measure=0)["sums"]
        n_rows = float(sums.sum() if schema.classes else sums[0])
        share = 1.0 if private else min(1.0, _ROWS / max(n_rows, 1.0))  # one row moves a draw of rows
        edges, schema = self._edges(engine, how, schema, share)
        return self._rounds(schema, *survey.begin(sums), edges, subtract=subtract and not private), schema

    def growing_blind(self, engine: Engine) -> TreeRounds:
        """The same rounds from declared ranges alone: even bins, no class ahead; all that is learned is in the rounds.

        >>> from fedscape import Local
        >>> fed = Federation({"x": [0.0, 1.0], "y": [0.5, 1.5]}, [0, 1, 2])
        >>> BoostedTrees(bins=4, ranges={"x": (0, 8), "y": (0, 2)}).growing_blind(Local(fed)).edges.tolist()
        [[2.0, 4.0, 6.0]]
        """
        self._check()
        schema = self._schema(engine, private=True)
        columns = zip(schema.columns, schema.listed, strict=True)
        ends = [(0.0, 1.0) if own else self._ends(name, True, 0) for name, own in columns]
        low, high = np.repeat(np.array(ends, dtype=float), schema.widths, axis=0).T
        edges = low[:, None] + (high - low)[:, None] * np.arange(1, self.bins) / self.bins
        pair, classes = self._ends(self.target, True, schema.classes), schema.classes
        survey = TargetSurvey(schema.loss, target=self.target, classes=classes, ends=pair)
        even = np.ones(classes) if classes else np.array([1.0, 0.0, 1.0])
        return self._rounds(schema, *survey.begin(even), edges, subtract=False)

    def _rounds(self, schema: Schema, base: Array, unit: float, edges: Array, *, subtract: bool) -> TreeRounds:
        return TreeRounds(
            edges,
            categories=schema.n_categories,
            loss=schema.loss,
            base=base,
            unit=unit,
            features=schema.columns,
            target=self.target,
            monotone=self._directions(schema),
            n_trees=self._steps,
            subtract=subtract,
            **{name: getattr(self, name) for name in _SHARED},
        )

    _loaded_private = False  # whether it was loaded from the file of a private fit

    def _schema(self, engine: Engine, private: bool) -> Schema:
        names = column_names(self.features, target=self.target)
        if isinstance(engine.clients, Federation):
            return seen_schema(engine.clients, names, self.target, self.loss, private=private)
        return declared_schema(names, self.target, self.loss, self.categories)

    def _ends(self, name: str, private: bool, classes: int) -> tuple[float, float] | None:
        pair = range_of(self.ranges, name)
        if pair is None:
            if private and not classes:
                raise PrivacyError(f"a private fit needs ranges={{column: (least, greatest)}}, also for {name!r}")
            return None
        return float(pair[0]), float(pair[1])

    def _edges(self, engine: Engine, how: Fit, schema: Schema, share: float) -> tuple[Array, Schema]:
        """Bin edges of every feature, [features, edges], and the schema with all widths; categories use none."""
        numbers = schema.numbers
        if not numbers:
            return np.zeros((sum(schema.widths), self.bins - 1)), schema
        private, ranges = how.privacy is not None, None
        if private or all(name in (self.ranges or {}) for name in numbers):
            pairs = np.array([self._ends(name, private, 0) for name in numbers], dtype=float)
            widths = [max(w, 1) for w, own in zip(schema.widths, schema.listed, strict=True) if not own]
            ranges = np.repeat(pairs, widths, axis=0)
        work = self._quantiles(numbers, private=private, ranges=ranges).set_params(share=share, seed=self.seed)
        assert isinstance(work, Quantiles)
        work.history_ = self.history_
        work._fit(engine, None, how.phase(".bins").sending("counts"))
        schema = schema.with_numbers(work.quantiles_.shape[1])
        edges = np.zeros((sum(schema.widths), self.bins - 1))
        where = np.repeat([not own for own in schema.listed], schema.widths)
        edges[where] = np.maximum.accumulate(np.nan_to_num(work.quantiles_.T), axis=1)  # finite, as a file needs them
        return edges, schema

    def _directions(self, schema: Schema) -> tuple[int, ...]:
        directions = dict(self.monotone or {})
        for name, way in directions.items():
            if way not in (-1, 0, 1) or name not in schema.numbers:
                raise DataError(f"monotone must give -1, 0 or 1 for numeric features, not {way!r} for {name!r}")
        pairs = zip(schema.columns, schema.widths, strict=True)
        return tuple(directions.get(name, 0) for name, width in pairs for _ in range(width))

    def is_done(self, state: Arrays) -> bool:
        """Whether all trees are grown, or held-out rows say that more do not help."""
        losses = state["server.losses"]
        stalled = self.held_out > 0 and len(losses) - int(np.argmin(losses)) > self.patience if len(losses) else False
        return stalled or int(state["trees"]) >= self._steps

    @classmethod
    def of_state(cls, work: TreeRounds, state: Arrays, clients: Federation) -> BoostedTrees:
        """A model with the forest of a state of the rounds, the tree that still grows included."""
        model = cls(features=tuple(work.features), target=work.target, **{n: getattr(work, n) for n in _SHARED})
        model._take(work, state, seen_schema(clients, work.features, work.target, work.loss, private=False))
        return model

    def _take(self, work: TreeRounds, state: Arrays, schema: Schema) -> None:
        n = int(state["trees"])
        self.losses_ = state["server.losses"]
        if self.held_out and len(self.losses_):
            n = min(n, int(np.argmin(self.losses_)))  # the loss of step i is that of the i trees before it
        elif int(state["level"]):
            n += 1  # leaves of every level have values
        self.feature_names_, self.classes_ = schema.feature_names, schema.labels
        self.n_trees_ = n * self.parallel
        self.forest_ = Forest(
            loss=work.loss,
            base=np.atleast_1d(np.asarray(work.base, dtype=float)),
            bins=work.bins,
            **{name: self._apart(state[name][:n], work.outputs) for name in ("feature", "left", "value")},
            names=self.feature_names_,
            columns=schema.columns,
            target=self.target,
            categories=dict(schema.categories),
            classes=schema.labels,
        )

    @staticmethod
    def _apart(trees: Array, outputs: int) -> Array:
        """The parallel trees of a step as trees one after the other, [trees, outputs, ...]."""
        return np.array(trees).reshape(-1, outputs, *trees.shape[2:])

    # -- use -----------------------------------------------------------------------------------------------------------

    def predict(self, x: npt.ArrayLike | Federation) -> Array:
        """Predict the class code or the mean of each row of x, [rows, f] or a Federation."""
        self._check_fitted("forest_")
        if self.forest_.loss in ("squared", "poisson"):
            return self.forest_.means(self._rows(x))
        return np.asarray(self.forest_.probabilities(self._rows(x)).argmax(axis=1))

    def predict_proba(self, x: npt.ArrayLike | Federation) -> Array:
        """The probability of each class, [rows, classes]."""
        self._check_fitted("forest_")
        if self.forest_.loss in ("squared", "poisson"):
            raise DataError(f"the target {self.target!r} is a number and has no classes: use predict()")
        return self.forest_.probabilities(self._rows(x))

    def _rows(self, x: npt.ArrayLike | Federation) -> Array:
        if isinstance(x, Federation):
            return column_values(x, self.forest_.columns)
        rows = np.asarray(x, dtype=float)
        return rows.reshape(len(rows), int(np.prod(rows.shape[1:])))

    def save(self, path: str | os.PathLike[str], *, private: bool = False) -> None:
        """Write forest, bins and settings as one JSON file, of a private fit for its owner alone."""
        self._check_fitted("forest_")
        settings = {name: value for name, value in self.get_params().items() if name not in _BY_NAME}
        private = private or self._is_private()
        about = {**settings, "features": list(self.forest_.columns), "private": private}
        self.forest_.save(path, about, private=private)

    def save_xgboost(self, path: str | os.PathLike[str]) -> None:
        """Write the forest as a JSON model that XGBoost reads.

        Rows of float32 reach the same leaves, missing values and known categories too; margins are float32 sums of the
        leaves' values. XGBoost sends an unknown category left, `predict` where the missing go.
        """
        from fedscape.tabular.xgboost_json import save_xgboost

        self._check_fitted("forest_")
        save_xgboost(self.forest_, path, private=self._is_private())

    def _is_private(self) -> bool:
        return self._loaded_private or getattr(self, "ledger_", None) is not None

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> BoostedTrees:
        """Read a file that `save` wrote; refuse anything else.

        >>> import tempfile
        >>> fed = Federation({"x": [0.0, 1.0] * 9, "y": [0, 1] * 9}, [0, 18])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     BoostedTrees(2).fit(fed).save(f"{folder}/trees.json")
        ...     BoostedTrees.load(f"{folder}/trees.json").predict([[1.0]]).tolist()
        [1]
        """
        forest, about = Forest.load(path)
        settings = {name: value for name, value in about.items() if name in cls().get_params()}
        trees = cls(**settings)
        trees.forest_, trees.classes_, trees.n_trees_ = forest, forest.classes, len(forest.feature)
        trees.feature_names_, trees._loaded_private = forest.names, bool(about.get("private"))
        return trees

    @classmethod
    def examples(cls) -> Sequence[tuple[BoostedTrees, Federation]]:
        return []  # its phases have examples


_BY_NAME = ("monotone", "ranges", "categories")
_SHARED = ("parallel", "subsample", "depth", "learning_rate", "l2", "least_weight", "least_gain", "held_out", "seed")

"""Gradient boosting over histograms, by sums."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from fedscape.core.estimator import Estimator, Fit
from fedscape.core.federation import Federation
from fedscape.core.validate import check_whole, column_names
from fedscape.errors import DataError, PrivacyError
from fedscape.statistics.quantiles import Quantiles
from fedscape.tabular.binning import MOST, column_values
from fedscape.tabular.forest import Forest
from fedscape.tabular.growing import TreeRounds
from fedscape.tabular.losses import check_loss
from fedscape.tabular.schema import Schema, declared_schema, seen_schema
from fedscape.tabular.survey import TargetSurvey
from fedscape.types import Array, Arrays

if TYPE_CHECKING:
    from fedscape.core.engine import Engine
    from fedscape.core.sampling import Sampler
    from fedscape.privacy.ledger import Ledger
    from fedscape.privacy.mechanisms import Privacy

Ranges = Mapping[str, Sequence[float]]
_ROWS = 200_000.0  # of which bin edges are made where there are more, as scikit-learn does


class BoostedTrees(Estimator):
    """Gradient boosted trees over all clients' rows: a histogram of gradients is a sum.

    Phases: a survey of the target (one round), bin edges by `Quantiles` (a few), then one round for each level of each
    step, all nodes at once. Gradients lie on a grid, so that the forest does not depend on how rows are dealt to
    clients. Missing values go to the side that is better; categories (columns with names) are split by subsets.

    Parameters
    ----------
    n_trees, depth, learning_rate
        Steps of boosting, levels of a tree, and the share of each Newton step that is taken.
    l2, least_weight, least_gain
        Added to a leaf's curvature; the least curvature of a leaf; the least gain of a split.
    bins
        Bins of a feature, at most 255; their edges are quantiles of all rows, or of 200,000 drawn from more.
    loss
        "squared", "logistic", "softmax" or "poisson"; by default classes for a target of names or whole numbers, the
        squared error for other numbers. Counts are said: "poisson".
    monotone
        For features by name -1 or 1: predictions must not rise, or fall, with it.
    held_out, patience
        The share of each client's rows to judge by, and after how many steps without a lower loss to stop; the forest
        ends with its best step. By default all rows are learned from.
    ranges
        The least and greatest value of feature columns and of a numeric target, to which values are cut. A private fit
        needs them.
    categories
        Names of the categories of columns, the target's classes among them, for an engine that holds no rows (Flower):
        all nodes declare the same. Elsewhere the columns themselves say so.
    features, target
        Columns; features are one column of any trailing shape or several.

    Learns `forest_`, `n_trees_`, `losses_` (of held-out rows before each step), `classes_` and `feature_names_`. Every
    round of a private fit is a release: `n_releases` says how many.

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
        self.held_out = held_out
        self.patience = patience
        self.ranges = ranges
        self.categories = categories
        self.features = features
        self.target = target
        self.seed = seed

    def fit(
        self,
        data: Engine | Federation,
        *,
        features: str | Sequence[str] | None = None,
        target: str | None = None,
        column: str | None = None,
        sampler: Sampler | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        every: int = 1,
        allow: Sequence[str] = (),
        progress: bool | None = None,
        privacy: Privacy | None = None,
        ledger: Ledger | None = None,
        measure_privacy: Privacy | None = None,
    ) -> Self:
        """Grow the forest; `features` and `target` stand in for the constructor's.

        The other parameters are those of every `fit`; `column` is another word for `target`.
        """
        self.features = self.features if features is None else features
        self.target = target or column or self.target
        return super().fit(
            data,
            sampler=sampler,
            checkpoint=checkpoint,
            every=every,
            allow=allow,
            progress=progress,
            privacy=privacy,
            ledger=ledger,
            measure_privacy=measure_privacy,
        )

    def _check(self) -> None:
        for name, least in (("n_trees", 1), ("depth", 1), ("bins", 2), ("patience", 1)):
            check_whole(name, getattr(self, name), least=least)
        if self.bins > MOST or self.depth > 10:
            raise DataError(f"bins must be at most {MOST} and depth at most 10, not {self.bins} and {self.depth}")
        if not (0 < self.learning_rate <= 1 and self.l2 >= 0 and 0 <= self.held_out < 1):
            raise DataError(
                f"learning_rate must be in (0, 1], l2 not negative and held_out in [0, 1), not {self.learning_rate}, "
                f"{self.l2} and {self.held_out}"
            )
        if self.loss is not None:
            check_loss(self.loss)

    def n_releases(self) -> int:
        """How many releases a private fit makes at most: what `calibrate` needs as `rounds`.

        >>> BoostedTrees(10, depth=3, ranges={"x": (0, 1)}).n_releases()
        34
        """
        return 1 + self._quantiles((), private=True, ranges=(0.0, 1.0)).n_rounds() + self.n_trees * self.depth

    def _quantiles(self, columns: Sequence[str], *, private: bool, ranges: Any) -> Quantiles:
        """The edges of bins: quantiles to a share of the value, or of the range."""
        shares = (np.arange(1, self.bins) / self.bins).tolist()
        if ranges is None:
            return Quantiles(shares, column=tuple(columns), resolution=2.0**-12, cells=16)
        width = np.ptp(np.atleast_2d(np.asarray(ranges, dtype=float)), axis=1).max()
        cells = 4 if private else 16
        return Quantiles(shares, column=tuple(columns), ranges=ranges, resolution=float(width) * 2.0**-14, cells=cells)

    # -- learning ------------------------------------------------------------------------------------------------------

    def _fit(self, engine: Engine, column: str | None, how: Fit) -> None:
        self._check()
        names = column_names(self.features, target=self.target)
        private = how.privacy is not None
        if private and self.held_out:
            raise PrivacyError("held-out rows have no private loss: use held_out=0 in a private fit")
        schema = self._schema(engine, names, private)
        ends = self._ends(self.target, private, schema.classes)
        survey = TargetSurvey(schema.loss, target=self.target, classes=schema.classes, ends=ends)
        sums = self._run(survey, engine, how.phase(".target"), n_rounds=1, measure=0)["sums"]
        base, unit = survey.begin(sums)
        n_rows = float(sums.sum() if schema.classes else sums[0])
        edges, schema = self._edges(engine, how, schema, min(1.0, _ROWS / max(n_rows, 1.0)))
        self.feature_names_ = schema.feature_names
        work = TreeRounds(
            edges,
            categories=schema.n_categories,
            loss=schema.loss,
            base=base,
            unit=unit,
            features=names,
            target=self.target,
            monotone=self._directions(schema),
            subtract=not private,
            **{name: getattr(self, name) for name in _SHARED},
        )
        state = self._run(
            work, engine, how.phase(".trees"), n_rounds=self.n_trees * self.depth, seed=self.seed, measure=0,
            done=lambda old, new: self._is_done(new),
        )  # fmt: skip
        self._take(work, state, schema)

    _loaded_private = False  # whether it was read from the file of a private fit

    def _schema(self, engine: Engine, names: Sequence[str], private: bool) -> Schema:
        if isinstance(engine.clients, Federation):
            return seen_schema(engine.clients, names, self.target, self.loss, private=private)
        return declared_schema(names, self.target, self.loss, self.categories)

    def _ends(self, name: str, private: bool, classes: int) -> tuple[float, float] | None:
        pair = (self.ranges or {}).get(name)
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
            every = [max(w, 1) for w, own in zip(schema.widths, schema.listed, strict=True) if not own]
            ranges = np.repeat(pairs, every, axis=0)
        work = self._quantiles(numbers, private=private, ranges=ranges).set_params(share=share, seed=self.seed)
        assert isinstance(work, Quantiles)
        work.history_ = self.history_
        work._fit(engine, None, how.phase(".bins").sending("counts"))
        schema = schema.with_numbers(work.quantiles_.shape[1])
        edges = np.zeros((sum(schema.widths), self.bins - 1))
        where = np.repeat([not own for own in schema.listed], schema.widths)
        edges[where] = np.maximum.accumulate(work.quantiles_.T, axis=1)
        return edges, schema

    def _directions(self, schema: Schema) -> tuple[int, ...]:
        wanted = dict(self.monotone or {})
        for name, way in wanted.items():
            if way not in (-1, 0, 1) or name not in schema.numbers:
                raise DataError(f"monotone must give -1, 0 or 1 for numeric features, not {way!r} for {name!r}")
        pairs = zip(schema.columns, schema.widths, strict=True)
        return tuple(wanted.get(name, 0) for name, width in pairs for _ in range(width))

    def _is_done(self, state: Arrays) -> bool:
        losses = state["server.losses"]
        stalled = self.held_out > 0 and len(losses) - int(np.argmin(losses)) > self.patience if len(losses) else False
        return stalled or int(state["trees"]) >= self.n_trees

    def _take(self, work: TreeRounds, state: Arrays, schema: Schema) -> None:
        n = int(state["trees"])
        self.losses_ = state["server.losses"]
        if self.held_out and len(self.losses_):
            n = min(n, int(np.argmin(self.losses_)))  # the loss of step i is that of the i trees before it
        self.classes_ = schema.labels
        self.n_trees_ = n
        self.forest_ = Forest(
            loss=work.loss,
            base=np.atleast_1d(np.asarray(work.base, dtype=float)),
            bins=work.bins,
            feature=np.array(state["feature"][:n]),
            left=np.array(state["left"][:n]),
            value=np.array(state["value"][:n]),
            names=self.feature_names_,
            columns=schema.columns,
            target=self.target,
            categories=dict(schema.categories),
            classes=schema.labels,
        )

    # -- use -----------------------------------------------------------------------------------------------------------

    def predict(self, x: npt.ArrayLike | Federation) -> Array:
        """The class of each row by its number, or its expected target; rows are [rows, f], or those of a Federation."""
        self._check_fitted("forest_")
        if self.forest_.loss in ("squared", "poisson"):
            return self.forest_.means(self._rows(x))
        return np.asarray(self.forest_.probabilities(self._rows(x)).argmax(axis=1))

    def predict_proba(self, x: npt.ArrayLike | Federation) -> Array:
        """The probability of each class, [rows, classes]."""
        self._check_fitted("forest_")
        if self.forest_.loss in ("squared", "poisson"):
            raise DataError(f"the target {self.target!r} is a number: predict() gives what is expected of it")
        return self.forest_.probabilities(self._rows(x))

    def _rows(self, x: npt.ArrayLike | Federation) -> Array:
        if isinstance(x, Federation):
            return column_values(x, self.forest_.columns)
        rows = np.asarray(x, dtype=float)
        return rows.reshape(len(rows), int(np.prod(rows.shape[1:])))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write forest, bins and settings as one JSON file."""
        self._check_fitted("forest_")
        settings = {name: value for name, value in self.get_params().items() if name not in _BY_NAME}
        about = {**settings, "features": list(self.forest_.columns), "private": self._is_private()}
        self.forest_.save(path, about, private=self._is_private())

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
        """What `save` wrote; anything else is refused.

        >>> import tempfile
        >>> fed = Federation({"x": [0.0, 1.0] * 9, "y": [0, 1] * 9}, [0, 18])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     BoostedTrees(2).fit(fed).save(f"{folder}/trees.json")
        ...     BoostedTrees.load(f"{folder}/trees.json").predict([[1.0]]).tolist()
        [1]
        """
        forest, about = Forest.load(path)
        known = {name: value for name, value in about.items() if name in cls().get_params()}
        made = cls(**known)
        made.forest_, made.classes_, made.n_trees_ = forest, forest.classes, len(forest.feature)
        made.feature_names_, made._loaded_private = forest.names, bool(about.get("private"))
        return made

    @classmethod
    def examples(cls) -> Sequence[tuple[BoostedTrees, Federation]]:
        return []  # its phases have their own


_BY_NAME = ("monotone", "ranges", "categories")
_SHARED = ("n_trees", "depth", "learning_rate", "l2", "least_weight", "least_gain", "held_out", "seed")

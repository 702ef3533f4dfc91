"""Which features move the predictions of boosted trees, row by row and for each kind of client."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from fedscape.core.engine import as_engine
from fedscape.core.estimator import Estimator, Fit
from fedscape.core.federation import Federation
from fedscape.core.rounds import check_declared_classes
from fedscape.errors import DataError
from fedscape.tabular.attributions import AttributionSums, LeafCounts, attributions, expected_margins
from fedscape.tabular.binning import binned
from fedscape.tabular.boosting import BoostedTrees
from fedscape.types import Array, Arrays

if TYPE_CHECKING:
    from fedscape.core.engine import Engine
    from fedscape.privacy.ledger import Ledger
    from fedscape.privacy.mechanisms import Privacy


class KindAttributions(NamedTuple):
    """Attributions of each kind of client: means over its rows, and means of their sizes, [kinds, features].

    With several outputs they are [kinds, outputs, features]. A kind without rows has NaN.
    """

    kinds: tuple[str, ...]
    features: tuple[str, ...]
    rows: Array
    mean: Array
    size: Array


class TreeAttributions(Estimator):
    """Shapley values of boosted trees: how far each feature moves the margin of a row from that of the average row.

    A feature outside the coalition is averaged over the rows that pass its splits (TreeSHAP, "path dependent":
    Lundberg et al. 2020). `fit` counts the rows of all clients at each leaf, by one sum. Values are exact and add up:
    `base_` plus those of a row is its margin.

    Parameters
    ----------
    trees
        Fitted boosted trees.

    Learns `counts_` of rows at each node, and `base_` [outputs]. Counts are a release under privacy.

    >>> x = [[0.0, 5.0], [1.0, 5.0], [2.0, 5.0], [3.0, 5.0]]
    >>> fed = Federation({"x": x * 9, "y": [0, 0, 1, 1] * 9}, [0, 16, 36])
    >>> trees = BoostedTrees(5).fit(fed)
    >>> about = TreeAttributions(trees).fit(fed)
    >>> bool(about.explain([[3.0, 5.0]])[0, 0] > 0), about.by_kind(fed).size[0, 1].tolist()
    (True, 0.0)
    """

    name = "tree-shap"

    def __init__(self, trees: BoostedTrees) -> None:
        self.trees = trees

    def _fit(self, engine: Engine, column: str | None, how: Fit) -> None:
        self.trees._check_fitted("forest_")
        state = self._run(self._counting(), engine, how, n_rounds=1, measure=0)
        self.counts_ = state["server.counts"]
        self.base_ = expected_margins(self.trees.forest_, self.counts_)

    def _counting(self) -> LeafCounts:
        forest = self.trees.forest_
        categories = _listed(forest.bins.categories)
        return LeafCounts(
            forest.bins.edges, forest.feature, forest.left, categories=categories, features=forest.columns
        )

    def explain(self, x: npt.ArrayLike | Federation) -> Array:
        """What each feature adds to the margin of each row, [rows, features]; with classes [rows, classes, features].

        Two classes have one margin, that of the second.
        """
        self._check_fitted("counts_")
        forest = self.trees.forest_
        codes = binned(np.ascontiguousarray(self.trees._rows(x)), forest.bins)
        phi = attributions(codes, self._trees(), len(forest.names))
        return phi[:, 0] if phi.shape[1] == 1 else phi

    def _trees(self) -> Arrays:
        forest = self.trees.forest_
        return {"feature": forest.feature, "left": forest.left, "value": forest.value, "counts": self.counts_}

    def by_kind(
        self,
        data: Engine | Federation,
        kind: str | None = None,
        *,
        privacy: Privacy | None = None,
        ledger: Ledger | None = None,
    ) -> KindAttributions:
        """Means of attributions for each kind of client, by one sum over the clients.

        Parameters
        ----------
        data
            The clients.
        kind
            A column of categories, the same in all rows of a client; without, all clients are one kind. Under privacy
            they must be declared.
        privacy, ledger
            As for `fit`; by default the ledger is that of the fit. One row has no bound here: use `unit="client"`.
        """
        self._check_fitted("counts_")
        engine, forest = as_engine(data), self.trees.forest_
        names: Sequence[str] = ("all",)
        if kind is not None:
            if not isinstance(engine.clients, Federation):
                raise DataError("kinds are categories of a column: use an engine that knows the columns")
            if privacy is not None:
                check_declared_classes(engine.clients, kind)
            names = engine.clients.names.get(kind, ())
            names = names or tuple(map(str, range(engine.clients.categories(kind))))
        work = AttributionSums(
            forest.bins.edges,
            *self._trees().values(),
            categories=_listed(forest.bins.categories),
            features=forest.columns,
            kind=kind,
            kinds=len(names),
        )
        asker, how = self._asking("attributions", privacy, ledger)
        state = asker._run(work, engine, how, n_rounds=1, measure=0)
        rows = np.asarray(state["server.rows"], dtype=float)
        number = np.where(rows > 0, rows, np.nan)[:, None, None]
        mean, size = state["server.attribution"] / number, state["server.size"] / number
        if mean.shape[1] == 1:
            mean, size = mean[:, 0], size[:, 0]
        return KindAttributions(tuple(names), forest.names, rows, mean, size)

    @classmethod
    def examples(cls) -> Sequence[tuple[TreeAttributions, Federation]]:
        return []  # its phases have their own


def _listed(categories: Array) -> tuple[int, ...]:
    return tuple(int(c) for c in categories)

"""FedGMM's shift in p(x) and in p(y | x): a share of the rows transformed, with permuted labels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fedscape.core.federation import Federation
from fedscape.core.random import Key
from fedscape.core.validate import check_categories
from fedscape.errors import DataError
from fedscape.simulate.columns import Column, Labels
from fedscape.simulate.recipes import Recipe
from fedscape.types import Array


def turned(images: Array) -> Array:
    """Turn images [rows, height, width, ...] by 90 degrees, flip and invert them: T of the FedGMM paper.

    >>> turned(np.array([[[0, 255], [0, 0]]], dtype=np.uint8)).tolist()
    [[[255, 0], [255, 255]]]
    """
    if images.ndim < 3 or images.shape[1] != images.shape[2]:
        raise DataError(f"turned() needs square images [rows, height, width, ...], not {list(images.shape)}")
    top = np.iinfo(images.dtype).max if images.dtype.kind in "iu" else images.max(initial=0)
    return np.asarray(top - np.flip(np.rot90(images, axes=(1, 2)), axis=2))


@dataclass(frozen=True, eq=False)
class Shifted:
    """A recipe over data with a transformed share of rows and permuted labels: FedGMM, section 4.1.

    The rows become D1 and {(T(x), P(y)) : (x, y) in D2}, with D2 a random `share` of them and P one random
    permutation of the labels. The column "shift" marks the rows of D2.

    Parameters
    ----------
    recipe
        How the rows are dealt to clients; FedGMM's is Dirichlet(0.4).
    by
        What the recipe distinguishes: "label" (new labels, as in the paper), "shift" (D1 against D2, as in its code),
        or "both" crossed.
    share
        The share of D2.
    transform
        T, a function of the features' array.
    features
        The column of features.

    >>> fed = Federation({"x": np.zeros((8, 2, 2), np.uint8), "y": [0, 1] * 4}, [0, 8])
    >>> from fedscape.simulate import Dirichlet, clients
    >>> clients(Shifted(Dirichlet(0.4)), fed, n_clients=2, column="y", seed=0)["shift"].sum()
    np.int64(4)
    """

    recipe: Recipe
    by: str = "shift"
    share: float = 0.5
    transform: Callable[[Array], Array] = turned
    features: str = "x"

    @property
    def by_category(self) -> bool:
        return self.recipe.by_category

    @property
    def category_names(self) -> tuple[str, ...] | None:
        return getattr(self.recipe, "category_names", None) if self.by == "label" else None

    def prepare(self, proxy: Federation, column: Column, key: Key) -> tuple[Federation, Column]:
        """Return the transformed data and the modelled column."""
        if self.by not in ("label", "shift", "both"):
            raise DataError(f"by must be 'label', 'shift' or 'both', not {self.by!r}")
        if not 0 <= self.share <= 1:
            raise DataError(f"share must be from 0 to 1, not {self.share}")
        if not isinstance(column, str):
            raise DataError(f"Shifted permutes the labels of one column: give its name, not {column!r}")
        rng = key.to("shifted rows").generator()
        moved = np.zeros(proxy.n_rows, dtype=np.int8)
        moved[rng.permutation(proxy.n_rows)[: round(self.share * proxy.n_rows)]] = 1
        number = proxy.categories(column)
        labels = check_categories(proxy[column], number, column)
        x, chosen = proxy[self.features].copy(), moved == 1
        x[chosen] = self.transform(x[chosen])
        y = np.where(chosen, rng.permutation(number)[labels], labels).astype(proxy[column].dtype)
        shifted = proxy.with_column(self.features, x).with_column(column, y, names=proxy.names.get(column))
        label, shift = Labels(column, number), Labels("shift", 2)
        wanted: dict[str, Column] = {"label": label, "shift": shift, "both": [label, shift]}
        return shifted.with_column("shift", moved), wanted[self.by]

    def draw(self, available: Array, n_clients: int | None, key: Key) -> Array:
        return self.recipe.draw(available, n_clients, key)

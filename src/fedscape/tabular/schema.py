"""What the server of boosted trees knows of the columns: seen in a Federation, or declared for clients elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedscape.core.federation import Federation
from fedscape.core.rounds import check_declared_classes
from fedscape.errors import DataError
from fedscape.tabular.binning import MOST

_MOST_CLASSES = 1_000


@dataclass(frozen=True)
class Schema:
    """Columns of features and target.

    Parameters
    ----------
    columns, widths
        Feature columns, and how many numbers each has; 0 for a column of a width that no server knows.
    flat
        Which columns have one number a row, as their names tell.
    categories
        Names of the categories of those that have any.
    loss, classes, labels
        The loss, the number of classes (0 for numbers) and their names.
    """

    columns: tuple[str, ...]
    widths: tuple[int, ...]
    flat: tuple[bool, ...]
    categories: Mapping[str, tuple[str, ...]]
    loss: str
    classes: int
    labels: tuple[str, ...]

    @property
    def numbers(self) -> tuple[str, ...]:
        """Columns without categories."""
        return tuple(name for name in self.columns if name not in self.categories)

    @property
    def listed(self) -> tuple[bool, ...]:
        """Which columns have categories."""
        return tuple(name in self.categories for name in self.columns)

    @property
    def feature_names(self) -> tuple[str, ...]:
        """One for each feature: those of a column with several are numbered."""
        return tuple(
            name if flat else f"{name}.{i}"
            for name, width, flat in zip(self.columns, self.widths, self.flat, strict=True)
            for i in range(width)
        )

    @property
    def n_categories(self) -> tuple[int, ...]:
        """Of each feature, 0 for numbers."""
        sizes = [len(self.categories.get(name, ())) for name in self.columns]
        if max(sizes, default=0) > MOST:
            raise DataError(f"a feature has {max(sizes):,} categories, at most {MOST} can be told apart")
        return tuple(int(n) for n in np.repeat(sizes, self.widths))

    def with_numbers(self, d: int) -> Schema:
        """The same with widths known, where d is how many numbers a row has in all columns without categories."""
        if 0 not in self.widths:
            return self
        numbers = self.numbers
        if len(numbers) > 1 and d != len(numbers):
            raise DataError(
                f"the {len(numbers)} columns {', '.join(numbers)} have {d} numbers a row at the clients: where the "
                "server holds no rows, give one column, or columns of one number"
            )
        own = d if len(numbers) == 1 else 1
        widths = tuple(1 if name in self.categories else own for name in self.columns)
        flat = tuple(name in self.categories or own == 1 for name in self.columns)
        return Schema(self.columns, widths, flat, self.categories, self.loss, self.classes, self.labels)


def seen_schema(clients: Federation, columns: Sequence[str], target: str, loss: str | None, *, private: bool) -> Schema:
    """What the columns of a Federation are; of a private one only declared classes are used."""
    values, class_names = clients[target], tuple(clients.names.get(target, ()))
    by_class = bool(class_names) or values.dtype.kind in "biu"
    classes, kind = 0, loss or ("classes" if by_class else "squared")
    if kind not in ("squared", "poisson"):
        if private and loss != "logistic":
            check_declared_classes(clients, target)
        classes = 2 if loss == "logistic" else max(clients.categories(target), 2)
    return Schema(
        tuple(columns),
        tuple(int(np.prod(clients[name].shape[1:])) for name in columns),
        tuple(clients[name].ndim == 1 for name in columns),
        {n: tuple(clients.names[n]) for n in columns if n in clients.names and clients[n].ndim == 1},
        _loss_of(target, kind, classes),
        classes,
        class_names if classes else (),
    )


def declared_schema(
    columns: Sequence[str], target: str, loss: str | None, categories: Mapping[str, Sequence[str]] | None
) -> Schema:
    """What was declared, for clients that the server cannot look at.

    >>> declared_schema(["age", "sex"], "sick", None, {"sex": ("f", "m"), "sick": ("no", "yes")}).loss
    'logistic'
    """
    named = {name: tuple(map(str, names)) for name, names in (categories or {}).items()}
    labels = named.pop(target, ())
    unknown = sorted(set(named) - set(columns))
    if unknown:
        raise DataError(f"categories name {', '.join(map(repr, unknown))}, which is neither a feature nor the target")
    classes = 0 if loss in ("squared", "poisson") else len(labels) or (2 if loss == "logistic" else 0)
    if not classes and loss not in ("squared", "poisson"):
        raise DataError(
            "the server holds no rows: say loss='squared' or 'poisson', or give the classes by "
            f"categories={{{target!r}: names}}"
        )
    kind = _loss_of(target, loss or "classes", classes)
    widths = tuple(int(name in named) for name in columns)
    return Schema(tuple(columns), widths, (True,) * len(columns), named, kind, classes, labels if classes else ())


def _loss_of(target: str, kind: str, classes: int) -> str:
    if classes > _MOST_CLASSES:
        raise DataError(f"the target {target!r} has {classes:,} classes: say loss='squared' or 'poisson'")
    return kind if kind != "classes" else "logistic" if classes == 2 else "softmax"

"""What a study can look at: a column of categories, a matrix of features, and remarks on how they were made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from fedscape.core.federation import Federation
from fedscape.core.random import Key
from fedscape.errors import DataError, plural
from fedscape.formats.kinds import LABELS, ColumnKind, Overrules
from fedscape.formats.modelled import classes_of
from fedscape.formats.reading import Reading, encode, read_columns
from fedscape.statistics.kmeans import FederatedKMeans
from fedscape.types import Array

MOST_CATEGORIES = 100
MOST_ROWS = 200_000
_CONTEXT = 3  # characters of a text before the one to be guessed
_CELLS = 8
OTHER = "(all other)"  # categories that are together


class Apart(NamedTuple):
    """All categories, before rare ones were merged: what `fedscape fit` models."""

    clients: Federation  # column y: one category a row, or count vectors
    place: Array  # [all categories] position of each among the merged ones


@dataclass(frozen=True, eq=False)
class Prepared:
    """The clients as a study sees them.

    `counts` [clients, C] are the categories of `names`. `rows` has one category a row in the column y, and numbers in
    the column x where there are `features`. It is None where only count vectors are known. `labels` says whether the
    categories are labels; without a column of labels they are cells of the features. `ordered` says whether they are
    parts of a number, the least first. `apart` has the clients with all categories, before rare ones were merged, and
    the position of each among `names`. It is None where that is the same.
    """

    given: Federation
    rows: Federation | None
    counts: Array
    names: tuple[str, ...]
    column: str
    labels: bool
    features: tuple[str, ...]
    notes: tuple[str, ...]
    reading: Reading
    ordered: bool = False
    apart: Apart | None = None

    @property
    def width(self) -> int:
        """How many features a row has."""
        return 0 if self.rows is None or "x" not in self.rows else int(self.rows["x"].shape[1])


def prepare(
    federation: Federation,
    *,
    column: str | None = None,
    features: Sequence[str] | None = None,
    names: Sequence[str] | None = None,
    overrules: Overrules | None = None,
    reading: Reading | None = None,
    least: int = 1,
    seed: int = 0,
) -> Prepared:
    """Find categories and features, and say what had to be done: bins, rare categories together, rows left out.

    Parameters
    ----------
    federation
        The clients.
    column
        The categories, count vectors, or a number (which is cut into bins); by default the first of y, label, labels,
        target, class that is there; without any, cells of the features stand in.
    features
        The columns to learn from; by default x, or else all other columns that are numbers or have few categories.
    names
        What the categories are called, in the order of their codes.
    overrules
        What columns are, against what their values suggest.
    reading
        How the columns were read, where that is known already.
    least
        Categories that fewer clients have are put together.

    >>> fed = Federation({"a": [1.0, 2.0, 4.0], "y": [0, 1, 1]}, [0, 1, 3])
    >>> prepare(fed).features, prepare(fed).names
    (('a',), ('0', '1'))
    """
    if len(federation) < 2:
        raise DataError(f"a study compares clients and needs at least two of them, the data have {len(federation)}")
    if federation.n_rows == 0:
        raise DataError("a study needs rows, and none of the clients has any")
    notes: list[str] = []
    said = overrules or Overrules()
    if names is not None:
        said = replace(said, names=tuple(names))
    found = column or label_of_table(federation)
    if reading is None:
        reading = read_columns(federation, target=found, features=features, overrules=said)
    federation = federation.select([kind.name for kind in reading.columns])
    if found is not None and federation[found].ndim == 2 and federation[found].dtype.kind in "biu":
        counts = federation.counts(found)
        every = list(map(str, federation.names.get(found) or said.names or range(counts.shape[1])))
        clients = Federation({"y": counts}, np.arange(len(counts) + 1), federation.ids, names={"y": every})
        frequent, kept = _rare_together(counts.sum(axis=0), every, notes)
        place, common = _seldom_together(_joined(counts, frequent, len(kept)), kept, least, notes)
        apart = Apart(clients, place[frequent])
        counts = _joined(counts, apart.place, len(common))
        notes.append("Only count vectors are given: features and training are left out.")
        return Prepared(federation, None, counts, tuple(common), found, True, (), tuple(notes), reading, apart=apart)
    if found is None:
        return _without_labels(federation, reading, notes, seed)
    codes, labels, ordered = categories_of(federation, found, notes, reading[found], said)
    known = federation.select([]).where(codes >= 0)
    clients = known.with_column("y", codes[codes >= 0].astype(np.int32), names=labels)
    frequent, labels = _rare_together(np.bincount(clients["y"], minlength=len(labels)), labels, notes)
    counts = known.with_column("y", frequent[clients["y"]]).counts("y", len(labels))
    place, labels = _seldom_together(counts, labels, least, notes)
    apart, counts = Apart(clients, place[frequent]), _joined(counts, place, len(labels))
    codes = np.where(codes >= 0, apart.place[codes], -1)
    chosen = (codes >= 0) & some_rows(federation, notes, seed)
    rows, codes = federation.where(chosen), codes[chosen]
    used, x = features_of(rows, found, reading, notes)
    made = Federation({"y": codes.astype(np.int32)}, rows.offsets, rows.ids, names={"y": labels})
    if x is not None:
        made = made.with_column("x", x)
    else:
        notes.append("There is no column of features: how features differ and training are left out.")
    return Prepared(federation, made, counts, tuple(labels), found, True, used, tuple(notes), reading, ordered, apart)


def single_rows(counts: Array) -> str | None:
    """Why kinds cannot be told apart, where no client has two rows; None otherwise. Takes counts or sizes.

    >>> single_rows(np.array([2, 1])) is None
    True
    """
    sizes = counts if counts.ndim == 1 else counts.sum(axis=1)
    if len(sizes) and sizes.max() > 1:
        return None
    return (
        "No client has more than one row, and one row says nothing of a client's kind: kinds cannot be told apart. "
        "Name a --client column with several rows a client, such as a place or a group."
    )


def label_of_table(federation: Federation) -> str | None:
    """The column that is the label by its name; None where there is no such column."""
    return next((name for name in LABELS if name in federation), None)


def some_rows(federation: Federation, notes: list[str], seed: int) -> Array:
    """Which rows are looked at closely: all, or about MOST_ROWS of them chosen by the seed, client by client."""
    if federation.n_rows <= MOST_ROWS:
        return np.ones(federation.n_rows, dtype=bool)
    notes.append(
        f"Categories and sizes are those of all {federation.n_rows:,} rows; features and training look at about "
        f"{MOST_ROWS:,} of them, chosen by the seed inside each client."
    )
    return np.asarray(Key(seed, purpose="rows of a study").uniform_rows(federation) < MOST_ROWS / federation.n_rows)


def _without_labels(given: Federation, reading: Reading, notes: list[str], seed: int) -> Prepared:
    fed = given.where(some_rows(given, notes, seed))
    used, x = features_of(fed, None, reading, notes)
    if x is None:
        have = ", ".join(map(repr, fed.columns)) or "none"
        raise DataError(
            f"there is nothing to study: name a column of categories with --column; the columns are: {have}"
        )
    cells = min(_CELLS, len(np.unique(x[:10_000], axis=0)))
    model = FederatedKMeans(cells, column="x", seed=seed).fit(
        Federation({"x": x.astype(np.float64)}, fed.offsets, fed.ids), progress=False
    )
    codes = model.predict(x.astype(np.float64)).astype(np.int32)
    names = [f"cell {j + 1}" for j in range(cells)]
    made = Federation({"y": codes, "x": x}, fed.offsets, fed.ids, names={"y": names})
    notes.append(
        f"There is no column of labels: {cells} cells of the features (k-means by sums) stand in for categories, and "
        "training is left out. Name a column with --column to change that."
    )
    counts, called = made.counts("y"), tuple(names)
    return Prepared(given, made, counts, called, "cells of the features", False, used, tuple(notes), reading)


def categories_of(
    federation: Federation, column: str, notes: list[str], kind: ColumnKind, overrules: Overrules | None = None
) -> tuple[Array, list[str], bool]:
    """The category of each row, -1 where it is missing, what categories are called, and whether they have an order.

    >>> said = []
    >>> fed = Federation({"v": [0.5, 1.5, np.nan, 9.0, 2.5, 3.5]}, [0, 3, 6])
    >>> categories_of(fed, "v", said, read_columns(fed)["v"])[0].tolist()
    [0, 1, -1, 4, 2, 3]
    """
    made = classes_of(federation, column, kind=kind, overrules=overrules)
    known, labels, codes = made.codes >= 0, list(made.names), np.asarray(made.codes, dtype=np.int64)
    if not known.all():
        notes.append(f"{int((~known).sum()):,} of {len(known):,} rows have no {column!r} and are left out.")
    if made.remark:
        notes.append(f"{made.remark} Methods are compared by how often they hit the class.")
    if len(labels) < 2:
        raise DataError(
            f"the column {column!r} has the one value {labels[0]!r} in all rows: there is nothing to compare"
        )
    return codes, labels, made.ordered


def _rare_together(often: Array, labels: list[str], notes: list[str]) -> tuple[Array, list[str]]:
    """New places and names of the categories: the most frequent stay, the others are one; few all stay."""
    if len(labels) <= MOST_CATEGORIES:
        return np.arange(len(labels)), labels
    top = np.sort(np.argsort(-often, kind="stable")[: MOST_CATEGORIES - 1])
    place = np.full(len(labels), len(top))
    place[top] = np.arange(len(top))
    share = 1 - often[top].sum() / often.sum()
    notes.append(
        f"There are {len(labels):,} categories: kinds of clients are fitted to all of them; everywhere else the "
        f"{len(top)} most frequent stay and the others ({share:.1%} of rows) are together as {OTHER!r}."
    )
    return place, [*[labels[j] for j in top], OTHER]


def _joined(counts: Array, place: Array, n: int) -> Array:
    """The counts [clients, n] of categories that were given new places."""
    made = np.zeros((len(counts), n), dtype=counts.dtype)
    np.add.at(made.T, place, counts.T)
    return made


def _seldom_together(counts: Array, labels: list[str], least: int, notes: list[str]) -> tuple[Array, list[str]]:
    """New places and names of the categories: those that fewer than `least` clients have are together.

    If they still have too few clients, the next rarest joins them. If nothing would be left to compare, all stay as
    they are.
    """
    clients = (counts > 0).sum(axis=0)
    order = [j for j in np.argsort(clients, kind="stable").tolist() if clients[j] and labels[j] != OTHER]
    rare = [j for j in order if clients[j] < least]
    if not rare:
        return np.arange(len(labels)), labels
    seldom = len(rare)
    rare += [j for j, name in enumerate(labels) if name == OTHER]
    for j in order[seldom:]:
        if (counts[:, rare].sum(axis=1) > 0).sum() >= least:
            break
        rare.append(j)
    kept = [j for j in range(len(labels)) if j not in rare]
    if not any(clients[j] for j in kept):
        notes.append(
            f"Some categories are those of fewer than {least} clients, and nothing would be left to compare without "
            "them: look before you share this report."
        )
        return np.arange(len(labels)), labels
    what = plural(seldom, "category", "categories")
    verb = "is" if seldom == 1 else "are"
    notes.append(f"{what} that fewer than {least} clients have {verb} together with others as {OTHER!r}.")
    place = np.full(len(labels), len(kept))
    place[kept] = np.arange(len(kept))
    return place, [*[labels[j] for j in kept], OTHER]


def features_of(
    fed: Federation, column: str | None, reading: Reading, notes: list[str]
) -> tuple[tuple[str, ...], Array | None]:
    """The columns used, and all of them side by side as float32 [rows, d]: x alone, or one scaled number each.

    >>> fed = Federation({"a": [1.5, 3.5], "c": ["u", "v"]}, [0, 1, 2])
    >>> features_of(fed, None, read_columns(fed), [])[1].tolist()
    [[-1.0, 1.0, -1.0], [1.0, -1.0, 1.0]]
    """
    used = [name for name in reading.features if name != column]
    texts = [name for name in used if _is_text(fed, name, column)]
    parts = [_last_characters(fed, name, column, notes) for name in texts]
    others = [name for name in used if name not in texts]
    if others:
        parts.append(encode(fed, replace(reading, features=tuple(others)), dtype=np.float64)[0])
    if not parts or not sum(part.shape[1] for part in parts):
        return (), None
    x = np.concatenate(parts, axis=1) if len(parts) > 1 else parts[0]
    gaps = ~np.isfinite(x)
    if gaps.any():
        notes.append(f"{int(gaps.sum()):,} missing values in the features are replaced by the column's mean.")
        known = (~gaps).sum(axis=0)
        mean = np.where(gaps, 0.0, x).sum(axis=0) / np.maximum(known, 1)
        x = np.where(gaps, mean, x)
    if used != ["x"]:
        spread = x.std(axis=0)
        x = (x - x.mean(axis=0)) / np.where(spread > 1e-9, spread, np.inf)
    return (*texts, *others), x.astype(np.float32, copy=False)


def _is_text(fed: Federation, name: str, column: str | None) -> bool:
    """Whether rows are texts whose next character is the label: codes of the label's own alphabet."""
    values = fed[name]
    if (
        column is None
        or column not in fed.names
        or values.ndim != 2
        or values.dtype.kind not in "iu"
        or not len(values)
    ):
        return False
    return int(values.max()) < len(fed.names[column]) and values.shape[1] >= _CONTEXT


def _last_characters(fed: Federation, name: str, column: str | None, notes: list[str]) -> Array:
    """An indicator of each of the last characters of a text."""
    last = fed[name][:, -_CONTEXT:]
    notes.append(f"{name!r} is text: what is learned from and measured are its last {_CONTEXT} characters.")
    letters = np.arange(len(fed.names[str(column)]))
    return np.concatenate([last[:, [j]] == letters for j in range(_CONTEXT)], axis=1).astype(np.float32)

"""Prepare the data of a study: categories, a matrix of features, and notes on what was changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from fedscape.core.federation import Federation
from fedscape.core.random import Key
from fedscape.errors import DataError, plural
from fedscape.formats.kinds import LABELS, ColumnKind, Overrules, as_numbers
from fedscape.formats.modelled import classes_of
from fedscape.formats.reading import Reading, encode, read_columns
from fedscape.statistics.kmeans import FederatedKMeans
from fedscape.statistics.tails import TAILS, tails
from fedscape.studies.derived import derived, derived_columns, with_derived
from fedscape.types import Array

MOST_CATEGORIES = 100
MOST_ROWS = 200_000
_CONTEXT = 3  # characters of a text before the one to predict
_CELLS = 8
_BLANKS = {"": "(empty)", " ": "(space)", "\n": "(line break)", "\t": "(tab)"}
OTHER = "(all other)"  # name of the merged categories


class Apart(NamedTuple):
    """All categories, before rare ones were merged: what `fedscape fit` models."""

    clients: Federation  # column y: one category per row, or count vectors
    place: Array  # [all categories] position of each among the merged ones


@dataclass(frozen=True, eq=False)
class Prepared:
    """The clients as a study sees them.

    `table` has the columns as they were read. `counts` [clients, C] counts the categories in `names`. `rows` has one
    category per row in the column y, and the features, if any, in the column x. A label that is a number is also in the
    column v. `rows` is None for count vectors.
    `labels` says whether the categories are labels; without a column of labels they are cells of the features.
    `ordered` says whether they are bins of a number, in ascending order. `apart` has the clients before rare categories
    were merged; None if none were.
    """

    table: Federation
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
    def number(self) -> bool:
        """Whether the label is a number, whose values are in the column v."""
        return self.rows is not None and "v" in self.rows

    @property
    def width(self) -> int:
        """Number of features per row."""
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
    """Find categories and features, and note what was changed: bins, merged categories, rows left out.

    Parameters
    ----------
    federation
        The clients.
    column
        Categories, count vectors, or a number (which is binned); by default the first of y, label, labels, target,
        class. Without any of them, cells of the features stand in.
    features
        The columns to learn from; by default x, or else all other columns that are numbers or have few categories.
    names
        Names of the categories, in the order of their codes.
    overrules
        Kinds of columns that override the inferred ones.
    reading
        How the columns were read; by default they are read here.
    least
        Categories of fewer clients are merged.

    >>> fed = Federation({"a": [1.0, 2.0, 4.0], "y": [0, 1, 1]}, [0, 1, 3])
    >>> prepare(fed).features, prepare(fed).names
    (('a',), ('0', '1'))
    """
    if len(federation) < 2:
        raise DataError(f"a study compares clients and needs at least two, the data have {len(federation)}")
    if federation.n_rows == 0:
        raise DataError("a study needs rows, and none of the clients has any")
    notes: list[str] = []
    declared = overrules or Overrules()
    if names is not None:
        declared = replace(declared, names=tuple(names))
    target = column or label_of_table(federation)
    if reading is None:
        reading = read_columns(federation, target=target, features=features, overrules=declared)
    federation = federation.select([kind.name for kind in reading.columns])
    further = derived_columns(federation, reading, target) if features is None and "x" not in reading.features else []
    reading = with_derived(federation, reading, target) if further else reading
    if target is not None and federation[target].ndim == 2 and federation[target].dtype.kind in "biu":
        counts = federation.counts(target)
        category_names = list(map(str, federation.names.get(target) or declared.names or range(counts.shape[1])))
        clients = Federation({"y": counts}, np.arange(len(counts) + 1), federation.ids, names={"y": category_names})
        frequent, kept = _rare_together(counts.sum(axis=0), category_names, notes)
        place, common = _seldom_together(_joined(counts, frequent, len(kept)), kept, least, notes)
        apart = Apart(clients, place[frequent])
        counts = _joined(counts, apart.place, len(common))
        notes.append("The data are count vectors only: features and training are left out.")
        return Prepared(federation, None, counts, tuple(common), target, True, (), tuple(notes), reading, apart=apart)
    if target is None:
        return _without_labels(federation, reading, notes, seed, further)
    codes, labels, ordered = categories_of(federation, target, notes, reading[target], declared)
    labels = [_visible(label) for label in labels]
    labelled = federation.select([]).where(codes >= 0)
    clients = labelled.with_column("y", codes[codes >= 0].astype(np.int32), names=labels)
    frequent, labels = _rare_together(np.bincount(clients["y"], minlength=len(labels)), labels, notes)
    counts = labelled.with_column("y", frequent[clients["y"]]).counts("y", len(labels))
    place, labels = _seldom_together(counts, labels, least, notes)
    apart, counts = Apart(clients, place[frequent]), _joined(counts, place, len(labels))
    codes = np.where(codes >= 0, apart.place[codes], -1)
    selected = (codes >= 0) & some_rows(federation, notes, seed)
    rows, codes = federation.where(selected), codes[selected]
    used, x = features_of(rows, target, reading, notes, further)
    table = Federation({"y": codes.astype(np.int32)}, rows.offsets, rows.ids, names={"y": labels})
    if reading[target].kind in ("number", "weight"):
        table = table.with_column("v", as_numbers(rows[target], rows.names.get(target)).astype(np.float64))
    if x is not None:
        table = table.with_column("x", x)
    else:
        notes.append("There is no column of features: how features differ and training are left out.")
    return Prepared(federation, table, counts, tuple(labels), target, True, used, tuple(notes), reading, ordered, apart)


def _visible(name: str) -> str:
    """The name of a category, in words where it is a blank."""
    return name if name.strip() else _BLANKS.get(name, repr(name))


def single_rows(counts: Array) -> str | None:
    """Say why kinds cannot be told apart if no client has two rows; None otherwise. Takes counts or sizes.

    >>> single_rows(np.array([2, 1])) is None
    True
    """
    sizes = counts if counts.ndim == 1 else counts.sum(axis=1)
    if len(sizes) and sizes.max() > 1:
        return None
    return (
        "No client has more than one row, and one row says nothing about a client's kind: kinds cannot be told apart. "
        "Name a --client column with several rows per client, such as a place or a group."
    )


def label_of_table(federation: Federation) -> str | None:
    """The label column by its name; None if there is none."""
    return next((name for name in LABELS if name in federation), None)


def some_rows(federation: Federation, notes: list[str], seed: int) -> Array:
    """Mask of the rows used for features and training: all, or a sample of about MOST_ROWS per the seed."""
    if federation.n_rows <= MOST_ROWS:
        return np.ones(federation.n_rows, dtype=bool)
    notes.append(
        f"Categories and sizes are those of all {federation.n_rows:,} rows; features and training look at about "
        f"{MOST_ROWS:,} of them, chosen by the seed inside each client."
    )
    return np.asarray(Key(seed, purpose="rows of a study").uniform_rows(federation) < MOST_ROWS / federation.n_rows)


def _without_labels(
    federation: Federation, reading: Reading, notes: list[str], seed: int, further: Sequence[str]
) -> Prepared:
    fed = federation.where(some_rows(federation, notes, seed))
    used, x = features_of(fed, None, reading, notes, further)
    if x is None:
        have = ", ".join(map(repr, fed.columns)) or "none"
        raise DataError(f"nothing to study: name a column of categories with --column; the columns are: {have}")
    cells = min(_CELLS, len(np.unique(x[:10_000], axis=0)))
    model = FederatedKMeans(cells, column="x", seed=seed).fit(
        Federation({"x": x.astype(np.float64)}, fed.offsets, fed.ids), progress=False
    )
    codes = model.predict(x.astype(np.float64)).astype(np.int32)
    names = [f"cell {j + 1}" for j in range(cells)]
    table = Federation({"y": codes, "x": x}, fed.offsets, fed.ids, names={"y": names})
    notes.append(
        f"There is no column of labels: {cells} cells of the features (k-means by sums) stand in for categories, and "
        "training is left out. Name a column with --column to change that."
    )
    counts = table.counts("y")
    column = "cells of the features"
    return Prepared(federation, table, counts, tuple(names), column, False, used, tuple(notes), reading)


def categories_of(
    federation: Federation, column: str, notes: list[str], kind: ColumnKind, overrules: Overrules | None = None
) -> tuple[Array, list[str], bool]:
    """Code the category of each row, -1 if missing; also return their names and whether they are ordered.

    >>> notes = []
    >>> fed = Federation({"v": [0.5, 1.5, np.nan, 9.0, 2.5, 3.5]}, [0, 3, 6])
    >>> categories_of(fed, "v", notes, read_columns(fed)["v"])[0].tolist()
    [0, 1, -1, 4, 2, 3]
    """
    classes = classes_of(federation, column, kind=kind, overrules=overrules)
    labelled, labels, codes = classes.codes >= 0, list(classes.names), np.asarray(classes.codes, dtype=np.int64)
    if not labelled.all():
        notes.append(f"{int((~labelled).sum()):,} of {len(labelled):,} rows have no {column!r} and are left out.")
    if classes.remark:
        notes.append(f"{classes.remark} How clients differ is that of these classes; models predict the number.")
    if len(labels) < 2:
        raise DataError(f"the column {column!r} is {labels[0]!r} in all rows: there is nothing to compare")
    return codes, labels, classes.ordered


def _rare_together(often: Array, labels: list[str], notes: list[str]) -> tuple[Array, list[str]]:
    """Merge rare categories beyond MOST_CATEGORIES; return new codes and names."""
    if len(labels) <= MOST_CATEGORIES:
        return np.arange(len(labels)), labels
    top = np.sort(np.argsort(-often, kind="stable")[: MOST_CATEGORIES - 1])
    place = np.full(len(labels), len(top))
    place[top] = np.arange(len(top))
    share = 1 - often[top].sum() / often.sum()
    notes.append(
        f"There are {len(labels):,} categories: kinds of clients are fitted to all of them; elsewhere the {len(top)} "
        f"most frequent are kept and the others ({share:.1%} of rows) are merged as {OTHER!r}."
    )
    return place, [*[labels[j] for j in top], OTHER]


def _joined(counts: Array, place: Array, n: int) -> Array:
    """Counts [clients, n] of the merged categories."""
    merged = np.zeros((len(counts), n), dtype=counts.dtype)
    np.add.at(merged.T, place, counts.T)
    return merged


def _seldom_together(counts: Array, labels: list[str], least: int, notes: list[str]) -> tuple[Array, list[str]]:
    """Merge the categories of fewer than `least` clients; return new codes and names.

    If they still have too few clients, the next rarest joins them. If nothing would be left to compare, none is merged.
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
            f"Some categories belong to fewer than {least} clients, and are shown because nothing would be left to "
            "compare without them: look before you share this report."
        )
        return np.arange(len(labels)), labels
    what = plural(seldom, "category", "categories")
    verb = "is" if seldom == 1 else "are"
    notes.append(f"{what} of fewer than {least} clients {verb} merged with others as {OTHER!r}.")
    place = np.full(len(labels), len(kept))
    place[kept] = np.arange(len(kept))
    return place, [*[labels[j] for j in kept], OTHER]


def features_of(
    fed: Federation, column: str | None, reading: Reading, notes: list[str], further: Sequence[str] = ()
) -> tuple[tuple[str, ...], Array | None]:
    """The columns used, and their values as float32 [rows, d]: x unchanged, or other columns standardised.

    `further` are columns that are no numbers, of which some are made.

    >>> fed = Federation({"a": [1.5, 3.5], "c": ["u", "v"]}, [0, 1, 2])
    >>> features_of(fed, None, read_columns(fed), [])[1].tolist()
    [[-1.0, 1.0, -1.0], [1.0, -1.0, 1.0]]
    """
    used = [name for name in reading.features if name != column]
    texts = [name for name in used if is_text(fed, name, column)]
    parts = [_last_characters(fed, name, column, notes) for name in texts]
    others = [name for name in used if name not in texts]
    if others:
        parts.append(encode(fed, replace(reading, features=tuple(others)), dtype=np.float64)[0])
    if not sum(part.shape[1] for part in parts):
        extra = derived(fed, reading, further)
        if not sum(part.shape[1] for part in extra):
            return (), None
        return tuple(further), np.concatenate(extra, axis=1).astype(np.float32)
    x = np.concatenate(parts, axis=1) if len(parts) > 1 else parts[0]
    gaps = ~np.isfinite(x)
    if gaps.any():
        notes.append(f"{int(gaps.sum()):,} missing values in the features are replaced by the column's mean.")
        counts = (~gaps).sum(axis=0)
        mean = np.where(gaps, 0.0, x).sum(axis=0) / np.maximum(counts, 1)
        x = np.where(gaps, mean, x)
    if used != ["x"]:
        ends = tails(x, fed.offsets)
        if ends is not None:
            far = int(((x < ends[0]) | (x > ends[1])).any(axis=0).sum())
            notes.append(
                f"Far values would set the scale of {plural(far, 'input')}: before scaling these are cut to their "
                f"quantiles {TAILS[0]} and {TAILS[1]}."
            )
            x = np.clip(x, *ends)
        spread = x.std(axis=0)
        x = (x - x.mean(axis=0)) / np.where(spread > 1e-9, spread, np.inf)
    if further:
        x = np.concatenate([x, *derived(fed, reading, further)], axis=1)
    return (*texts, *others, *further), x.astype(np.float32, copy=False)


def is_text(fed: Federation, name: str, column: str | None) -> bool:
    """Whether the column holds texts, coded in the label's alphabet, whose next character is the label."""
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
    """One-hot encode the last characters of a text."""
    last = fed[name][:, -_CONTEXT:]
    notes.append(f"{name!r} is text: training and measures use its last {_CONTEXT} characters.")
    letters = np.arange(len(fed.names[str(column)]))
    return np.concatenate([last[:, [j]] == letters for j in range(_CONTEXT)], axis=1).astype(np.float32)

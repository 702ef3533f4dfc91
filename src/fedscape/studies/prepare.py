"""What a study can look at: a column of categories, a matrix of features, and remarks on how they were made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from fedscape.clustering import FederatedKMeans
from fedscape.errors import DataError
from fedscape.federation import Federation
from fedscape.random import Array, Key

LABELS = ("y", "label", "labels", "target", "class")
MOST_CATEGORIES = 100
MOST_ROWS = 200_000
MOST_INDICATORS = 30
_BINS = 5
_CONTEXT = 3  # characters of a text before the one to be guessed
_CELLS = 8
_OTHER = "(all other)"


@dataclass(frozen=True, eq=False)
class Prepared:
    """The clients as a study sees them.

    `counts` [clients, C] are the categories of `names`; `rows` has them one a row in the column y, and numbers in the
    column x where there are `features`; it is None where only ready counts are known. `labels` says whether the
    categories are given (or cells of the features, where there is no column of labels), `ordered` whether they are
    parts of a number, the least first.
    """

    given: Federation
    rows: Federation | None
    counts: Array
    names: tuple[str, ...]
    column: str
    labels: bool
    features: tuple[str, ...]
    notes: tuple[str, ...]
    ordered: bool = False

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
    least: int = 1,
    seed: int = 0,
) -> Prepared:
    """Find categories and features, and say what had to be done: bins, rare categories together, rows left out.

    Parameters
    ----------
    federation
        The clients.
    column
        The categories, ready counts, or a number (which is cut into bins); by default the first of y, label, labels,
        target, class that is there; without any, cells of the features stand in.
    features
        The columns to learn from; by default x, or else all other columns that are numbers or have few categories.
    names
        What the categories are called, in the order of their codes.
    least
        Categories that fewer clients have are put together.

    >>> fed = Federation({"a": [1.0, 2.0, 4.0], "y": [0, 1, 1]}, [0, 1, 3])
    >>> prepare(fed).features, prepare(fed).names
    (('a',), ('0', '1'))
    """
    if len(federation) < 2:
        raise DataError(f"a study compares clients and needs at least two of them, there is {len(federation)}")
    if federation.n_rows == 0:
        raise DataError("a study needs rows, and none of the clients has any")
    notes: list[str] = []
    found = column or next((name for name in LABELS if name in federation), None)
    if found is not None and federation[found].ndim == 2 and federation[found].dtype.kind in "biu":
        counts = federation.counts(found)
        given = federation.names.get(found) or names or [str(j) for j in range(counts.shape[1])]
        counts, kept = _common(counts, list(given), notes)
        place, common = _seldom_together(counts, list(kept), least, notes)
        counts = _joined(counts, place, len(common))
        notes.append("Only ready counts are given: features and training are left out.")
        return Prepared(federation, None, counts, tuple(common), found, True, (), tuple(notes))
    if found is None:
        return _without_labels(federation, features, notes, seed)
    codes, labels, ordered = categories_of(federation, found, notes, names)
    counts = federation.select([]).where(codes >= 0).with_column("y", codes[codes >= 0]).counts("y", len(labels))
    place, labels = _seldom_together(counts, labels, least, notes)
    codes, counts = np.where(codes >= 0, place[codes], -1), _joined(counts, place, len(labels))
    chosen = (codes >= 0) & some_rows(federation, notes, seed)
    rows, codes = federation.where(chosen), codes[chosen]
    used, x = features_of(rows, found, codes, features, notes)
    made = Federation({"y": codes.astype(np.int32)}, rows.offsets, rows.ids, names={"y": labels})
    if x is not None:
        made = made.with_column("x", x)
    else:
        notes.append("There is no column of features: how features differ and training are left out.")
    return Prepared(federation, made, counts, tuple(labels), found, True, used, tuple(notes), ordered)


def some_rows(federation: Federation, notes: list[str], seed: int) -> Array:
    """Which rows are looked at closely: all, or about MOST_ROWS of them chosen by the seed, client by client."""
    if federation.n_rows <= MOST_ROWS:
        return np.ones(federation.n_rows, dtype=bool)
    notes.append(
        f"Categories and sizes are those of all {federation.n_rows:,} rows; features and training look at about "
        f"{MOST_ROWS:,} of them, chosen by the seed inside each client."
    )
    return np.asarray(Key(seed, purpose="rows of a study").uniform_rows(federation) < MOST_ROWS / federation.n_rows)


def _without_labels(given: Federation, features: Sequence[str] | None, notes: list[str], seed: int) -> Prepared:
    fed = given.where(some_rows(given, notes, seed))
    used, x = features_of(fed, None, None, features, notes)
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
    return Prepared(given, made, made.counts("y"), tuple(names), "cells of the features", False, used, tuple(notes))


def categories_of(
    federation: Federation, column: str, notes: list[str], names: Sequence[str] | None = None
) -> tuple[Array, list[str], bool]:
    """The category of each row, -1 where it is missing, what categories are called, and whether a number was cut.

    >>> said = []
    >>> fed = Federation({"v": [0.5, 1.5, np.nan, 9.0, 2.5, 3.5]}, [0, 3, 6])
    >>> categories_of(fed, "v", said)[0].tolist()
    [0, 1, -1, 4, 2, 3]
    """
    values = federation[column]
    if values.ndim != 1 or values.dtype.kind not in "biuf":
        raise DataError(
            f"the column {column!r} must hold categories, numbers or ready counts, one a row, not "
            f"{values.dtype}{list(values.shape[1:])}: name another with --column"
        )
    known = np.isfinite(values) if values.dtype.kind == "f" else np.ones(len(values), dtype=bool)
    text = column in federation.names
    if text:
        known = values >= 0
    if not known.all():
        notes.append(f"{int((~known).sum()):,} of {len(values):,} rows have no {column!r} and are left out.")
    if not known.any():
        raise DataError(f"the column {column!r} has no value in any row: name another with --column")
    distinct, inverse = np.unique(values[known], return_inverse=True)
    if not text and (len(distinct) > MOST_CATEGORIES or np.any(distinct != np.floor(distinct))):
        return (*_binned(values, known, column, notes), True)
    called = federation.names[column] if text else names
    labels = [str(called[int(v)]) if called is not None and 0 <= v < len(called) else f"{v:g}" for v in distinct]
    codes = np.full(len(values), -1, dtype=np.int64)
    codes[known] = inverse
    if len(labels) > MOST_CATEGORIES:
        often = np.bincount(inverse, minlength=len(labels))
        place, labels = _rare_together(often, labels, notes)
        codes[known] = place[inverse]
    if len(labels) < 2:
        raise DataError(
            f"the column {column!r} has the one value {labels[0]!r} in all rows: there is nothing to compare"
        )
    return codes, labels, False


def _binned(values: Array, known: Array, column: str, notes: list[str]) -> tuple[Array, list[str]]:
    inner = np.unique(np.quantile(values[known], np.arange(1, _BINS) / _BINS))
    codes = np.where(known, np.searchsorted(inner, np.where(known, values, 0), side="right"), -1)
    shown = [f"{float(f'{end:.4g}'):,.10g}" for end in inner]  # four digits, and no exponent where people count
    labels = [f"{a} to {b}" for a, b in pairwise(shown)]
    labels = [f"below {shown[0]}", *labels, f"{shown[-1]} and more"]  # an extreme is the value of one row
    used = np.unique(codes[known])
    place = np.full(len(labels) + 1, -1)
    place[used] = np.arange(len(used))
    notes.append(
        f"{column!r} is a number: it is cut at its quantiles into {len(used)} classes of about as many rows each. "
        "Methods are compared by how often they hit the class."
    )
    return np.where(codes >= 0, place[codes], -1), [labels[j] for j in used]


def _rare_together(often: Array, labels: list[str], notes: list[str]) -> tuple[Array, list[str]]:
    top = np.sort(np.argsort(-often, kind="stable")[: MOST_CATEGORIES - 1])
    place = np.full(len(labels), len(top))
    place[top] = np.arange(len(top))
    share = 1 - often[top].sum() / often.sum()
    notes.append(
        f"There are {len(labels):,} categories: the {len(top)} most frequent stay, the others ({share:.1%} of rows) "
        f"are together as {_OTHER!r}."
    )
    return place, [*[labels[j] for j in top], _OTHER]


def _common(counts: Array, labels: list[str], notes: list[str]) -> tuple[Array, tuple[str, ...]]:
    if counts.shape[1] <= MOST_CATEGORIES:
        return counts, tuple(map(str, labels))
    place, kept = _rare_together(counts.sum(axis=0), labels, notes)
    return _joined(counts, place, len(kept)), tuple(map(str, kept))


def _joined(counts: Array, place: Array, n: int) -> Array:
    """The counts [clients, n] of categories that were given new places."""
    made = np.zeros((len(counts), n), dtype=counts.dtype)
    np.add.at(made.T, place, counts.T)
    return made


def _seldom_together(counts: Array, labels: list[str], least: int, notes: list[str]) -> tuple[Array, list[str]]:
    """New places and names of the categories: those that fewer than `least` clients have are together.

    Where they have too few clients even so, the next rarest joins them; where nothing would be left to compare, all
    stay as they are.
    """
    clients = (counts > 0).sum(axis=0)
    order = [j for j in np.argsort(clients, kind="stable").tolist() if clients[j] and labels[j] != _OTHER]
    rare = [j for j in order if clients[j] < least]
    if not rare:
        return np.arange(len(labels)), labels
    seldom = len(rare)
    rare += [j for j, name in enumerate(labels) if name == _OTHER]
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
    notes.append(f"{seldom:,} categories that fewer than {least} clients have are together as {_OTHER!r}.")
    place = np.full(len(labels), len(kept))
    place[kept] = np.arange(len(kept))
    return place, [*[labels[j] for j in kept], _OTHER]


def features_of(
    fed: Federation, column: str | None, codes: Array | None, wanted: Sequence[str] | None, notes: list[str]
) -> tuple[tuple[str, ...], Array | None]:
    """The columns used, and all of them side by side as float32 [rows, d]: x alone, or one scaled number each.

    >>> fed = Federation({"a": [1.0, 3.0], "c": ["u", "v"]}, [0, 1, 2])
    >>> features_of(fed, None, None, None, [])[1].tolist()
    [[-1.0, 1.0, -1.0], [1.0, -1.0, 1.0]]
    """
    if wanted is None and "x" in fed and column != "x" and "x" not in fed.names and fed["x"].dtype.kind in "biuf":
        wanted = ["x"]
    names = [n for n in (wanted or fed.columns) if n != column]
    parts, used, dropped, fixed = [], [], [], []
    for name in names:
        if wanted is None and _is_of_client(fed, name):
            fixed.append(name)
            continue
        made = _numbers(fed, name) if not _is_text(fed, name, column) else _last_characters(fed, name, column, notes)
        if made is None or (wanted is None and codes is not None and _says_the_same(fed[name], codes)):
            dropped.append(name)
        else:
            parts.append(made)
            used.append(name)
    if dropped:
        what = "ids, dates, texts of many values, or the label in other words"
        notes.append(f"Not used as features ({what}): {_listed(dropped)}.")
    if fixed:
        notes.append(
            "Not used as features, because every client has one value in all its rows, which would tell clients apart "
            f"as an id does: {_listed(fixed)}. Name them with --features to use them."
        )
    if not parts:
        return (), None
    x = np.concatenate(parts, axis=1) if len(parts) > 1 else parts[0]
    gaps = ~np.isfinite(x)
    if gaps.any():
        notes.append(f"{int(gaps.sum()):,} missing values in the features are replaced by the column's mean.")
        with np.errstate(invalid="ignore"):
            mean = (
                np.nan_to_num(np.nanmean(np.where(gaps, np.nan, x), axis=0)) if not gaps.all() else np.zeros(x.shape[1])
            )
        x = np.where(gaps, mean, x)
    if used != ["x"]:
        spread = x.std(axis=0)
        x = (x - x.mean(axis=0)) / np.where(spread > 1e-9, spread, np.inf)
    return tuple(used), x.astype(np.float32, copy=False)


def _numbers(fed: Federation, name: str) -> Array | None:
    """A column as numbers [rows, d]; None for what is no number: dates, texts of many values, ids."""
    values = fed[name]
    if name in fed.names and values.ndim == 1:
        n = len(fed.names[name])
        if n > MOST_INDICATORS:
            return None
        return np.asarray(values[:, None] == np.arange(n), dtype=np.float32)
    if values.dtype.kind not in "biuf":
        return None
    if values.ndim == 1 and values.dtype.kind in "iu" and len(values) > 50:
        some = values[:: max(1, len(values) // 10_000)]
        if len(np.unique(some)) > 0.95 * len(some):  # a number of its own in every row: an id
            return None
    if values.ndim == 1:
        return np.asarray(values[:, None], dtype=np.float64)
    made = np.asarray(values.reshape(len(values), -1), dtype=np.float32)
    return made / np.float32(255) if values.dtype == np.uint8 else made


def _listed(names: list[str]) -> str:
    return ", ".join(map(repr, names[:6])) + (", ..." if len(names) > 6 else "")


def _is_of_client(fed: Federation, name: str) -> bool:
    """Whether a column says something of the client, not of the row: one value in all rows of each, not of all."""
    values = fed[name]
    filled = int((fed.sizes > 0).sum())
    if values.ndim != 1 or values.dtype.kind not in "biuf" or fed.n_rows < 2 * filled or filled < 2:
        return False
    first = values[fed.offsets[:-1][fed.sizes > 0]].repeat(fed.sizes[fed.sizes > 0])
    same = values == first
    if values.dtype.kind == "f":
        same |= np.isnan(values) & np.isnan(first)
    return bool(same.all()) and len(np.unique(first)) > 1


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


def _says_the_same(values: Array, codes: Array) -> bool:
    """Whether a column is the label in other words: every value goes with one category, and the other way round."""
    if values.ndim != 1 or values.dtype.kind not in "biuf":
        return False
    some = slice(0, 20_000)
    here = np.nan_to_num(values[some].astype(float), nan=-1.5)
    distinct = len(np.unique(here))
    if not 2 <= distinct <= MOST_CATEGORIES:
        return False
    return len(np.unique(np.stack((here, codes[some])), axis=1).T) == distinct == len(np.unique(codes[some]))

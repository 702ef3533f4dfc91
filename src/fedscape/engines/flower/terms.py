"""A node's terms: a file in the node's folder that its owner writes, and checks of requests against it."""

from __future__ import annotations

import json
import math
import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from fedscape.core import checkpoint
from fedscape.core.sampling import All
from fedscape.engines.flower.wire import Unreadable
from fedscape.errors import DataError
from fedscape.privacy.mechanisms import PLACES
from fedscape.privacy.release import Release

UNITS = ("client", "row")
RELATIONS = ("add-remove", "replace-one")
FILE = "terms.toml"

_NUMBERS = (
    "epsilon",
    "delta",
    "total_epsilon",
    "largest",
    "colluders",
)  # the other fields are whole numbers or lists of texts
_COUNTS = ("unnoised", "parts", "numbers", "smallest")
_OPTIONAL = ("epsilon", "total_epsilon", "unnoised", "columns", "computations")
_WORDS = {"places": PLACES, "units": UNITS, "relations": RELATIONS}
_COMMENTS = {
    "epsilon": "The budget of each (unit, relation, place) over all runs.",
    "delta": "The delta at which budgets are stated.",
    "total_epsilon": "One budget over all groups and runs: the sum of the groups' epsilons, delta shared among them.",
    "unnoised": "Number of answers that may leave without any promised noise.",
    "places": 'Where noise may be added. ["local"] with unnoised = 0 needs no trust in the server.',
    "units": "What a release must protect: a client with all its rows, or a row.",
    "relations": "Which data sets count as neighbours. A local release of clients is replace-one.",
    "parts": "The largest number of clients over which distributed noise may be split.",
    "columns": "The only columns that computations may read.",
    "computations": "The computations that may be requested, by name: fedscape deploy log shows names.",
    "reveals": "The arrays that the server may see client by client.",
    "numbers": "The largest number of values in a request or an answer.",
    "largest": "The largest absolute value in a request.",
    "secure": "Whether sums leave only masked (secure=), among the nodes of roster.txt.",
    "smallest": "Any masked sum that can be opened must hold at least this many honest nodes.",
    "colluders": "The share of nodes colluding with the server that masked sums must withstand.",
}
_HEAD = """\
# The terms under which this node answers. Its owner writes this file. An app can only be stricter.
# A missing term has its default. `fedscape deploy terms FOLDER` shows all of them.
"""


@dataclass(frozen=True, kw_only=True)
class Terms:
    """The terms under which the owner of a node lets it answer.

    They belong in `terms.toml` in the node's folder (`fedscape deploy terms`); those of an app can only be stricter.

    Parameters
    ----------
    epsilon, delta
        The budget of each (unit, relation, place) in the node's own ledger; None only records. A round counts as if
        the node always took part. With noise at the place "local" the node adds the noise itself. With "central" and
        "distributed" it trusts the server to add the noise and to have other clients: a server that lies learns the
        clipped sums exactly.
    total_epsilon
        One budget over all of these groups: the sum of their epsilons, each taken at delta / number of groups.
    unnoised
        Number of answers that may leave without any promised noise; None is any number, 0 is none.
    places
        Where noise may be added; ("local",) with unnoised=0 needs no trust in the server.
    units, relations
        The unit that a release must protect, "client" or "row", and which data sets count as neighbours.
    parts
        The largest number of clients over which distributed noise may be split: each adds one share.
    columns
        The only columns that computations may read; None is all.
    computations
        The computations that may be requested, by their stable names ("histogram", "dm-em"; the log shows the names of
        requests), also inside others; None is all that the node knows.
    reveals
        The names of arrays that the server may see client by client.
    numbers
        The largest number of values in a request or an answer. On Linux it also bounds, at 32 bytes each, the memory
        allocated before any row is read.
    largest
        The largest absolute value in a request.
    secure
        Whether sums leave only masked, among nodes that the node's `roster.txt` names.
    smallest
        Any masked sum that can be opened must hold at least this many honest nodes.
    colluders
        The share of nodes colluding with the server that masked sums must withstand.

    >>> Terms(epsilon=2.0).delta
    1e-06
    """

    epsilon: float | None = None
    delta: float = 1e-6
    total_epsilon: float | None = None
    unnoised: int | None = None
    places: tuple[str, ...] = PLACES
    units: tuple[str, ...] = UNITS
    relations: tuple[str, ...] = RELATIONS
    parts: int = 1000
    columns: tuple[str, ...] | None = None
    computations: tuple[str, ...] | None = None
    reveals: tuple[str, ...] = ()
    numbers: int = 10**8
    largest: float = 1e15
    secure: bool = False
    smallest: int = 2
    colluders: float = 0.0

    def __post_init__(self) -> None:
        for field in fields(self):
            _check(field.name, getattr(self, field.name))


def _check(name: str, value: Any) -> None:
    if value is None and name in _OPTIONAL:
        return
    if name in _NUMBERS:
        number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        share = name in ("delta", "colluders")
        if not number or not (0 <= value < 1 if share else value > 0):
            wanted = "from 0 to below 1" if share else "a positive number"
            raise DataError(f"terms: {name} must be {wanted}, not {value!r}")
    elif name == "secure":
        if not isinstance(value, bool):
            raise DataError(f"terms: {name} must be true or false, not {value!r}")
    elif name in _COUNTS:
        least = 0 if name == "unnoised" else 1
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise DataError(f"terms: {name} must be a whole number of at least {least}, not {value!r}")
    else:
        if not isinstance(value, tuple) or not all(isinstance(text, str) for text in value):
            raise DataError(f"terms: {name} must be a list of texts, not {value!r}")
        if name in _WORDS and not set(value) <= set(_WORDS[name]):
            raise DataError(f"terms: {name} must be among {_WORDS[name]}, not {value}")


# -- the file ----------------------------------------------------------------------------------------------------------


def read_terms(folder: str | os.PathLike[str]) -> Terms | None:
    """The owner's terms in a node's folder, None if there is no file; a DataError names what is wrong with it."""
    path = Path(folder) / FILE
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise DataError(f"{path} is no TOML: {' '.join(str(error).split())}") from None
    names = [field.name for field in fields(Terms)]
    if unknown := sorted(set(table) - set(names)):
        raise DataError(f"{path}: there is no term {unknown[0]!r}; terms are {', '.join(names)}")
    values: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in table.items()}
    try:
        return Terms(**values)
    except DataError as error:
        raise DataError(f"{path}: {error}") from None


def write_terms(folder: str | os.PathLike[str], terms: Terms) -> Path:
    """Write the file atomically; only its owner can read it.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = write_terms(folder, Terms(epsilon=2.0, columns=("y",)))
    ...     read_terms(folder).columns
    ('y',)
    """
    path = Path(folder) / FILE
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    text = _as_toml(terms).encode()
    checkpoint.replace_file(path, lambda file: file.write(text), private=True)
    return path


def _as_toml(terms: Terms) -> str:
    lines = [_HEAD]
    for field in fields(terms):
        value = getattr(terms, field.name)
        lines.append(f"# {_COMMENTS[field.name]}")
        lines.append(f"# {field.name} = no limit\n" if value is None else f"{field.name} = {_value(value)}\n")
    return "\n".join(lines)


def _value(value: Any) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    return (
        repr(value) if not isinstance(value, str) else json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    )


def stricter(owners: Terms, apps: Terms) -> Terms:
    """The owner's terms, field by field no looser than the app's.

    >>> stricter(Terms(epsilon=2.0, columns=("a", "b")), Terms(epsilon=4.0, columns=("b", "c"))).columns
    ('b',)
    """
    both = {field.name: (getattr(owners, field.name), getattr(apps, field.name)) for field in fields(Terms)}
    demands = ("secure", "smallest", "colluders")  # larger is stricter
    return Terms(**{n: max(values) if n in demands else _stricter(*values) for n, values in both.items()})


def _stricter(mine: Any, other: Any) -> Any:
    if mine is None or other is None:
        return other if mine is None else mine
    if not isinstance(mine, tuple):
        return min(mine, other)
    return tuple(n for n in mine if n in other)


# -- checks of requests ------------------------------------------------------------------------------------------------


def check_computation(terms: Terms, about: Mapping[str, Any], reveals: Sequence[str]) -> None:
    """Refuse a computation that is not allowed, also as an argument of another."""
    for name in _names_in(about):
        if terms.computations is not None and name not in terms.computations:
            raise Unreadable("a computation that the owner does not allow")
    if not set(reveals) <= set(terms.reveals):
        raise Unreadable("a computation that shows client by client what the owner does not")


def _names_in(about: Any) -> Iterator[str]:
    """The names of a computation and of computations among its arguments."""
    if isinstance(about, Mapping):
        if "parameters" in about and "name" in about:
            yield str(about["name"])
        for value in about.values():
            yield from _names_in(value)
    elif isinstance(about, list):
        for value in about:
            yield from _names_in(value)


def texts_in(about: Any) -> Iterator[str]:
    """All texts among the arguments of a computation, which include the columns it reads."""
    if isinstance(about, str):
        yield about
    elif isinstance(about, Mapping | list):
        for value in about.values() if isinstance(about, Mapping) else about:
            yield from texts_in(value)


def check_columns(terms: Terms, names: Sequence[str]) -> None:
    """Refuse if one of these columns is not allowed."""
    for name in names:
        if terms.columns is not None and name not in terms.columns:
            raise Unreadable(f"a computation on the column {name!r}, which the owner does not allow")


def check_release(terms: Terms, release: Release | None, smallest: int | None = None) -> None:
    """Refuse a release with noise at a place, or for a unit or relation, that is not allowed.

    `smallest`: if sums are masked, the number of nodes in the smallest sum that can be opened.
    """
    if release is None:
        return
    privacy = release.privacy
    if privacy.place not in terms.places:
        raise Unreadable("a release with noise at a place that the owner does not accept")
    if privacy.place == "distributed" and release.min_clients > terms.parts:
        raise Unreadable("a release with noise in more parts than the owner accepts")
    if privacy.place == "distributed" and smallest is not None and release.min_clients > smallest:
        raise Unreadable("a release with noise in more parts than the smallest sum that can be opened holds")
    for entry in privacy.entries(All(), 1).values():
        if entry["unit"] not in terms.units:
            raise Unreadable(f"a release for the unit {entry['unit']!r}, which the owner does not accept")
        if entry["relation"] not in terms.relations:
            raise Unreadable(f"a release for the relation {entry['relation']!r}, which the owner does not accept")

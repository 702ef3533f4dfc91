"""The errors fedscape raises on purpose.

    FedscapeError
    ├── DataError           the input is not what it must be
    ├── NotFittedError      a result was asked for before `fit`
    ├── MissingExtraError   an optional dependency is not installed
    ├── PrivacyError        a release would break a promise made about privacy
    ├── CheckpointError     a saved run is torn, foreign or unreadable
    └── EngineError         a round could not be carried out
        ├── NotFinite       a round gave NaN or infinity: of the data, or of steps that were too large
        └── TooFewClients   fewer clients reported than `min_clients`

Every message names what is wrong, where, the value, and what to do.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterable, Mapping
from types import ModuleType


class FedscapeError(Exception):
    """Any error that fedscape raises on purpose.

    >>> issubclass(DataError, FedscapeError)
    True
    """


class DataError(FedscapeError, ValueError):
    """The input is not what it must be."""


class NotFittedError(FedscapeError, AttributeError):
    """A learned result was asked for before `fit`."""


class MissingExtraError(FedscapeError, ImportError):
    """An optional dependency is not installed."""


class PrivacyError(FedscapeError):
    """A release would break a promise made about privacy."""


class CheckpointError(FedscapeError):
    """A saved run is torn, foreign or unreadable."""


class EngineError(FedscapeError, RuntimeError):
    """A round could not be carried out."""


class NotFinite(EngineError):
    """A round gave NaN or infinity: of the data, or of steps that were too large."""


class TooFewClients(EngineError):
    """Fewer clients reported than `min_clients`; nothing was released. `faults` counts what went wrong."""

    def __init__(self, message: str, *, faults: Mapping[str, int] | None = None) -> None:
        super().__init__(message)
        self.faults = dict(faults or {})


def nearest(name: str, known: Iterable[str]) -> str:
    """A question for the known name that was probably meant; "" where none is near.

    >>> nearest("Specis", ["age", "species"])
    "; did you mean 'species'?"
    """
    by_folded = {each.casefold(): each for each in known}
    near = difflib.get_close_matches(name.casefold(), by_folded, n=1, cutoff=0.7)
    return f"; did you mean {by_folded[near[0]]!r}?" if near else ""


def plural(number: int, noun: str, many: str | None = None) -> str:
    """A number with its noun.

    >>> plural(1, "client"), plural(2000, "row"), plural(0, "category", "categories")
    ('1 client', '2,000 rows', '0 categories')
    """
    return f"{number:,} {noun if number == 1 else many or noun + 's'}"


def require(module: str, *, extra: str) -> ModuleType:
    """Import an optional dependency, or say which extra to install.

    >>> require("json", extra="learn").__name__
    'json'
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        if error.name is not None and error.name.split(".")[0] != module.split(".")[0]:
            raise  # the module is there; something it needs is broken
        raise MissingExtraError(
            f"this needs '{module}', which is not installed: run  pip install 'fedscape[{extra}]'"
        ) from None

"""Check the types of a result read from a file against the schema."""

from __future__ import annotations

from collections.abc import Mapping
from types import NoneType, UnionType
from typing import Any, Literal, NotRequired, Union, get_args, get_origin, get_type_hints, is_typeddict

from fedscape.studies.schema import Result


def misfit(value: Any, kind: Any = Result, place: str = "result") -> str | None:
    """Describe the first part of a JSON value that does not match a type; None if all match.

    Further keys are allowed. A whole number is a float; a bool is neither.

    >>> from fedscape.studies.schema import Interval
    >>> misfit({"value": 1, "low": 0.5}, Interval)
    "result has no 'high'"
    """
    if kind is Any:
        return None
    if is_typeddict(kind):
        return _of_keys(value, kind, place)
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return None if any(misfit(value, option, place) is None for option in inner) else f"{place} is {_called(value)}"
    if origin is Literal:
        return None if value in inner else f"{place} is {value!r}, not {inner[0]!r}"
    if origin in (list, dict):
        if not isinstance(value, origin):
            return f"{place} is {_called(value)}, not a {origin.__name__}"
        parts = value.items() if isinstance(value, dict) else enumerate(value)
        return next((bad for key, part in parts if (bad := misfit(part, inner[-1], f"{place}[{key!r}]"))), None)
    plain = (int, float) if kind is float else NoneType if kind is None else kind
    sound = isinstance(value, plain) and (kind is bool or not isinstance(value, bool))
    return None if sound else f"{place} is {_called(value)}, not {kind.__name__}"


def _of_keys(value: Any, kind: Any, place: str) -> str | None:
    if not isinstance(value, Mapping):
        return f"{place} is {_called(value)}, not a dict"
    for key, hint in get_type_hints(kind, include_extras=True).items():
        optional = get_origin(hint) is NotRequired
        if key not in value:
            if optional:
                continue
            return f"{place} has no {key!r}"
        bad = misfit(value[key], get_args(hint)[0] if optional else hint, f"{place}[{key!r}]")
        if bad:
            return bad
    return None


def _called(value: Any) -> str:
    return "None" if value is None else f"of type {type(value).__name__}"

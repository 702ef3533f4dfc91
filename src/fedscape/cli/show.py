"""Printing for people, and JSON for programs."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import typer

T = TypeVar("T")


def show(result: T, as_json: bool, for_people: Callable[[T], None]) -> None:
    """Print a result: JSON, or by `for_people`."""
    if as_json:
        typer.echo(as_text(result, indent=2))
    else:
        for_people(result)


def as_text(result: Any, *, indent: int | None) -> str:
    """JSON as every program reads it: NaN and infinities, which it has no word for, are null.

    >>> as_text([float("nan"), 0.5], indent=None)
    '[null, 0.5]'
    """
    return json.dumps(_known(result), indent=indent, allow_nan=False)


def _known(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _known(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_known(each) for each in value]
    if value is None or isinstance(value, str | int):
        return value
    return float(value) if math.isfinite(value) else None


def short(value: Any) -> Any:
    """Four significant digits of a number with a fraction; anything else as it is.

    >>> short(0.123456), short(7)
    ('0.1235', 7)
    """
    return f"{value:.4g}" if isinstance(value, float) else value


def table(title: str, columns: list[str], rows: list[list[Any]]) -> None:
    """Print a table with a title."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    made = Table(title=title, title_justify="left", header_style="bold")
    for column in columns:
        made.add_column(column)
    for row in rows:
        made.add_row(*[Text(f"{v:,}" if isinstance(v, int) and not isinstance(v, bool) else str(v)) for v in row])
    Console(width=None if sys.stdout.isatty() else 120).print(made)


def pairs(title: str, values: dict[str, Any]) -> None:
    """Print names and values."""
    table(title, ["what", "value"], [[name, value] for name, value in values.items()])


def flat(about: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested names joined by dots, lists as text."""
    found: dict[str, Any] = {}
    for name, value in about.items():
        if isinstance(value, dict):
            found |= flat(value, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = ", ".join(map(str, value)) if isinstance(value, list) else value
    return found


def description(about: dict[str, Any]) -> None:
    """What `describe` found."""
    columns = about.pop("columns")
    skew = about.pop("skew", None)
    for said_before in ("findings", "kinds", "features"):
        about.pop(said_before, None)
    pairs("federation", flat(about))
    names = ["name", "kind", "type", "shape", "missing", "categories", "min", "mean", "max"]
    table("columns", names, [[column.get(name, "") for name in names] for column in columns])
    if skew is not None:
        pairs(f"skew of {skew.pop('column')}: mean distance to all clients together (0 to 1)", flat(skew))


def population_table(about: dict[str, Any]) -> None:
    """The kinds of clients, and how their number was chosen."""
    if len(about["candidates"]) > 1:
        names = ["components", "held-out log-likelihood", "behind the best", "standard error"]
        table("how many kinds of clients", names, [list(row.values()) for row in about["candidates"]])
    rows = [[c["weight"], c["scale"], c["mean_size"], c["most"]] for c in about["components"]]
    title = f"{len(rows)} kinds of clients, found in {about['rounds']} rounds of {about['bytes_up']:,} bytes per client"
    table(title, ["share of clients", "alpha_0 (large: alike)", "mean size", "most frequent categories"], rows)

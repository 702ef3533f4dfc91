"""Print results as tables or as JSON."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import typer

from fedscape.errors import plural

T = TypeVar("T")


def show(result: T, as_json: bool, for_people: Callable[[T], None]) -> None:
    """Print a result as JSON, or with `for_people`."""
    if as_json:
        typer.echo(as_text(result, indent=2))
    else:
        for_people(result)


def as_text(result: Any, *, indent: int | None) -> str:
    """Encode as standard JSON: NaN and infinities become null.

    >>> as_text([float("nan"), 0.5], indent=None)
    '[null, 0.5]'
    """
    return json.dumps(_finite(result), indent=indent, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    if value is None or isinstance(value, str | int):
        return value
    return float(value) if math.isfinite(value) else None


def short(value: Any) -> Any:
    """Round a float to four significant digits; leave anything else unchanged.

    >>> short(0.123456), short(7)
    ('0.1235', 7)
    """
    return f"{value:.4g}" if isinstance(value, float) else value


def table(title: str, columns: list[str], rows: list[list[Any]]) -> None:
    """Print a table with a title."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    grid = Table(title=title, title_justify="left", header_style="bold")
    for column in columns:
        grid.add_column(column)
    for row in rows:
        grid.add_row(*[Text(f"{v:,}" if isinstance(v, int) and not isinstance(v, bool) else str(v)) for v in row])
    Console(width=None if sys.stdout.isatty() else 120).print(grid)


def pairs(title: str, values: dict[str, Any]) -> None:
    """Print names and values."""
    table(title, ["what", "value"], [[name, value] for name, value in values.items()])


def flat(about: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested dicts: names joined by dots, lists as text."""
    result: dict[str, Any] = {}
    for name, value in about.items():
        if isinstance(value, dict):
            result |= flat(value, f"{prefix}{name}.")
        else:
            result[f"{prefix}{name}"] = ", ".join(map(str, value)) if isinstance(value, list) else value
    return result


def description(about: dict[str, Any]) -> None:
    """Print the result of `describe`."""
    columns = about.pop("columns")
    skew = about.pop("skew", None)
    for printed_before in ("findings", "kinds", "features"):
        about.pop(printed_before, None)
    pairs("federation", flat(about))
    names = ["name", "kind", "type", "shape", "missing", "categories", "min", "mean", "max"]
    table("columns", names, [[column.get(name, "") for name in names] for column in columns])
    if skew is not None:
        pairs(f"skew of {skew.pop('column')}: mean distance of a client to the pooled data (0 to 1)", flat(skew))


def population_table(about: dict[str, Any]) -> None:
    """Print the kinds of clients, and how their number was chosen."""
    if len(about["candidates"]) > 1:
        names = ["components", "held-out log-likelihood", "behind the best", "standard error"]
        table("how many kinds of clients", names, [list(row.values()) for row in about["candidates"]])
    rows = [[c["weight"], c["scale"], c["mean_size"], c["most"]] for c in about["components"]]
    kinds, rounds = plural(len(rows), "kind"), plural(about["rounds"], "round")
    title = f"{kinds} of clients, fitted in {rounds} with {about['bytes_up']:,} bytes per client"
    table(title, ["share of clients", "concentration (large: alike)", "mean size", "most frequent categories"], rows)

"""What notebooks, pages and terminals show alike: small tables in HTML, decimals, the name of a method that left.

Tables escape every text, and hold no row and no client's id.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

_MOST = 20  # rows of a table


def table(title: str, rows: Sequence[Mapping[str, Any]], *, note: str = "") -> str:
    """A table of rows with a title; of a long one the first and the last.

    >>> table("<a>", [{"n": 1.25}])
    '<table><caption>&lt;a&gt;</caption><thead><tr><th>n</th></tr></thead><tbody><tr><td>1.25</td></tr></tbody></table>'
    """
    columns = list(dict.fromkeys(name for row in rows for name in row))
    head = "".join(f"<th>{escape(str(name))}</th>" for name in columns)
    shown = list(rows) if len(rows) <= _MOST else [*rows[: _MOST // 2], None, *rows[-_MOST // 2 :]]
    lines = [
        f'<tr><td colspan="{len(columns)}">... {len(rows) - _MOST:,} more</td></tr>'
        if row is None
        else "<tr>" + "".join(f"<td>{_cell(row.get(name))}</td>" for name in columns) + "</tr>"
        for row in shown
    ]
    after = f"<p>{escape(note)}</p>" if note else ""
    body = f"<thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody>"
    return f"<table><caption>{escape(title)}</caption>{body}</table>{after}"


def decimals(values: Iterable[float | None], *, least: int = 3) -> int:
    """Decimals that show two digits of the largest of these numbers: three to six.

    >>> decimals([0.133, 0.157]), decimals([0.00034, 0.00058, None]), decimals([0.0])
    (3, 5, 3)
    """
    largest = max((abs(value) for value in values if value), default=1.0)
    return max(least, min(1 - math.floor(math.log10(largest)), 6))


def called_in(section: Mapping[str, Any], row: Mapping[str, Any]) -> str:
    """Name a method, with its clients or rounds if it left the tournament before the last stage.

    >>> stages = [{"methods": ["fedavg", "ifca"]}, {"methods": ["fedavg"]}]
    >>> row = {"method": "ifca", "called": "IFCA", "baseline": False, "clients": 60, "rounds": 20}
    >>> called_in({"clients": 300, "stages": stages}, row), called_in({"clients": 60, "stages": stages}, row)
    ('IFCA (60 clients)', 'IFCA (left after 20 rounds)')
    """
    playing = [row["method"] in stage["methods"] for stage in section["stages"]]
    if row["baseline"] or playing[-1]:
        return str(row["called"])
    if row.get("clients", section["clients"]) != section["clients"]:
        return f"{row['called']} ({row['clients']:,} clients)"
    if row.get("rounds"):
        return f"{row['called']} (left after {row['rounds']} rounds)"
    return f"{row['called']} (left in stage {len(playing) - playing[::-1].index(True)})"


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return escape(str(value))
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"

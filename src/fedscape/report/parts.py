"""Parts shared by all sections."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedscape.report.words import About, between, number, safe


def card(title: str, content: str, reading: str, *, wide: bool = False, table: str = "", anchor: str = "") -> str:
    """A card of the page: a title, its content, and how to read it.

    `table` is the table that its CSV button saves, `anchor` the target of links to it.
    """
    target = f' id="{anchor}"' if anchor else ""
    button = f'<button class="csv" data-table="{table}">CSV</button>' if table else ""
    return (
        f'<figure class="card{" wide" if wide else ""}"{target}><div class="head"><h3>{safe(title)}</h3>{button}</div>'
        f"{content}"
        f"<figcaption>{safe(reading)}</figcaption></figure>"
    )


def table_of(
    names: Sequence[str],
    rows: Sequence[Sequence[tuple[Any, str]]],
    *,
    sorts: bool,
    numbers: tuple[int, ...],
    name: str = "",
) -> str:
    """A table of (value to sort by, text) cells."""
    heads = "".join(
        f'<th class="num" scope="col">{h}</th>' if i in numbers else f'<th scope="col">{h}</th>'
        for i, h in enumerate(f'<button type="button">{safe(n)}</button>' if sorts else safe(n) for n in names)
    )
    body = "".join(
        "<tr>"
        + "".join(
            f'<td{" class=num" if i in numbers else ""} data-v="{safe("" if value is None else value)}">'
            f"{safe(text)}</td>"
            for i, (value, text) in enumerate(row)
        )
        + "</tr>"
        for row in rows
    )
    kind = ' class="sorts"' if sorts else ""
    label = f' data-name="{safe(name)}"' if name else ""
    return (
        f'<div class="tablebox"><table{kind}{label}><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def cells(about: About, show: Any = number) -> list[tuple[Any, str]]:
    """A number and its interval as two cells of a table."""
    return [(about["value"], show(about["value"])), (about["low"], between(about, show))]


def capital(text: str) -> str:
    """Capitalise the first letter and leave the rest unchanged."""
    return text[:1].upper() + text[1:]


def dot(kind: int, hollow: bool) -> str:
    """The legend mark of a number."""
    how = f'fill="none" stroke="var(--c{kind})" stroke-width="2.4"' if hollow else f'fill="var(--c{kind})"'
    return f'<svg viewBox="0 0 12 12" aria-hidden="true"><circle cx="6" cy="6" r="4.4" {how}/></svg>'


def stick() -> str:
    """The legend mark of a position on an axis."""
    return (
        '<svg viewBox="0 0 12 12" aria-hidden="true"><rect x="5" y="0" width="2" height="12" '
        'fill="currentColor"/></svg>'
    )

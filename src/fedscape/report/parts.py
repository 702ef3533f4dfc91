"""Parts shared by all sections."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fedscape.report.words import About, between, number, safe

if TYPE_CHECKING:
    from fedscape.studies.schema import Result


#: Where `render` writes the command. No text of the data becomes this: `safe` escapes it.
COMMAND = "<!--command-->"


def reference_of(result: Result) -> About:
    """What the reference says; empty without one."""
    against: About = result.get("against", {})
    return against


def legend_of_reference(result: Result) -> list[tuple[str, str]]:
    """The entry of the reference in a legend; none without one."""
    return [(diamond(), f"reference: {result['against']['source']}")] if "against" in result else []


def card(
    title: str,
    content: str,
    reading: str,
    *,
    wide: bool = False,
    table: str = "",
    anchor: str = "",
    path: str = "",
) -> str:
    """A card of the page: a title, its content, how to read it, and how to keep it.

    `table` is the table that its CSV button saves, `anchor` the target of links to it, and `path` says where its
    numbers are in result.json.
    """
    name = anchor or re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:40]
    csv = f'<button class="csv" data-table="{table}" aria-label="CSV of {safe(title)}">CSV</button>' if table else ""
    pictures = "".join(
        f'<button class="save" data-as="{form.lower()}" aria-label="{form} of {safe(title)}">{form}</button>'
        for form in ("SVG", "PNG")
    )
    numbers = f"<p>Its numbers: <code>{safe(path)}</code> in result.json.</p>" if path else ""
    return (
        f'<div class="card{" wide" if wide else ""}" id="{name}"><figure aria-labelledby="{name}-title">'
        f'<h3 id="{name}-title">{safe(title)}</h3>{content}<figcaption>{safe(reading)}</figcaption></figure>'
        f'<div class="tools">{csv}{pictures}<details><summary aria-label="Command that made {safe(title)}">Command'
        f"</summary><p><code>{COMMAND}</code></p>{numbers}</details></div></div>"
    )


def table_of(
    names: Sequence[str],
    rows: Sequence[Sequence[tuple[Any, str]]],
    *,
    sorts: bool,
    numbers: tuple[int, ...],
    name: str = "",
    label: str = "",
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
    called = f' data-name="{safe(name)}"' if name else ""
    return (
        f'<div class="tablebox" tabindex="0" role="region" aria-label="{safe(label or "Table")}">'
        f"<table{kind}{called}><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>"
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


def diamond() -> str:
    """The legend mark of the reference."""
    return '<svg viewBox="0 0 12 12" aria-hidden="true"><path class="reference" d="M6 1L11 6L6 11L1 6z"/></svg>'

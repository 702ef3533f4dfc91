"""The section on time: rows, clients of each kind, and categories by period."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fedscape.errors import plural
from fedscape.report import figures as draw
from fedscape.report.parts import card, legend_of_reference, reference_of
from fedscape.report.words import About, percent, safe

if TYPE_CHECKING:
    from fedscape.studies.schema import Result

Line = tuple[str, int, Sequence[float | None], str]


def timeline(result: Result) -> tuple[str, str, str] | None:
    """Rows, clients and categories by period, where the data have dates."""
    about: About = result.get("time", {})
    if not about:
        return None
    what = about["period"]
    before, then = _joined(about, reference_of(result).get("time"))
    starts = [*before["starts"], *about["starts"]] if then else about["starts"]
    offset = len(before["starts"]) if then else 0
    listed = [r for r in about["rows"] if r is not None]
    most = about["starts"][about["rows"].index(max(listed))] if listed else ""
    rows = columns(
        starts, [*before["rows"], *about["rows"]] if then else about["rows"], behind=offset, period=what,
        label=f"Rows by {what}",
    )  # fmt: skip
    reading = (
        f"{plural(len(about['starts']), what)} of the column {about['column']}, "
        f"{_date(about['starts'][0], what)} to {_date(about['starts'][-1], what)}; most rows: {_date(most, what)}."
    )
    if about["undated"]:
        reading += f" {plural(about['undated'], 'row')} without a date."
    if about["withheld"]:
        reading += f" {plural(about['withheld'], what)} of fewer than five clients: left out."
    if reference_of(result):
        reading += (
            f" Outlined: the reference, {reference_of(result)['source']}."
            if then
            else " The reference has no such dates."
        )
    cards = [card(f"Rows by {what}", rows, reading, path="time.rows", table="time", anchor="rows-by-time")]
    kinds = [(f"kind {k}", ord(k) - ord("A"), line, k) for k, line in about["kinds"].items()]
    cards.append(
        card(
            f"Clients with rows, by {what} and kind",
            _lines(about["starts"], kinds, period=what, share=False, label=f"Clients by {what} and kind"),
            "How many clients of each kind have rows. Pick kinds or clients on the map to see only theirs.",
            path="time.kinds",
        )
    )
    if any(share is not None for c in about["categories"] for share in c["shares"]):
        shares = [(c["name"], i, c["shares"], "") for i, c in enumerate(about["categories"])]
        top = max(about["categories"], key=lambda c: _range(c["shares"]))
        ends = [s for s in top["shares"] if s is not None]
        before = dict(zip(result["model"]["names"], reference_of(result).get("rows", ()), strict=False))
        label = f"Shares of categories by {what}"
        known_before = [before[c["name"]] for c in about["categories"]] if before else []
        cards.append(
            card(
                f"Categories by {what}",
                (draw.legend(legend_of_reference(result)) if before else "")
                + _lines(about["starts"], shares, period=what, share=True, label=label, reference=known_before),
                f"Shares of the rows, of the commonest categories. {top['name']} moves the most: {percent(min(ends))} "
                f"to {percent(max(ends))}.",
                path="time.categories",
            )
        )
    content = f"<h2>Time</h2><p>The same clients, {what} by {what}.</p><div class='grid'>{''.join(cards)}</div>"
    return "time", "Time", content


def _joined(about: About, reference: About | None) -> tuple[About, bool]:
    """The part of the reference before these dates, and whether it can be drawn on their axis."""
    if not reference or reference["period"] != about["period"]:
        return {"starts": [], "rows": []}, False
    kept = [i for i, start in enumerate(reference["starts"]) if start < about["starts"][0]]
    if not kept:
        return {"starts": [], "rows": []}, False
    return {key: [reference[key][i] for i in kept] for key in ("starts", "rows")}, True


def _range(values: Sequence[float | None]) -> float:
    present = [v for v in values if v is not None]
    return max(present) - min(present) if present else 0.0


def _date(start: str, period: str) -> str:
    """A date as people write it, as exact as the period is.

    >>> _date("2024-03-01", "month"), _date("2024-03-04", "week"), _date("2024-03-04T07", "hour")
    ('Mar 2024', '4 Mar 2024', '4 Mar 2024 7:00')
    """
    if not start:
        return "none"
    day = datetime.datetime.fromisoformat(start if "T" not in start else f"{start}:00")
    if period == "year":
        return f"{day.year}"
    if period in ("month", "quarter"):
        return day.strftime("%b %Y")
    return f"{day.day} {day.strftime('%b %Y')}" + (f" {day.hour}:00" if period == "hour" else "")


def _axis(starts: Sequence[str], at: Any, period: str, y: float, *, most: int) -> str:
    """Dates below an axis, the first and the last always."""
    last = len(starts) - 1
    ticks = sorted({round(last * part / (most - 1)) for part in range(most)})
    anchors = {0: "start", last: "end"}
    return "".join(
        f'<text x="{at(i):.1f}" y="{y:g}" text-anchor="{anchors.get(i, "middle")}">'
        f"{safe(_date(starts[i], period))}</text>"
        for i in ticks
    )


def columns(starts: Sequence[str], counts: Sequence[int | None], *, behind: int, period: str, label: str) -> str:
    """One bar a period; the first `behind` are those of the reference, outlined. A withheld one is an empty place."""
    width, height, left, bottom = 460.0, 240.0, 58.0, 30.0
    top = max((n for n in counts if n is not None), default=1) or 1
    step, base = (width - left) / len(starts), height - bottom
    drawn = []
    for i, n in enumerate(counts):
        gap = min(2.0, step / 4)
        x, wide = left + i * step + gap / 2, step - gap
        if n is None:
            drawn.append(f'<text x="{x + wide / 2:.1f}" y="{base - 4:g}" text-anchor="middle">?</text>')
            continue
        tall = (base - 12) * n / top
        tip = f"{_date(starts[i], period)}: {n:,} rows{' in the reference' if i < behind else ''}"
        drawn.append(
            f'<rect class="{"ghost" if i < behind else "bar"}" x="{x:.1f}" y="{base - tall:.1f}" width="{wide:.1f}" '
            f'height="{tall:.1f}" rx="1" data-tip="{safe(tip)}"/>'
        )
    axis = f'<line class="axis" x1="{left:g}" x2="{width:g}" y1="{base:g}" y2="{base:g}"/>'
    side = (
        f'<text x="{left - 7:g}" y="{base + 4:g}" text-anchor="end">0</text>'
        f'<text x="{left - 7:g}" y="22" text-anchor="end">{top:,}</text>'
    )
    ends = {0: 0.0, len(starts) - 1: 1.0}
    dates = _axis(starts, lambda i: left + (i + ends.get(i, 0.5)) * step, period, height - 8, most=4)
    return (
        f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{safe(label)}">{"".join(drawn)}{axis}{dates}'
        f"{side}</svg>"
    )


def _lines(
    starts: Sequence[str],
    lines: Sequence[Line],
    *,
    period: str,
    share: bool,
    label: str,
    reference: Sequence[float] = (),
) -> str:
    """One line each over the periods, broken where a number is withheld, with a legend.

    `reference` has one number for each line, drawn at the left end.
    """
    width, height, left, right, bottom, top = 460.0, 240.0, 44.0, 14.0, 30.0, 14.0
    high = max([v for _, _, line, _ in lines for v in line if v is not None] + list(reference), default=1.0) or 1.0

    def at(i: float) -> float:
        return left + (width - left - right) * i / max(len(starts) - 1, 1)

    def up(value: float) -> float:
        return top + (height - top - bottom) * (1 - value / high)

    drawn = []
    for tick in (0.0, high / 2, high):
        text = f"{100 * tick:.0f}%" if share else f"{tick:,.0f}"
        drawn.append(
            f'<line class="axis" x1="{left:g}" x2="{width - right:g}" y1="{up(tick):.1f}" y2="{up(tick):.1f}"/>'
        )
        drawn.append(f'<text x="{left - 8:g}" y="{up(tick) + 4:.1f}" text-anchor="end">{text}</text>')
    for _, kind, line, pick in lines:
        path, pen = "", "M"
        for i, value in enumerate(line):
            if value is None:
                pen = "M"
                continue
            path += f"{pen}{at(i):.1f} {up(value):.1f}"
            pen = "L"
        drawn.append(draw.stroke(kind, path, f' data-kind="{pick}"' if pick else ""))
    for (name, *_), value in zip(lines, reference, strict=False):
        tip = f"{name}: {percent(value)} in the reference"
        drawn.append(f'<path class="reference" data-tip="{safe(tip)}" d="{draw.shape(3, left, up(value), 5)}"/>')
    picture = (
        f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{safe(label)}">{"".join(drawn)}'
        f"{_axis(starts, at, period, height - 8, most=4)}</svg>"
    )
    return draw.legend_of_strokes([name for name, *_ in lines]) + picture

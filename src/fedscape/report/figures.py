"""Figures as static SVG and HTML: a page needs no script to be read."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from fedscape.errors import plural
from fedscape.report.words import About, between, number, safe

Show = Callable[[float | None], str]
_DASHES = ("", "7 4", "2 5", "11 4 2 4", "4 3", "1 4")
_SHAPES = ("circle", "square", "triangle", "diamond", "cross", "ring")


def shape(kind: int, x: float, y: float, size: float = 5.0) -> str:
    """The mark of a kind of clients: kinds differ in shape as well as in colour."""
    form = _SHAPES[kind % len(_SHAPES)]
    s = size
    if form in ("circle", "ring"):
        inner = (
            f"M{x - s / 2:.1f} {y:.1f}a{s / 2} {s / 2} 0 1 1 {s} 0a{s / 2} {s / 2} 0 1 1 {-s} 0"
            if form == "ring"
            else ""
        )
        return f"M{x - s:.1f} {y:.1f}a{s} {s} 0 1 0 {2 * s} 0a{s} {s} 0 1 0 {-2 * s} 0{inner}"
    if form == "square":
        return f"M{x - s * 0.9:.1f} {y - s * 0.9:.1f}h{s * 1.8:.1f}v{s * 1.8:.1f}h{-s * 1.8:.1f}z"
    if form == "triangle":
        return f"M{x:.1f} {y - s * 1.15:.1f}L{x + s * 1.1:.1f} {y + s * 0.8:.1f}H{x - s * 1.1:.1f}z"
    if form == "diamond":
        return (
            f"M{x:.1f} {y - s * 1.25:.1f}L{x + s * 1.1:.1f} {y:.1f}L{x:.1f} {y + s * 1.25:.1f}"
            f"L{x - s * 1.1:.1f} {y:.1f}z"
        )
    a, b = s * 0.45, s * 1.15
    return (
        f"M{x - a:.1f} {y - b:.1f}h{2 * a:.1f}v{b - a:.1f}h{b - a:.1f}v{2 * a:.1f}h{a - b:.1f}v{b - a:.1f}"
        f"h{-2 * a:.1f}v{a - b:.1f}h{a - b:.1f}v{-2 * a:.1f}h{b - a:.1f}z"
    )


def legend(items: Sequence[tuple[str, str]]) -> str:
    """Names beside the marks, given as (markup of the mark, name)."""
    return '<ul class="legend">' + "".join(f"<li>{mark}{safe(name)}</li>" for mark, name in items) + "</ul>"


def mark(kind: int) -> str:
    """A mark for a legend."""
    return f'<svg viewBox="0 0 12 12" aria-hidden="true"><path class="k{kind % 6}" d="{shape(kind, 6, 6, 4.6)}"/></svg>'


def scatter(
    points: Sequence[Any], kinds: Sequence[int], *, label: str, centres: Sequence[tuple[str, Sequence[float]]] = ()
) -> str:
    """A map: points with two coordinates and a mark each; points without coordinates are left out.

    `centres` are (tip, coordinates) of what the reference has on this map. The script makes a listbox of the points.
    """
    drawable = [i for i, p in enumerate(points) if p[0] is not None]
    width, height, pad = 460.0, 340.0, 14.0
    if not drawable:
        return '<p class="reading">No client has a place on this map.</p>'
    all_points = [points[i] for i in drawable] + [p for _, p in centres]
    low = [min(p[a] for p in all_points) for a in (0, 1)]
    high = [max(p[a] for p in all_points) for a in (0, 1)]
    unit = max((high[0] - low[0]) / (width - 2 * pad), (high[1] - low[1]) / (height - 2 * pad), 1e-12)
    middle = [(a + b) / 2 for a, b in zip(low, high, strict=True)]
    size = 5.5 if len(drawable) <= 150 else 3.8

    def at(point: Sequence[float]) -> tuple[float, float]:
        return width / 2 + (point[0] - middle[0]) / unit, height / 2 - (point[1] - middle[1]) / unit

    drawn = [
        f'<path class="point k{kinds[i] % 6}" data-i="{i}" d="{shape(kinds[i], *at(points[i]), size)}"/>'
        for i in drawable
    ]
    marks = [
        f'<path class="reference big" data-tip="{safe(tip)}" d="{shape(3, *at(point), 8)}"/>' for tip, point in centres
    ]
    frame = f'<rect x="0.5" y="0.5" width="{width - 1:g}" height="{height - 1:g}" rx="6" class="frame"/>'
    return (
        f'<svg class="map" viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{safe(label)}">{frame}'
        f"{''.join(drawn)}{''.join(marks)}</svg>"
    )


def spread_over(edges: Sequence[float], other_edges: Sequence[float], other: Sequence[float]) -> list[float]:
    """Counts of other bins on these bins, evenly by the logarithm inside each.

    >>> spread_over([1, 2, 4, 8], [1, 4], [10])
    [5.0, 5.0, 0.0]
    """
    out = []
    for low, high in pairwise(edges):
        total = 0.0
        for (begin, end), count in zip(pairwise(other_edges), other, strict=True):
            a, b = max(low, begin, 1e-9), min(high, end)
            if b > a:
                total += count * math.log(b / a) / math.log(end / max(begin, 1e-9))
        out.append(total)
    return out


def joint_edges(edges: Sequence[float], other: Sequence[float]) -> list[float]:
    """These edges, and beyond them those of other bins."""
    return [*[e for e in other if e < edges[0]], *edges, *[e for e in other if e > edges[-1]]]


def histogram(
    edges: Sequence[float], tally: Sequence[int], *, label: str, reference: Sequence[float] | None = None
) -> str:
    """Histogram of rows per client; `reference` has as many bins and is drawn as a line."""
    width, height, left, bottom = 460.0, 230.0, 34.0, 30.0
    top = max(*tally, *(math.ceil(n) for n in reference or ()), 1)
    step = (width - left) / len(tally)
    bars, ticks = [], []
    for i, n in enumerate(tally):
        tall = (height - bottom - 12) * n / top
        last = edges[i + 1] if i + 1 < len(edges) else edges[i]
        tip = f"{plural(n, 'client')}: {edges[i]:,.0f} to {max(last - 1, edges[i]):,.0f} rows"
        bars.append(
            f'<rect class="bar" x="{left + i * step + 1:.1f}" y="{height - bottom - tall:.1f}" '
            f'width="{max(step - 2, 1):.1f}" '
            f'height="{tall:.1f}" rx="2" data-low="{edges[i]:g}" data-high="{last:g}" data-tip="{safe(tip)}"/>'
        )
    every = max(1, math.ceil(len(tally) / 6))
    for i in range(0, len(edges), every):
        anchor = "end" if i == len(tally) else "middle"  # the last one would leave the picture
        ticks.append(
            f'<text x="{left + i * step:.1f}" y="{height - 10:g}" text-anchor="{anchor}">{edges[i]:,.0f}</text>'
        )
    base = height - bottom
    axis = f'<line class="axis" x1="{left:g}" x2="{width:g}" y1="{base:g}" y2="{base:g}"/>'
    side = (
        f'<text x="{left - 7:g}" y="{base + 4:g}" text-anchor="end">0</text><text x="{left - 7:g}" y="22" '
        f'text-anchor="end">{top:,}</text>'
    )
    outline = ""
    for i, expected in enumerate(reference or ()):
        y = base - (base - 12) * expected / top
        outline += f"{'L' if outline else 'M'}{left + i * step:.1f} {y:.1f}H{left + (i + 1) * step:.1f}"
    line = f'<path class="outline" d="{outline}"/>' if outline else ""
    return (
        f'<svg class="sizes" data-top="{top}" data-tall="{base - 12:g}" data-base="{base:g}" viewBox="0 0 {width:g} '
        f'{height:g}" role="img" aria-label="{safe(label)}">{"".join(bars)}{line}{axis}{"".join(ticks)}{side}</svg>'
    )


def curves(
    rows: Sequence[tuple[str, Sequence[Sequence[float]]]],
    *,
    label: str,
    reference: Sequence[Sequence[Sequence[float]]] = (),
) -> str:
    """Accuracy by round, one line each, with a legend; those of the reference thin behind them."""
    width, height, left, right, bottom, top = 460.0, 240.0, 44.0, 14.0, 30.0, 14.0
    every = [*[curve for _, curve in rows], *reference]
    values = [v for curve in every for _, v in curve]
    low, high = min(values), max(values)
    low, high = max(0.0, low - 0.03), min(1.0, high + 0.03)
    last = max(r for curve in every for r, _ in curve)
    first = min(r for curve in every for r, _ in curve)

    def place(r: float, v: float) -> tuple[float, float]:
        x = left + (width - left - right) * (r - first) / max(last - first, 1)
        return x, top + (height - top - bottom) * (high - v) / max(high - low, 1e-9)

    lines = []
    for tick in _ticks(low, high):
        y = place(first, tick)[1]
        lines.append(f'<line class="axis" x1="{left:g}" x2="{width - right:g}" y1="{y:.1f}" y2="{y:.1f}"/>')
        lines.append(f'<text x="{left - 8:g}" y="{y + 4:.1f}" text-anchor="end">{100 * tick:.0f}%</text>')
    lines += [f'<path class="outline" d="{_path([place(*p) for p in curve])}"/>' for curve in reference]
    for i, (_, curve) in enumerate(rows):
        lines.append(stroke(i, _path([place(*p) for p in curve])))
    for r in sorted({first, (first + last) // 2, last}):
        lines.append(
            f'<text x="{place(r, low)[0]:.1f}" y="{height - 8:g}" text-anchor="{"end" if r == last else "middle"}">'
            f"{'round ' if r == first else ''}{r:g}</text>"
        )
    picture = f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{safe(label)}">{"".join(lines)}</svg>'
    return legend_of_strokes([name for name, _ in rows]) + picture


def stroke(number: int, path: str, filters: str = "") -> str:
    """A line in its colour and dashes: lines differ in both."""
    dash = f' stroke-dasharray="{_DASHES[number % 6]}"' if _DASHES[number % 6] else ""
    return f'<path class="curve k{number % 6}" d="{path}"{dash}{filters}/>'


def legend_of_strokes(names: Sequence[str]) -> str:
    """A legend of lines, numbered in this order."""
    return legend(
        [
            (f'<svg class="stroke" viewBox="0 0 26 12" aria-hidden="true">{stroke(i, "M1 6H25")}</svg>', name)
            for i, name in enumerate(names)
        ]
    )


def _path(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{'ML'[j > 0]}{x:.1f} {y:.1f}" for j, (x, y) in enumerate(points))


def _ticks(low: float, high: float) -> list[float]:
    step = next(s for s in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5) if (high - low) / s <= 6)
    return [round(i * step, 10) for i in range(math.ceil(low / step), math.floor(high / step) + 1)]


def span(rows: Sequence[About], *more: float) -> tuple[float, float]:
    """Limits of an axis that covers all intervals and these numbers."""
    values = [float(v) for row in rows for v in (row["low"], row["value"], row["high"]) if v is not None] + list(more)
    low, high = min(values), max(values)
    room = 0.05 * max(high - low, 1e-9)
    return (low - room if low < 0 else max(0.0, low - room) if low > 0 else 0.0), high + room


def forest(
    rows: Sequence[dict[str, Any]],
    *,
    low: float,
    high: float,
    show: Show = number,
    marks: Sequence[float] = (),
    scale: bool = True,
) -> str:
    """Rows with a name, a number and its interval on one axis.

    A row is {"name", "about" (value, low, high)}. Optional: "hollow", a second such number drawn beside it; "kind", its
    colour; "tick", one more position; "tip"; "note", a smaller text. Also "reference", the same number of the
    reference, and "data", attributes that the script filters by.
    """
    lines = []
    for row in rows:
        parts = [f'<i class="mark" style="left:{_at(m, low, high)}"></i>' for m in marks]
        reference = row.get("reference")
        if reference:
            parts.append(_reference(reference, low, high))
        if row.get("hollow"):
            parts.append(_interval(row["hollow"], low, high, "k1", hollow=True, up=True))
        parts.append(
            _interval(row["about"], low, high, f"k{row.get('kind', 0)}", up=None if not row.get("hollow") else False)
        )
        if row.get("tick") is not None:
            parts.append(f'<i class="tick" style="left:{_at(row["tick"], low, high)}"></i>')
        tip = (
            row.get("tip")
            or f"{row['name']}: {show(row['about']['value'])}, 95% interval {between(row['about'], show)}"
        )
        note = row.get("note") or between(row["about"], show)
        before = ""
        if reference:
            tip += f"; reference {show(reference['value'])}"
            before = f"<small>ref. {safe(show(reference['value']))}</small>"
        filters = "".join(f' data-{key}="{safe(value)}"' for key, value in row.get("data", {}).items())
        lines.append(
            f'<div class="row"{filters}><span class="name">{safe(row["name"])}</span>'
            f'<span class="track{" pair" if row.get("hollow") else ""}" data-tip="{safe(tip)}">{"".join(parts)}</span>'
            f'<span class="n">{safe(show(row["about"]["value"]))}<small>{safe(note)}</small>{before}</span></div>'
        )
    ends = [low + (high - low) * part / 2 for part in (0, 1, 2)] if scale else []
    foot = "".join(f"<span>{safe(show(end))}</span>" for end in ends)
    under = (
        f'<div class="scalerow" aria-hidden="true"><span></span><span class="scale">{foot}</span><span '
        'class="n"></span></div>'
    )
    return f'<div class="forest" data-low="{low:g}" data-high="{high:g}">{"".join(lines)}{under if scale else ""}</div>'


def _reference(about: About, low: float, high: float) -> str:
    line = ""
    if about["low"] is not None and about["high"] is not None:
        begin, end = _at(about["low"], low, high), _at(about["high"], low, high)
        line = f'<i class="whisker" style="left:{begin};right:calc(100% - {end})"></i>'
    return f'{line}<i class="rhombus" style="left:{_at(about["value"], low, high)}"></i>'


def _at(value: float, low: float, high: float) -> str:
    return f"{100 * min(max((value - low) / max(high - low, 1e-12), 0.0), 1.0):.2f}%"


def _interval(about: About, low: float, high: float, kind: str, *, hollow: bool = False, up: bool | None = None) -> str:
    if about["value"] is None:
        return ""
    top = "" if up is None else f";top:{'30%' if up else '70%'}"
    bar = ""
    if about["low"] is not None and about["high"] is not None:
        begin, end = _at(about["low"], low, high), _at(about["high"], low, high)
        bar = f'<i class="span {kind}" style="left:{begin};right:calc(100% - {end}){top}"></i>'
    position = _at(about["value"], low, high)
    return f'{bar}<i class="dot {kind}{" hollow" if hollow else ""}" style="left:{position}{top}"></i>'


def bars(
    rows: Sequence[tuple[str, float, float]], *, kind: int, called: str, reference: Sequence[float] | None = None
) -> str:
    """A kind's share of each category as a bar, the share over all clients as a tick, the reference's as a rhombus."""
    top = max(*(max(a, b) for _, a, b in rows), *(reference or (0.0,)), 1e-9)
    lines = []
    for i, (name, mine, all_) in enumerate(rows):
        tip = f"{name}: {100 * mine:.1f}% in {called}, {100 * all_:.1f}% of all rows"
        mark, before = "", ""
        if reference is not None:
            tip += f", {100 * reference[i]:.1f}% in the reference"
            mark = f'<i class="rhombus" style="left:{_at(reference[i], 0, top)}"></i>'
            before = f"<small>ref. {100 * reference[i]:.1f}%</small>"
        lines.append(
            f'<div class="row"><span class="name">{safe(name)}</span><span class="track" data-tip="{safe(tip)}">'
            f'<i class="fill k{kind % 6}" style="width:{_at(mine, 0, top)}"></i>'
            f'<i class="tick" style="left:{_at(all_, 0, top)}"></i>{mark}</span>'
            f'<span class="n">{100 * mine:.1f}%<small>all {100 * all_:.1f}%</small>{before}</span></div>'
        )
    return f'<div class="forest bars{" compared" if reference is not None else ""}">{"".join(lines)}</div>'

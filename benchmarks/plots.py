"""Small SVG plots of results: bars beside rivals, and a line over commits. The same rows give the same bytes."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

BAR, GAP, WIDTH, LABELS, NUMBERS = 16, 6, 720, 300, 110  # pixels; NUMBERS is the least room for a value
#: Readable on white and on black, because a plot does not know the page that shows it.
STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#777}.ours{fill:#0d9488}.other{fill:#a3a3a3}"
    ".reach{stroke:#555;stroke-width:1.5}.axis{stroke:#a3a3a3}"
    ".line{fill:none;stroke:#0d9488;stroke-width:2}"
)


def bars(rows: Sequence[tuple[str, float, float, str]], *, title: str, ours: str) -> str:
    """Horizontal bars from 0: label, value, half of its interval (0 for none), and the text of the value.

    Labels that contain `ours` are coloured.
    """
    top = max(max(value + half for _, value, half, _ in rows), 1e-12)
    room = max(NUMBERS, 10 + round(7.5 * max(len(text) for *_, text in rows)))
    scale = (WIDTH - LABELS - room) / top
    parts = [f'<text x="0" y="14">{escape(title)}</text>']
    for i, (label, value, half, text) in enumerate(rows):
        y = 26 + i * (BAR + GAP)
        kind = "ours" if ours.lower() in label.lower() else "other"
        name = label if len(label) <= 44 else label[:43] + "…"
        end = LABELS + max(value, 0) * scale
        parts.append(f'<text x="{LABELS - 6}" y="{y + 13}" text-anchor="end">{escape(name)}</text>')
        parts.append(f'<rect class="{kind}" x="{LABELS}" y="{y}" width="{end - LABELS:.1f}" height="{BAR}"/>')
        if half:
            middle, reach = y + BAR / 2, half * scale
            low = max(end - reach, LABELS)
            parts.append(f'<line class="reach" x1="{low:.1f}" x2="{end + reach:.1f}" y1="{middle}" y2="{middle}"/>')
        parts.append(f'<text x="{end + half * scale + 6:.1f}" y="{y + 13}">{escape(text)}</text>')
    return _picture(parts, 30 + len(rows) * (BAR + GAP), title)


def line(points: Sequence[tuple[str, float]], *, title: str) -> str:
    """One value over commits, oldest first: each point has its commit below and its value above it."""
    height, left, bottom = 180, 40, 150
    top = max(max(value for _, value in points), 1e-12)
    step = (WIDTH - 2 * left) / max(len(points) - 1, 1)
    at = [(left + i * step, bottom - value / top * 100) for i, (_, value) in enumerate(points)]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in at)
    parts = [
        f'<text x="0" y="14">{escape(title)}</text>',
        f'<line class="axis" x1="{left}" x2="{WIDTH - left}" y1="{bottom}" y2="{bottom}"/>',
        f'<polyline class="line" points="{path}"/>',
    ]
    for (x, y), (name, value) in zip(at, points, strict=True):
        parts.append(f'<circle class="ours" cx="{x:.1f}" cy="{y:.1f}" r="4"/>')
        parts.append(f'<text x="{x:.1f}" y="{y - 8:.1f}" text-anchor="middle">{value:.3g}</text>')
        parts.append(f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{escape(name)}</text>')
    return _picture(parts, height, title)


def _picture(parts: Sequence[str], height: int, title: str) -> str:
    box = f'viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title)}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {box}>'
    return "\n".join([head, f"<style>{STYLE}</style>", *parts, "</svg>"]) + "\n"

"""The section on who is there: share of clients by hour, protocols in virtual time, the part of each kind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedscape.errors import plural
from fedscape.report import figures as draw
from fedscape.report.parts import card
from fedscape.report.words import About, percent, safe, two_digits

if TYPE_CHECKING:
    from fedscape.studies.schema import Result


_ALL = 5  # the stroke of all clients; kinds have the first ones


def presence(result: Result) -> tuple[str, str, str] | None:
    """Who is there when; and, where training was simulated, how soon protocols are and whom a deadline leaves out."""
    about: About = result.get("presence", {})
    if not about:
        return None
    stacks = [_hours(about)]
    if "training" in about:
        stacks.append(_protocols(about["training"]) + _parts(about["training"]))
    source = "a log of sessions" if about["column"] is None else f"rows as check-ins, column {about['column']}"
    content = (
        f"<h2>Who is there</h2><p>From {safe(source)}: {plural(about['devices'], 'client')}, "
        f"{plural(about['sessions'], 'session')}, {about['days']:.3g} days, by the clock of the data.</p>"
        "<div class='grid'>" + "".join(f"<div class='stack'>{stack}</div>" for stack in stacks) + "</div>"
    )
    return "presence", "Who is there", content


def _hours(about: About) -> str:
    picture = _by_hour(about)
    length = about["length"]
    reading = f"On average {two_digits(about['at_once'])} clients are there at once."
    if length["value"] is not None:
        reading += f" A session lasts {two_digits(length['value'])} hours in the mean."
    p = about["rhythm"]
    reading += " Band: 95% intervals over clients, each for its own hour."
    reading += "" if p is None else f" Test of a daily rhythm of all: p = {p:.2g}."
    if (twin := about["twin"]) is not None:
        reading += (
            f" A twin of {twin['fitted']:,} of them, tested on {twin['tested']:,} others: p = {twin['p']:.2g} over "
            f"five aspects, lowest for {twin['worst']}."
        )
    hidden = sum(row["value"] is None for row in about["hours"])
    reading += f" {plural(hidden, 'hour')} of fewer than five clients: left out." if hidden else ""
    return card("Clients there by hour of the day", picture, reading, path="presence.hours", table="presence")


def _by_hour(about: About) -> str:
    """The share of all with its band, and a line for each kind."""
    width, height, left, right, bottom, top = 460.0, 240.0, 44.0, 14.0, 30.0, 14.0
    kinds = about.get("kinds", {})
    every = [row["high"] for row in about["hours"]] + [share for own in kinds.values() for share in own["shares"]]
    high = max((value for value in every if value is not None), default=1.0) or 1.0

    def at(hour: float, value: float) -> tuple[float, float]:
        return left + (width - left - right) * hour / 23, top + (height - top - bottom) * (1 - value / high)

    drawn = []
    for tick in (0.0, high / 2, high):
        y = at(0, tick)[1]
        drawn.append(f'<line class="axis" x1="{left:g}" x2="{width - right:g}" y1="{y:.1f}" y2="{y:.1f}"/>')
        drawn.append(f'<text x="{left - 8:g}" y="{y + 4:.1f}" text-anchor="end">{percent(tick, 0)}</text>')
    for run in _runs([row["value"] for row in about["hours"]]):
        upper = [at(h, about["hours"][h]["high"]) for h in run]
        lower = [at(h, about["hours"][h]["low"]) for h in reversed(run)]
        drawn.append(f'<path class="band" d="{_path(upper + lower)}z"/>')
    lines = [(f"kind {kind}", ord(kind) - ord("A"), own["shares"]) for kind, own in kinds.items()]
    lines.append(("all clients", _ALL, [row["value"] for row in about["hours"]]))
    for _, number, shares in lines:
        paths = [_path([at(h, shares[h]) for h in run]) for run in _runs(shares)]
        drawn.append(draw.stroke(number, " ".join(paths)))
    drawn += [
        f'<text x="{at(h, 0)[0]:.1f}" y="{height - 8:g}" text-anchor="{"end" if h == 23 else "middle"}">{h}:00</text>'
        for h in (0, 6, 12, 18, 23)
    ]
    label = "Share of clients that are there by hour of the day"
    picture = f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{label}">{"".join(drawn)}</svg>'
    marks = [
        f'<svg class="stroke" viewBox="0 0 26 12" aria-hidden="true">{draw.stroke(i, "M1 6H25")}</svg>'
        for _, i, _ in lines
    ]
    return draw.legend([(mark, name) for mark, (name, _, _) in zip(marks, lines, strict=True)]) + picture


def _runs(values: list[float | None]) -> list[list[int]]:
    """Runs of hours that are known.

    >>> _runs([0.1, None, 0.2, 0.3])
    [[0], [2, 3]]
    """
    runs: list[list[int]] = []
    for hour, value in enumerate(values):
        if value is None:
            continue
        if runs and runs[-1][-1] == hour - 1:
            runs[-1].append(hour)
        else:
            runs.append([hour])
    return runs


def _path(points: list[tuple[float, float]]) -> str:
    return " ".join(f"{'ML'[i > 0]}{x:.1f} {y:.1f}" for i, (x, y) in enumerate(points))


def _speed(about: About) -> str:
    return " Devices are assumed equally fast, a minute for an average client." if about["assumed"] else ""


def _protocols(about: About) -> str:
    rows = [
        {"name": row["name"], "about": row["hours"], "kind": i, "note": _reached(row, about)}
        for i, row in enumerate(about["protocols"])
    ]
    reached = [row["about"] for row in rows if row["about"]["value"] is not None]
    low, high = draw.span(reached, 0.0) if reached else (0.0, 1.0)
    picture = draw.forest(rows, low=low, high=high, show=lambda v: "\u2013" if v is None else f"{two_digits(v)} h")
    reading = (
        f"Hours until FedAvg's accuracy is {percent(about['target'])}, on {about['of']}: {about['runs']} runs from "
        f"different hours, rounds of {about['size']}, deadline {two_digits(about['deadline'])} s.{_speed(about)} Does "
        f"asynchronous training help? {about['asynchronous']['answer'].capitalize()}."
    )
    return card("How soon in virtual time", picture, reading, path="presence.training.protocols", table="protocols")


def _reached(row: About, about: About) -> str:
    if row["reached"] < about["runs"]:
        return f"{row['reached']} of {about['runs']} runs"
    low, high = row["hours"]["low"], row["hours"]["high"]
    return "one run" if low is None else f"[{two_digits(low)}, {two_digits(high)}]"


def _parts(about: About) -> str:
    rows: list[dict[str, Any]] = [
        {
            "name": f"kind {part['kind']}" + (" (few reported)" if part["rare"] else ""),
            "about": part["ratio"],
            "kind": ord(part["kind"]) - ord("A"),
        }
        for part in about["parts"]
    ]
    if not rows or rows[0]["about"]["value"] is None:
        picture, worst = '<p class="reading">Nobody reported in time.</p>', ""
    else:
        low, high = draw.span([row["about"] for row in rows], 0.0, 1.0)
        picture = draw.forest(
            rows, low=low, high=high, marks=(1.0,), show=lambda v: "\u2013" if v is None else f"{v:.2f}"
        )
        most = max(about["parts"], key=lambda part: float(part["never"]))
        worst = f" Of kind {most['kind']}, {percent(most['never'], 0)} never reported."
    reading = (
        "Share of the reports of a kind over its share of the clients, in rounds with the deadline; 1 is fair. "
        f"Intervals are simultaneous over kinds. {about['days']:.3g} days.{worst}{_speed(about)}"
    )
    return card("Whom a deadline leaves out", picture, reading, path="presence.training.parts", table="participation")

"""The section on models of a number: errors in its own units, the variance explained, sites, kinds and costs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fedscape.display import called_in
from fedscape.errors import plural
from fedscape.report import figures as draw
from fedscape.report.parts import capital, card, cells, dot, table_of
from fedscape.report.words import NONE, About, between, number, of_stages, percent, safe

if TYPE_CHECKING:
    from fedscape.studies.schema import Result
    from fedscape.studies.schema_numbers import Numbers


def four_digits(value: float | None) -> str:
    """A number to four significant digits, never in exponent notation.

    >>> four_digits(12345.678), four_digits(0.00123456), four_digits(None)
    ('12,350', '0.001235', '\u2013')
    """
    return NONE if value is None else f"{float(f'{value:.4g}'):,.10g}"


def _points(value: float | None) -> str:
    return NONE if value is None else f"{100 * value:+.1f}"


def numbers(result: Result) -> tuple[str, str, str] | None:
    """Models of the number that was studied, where it is one."""
    if "numbers" not in result:
        return None
    about = result["numbers"]
    named: list[About] = [{**row, "called": called_in(about, row)} for row in about["true"]]
    order = sorted(named, key=lambda row: -(row["r2"]["value"] or 0.0))
    what = "site" if about["sites"] else "client"
    content = (
        f"<h2>Learn</h2><p>{safe(capital(about['target']))} is a number: its mean is {four_digits(about['mean'])}, its "
        f"standard deviation {four_digits(about['spread'])}. Linear models of {plural(about['inputs'], 'input')} "
        f"are compared by how far they are off on rows held out, in {plural(about['seeds'], 'repeat')}: "
        f"{of_stages(about, what)} Settings are chosen on rows that judge nothing else.</p>"
        f"<div class='grid'>{_errors_card(order, about['best'])}{_sites_card(about)}{_gains_card(order)}"
        f"{_kinds_card(about)}{_table_card(order)}{_costs_card(about)}</div>"
    )
    return "learn", "Learn", content


def _errors_card(order: Sequence[About], best: str) -> str:
    rows: list[dict[str, Any]] = [
        {"name": r["called"], "about": r["rmse"], "hollow": r["mae"], "kind": 5 if r["baseline"] else 0} for r in order
    ]
    low, high = draw.span([r[w] for r in rows for w in ("about", "hollow")])
    guess = min(r["rmse"]["value"] for r in order if r["baseline"])
    marks = draw.legend(
        [
            (dot(0, False), "root mean squared error"),
            (dot(1, True), "mean absolute error"),
            (dot(5, False), "a mean, without features"),
        ]
    )
    first = next(r for r in order if r["method"] == best)  # of the last stage: others stand as they left
    reading = (
        f"Of the models {first['called']} is the most exact: off by {four_digits(first['rmse']['value'])} "
        f"({between(first['rmse'], four_digits)}) in units of the target. The line is the better mean."
    )
    figure = marks + draw.forest(rows, low=low, high=high, show=four_digits, marks=(guess,))
    return card("Errors on rows held out", figure, reading, wide=True, table="methods", anchor="accuracy")


def _gains_card(order: Sequence[About]) -> str:
    gains: list[dict[str, Any]] = [
        {"name": r["called"], "about": r["gain"], "kind": 2 if (r["gain"]["low"] or -1) > 0 else 0}
        for r in order
        if r["gain"]
    ]
    low, high = draw.span([g["about"] for g in gains], 0.0)
    sure = [g["name"] for g in gains if (g["about"]["low"] or -1) > 0]
    verdict = f"Surely above zero: {', '.join(sure)}." if sure else "None is surely above zero."
    figure = draw.forest(gains, low=low, high=high, show=_points, marks=(0.0,))
    reading = f"Percent of the variance of the target, paired over clients, with simultaneous 95% intervals. {verdict}"
    return card("Variance explained beyond one linear model, in points", figure, reading, anchor="gains")


def _sites_card(about: Numbers) -> str:
    sites = about.get("joining")
    if sites is None or not sites["rows"]:
        return ""
    rows: list[dict[str, Any]] = [
        {
            "name": f"{capital(r['site'])} ({r['size']})",
            "about": r["gain"],
            "kind": {"gains": 2, "loses": 1}.get(r["verdict"], 0),
            "note": f"{number(r['alone']['value'], 2)} \u2192 {number(r['joined']['value'], 2)}",
        }
        for r in sites["rows"]
    ]
    rows.append({"name": "Mean over sites", "about": sites["pooled"], "kind": 3})
    low, high = draw.span([r["about"] for r in rows], 0.0)
    spread = sites["spread"]
    reading = (
        f"What each site gains by joining ({sites['called']}) over fitting its own rows alone, in points of R2, "
        "and its R2 alone and joined; the sites' intervals are simultaneous. Sites differ with "
        f"I2 {100 * spread['i2']:.0f}% (p = {number(spread['p'])} of no difference)."
    )
    figure = draw.forest(rows, low=low, high=high, marks=(0.0,), show=_points)
    return card("Who gains by joining", figure, reading, wide=True, table="sites", anchor="sites")


def _kinds_card(about: Numbers) -> str:
    rows: list[dict[str, Any]] = [
        {"name": f"{capital(k['kind'])} ({k['clients']})", "about": k, "kind": ord(k["kind"][-1]) - ord("A")}
        for k in about["by_kind"]
        if k["value"] is not None
    ]
    if not rows:
        return ""
    low, high = draw.span([r["about"] for r in rows], 0.0)
    worst = min(rows, key=lambda r: float(r["about"]["value"]))
    reading = f"{worst['name']} has the least, {number(worst['about']['value'])} ({between(worst['about'])}); in "
    reading += "brackets the number of clients. Below 0 the mean of all would be nearer."
    return card("For whom it fails: R2 by kind of client", draw.forest(rows, low=low, high=high), reading)


def _table_card(order: Sequence[About]) -> str:
    rows = []
    for r in order:
        gain = r["gain"] or {"value": None, "low": None, "high": None}
        rows.append(
            [
                (r["called"], r["called"]),
                *cells(r["r2"]),
                *cells(r["rmse"], four_digits),
                *cells(r["mae"], four_digits),
                (gain["value"], _points(gain["value"])),
                *cells(r["worst"], four_digits),
                (r["setting"], NONE if r["setting"] is None else f"{r['setting']:g}"),
            ]
        )
    names = ["method", "R2", "95% interval", "RMSE", "its interval", "MAE", "its interval ", "gain, points"]
    names += ["MAE of the worst tenth", " its interval", "setting"]
    table = table_of(names, rows, sorts=True, numbers=tuple(range(1, len(names))), name="methods")
    reading = (
        "Click a heading to sort. R2 is the share of the variance explained, mean over clients. The worst tenth (five "
        "at least; of sites the worst one) is chosen by half of the rows and judged by the other half. Setting: the "
        "penalty, or the number of classes."
    )
    return card("Models in numbers", table, reading, wide=True, table="methods", anchor="methods")


def _costs_card(about: Numbers) -> str:
    rows = [
        [
            (c["called"], c["called"]),
            (c["bytes_up"], number(c["bytes_up"] / 1000, 1)),
            (c["bytes_down"], number(c["bytes_down"] / 1000, 1)),
            (", ".join(c["revealed"]), ", ".join(c["revealed"]) or "nothing"),
        ]
        for c in about["costs"]
    ]
    table = table_of(["method", "kB up", "kB down", "revealed"], rows, sorts=True, numbers=(1, 2))
    dear = max(about["costs"], key=lambda c: c["bytes_up"])
    share = percent(sum(c["bytes_up"] > 0 for c in about["costs"]) / len(about["costs"]), 0)
    reading = f"The costliest round of a client; {dear['called']} sends the most, {share} of the models send anything."
    return card("Cost of a round, and what the server sees", table, reading, table="costs", anchor="costs")

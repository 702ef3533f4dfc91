"""Figures of a study for notebooks: each function returns the matplotlib figure and the rows it shows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from fedscape.errors import DataError, require
from fedscape.report.words import About

if TYPE_CHECKING:
    from fedscape.studies.schema import Result

Rows = list[dict[str, Any]]
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#B58900", "#3A8FC4")  # safe for colour-blind readers
WHICH: tuple[Literal["true"], Literal["simulated"]] = ("true", "simulated")
MARKS = ("o", "s", "^", "D", "P", "X")


def plot_methods(result: Result) -> tuple[Any, Rows]:
    """The accuracy of every method with its interval, on the true clients and as predicted by simulated ones."""
    if "learn" not in result:
        raise DataError("this study has no tournament to plot: its notes say why")
    learn = result["learn"]
    order = [row["method"] for row in sorted(learn["true"], key=lambda row: row["accuracy"]["value"] or 0.0)]
    standings = {which: {row["method"]: row for row in learn[which]} for which in WHICH}
    rows: Rows = [
        {"method": standings[which][name]["called"], "clients": which, **standings[which][name]["accuracy"]}
        for which in WHICH
        for name in order
    ]
    names = [row["method"] for row in rows if row["clients"] == "true"]
    figure, axes = _figure(len(names))
    for shift, which in ((-0.12, "true"), (0.12, "simulated")):
        mine = [row for row in rows if row["clients"] == which]
        _errorbars(axes, mine, shift, COLOURS[which != "true"], MARKS[which != "true"], f"{which} clients")
    _finish(axes, names, "accuracy on rows held out (95% interval over clients)")
    axes.legend(frameon=False)
    return figure, rows


def plot_skew(result: Result) -> tuple[Any, Rows]:
    """Label, feature and quantity skew with their intervals."""
    measured: About = result["measure"]
    shown = {"labels": "labels", "features": "features", "quantity": "sizes (Gini)"}
    rows: Rows = [
        {"in": called, **{k: measured[name][k] for k in ("value", "low", "high")}}
        for name, called in shown.items()
        if "value" in measured.get(name, {})
    ][::-1]
    figure, axes = _figure(len(rows))
    _errorbars(axes, rows, 0.0, COLOURS[0], MARKS[0], "")
    axes.axvline(0, color="grey", linewidth=1)
    _finish(axes, [row["in"] for row in rows], "0: clients are alike, 1: they share nothing")
    return figure, rows


def plot_kinds(result: Result, kind: str = "A", *, most: int = 15) -> tuple[Any, Rows]:
    """The categories that a kind of clients has more or less of than all clients together.

    Parameters
    ----------
    result
        The result of a study.
    kind
        A letter.
    most
        Number of categories to show, those that differ most.
    """
    model = result["model"]
    component = next((c for c in model["components"] if c["kind"] == kind), None)
    if component is None:
        raise DataError(f"there is no kind {kind!r}: the kinds are {', '.join(c['kind'] for c in model['components'])}")
    rows: Rows = [
        {"category": name, "kind": mine, "all": pool}
        for name, mine, pool in zip(model["names"], component["means"], model["pool"], strict=True)
    ]
    rows = sorted(sorted(rows, key=lambda r: -abs(r["kind"] - r["all"]))[:most], key=lambda r: r["kind"] - r["all"])
    figure, axes = _figure(len(rows))
    axes.barh(range(len(rows)), [row["kind"] for row in rows], color=COLOURS[0], label=f"kind {kind}")
    axes.scatter(
        [row["all"] for row in rows], range(len(rows)), color="black", marker="|", s=160, label="all rows", zorder=3
    )
    _finish(axes, [row["category"] for row in rows], "share of a client's rows")
    axes.legend(frameon=False)
    return figure, rows


def plot_map(result: Result, by: str | None = None) -> tuple[Any, Rows]:
    """The map of clients, by "features" or by "labels" (default: features if there are any)."""
    about: About = result["measure"]["map"]
    way = by or ("features" if "features" in about else "labels")
    have = [name for name in ("labels", "features") if name in about]
    if way not in have:
        raise DataError(f"there is no map by {way!r}: there is one by {' and by '.join(have)}")
    columns = (about["client"], about["kind"], about[way]["points"])
    rows: Rows = [
        {"client": client, "kind": kind, "x": point[0], "y": point[1]}
        for client, kind, point in zip(*columns, strict=True)
        if point[0] is not None
    ]
    figure, axes = _figure(8)
    for number, kind in enumerate(sorted({row["kind"] for row in rows})):
        mine = [row for row in rows if row["kind"] == kind]
        look = {"color": COLOURS[number % 6], "marker": MARKS[number % 6], "label": f"kind {kind}", "alpha": 0.8}
        axes.scatter([row["x"] for row in mine], [row["y"] for row in mine], **look)
    axes.set_aspect("equal")
    axes.set_xticks([])
    axes.set_yticks([])
    axes.legend(frameon=False)
    return figure, rows


def plot_audit(about: About) -> tuple[Any, Rows]:
    """The attack's scores with and without the canary, and the bound next to the claim."""
    rows = [{"canary": which, "score": score} for which in ("out", "in") for score in about["scores"][which]]
    require("matplotlib", extra="report")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.0, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    for number, which in enumerate(("out", "in")):
        mine = [row["score"] for row in rows if row["canary"] == which]
        left.hist(mine, bins=60, histtype="step", color=COLOURS[number], label=f"canary {which}")
    left.set_xlabel("score of a run (log likelihood ratio)")
    left.legend(frameon=False)
    right.barh([0, 1], [about["bound"], about["claim"]], color=[COLOURS[0 if about["holds"] else 1], "grey"])
    right.set_yticks([0, 1], ["at least", "claimed"])
    right.set_xlabel(f"epsilon at delta {about['delta']:g}")
    right.set_title("holds" if about["holds"] else "BROKEN")
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    return figure, rows


def plot_forest(about: About) -> tuple[Any, Rows]:
    """Sites' coefficients with their intervals, the pooled ones below, and how far sites differ: `GLM.by_site`."""
    pooled = [
        {"site": "pooled, sites differ", **about["random"]},
        {"site": "pooled, one effect", **about["fixed"]},
    ]
    rows: Rows = [*pooled, *about["rows"][::-1]]
    figure, axes = _figure(len(rows))
    for number, colour in enumerate(COLOURS[1:3]):
        axes.axvline(rows[number]["value"], color=colour, linewidth=1, linestyle=":")
        _errorbars(axes, [rows[number]], number, colour, "D", "")
    own = range(2, len(rows))
    wide = [[rows[i]["value"] - rows[i]["low"] for i in own], [rows[i]["high"] - rows[i]["value"] for i in own]]
    axes.errorbar([rows[i]["value"] for i in own], own, xerr=wide, fmt="s", color=COLOURS[0], capsize=3)
    name = str(about["coefficient"]).replace("$", r"\$")
    _finish(axes, [row["site"] for row in rows], f"coefficient of {name} (95% interval)")
    axes.set_title(f"I2 {about['i2']:.0%}, tau2 {about['tau2']:.3g}, Q {about['q']:.3g} (p {about['p_value']:.2g})")
    return figure, rows


def _figure(rows: int) -> tuple[Any, Any]:
    require("matplotlib", extra="report")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 1.2 + 0.42 * max(rows, 2)), layout="constrained")
    return figure, figure.subplots()


def _errorbars(axes: Any, rows: Rows, shift: float, colour: str, mark: str, label: str) -> None:
    values = [row["value"] for row in rows]
    below = [row["value"] - (row["value"] if row["low"] is None else row["low"]) for row in rows]
    above = [(row["value"] if row["high"] is None else row["high"]) - row["value"] for row in rows]
    places = [i + shift for i in range(len(rows))]
    axes.errorbar(values, places, xerr=[below, above], fmt=mark, color=colour, capsize=3, label=label or None)


def _finish(axes: Any, names: list[str], label: str) -> None:
    axes.set_yticks(range(len(names)), [name.replace("$", r"\$") for name in names])
    axes.set_xlabel(label)
    axes.spines[["top", "right"]].set_visible(False)

"""Sections on simulated clients and on methods: each (anchor, title, markup)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fedscape.display import called_in
from fedscape.errors import plural
from fedscape.report import figures as draw
from fedscape.report.parts import capital, card, cells, dot, legend_of_reference, reference_of, stick, table_of
from fedscape.report.words import NONE, About, between, number, of_stages, percent, safe, two_digits

if TYPE_CHECKING:
    from fedscape.studies.schema import Result
    from fedscape.studies.schema_learn import Learn

_MEASURES = {
    "misfit": "Misfit: what matched clients differ in",
    "auc": "A classifier tells them apart (AUC)",
    "distance": "Laws of the distance to all clients",
    "size": "Laws of sizes",
    "pool": "All rows together",
    "sketch": "Features, by sketches",
}


#: The legend mark of clients picked on the map, which the script shows.
_RING = (
    '<svg viewBox="0 0 12 12" aria-hidden="true"><circle cx="6" cy="6" r="4.4" fill="none" stroke="currentColor" '
    'stroke-width="2.6"/></svg>'
)


def simulate(result: Result) -> tuple[str, str, str] | None:
    if "simulate" not in result:
        return None
    mixture: About = result["simulate"]["mixture"]
    iid: About = result["simulate"]["iid"]
    rows, table = [], []
    for name, called in _MEASURES.items():
        if name not in mixture:
            continue
        before = reference_of(result).get("fidelity", {}).get(name)
        low, high = draw.span([mixture[name], iid[name], *([before] if before else [])], mixture[name]["alike"])
        if name == "auc":
            low, high = 0.4, 1.0
        one = {"name": called, "about": mixture[name], "hollow": iid[name], "tick": mixture[name]["alike"], "kind": 0}
        one["reference"] = before
        one["tip"] = (
            f"{called}: mixture {number(mixture[name]['value'])} ({between(mixture[name])}), IID "
            f"{number(iid[name]['value'])} ({between(iid[name])}), {number(mixture[name]['alike'])} if alike"
        )
        one["note"] = f"IID {number(iid[name]['value'])}"
        rows.append(draw.forest([one], low=low, high=high, scale=False))
        for clients, about in (("mixture", mixture), ("IID", iid)):
            table.append(
                [
                    (called, called),
                    (clients, clients),
                    *cells(about[name]),
                    (about[name]["alike"], number(about[name]["alike"])),
                    (about[name]["p"], "< 0.001" if about[name]["p"] < 0.001 else number(about[name]["p"])),
                ]
            )
    marks = draw.legend(
        [
            (dot(0, False), "clients of the mixture"),
            (dot(1, True), "fully IID clients"),
            (stick(), "as alike as two halves of the true clients"),
            *(legend_of_reference(result) if reference_of(result).get("fidelity") else []),
        ]
    )
    better = mixture["misfit"]["value"] < iid["misfit"]["value"]
    reading = (
        f"The misfit of the mixture is {number(mixture['misfit']['value'])} ({between(mixture['misfit'])}), that of "
        f"IID clients {number(iid['misfit']['value'])} ({between(iid['misfit'])}); two halves of one law have "
        f"{number(mixture['misfit']['alike'])}. A classifier tells "
        f"clients of the mixture from true ones with AUC {number(mixture['auc']['value'])} "
        f"({between(mixture['auc'])}), IID ones with {number(iid['auc']['value'])} ({between(iid['auc'])}); "
        "0.5 is not at all. "
        + (
            "The mixture is closer to the truth."
            if better
            else "The mixture is no closer to the truth than IID clients."
        )
    )
    names = ["measure", "clients", "value", "95% interval", "if alike", "p of alike"]
    content = (
        "<h2>Simulate</h2><p>New clients cut from all rows together, once by the fitted mixture and once without any "
        "difference between clients, compared with the true ones. Only the labels are modelled: what clients "
        "have of their "
        f"own in features is lost{', and the last row shows it' if 'sketch' in mixture else ''}.</p><div class='grid'>"
        + card(
            "How alike simulated clients are (each row on its own scale)",
            marks + "".join(rows),
            reading,
            path="simulate",
            wide=True,
            table="fidelity",
            anchor="fidelity",
        )
        + card(
            "The same in numbers",
            table_of(names, table, sorts=True, numbers=(2, 4, 5), label="Fidelity in numbers"),
            f"Not represented by the mixture: {percent(mixture['missing'])} of the true clients; by IID "
            f"clients: {percent(iid['missing'])}.",
            path="simulate",
            wide=True,
        )
        + "</div>"
    )
    return "simulate", "Simulate", content


def learn(result: Result) -> tuple[str, str, str] | None:
    if "learn" not in result:
        return None
    learn = result["learn"]
    predicted = {row["method"]: row for row in learn["simulated"]}
    named: list[About] = [{**row, "called": called_in(learn, row)} for row in learn["true"]]
    order = sorted(named, key=lambda row: -(row["accuracy"]["value"] or 0))
    what = "site" if learn["sites"] else "client"
    by_kind = _kinds_card(result, learn)
    lengths = list(dict.fromkeys(stage["rounds"] for stage in learn["stages"]))
    content = (
        f"<h2>Learn</h2><p>A short tournament: {of_stages(learn, what)} It has "
        f"{', then '.join(map(str, lengths[:-1]))}{', then ' if lengths[1:] else ''}{plural(lengths[-1], 'round')}, "
        f"{plural(learn['seeds'], 'repeat')} with other rows held out, {safe(learn['model'])}, each method at its own "
        f"learning rate. It ranks methods on these data, with this model.</p><div class='grid'>"
        f"{_accuracy_card(result, order, predicted)}{_sites_card(result, learn)}"
        f"{_gains_card(result, order, alone=not by_kind)}{by_kind}"
        f"{_methods_table(result, order, predicted)}{_cohorts_card(result, learn)}{_costs_card(result, learn)}"
        f"{_clients_card(result)}</div>"
    )
    return "learn", "Learn", content


def _before(result: Result) -> About:
    """The reference's section on methods; empty without a reference."""
    about: About = reference_of(result).get("learn", {})
    return about


def _legend_if(result: Result, rows: Sequence[About]) -> str:
    return draw.legend(legend_of_reference(result)) if any(row.get("reference") for row in rows) else ""


def _span(rows: Sequence[About], *more: float) -> tuple[float, float]:
    """Axis limits that cover everything drawn in these rows."""
    drawn = [row[key] for row in rows for key in ("about", "hollow", "reference") if row.get(key)]
    return draw.span(drawn, *more)


def _accuracy_card(result: Result, order: Sequence[About], predicted: Mapping[str, About]) -> str:
    before = _before(result).get("methods", {})
    rows: list[dict[str, Any]] = [
        {
            "name": r["called"],
            "about": r["accuracy"],
            "hollow": predicted[r["method"]]["accuracy"],
            "kind": 5 if r["baseline"] else 0,
            "reference": before.get(r["method"], {}).get("accuracy"),
            "data": {"method": r["method"]},
        }
        for r in order
    ]
    low, high = _span(rows)
    guess = max(r["accuracy"]["value"] or 0.0 for r in order if r["baseline"])
    marks = draw.legend(
        [
            (dot(0, False), "true clients"),
            (dot(1, True), "predicted by simulated clients"),
            (dot(5, False), "guessing, without training"),
            *(legend_of_reference(result) if before else []),
        ]
    )
    marks = marks.replace("</ul>", f'<li class="ifjudged">{_RING}clients picked</li></ul>')
    best = result["learn"]["best"]  # of the last stage: others stand as they left
    first = next(r for r in order if r["method"] == best)
    reading = (
        f"Of the methods {first['called']} is the most accurate on the true clients: "
        f"{percent(first['accuracy']['value'])} ({between(first['together'], percent)} as one of several), "
        "mean over clients of rows held out. Each bar "
        "is the interval of that method by itself. The line is the better guess."
    )
    return card(
        "Accuracy, predicted and true",
        marks + draw.forest(rows, low=low, high=min(high, 1.0), show=percent, marks=(guess,)),
        reading,
        path="learn.true",
        wide=True,
        table="methods",
        anchor="accuracy",
    )


def _gains_card(result: Result, order: Sequence[About], *, alone: bool) -> str:
    before = _before(result).get("methods", {})
    gains: list[dict[str, Any]] = [
        {
            "name": r["called"],
            "about": r["gain"],
            "kind": 2 if (r["gain"]["low"] or -1) > 0 else 0,
            "reference": before.get(r["method"], {}).get("gain"),
        }
        for r in order
        if r["gain"]
    ]
    low, high = _span(gains, 0.0)
    sure = [g["name"] for g in gains if (g["about"]["low"] or -1) > 0]
    verdict = f"Surely above zero: {', '.join(sure)}." if sure else "None is surely above zero."
    points = draw.forest(
        gains, low=low, high=high, show=lambda v: NONE if v is None else f"{100 * v:+.1f}", marks=(0.0,)
    )
    return card(
        "Gain over FedAvg, in points",
        _legend_if(result, gains) + points,
        f"Paired over clients, with simultaneous 95% intervals. {verdict}",
        path="learn.true",
        wide=alone,
        anchor="gains",
    )


def _sites_card(result: Result, learn: Learn) -> str:
    """Each site alone and joined, its gain, and the pooled answer."""
    about = learn.get("joining")
    if about is None or not about["rows"]:
        return ""
    before = _before(result).get("joining", {"sites": {}, "pooled": None})
    rows: list[dict[str, Any]] = [
        {
            "name": f"{capital(r['site'])} ({r['size']})",
            "about": r["gain"],
            "kind": {"gains": 2, "loses": 1}.get(r["verdict"], 0),
            "note": f"{percent(r['alone']['value'])} \u2192 {percent(r['joined']['value'])}",
            "reference": before["sites"].get(r["site"]),
        }
        for r in about["rows"]
    ]
    rows.append({"name": "Mean over sites", "about": about["pooled"], "kind": 3, "reference": before["pooled"]})
    low, high = _span(rows, 0.0)
    figure = _legend_if(result, rows) + draw.forest(
        rows, low=low, high=high, marks=(0.0,), show=lambda v: NONE if v is None else f"{100 * v:+.1f}"
    )
    spread = about["spread"]
    reading = (
        f"What each site gains by joining ({about['called']}) over training alone, in points, on its own rows held "
        "out, and its accuracy alone and joined; the sites' intervals are simultaneous. Sites differ with "
        f"I2 {100 * spread['i2']:.0f}%, tau2 "
        f"{1e4 * spread['tau2']:.1f} points squared (p = {number(spread['p'])} of no difference)."
    )
    return card("Who gains by joining", figure, reading, path="learn.joining", wide=True, table="sites", anchor="sites")


def _kinds_card(result: Result, learn: Learn) -> str:
    before, closest = _before(result).get("by_kind", {}), reference_of(result).get("closest", {})
    rows: list[dict[str, Any]] = [
        {
            "name": f"{capital(k['kind'])} ({k['clients']})",
            "about": k,
            "kind": ord(k["kind"][-1]) - ord("A"),
            "reference": before.get(f"kind {closest.get(k['kind'][-1], {}).get('kind')}"),
            "data": {"kind": k["kind"][-1]},
        }
        for k in learn["by_kind"]
    ]
    measured = [r for r in rows if r["about"]["value"] is not None]
    if not measured:
        return ""
    worst = min(measured, key=lambda r: r["about"]["value"])
    reading = (
        f"{worst['name']} has the least, {percent(worst['about']['value'])} ({between(worst['about'], percent)}"
        "); in brackets the number of clients."
    )
    if sum(r["about"]["clients"] for r in measured) < learn["clients"]:
        reading += " Kinds of fewer than five are left out."
    if any(r["reference"] for r in measured):
        reading += " The reference is that of its nearest kind."
    return card(
        "For whom it fails: accuracy by kind of client",
        _legend_if(result, measured) + draw.forest(measured, low=0.0, high=1.0, show=percent),
        reading,
        path="learn.by_kind",
        anchor="by-kind",
    )


def _methods_table(result: Result, order: Sequence[About], predicted: Mapping[str, About]) -> str:
    rows = []
    for r in order:
        gain = r["gain"] or {"value": None, "low": None, "high": None}
        guess = predicted[r["method"]]["accuracy"]
        rows.append(
            [
                (r["called"], r["called"]),
                (r["accuracy"]["value"], percent(r["accuracy"]["value"])),
                (gain["value"], NONE if gain["value"] is None else f"{100 * gain['value']:+.1f}"),
                (r["worst"]["value"], f"{percent(r['worst']['value'])}"),
                (r["worst"]["low"], between(r["worst"], percent)),
                (r["worst"]["seen"], percent(r["worst"]["seen"])),
                (guess["value"], percent(guess["value"])),
                (r.get("lr"), NONE if r.get("lr") is None else f"{r['lr']:g}"),
                (r.get("rounds"), NONE if r.get("rounds") is None else str(r["rounds"])),
                (r["seeds"], NONE if r["seeds"] is None else f"{100 * r['seeds']:.1f}"),
            ]
        )
    sites = result["learn"]["sites"]
    worst = "worst site" if sites else "worst tenth"
    names = ["method", "accuracy", "gain, points", worst, "its 95% interval", "as seen", "predicted", "rate", "rounds"]
    names.append("repeats, ± points")
    table = table_of(names, rows, sorts=True, numbers=(1, 2, 3, 4, 5, 6, 7, 8, 9), name="methods", label="Methods")
    low = min((r for r in order if not r["baseline"]), key=lambda r: r["worst"]["value"] or 0)
    about = f"does, of the methods, worst under {low['called']}: {percent(low['worst']['value'])}"
    reading = f"Click a heading to sort. The worst site {about}; intervals are simultaneous over the sites."
    if not sites:
        reading = (
            f"Click a heading to sort. The worst tenth of the clients (five at least) {about}, with bad luck in "
            "few rows taken off; as seen: before that."
        )
    return card("Methods in numbers", table, reading, path="learn.true", wide=True, table="methods", anchor="methods")


def _cohorts_card(result: Result, learn: Learn) -> str:
    before = [row["curve"] for row in _before(result).get("cohorts", ())]
    rows = [(f"{c['clients']} a round", c["curve"]) for c in reversed(learn["cohorts"])]
    reading = "FedAvg with fewer clients a round: " + "; ".join(
        f"{c['clients']} end at {percent(c['accuracy']['value'])} ({between(c['accuracy'], percent)})"
        for c in learn["cohorts"]
    )
    if before:
        reading += f". Thin lines: {reference_of(result)['source']}"
    return card(
        "How many clients a round",
        draw.curves(rows, label="Accuracy of FedAvg by round and cohort", reference=before),
        f"{reading}.",
        path="learn.cohorts",
        table="cohorts",
        anchor="cohorts",
    )


def _costs_card(result: Result, learn: Learn) -> str:
    rows = [
        [
            (c["called"], c["called"]),
            (c["bytes_up"], number(c["bytes_up"] / 1000, 1)),
            (c["bytes_down"], number(c["bytes_down"] / 1000, 1)),
            (c["seconds"]["value"], two_digits(1000 * c["seconds"]["value"])),
            (", ".join(c["revealed"]), ", ".join(c["revealed"]) or "nothing"),
        ]
        for c in learn["costs"]
    ]
    names = ["method", "kB up", "kB down", "ms", "revealed"]
    table = table_of(names, rows, sorts=True, numbers=(1, 2, 3), label="Costs")
    dear = max(learn["costs"], key=lambda c: c["bytes_up"])
    reading = (
        "A round of a median client on a device of 1 GFLOP/s, 1 MB/s up, 4 MB/s down (assumed); "
        f"{dear['called']} sends "
        "the most. Revealed: the arrays that the server sees for single clients; it sees all others as sums."
    )
    return card(
        "Cost of a round, and what the server sees", table, reading, path="learn.costs", table="costs", anchor="costs"
    )


def _clients_card(result: Result) -> str:
    if "clients" not in result:
        return ""
    names = list(result["clients"][0])
    rows = [
        [
            (row[n], number(row[n], 3 if isinstance(row[n], float) else 0) if not isinstance(row[n], str) else row[n])
            for n in names
        ]
        for row in result["clients"][:500]
    ]
    table = table_of(
        names,
        rows,
        sorts=True,
        numbers=tuple(i for i, n in enumerate(names) if n not in ("client", "kind")),
        name="clients",
        label="Every client",
    )
    reading = (
        f"Accuracy of every client under each method; {min(len(result['clients']), 500):,} of "
        f"{len(result['clients']):,} are listed, all are in the CSV."
    )
    return card("Every client", table, reading, path="clients", wide=True, table="clients", anchor="clients")

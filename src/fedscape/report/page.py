"""The page: from a plain result to one self-contained HTML text."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from fedscape.report import figures as draw
from fedscape.report.words import About, between, embedded, number, percent, safe

_MEASURES = {
    "auc": "A classifier tells them apart (AUC)",
    "distance": "Laws of the distance to all clients",
    "size": "Laws of sizes",
    "pool": "All rows together",
    "sketch": "Features, by sketches",
}
_MOST_BARS = 14


def render(result: About, tables: dict[str, list[dict[str, Any]]]) -> str:
    """The whole page. The same result gives the same bytes."""
    style, script = (files("fedscape.report").joinpath(name).read_text("utf-8") for name in ("style.css", "script.js"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    sections = [
        s for s in (_describe(result), _measure(result), _model(result), _simulate(result), _learn(result)) if s
    ]
    links = [
        ("advice", "Advice"),
        *[(name, title) for name, title, _ in sections],
        ("computed", "How this was computed"),
    ]
    title = f"{result['about']['source']}: a study of its clients"
    body = "".join(f'<section id="{name}">{content}</section>' for name, _, content in sections)
    nav = "".join(f'<li><a href="#{name}">{safe(text)}</a></li>' for name, text in links)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{safe(policy)}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="referrer" content="no-referrer">'
        f"<title>{safe(title)}</title><style>{style}</style></head>\n<body>"
        f"{_top(result)}<nav aria-label='Sections'><ul>{nav}</ul></nav>\n<main>"
        f'<section id="advice">{_advice(result)}</section>{body}<section id="computed">{_computed(result)}</section></main>'
        f'{_foot(result)}<div id="tip" role="status"></div>'
        f'<script type="application/json" id="tables">{embedded(tables)}</script><script>{script}</script></body></html>\n'
    )


def summary(result: About) -> str:
    """The advice alone, for a notebook."""
    items = "".join(
        f"<dt><b>{safe(i['question'])}</b> {safe(i['answer'])}</dt><dd>{safe(i['text'])}</dd>" for i in result["advise"]
    )
    return f"<dl>{items}</dl>"


def _card(title: str, content: str, reading: str, *, wide: bool = False, table: str = "") -> str:
    button = f'<button class="csv" data-table="{table}">CSV</button>' if table else ""
    return (
        f'<figure class="card{" wide" if wide else ""}"><div class="head"><h3>{safe(title)}</h3>{button}</div>{content}'
        f"<figcaption>{safe(reading)}</figcaption></figure>"
    )


def _top(result: About) -> str:
    about, described = result["about"], result["describe"]
    facts = {
        "clients": number(described["clients"], 0),
        "rows": number(described["rows"], 0),
        "median rows": number(described["rows_per_client"]["median"], 0),
        "categories": number(len(described["categories"]["names"]), 0),
        "missing values": number(sum(c["missing"] for c in described["columns"]), 0),
        "kinds of clients": number(len(result["model"]["components"]), 0),
    }
    boxes = "".join(f"<div><b>{safe(v)}</b><span>{safe(k)}</span></div>" for k, v in facts.items())
    shared = (
        '<p class="card warn">This report names clients and has a row for each: it was made with '
        "<code>--show-clients</code> and is not meant to be shared.</p>"
        if about["show_clients"]
        else ""
    )
    return (
        f'<header class="top"><p class="eyebrow">fedscape study</p><h1>{safe(about["source"])}: how its clients differ, '
        f'and what to do about it</h1><p class="lede">{safe(_lede(result))}</p>{shared}<div class="facts">{boxes}</div></header>'
    )


def _lede(result: About) -> str:
    first = {item["question"]: item for item in result["advise"]}
    parts = [f"Column studied: {result['about']['column']}."]
    if "Which method?" in first:
        worth = first["Is personalisation worth it?"]["answer"]
        parts.append(f"Advice: {first['Which method?']['answer']}; personalisation is {worth}.")
    return " ".join(parts)


def _advice(result: About) -> str:
    cards = []
    for item in result["advise"]:
        first = " first" if item["question"] == "Which method?" else ""
        cards.append(
            f'<article class="answer{first}"><p class="q">{safe(item["question"])}</p>'
            f'<p class="a">{safe(_capital(item["answer"]))}</p><p class="t">{safe(item["text"])}</p></article>'
        )
    notes = "".join(f"<li>{safe(note)}</li>" for note in result["notes"])
    remarks = (
        f'<div class="card" style="margin-top:14px"><h3>What to know about this study</h3><ul class="notes">{notes}</ul></div>'
        if notes
        else ""
    )
    return (
        '<div class="head"><h2>Advice</h2><button class="csv" data-table="advice">CSV</button></div>'
        "<p>Numbers in brackets are 95% intervals. A gain below one point of accuracy is not worth a more complicated "
        f'method.</p><div class="answers">{"".join(cards)}</div>{remarks}'
    )


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _describe(result: About) -> tuple[str, str, str]:
    about = result["describe"]
    sizes, categories = about["sizes"], about["categories"]
    spread = about["rows_per_client"]
    picture = draw.histogram(sizes["edges"], sizes["clients"], label="Histogram of rows per client")
    reading = (
        f"Half of the clients have {spread['q1']:,.0f} to {spread['q3']:,.0f} rows, the largest has {spread['max']:,.0f}."
        + (f" {about['clients_without_rows']:,} have none." if about["clients_without_rows"] else "")
    )
    total = max(sum(categories["rows"]), 1)
    order = sorted(range(len(categories["names"])), key=lambda j: -categories["rows"][j])
    rows = [
        [
            (categories["names"][j], categories["names"][j]),
            (categories["rows"][j], number(categories["rows"][j], 0)),
            (categories["rows"][j] / total, percent(categories["rows"][j] / total)),
            (categories["clients"][j], number(categories["clients"][j], 0)),
        ]
        for j in order[:12]
    ]
    table = _table(["category", "rows", "share", "clients"], rows, sorts=True, numbers=(1, 2, 3))
    more = f" The first 12 of {len(order)}; all are in the CSV." if len(order) > 12 else ""
    top = order[0]
    said = f"The most frequent, {categories['names'][top]}, has {percent(categories['rows'][top] / total)} of the rows.{more}"
    columns = [
        [
            (c["name"], c["name"]),
            (c["type"], c["type"] + (f"{c['shape']}" if c["shape"] else "")),
            (c["missing"], number(c["missing"], 0)),
            (c.get("categories", ""), str(c.get("categories", ""))),
        ]
        for c in about["columns"]
    ]
    missing = sum(c["missing"] for c in about["columns"])
    given = _table(["column", "type", "missing", "categories"], columns, sorts=False, numbers=(2, 3))
    content = (
        "<h2>Describe</h2><p>What there is, before anything is modelled.</p><div class='grid'><div class='stack'>"
        + _card("Rows per client", picture, reading)
        + _card("Columns", given, f"{missing:,} values are missing.")
        + "</div>"
        + _card("Categories", table, f"{said} Clients: how many have it.", table="categories")
        + "</div>"
    )
    return "describe", "Describe", content


def _measure(result: About) -> tuple[str, str, str]:
    about = result["measure"]
    rows = []
    for name, called in (("labels", "Labels"), ("features", "Features")):
        if "value" in about.get(name, {}):
            rows.append({"name": called, "about": about[name]})
    by_labels = about.get("features", {}).get("by_labels", {})
    if "value" in by_labels:
        rows.append({"name": "Features, as far as labels explain", "about": by_labels, "kind": 4})
    cards = []
    if rows:
        low, high = draw.span([r["about"] for r in rows], 0.0)
        cards.append(
            _card(
                "How far clients are apart", draw.forest(rows, low=low, high=high, marks=(0.0,)), _skew_reading(about)
            )
        )
    sizes = {"name": "Sizes (Gini)", "about": about["quantity"]}
    effective = about["quantity"]["effective_clients"]
    reading = (
        f"0: all clients have as many rows; 1: one has all. In sums over rows these {about['quantity']['clients']:,} clients "
        f"weigh as much as {effective:,.0f} equal ones."
    )
    cards.append(_card("How uneven sizes are", draw.forest([sizes], low=0.0, high=1.0, marks=(0.0,)), reading))
    content = (
        "<h2>Measure</h2><p>Debiased distances between clients' distributions: small clients do not look different only "
        "because they are small. 0 is what parts of one pool would have, 1 means that two clients share nothing.</p>"
        f"<div class='grid'><div class='stack'>{''.join(cards)}</div>{_map(result)}</div>"
    )
    return "measure", "Measure", content


def _skew_reading(about: About) -> str:
    labels = about["labels"]
    text = (
        f"A client's label shares are {number(labels['tvd'])} (total variation) from those of all; clients of these sizes "
        f"drawn from one pool would be {number(labels['tvd_iid'])}."
    )
    features, by_labels = about.get("features", {}), about.get("features", {}).get("by_labels", {})
    if "value" in features and "value" in by_labels and features["value"] > 0:
        share = max(0.0, min(1.0, by_labels["value"] / features["value"]))
        text += f" Labels explain {share:.0%} of how features differ; the rest is the clients' own way."
    return text


def _map(result: About) -> str:
    about = result["measure"]["map"]
    kinds = [ord(k) - ord("A") for k in about["kind"]]
    tips = [f"{c}\nkind {k}, {s}" for c, k, s in zip(about["client"], about["kind"], about["size"], strict=True)]
    ways = [name for name in ("features", "labels") if name in about]
    buttons = "".join(
        f'<button data-show="map-{way}" aria-pressed="{str(i == 0).lower()}">by {way}</button>'
        for i, way in enumerate(ways)
    )
    panels = "".join(
        f'<div class="panel{" on" if i == 0 else ""}" id="map-{way}">'
        + draw.scatter(about[way]["points"], kinds, tips, label=f"Map of clients by {way}")
        + f'<p class="reading">By {way}: the two directions shown hold {percent(about[way]["explained"], 0)} of the '
        "differences; the farther apart two points, the less alike the clients.</p></div>"
        for i, way in enumerate(ways)
    )
    marks = draw.legend([(draw.mark(k), f"kind {chr(ord('A') + k)}") for k in sorted(set(kinds))])
    tabs = f'<div class="tabs" role="group" aria-label="Map of clients">{buttons}</div>' if len(ways) > 1 else ""
    few = (
        f"{len(kinds):,} of {result['describe']['clients']:,} clients are drawn. "
        if len(kinds) < result["describe"]["clients"]
        else ""
    )
    reading = f"{few}Hover, tap or tab to a point for its kind and size; clients are numbered by chance."
    if result["about"]["show_clients"]:
        reading = f"{few}Hover, tap or tab to a point for the client."
    return _card("A map of clients", marks + tabs + panels, reading)


def _model(result: About) -> tuple[str, str, str]:
    about = result["model"]
    names, pool, kinds = about["names"], about["pool"], about["components"]
    buttons = "".join(
        f'<button data-show="kind-{k["kind"]}" aria-pressed="{str(i == 0).lower()}">Kind {k["kind"]}: {percent(k["share"]["value"], 0)}</button>'
        for i, k in enumerate(kinds)
    )
    panels = []
    for i, kind in enumerate(kinds):
        if len(kinds) > 1:
            order = sorted(range(len(names)), key=lambda j: -abs(kind["means"][j] - pool[j]))[:_MOST_BARS]
            order.sort(key=lambda j: pool[j] - kind["means"][j])
        else:
            order = sorted(range(len(names)), key=lambda j: -kind["means"][j])[:_MOST_BARS]
        rows = [(names[j], kind["means"][j], pool[j]) for j in order]
        panels.append(
            f'<div class="panel{" on" if i == 0 else ""}" id="kind-{kind["kind"]}"><p>{safe(kind["words"])}</p>'
            + draw.bars(rows, kind=i, called=f"kind {kind['kind']}")
            + f'<p class="reading">{percent(kind["share"]["value"])} of the clients are of kind {kind["kind"]} '
            f"(95% interval {between(kind['share'], percent)}). Bars: its share of a category; black ticks: that of all rows. "
            f"{'The categories that differ most.' if len(kinds) > 1 else 'The most frequent categories.'}</p></div>"
        )
    tabs = f'<div class="tabs" role="group" aria-label="Kinds of clients">{buttons}</div>' if len(kinds) > 1 else ""
    cards = [
        f'<div class="card wide"><div class="head"><h3>{len(kinds)} kind{"s" * (len(kinds) > 1)} of clients</h3>'
        f'<button class="csv" data-table="kinds">CSV</button></div>{tabs}{"".join(panels)}</div>'
    ]
    if len(about["candidates"]) > 1:
        cards.append(_choice(about["candidates"], len(kinds)))
    cards.append(_price(about))
    content = (
        "<h2>Model</h2><p>A mixture of Dirichlet-multinomials over the clients' histograms: a kind of clients has a mean "
        "and says how far its clients vary about it. It is fitted by sums over clients in "
        f"{about['rounds']} rounds of {about['bytes_up']:,} bytes each.</p><div class='grid'>{''.join(cards)}</div>"
    )
    return "model", "Model", content


def _choice(candidates: Sequence[About], chosen: int) -> str:
    rows = [
        {
            "name": f"{c['components']} kind{'s' * (c['components'] > 1)}"
            + (" (chosen)" if c["components"] == chosen else ""),
            "about": {
                "value": -c["behind"],
                "low": -c["behind"] - 1.96 * c["error"],
                "high": -c["behind"] + 1.96 * c["error"],
            },
            "kind": 2 if c["components"] == chosen else 0,
        }
        for c in candidates
    ]
    low, high = draw.span([r["about"] for r in rows], 0.0)
    figure = draw.forest(rows, low=low, high=high, marks=(0.0,), show=lambda v: number(v, 2))
    reading = "Mean log-likelihood of clients held out, less that of the best; the fewest kinds within one standard error are chosen."
    return _card("How many kinds", figure, reading)


def _price(about: About) -> str:
    rows = [
        [
            (p["epsilon"], f"{p['epsilon']:g}"),
            (p["multiplier"], number(p["multiplier"], 2)),
            (p["error"], percent(p["error"])),
        ]
        for p in about["price"]
    ]
    table = _table(["epsilon", "noise", "expected error"], rows, sorts=False, numbers=(0, 1, 2))
    spent = about.get("census")
    if spent is None:
        reading = (
            "Nothing was released privately in this study, so no privacy was spent: the numbers on this page are exact, "
            "computed where all the data lie. This is what one private count of the categories would cost: the noise multiplier and how far shares would be off (unit client, delta 1e-5)."
        )
    else:
        entry = spent["spent"][0]
        reading = (
            f"One private count was made: epsilon {entry['epsilon']:.3g}, delta {entry['delta']:g}, unit {entry['unit']}, "
            f"{entry['relation']}, {entry['place']}; its shares are {percent(spent['error'])} off. All else on this page is exact."
        )
    return _card("Privacy: spent, and its price", table, reading)


def _simulate(result: About) -> tuple[str, str, str] | None:
    if "simulate" not in result:
        return None
    mixture, iid = result["simulate"]["mixture"], result["simulate"]["iid"]
    rows, table = [], []
    for name, called in _MEASURES.items():
        if name not in mixture:
            continue
        low, high = draw.span([mixture[name], iid[name]], mixture[name]["alike"])
        if name == "auc":
            low, high = 0.4, 1.0
        one = {"name": called, "about": mixture[name], "hollow": iid[name], "tick": mixture[name]["alike"], "kind": 0}
        one["tip"] = (
            f"{called}: mixture {number(mixture[name]['value'])} ({between(mixture[name])}), IID {number(iid[name]['value'])} "
            f"({between(iid[name])}), {number(mixture[name]['alike'])} if alike"
        )
        one["note"] = f"IID {number(iid[name]['value'])}"
        rows.append(draw.forest([one], low=low, high=high, scale=False))
        for clients, about in (("mixture", mixture), ("IID", iid)):
            table.append(
                [
                    (called, called),
                    (clients, clients),
                    *_cells(about[name]),
                    (about[name]["alike"], number(about[name]["alike"])),
                    (about[name]["p"], "< 0.001" if about[name]["p"] < 0.001 else number(about[name]["p"])),
                ]
            )
    marks = draw.legend(
        [
            (_dot(0, False), "clients of the mixture"),
            (_dot(1, True), "fully IID clients"),
            (_stick(), "as alike as two halves of the true clients"),
        ]
    )
    better = mixture["auc"]["value"] < iid["auc"]["value"]
    reading = (
        f"A classifier tells clients of the mixture from true ones with AUC {number(mixture['auc']['value'])} "
        f"({between(mixture['auc'])}), IID ones with {number(iid['auc']['value'])} ({between(iid['auc'])}); 0.5 is not at all. "
        + (
            "The mixture is closer to the truth."
            if better
            else "The mixture is no closer to the truth than IID clients."
        )
    )
    names = ["measure", "clients", "value", "95% interval", "if alike", "p of alike"]
    content = (
        "<h2>Simulate</h2><p>New clients cut from all rows together, once by the fitted mixture and once without any "
        "difference between clients, compared with the true ones. Only the labels are modelled: what clients have of their "
        f"own in features is lost{', and the last row shows it' if 'sketch' in mixture else ''}.</p><div class='grid'>"
        + _card(
            "How alike simulated clients are (each row on its own scale)",
            marks + "".join(rows),
            reading,
            wide=True,
            table="fidelity",
        )
        + _card(
            "The same in numbers",
            _table(names, table, sorts=True, numbers=(2, 4, 5)),
            f"Not represented by the mixture: {percent(mixture['missing'])} of the true clients; by IID clients: {percent(iid['missing'])}.",
            wide=True,
        )
        + "</div>"
    )
    return "simulate", "Simulate", content


def _dot(kind: int, hollow: bool) -> str:
    how = f'fill="none" stroke="var(--c{kind})" stroke-width="2.4"' if hollow else f'fill="var(--c{kind})"'
    return f'<svg viewBox="0 0 12 12" aria-hidden="true"><circle cx="6" cy="6" r="4.4" {how}/></svg>'


def _stick() -> str:
    return '<svg viewBox="0 0 12 12" aria-hidden="true"><rect x="5" y="0" width="2" height="12" fill="currentColor"/></svg>'


def _learn(result: About) -> tuple[str, str, str] | None:
    if "learn" not in result:
        return None
    learn = result["learn"]
    predicted = {row["method"]: row for row in learn["simulated"]}
    order = sorted(learn["true"], key=lambda row: -(row["accuracy"]["value"] or 0))
    rows = [
        {"name": r["called"], "about": r["accuracy"], "hollow": predicted[r["method"]]["accuracy"], "kind": 0}
        for r in order
    ]
    low, high = draw.span([r[w] for r in rows for w in ("about", "hollow")])
    marks = draw.legend([(_dot(0, False), "true clients"), (_dot(1, True), "predicted by simulated clients")])
    first = order[0]
    reading = (
        f"{first['called']} is the most accurate on the true clients: {percent(first['accuracy']['value'])} "
        f"({between(first['accuracy'], percent)}), mean over clients of rows held out."
    )
    accuracy = _card(
        "Accuracy, predicted and true",
        marks + draw.forest(rows, low=low, high=min(high, 1.0), show=percent),
        reading,
        wide=True,
        table="methods",
    )
    gains = [
        {"name": r["called"], "about": r["gain"], "kind": 2 if (r["gain"]["low"] or -1) > 0 else 0}
        for r in order
        if r["gain"]
    ]
    low, high = draw.span([g["about"] for g in gains], 0.0)
    sure = [g["name"] for g in gains if (g["about"]["low"] or -1) > 0]
    said = f"{', '.join(sure)} surely gain{'s' * (len(sure) == 1)}." if sure else "None surely gains."
    points = draw.forest(
        gains, low=low, high=high, show=lambda v: "–" if v is None else f"{100 * v:+.1f}", marks=(0.0,)
    )
    gained = _card("Gain over FedAvg, in points", points, f"Paired over clients; the intervals hold together. {said}")
    content = (
        f"<h2>Learn</h2><p>A short tournament: {learn['clients']} clients, {learn['rounds']} rounds, {learn['seeds']} seeds, "
        f"{safe(learn['model'])}, learning rate {learn['lr']:g}. It ranks methods on these data; with a larger model and more "
        f"rounds all are more accurate.</p><div class='grid'>{accuracy}{gained}{_kinds_card(learn)}"
        f"{_methods_table(order, predicted)}{_cohorts_card(learn)}{_costs_card(learn)}{_clients_card(result)}</div>"
    )
    return "learn", "Learn", content


def _kinds_card(learn: About) -> str:
    rows = [
        {"name": f"{_capital(k['kind'])} ({k['clients']})", "about": k, "kind": ord(k["kind"][-1]) - ord("A")}
        for k in learn["by_kind"]
    ]
    known = [r for r in rows if r["about"]["value"] is not None]
    if not known:
        return ""
    worst = min(known, key=lambda r: r["about"]["value"])
    reading = f"{worst['name']} has the least, {percent(worst['about']['value'])} ({between(worst['about'], percent)}); in brackets the number of clients."
    return _card(
        "For whom it fails: accuracy by kind of client", draw.forest(known, low=0.0, high=1.0, show=percent), reading
    )


def _cells(about: About, show: Any = number) -> list[tuple[Any, str]]:
    return [(about["value"], show(about["value"])), (about["low"], between(about, show))]


def _methods_table(order: Sequence[About], predicted: dict[str, About]) -> str:
    rows = []
    for r in order:
        gain = r["gain"] or {"value": None, "low": None, "high": None}
        guess = predicted[r["method"]]["accuracy"]
        rows.append(
            [
                (r["called"], r["called"]),
                (r["accuracy"]["value"], percent(r["accuracy"]["value"])),
                (gain["value"], "–" if gain["value"] is None else f"{100 * gain['value']:+.1f}"),
                (r["worst"]["value"], f"{percent(r['worst']['value'])}"),
                (r["worst"]["low"], between(r["worst"], percent)),
                (guess["value"], percent(guess["value"])),
                (r["seeds"], "–" if r["seeds"] is None else f"{100 * r['seeds']:.1f}"),
            ]
        )
    names = ["method", "accuracy", "gain, points", "worst tenth", "its 95% interval", "predicted", "seeds, ± points"]
    table = _table(names, rows, sorts=True, numbers=(1, 2, 3, 4, 5, 6), name="methods")
    low = min(order, key=lambda r: r["worst"]["value"] or 0)
    reading = f"Click a heading to sort. The worst tenth of the clients does worst under {low['called']}: {percent(low['worst']['value'])}."
    return _card("Methods in numbers", table, reading, wide=True, table="methods")


def _cohorts_card(learn: About) -> str:
    rows = [(f"{c['clients']} a round", c["curve"]) for c in reversed(learn["cohorts"])]
    reading = "FedAvg with fewer clients a round: " + "; ".join(
        f"{c['clients']} end at {percent(c['accuracy']['value'])} ({between(c['accuracy'], percent)})"
        for c in learn["cohorts"]
    )
    return _card(
        "How many clients a round",
        draw.curves(rows, label="Accuracy of FedAvg by round and cohort"),
        f"{reading}.",
        table="cohorts",
    )


def _costs_card(learn: About) -> str:
    rows = [
        [
            (c["called"], c["called"]),
            (c["bytes_up"], number(c["bytes_up"] / 1000, 1)),
            (c["bytes_down"], number(c["bytes_down"] / 1000, 1)),
            (c["seconds"]["value"], f"{c['seconds']['value']:.2g}"),
            (", ".join(c["revealed"]), ", ".join(c["revealed"]) or "nothing"),
        ]
        for c in learn["costs"]
    ]
    names = ["method", "kB up", "kB down", "s", "revealed"]
    table = _table(names, rows, sorts=True, numbers=(1, 2, 3))
    dear = max(learn["costs"], key=lambda c: c["bytes_up"])
    reading = (
        f"A round of a median client on a device of 1 GFLOP/s, 1 MB/s up, 4 MB/s down (assumed); {dear['called']} sends "
        "the most. Revealed is what the server sees client by client; all else that is sent it sees as a sum only."
    )
    return _card("Cost of a round, and what the server sees", table, reading, table="costs")


def _clients_card(result: About) -> str:
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
    table = _table(
        names, rows, sorts=True, numbers=tuple(i for i, n in enumerate(names) if n not in ("client", "kind"))
    )
    reading = f"Accuracy of every client under each method; {min(len(result['clients']), 500):,} of {len(result['clients']):,} are listed, all are in the CSV."
    return _card("Every client", table, reading, wide=True, table="clients")


def _computed(result: About) -> str:
    about = result["about"]
    command = f"fedscape study {about['source']} --column {about['column']} --seed {about['seed']}"
    spent = result["model"].get("census", {}).get("spent", [])
    ledger = "; ".join(
        f"epsilon {e['epsilon']:.4g} at delta {e['delta']:g} (unit {e['unit']}, {e['relation']}, {e['place']})"
        for e in spent
    )
    entries = {
        "Command": f"<code>{safe(command)}</code>",
        "Seed": safe(about["seed"]),
        "Features": safe(", ".join(about["features"]) or "none"),
        "Versions": safe(", ".join(f"{n} {v}" for n, v in about["versions"].items())) + f", {safe(about['machine'])}",
        "Ledger": safe(ledger or "empty: nothing was released privately"),
        "What the server sees": "In a federation: of every method sums over clients only, and client by client nothing but "
        "what the table of costs names. Sums are not masked (no secure aggregation). This study itself was computed in one "
        "place with all the data at hand.",
        "Intervals": "95%. Means over clients: Student's t. Gains: paired over clients, Bonferroni over the methods. Worst "
        "tenth and Gini: bootstrap of clients. Heterogeneity: jackknife of clients. They say how the numbers would vary "
        "with other clients, not with another model or longer training.",
        "Who is in it": "Clients appear as numbers in an order chosen by the seed, sizes as ranges; no id is in this file."
        if not about["show_clients"]
        else "Clients appear with their ids.",
    }
    listed = "".join(f"<dt>{name}</dt><dd>{value}</dd>" for name, value in entries.items())
    return f'<h2>How this was computed</h2><div class="card"><dl>{listed}</dl></div>'


def _foot(result: About) -> str:
    return (
        f"<footer>Made by fedscape {safe(result['about']['versions']['fedscape'])}. This file is complete: it asks no other "
        "host for anything. The same data, seed and versions give the same bytes.</footer>"
    )


def _table(
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
            f'<td{" class=num" if i in numbers else ""} data-v="{safe("" if value is None else value)}">{safe(text)}</td>'
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

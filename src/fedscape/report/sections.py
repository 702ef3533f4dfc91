"""Sections on the data, the distances between clients and their kinds: each (anchor, title, markup)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fedscape.errors import plural
from fedscape.report import figures as draw
from fedscape.report.parts import card, table_of
from fedscape.report.words import About, between, number, percent, safe

if TYPE_CHECKING:
    from fedscape.studies.schema import Result

_MOST_BARS = 14


def describe(result: Result) -> tuple[str, str, str]:
    about = result["describe"]
    sizes, categories = about["sizes"], about["categories"]
    spread = about["rows_per_client"]
    picture = draw.histogram(sizes["edges"], sizes["clients"], label="Histogram of rows per client")
    reading = (
        f"Half of the clients have {spread['q1']:,.0f} to {spread['q3']:,.0f} rows, the largest has "
        f"{spread['largest'].removesuffix(' rows')}."
        + (f" {about['clients_without_rows']:,} have none." if about["clients_without_rows"] else "")
    )
    total = max(sum(categories["rows"]), 1)
    order = sorted(range(len(categories["names"])), key=lambda j: -categories["rows"][j])
    top = order[0]
    if categories.get("ordered"):
        order.sort()
    rows = [
        [
            (categories["names"][j], categories["names"][j]),
            (categories["rows"][j], number(categories["rows"][j], 0)),
            (categories["rows"][j] / total, percent(categories["rows"][j] / total)),
            (categories["clients"][j], number(categories["clients"][j], 0)),
        ]
        for j in order[:12]
    ]
    table = table_of(["category", "rows", "share", "clients"], rows, sorts=True, numbers=(1, 2, 3))
    more = f" The first 12 of {len(order)}; all are in the CSV." if len(order) > 12 else ""
    reading_of_top = (
        f"The most frequent, {categories['names'][top]}, has {percent(categories['rows'][top] / total)} of the "
        f"rows.{more}"
    )
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
    table_of_columns = table_of(["column", "type", "missing", "categories"], columns, sorts=False, numbers=(2, 3))
    stacks = [
        card("Rows per client", picture, reading),
        card("Categories", table, f"{reading_of_top} Clients: how many have it.", table="categories"),
    ]
    # below the shorter one: the histogram is about as tall as six rows
    stacks[len(rows) < 6] += card("Columns", table_of_columns, f"{missing:,} values are missing.")
    content = (
        "<h2>Describe</h2><p>The data, before anything is modelled.</p><div class='grid'>"
        + "".join(f"<div class='stack'>{stack}</div>" for stack in stacks)
        + "</div>"
    )
    return "describe", "Describe", content


def measure(result: Result) -> tuple[str, str, str]:
    about: About = result["measure"]
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
            card("How far clients are apart", draw.forest(rows, low=low, high=high, marks=(0.0,)), _skew_reading(about))
        )
    sizes = {"name": "Sizes (Gini)", "about": about["quantity"]}
    effective = about["quantity"]["effective_clients"]
    reading = (
        "0: all clients have as many rows; 1: one has all. In sums over rows these "
        f"{about['quantity']['clients']:,} clients weigh as much as {effective:,.0f} equal ones."
    )
    cards.append(card("How uneven sizes are", draw.forest([sizes], low=0.0, high=1.0, marks=(0.0,)), reading))
    content = (
        "<h2>Measure</h2><p>Debiased distances between clients' distributions: small clients do not look "
        "different only "
        "because they are small. 0 is what parts of one pool would have, 1 means that two clients share nothing.</p>"
        f"<div class='grid'><div class='stack'>{''.join(cards)}</div>{_map(result)}</div>"
    )
    return "measure", "Measure", content


def _skew_reading(about: About) -> str:
    labels = about["labels"]
    text = (
        f"A client's label shares are {number(labels['tvd'])} (total variation) from those of all; clients of "
        f"these sizes drawn from one pool would be {number(labels['tvd_iid'])}."
    )
    features, by_labels = about.get("features", {}), about.get("features", {}).get("by_labels", {})
    if "value" in features and "value" in by_labels and features["value"] > 0:
        share = max(0.0, min(1.0, by_labels["value"] / features["value"]))
        text += f" Labels explain {share:.0%} of how features differ; the rest is the clients' own way."
    return text


def _map(result: Result) -> str:
    about: About = result["measure"]["map"]
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
    reading = (
        f"{few}Hover, tap or tab to a point for its kind and size; their numbers are those of their places on the map."
    )
    if result["about"]["show_clients"]:
        reading = f"{few}Hover, tap or tab to a point for the client."
    return card("A map of clients", marks + tabs + panels, reading)


def model(result: Result) -> tuple[str, str, str]:
    about = result["model"]
    names, pool, kinds = about["names"], about["pool"], about["components"]
    buttons = "".join(
        f'<button data-show="kind-{k["kind"]}" aria-pressed="{str(i == 0).lower()}">Kind {k["kind"]}: '
        f"{percent(k['share']['value'], 0)}</button>"
        for i, k in enumerate(kinds)
    )
    panels = []
    for i, kind in enumerate(kinds):
        if len(kinds) > 1:
            order = sorted(range(len(names)), key=lambda j: -abs(kind["means"][j] - pool[j]))[:_MOST_BARS]
            order.sort(key=lambda j: pool[j] - kind["means"][j])
        else:
            order = sorted(range(len(names)), key=lambda j: -kind["means"][j])[:_MOST_BARS]
        if result["describe"]["categories"].get("ordered"):
            order.sort()
        rows = [(names[j], kind["means"][j], pool[j]) for j in order]
        panels.append(
            f'<div class="panel{" on" if i == 0 else ""}" id="kind-{kind["kind"]}"><p>{safe(kind["words"])}</p>'
            + draw.bars(rows, kind=i, called=f"kind {kind['kind']}")
            + f'<p class="reading">{_share_of_kind(kind) if len(kinds) > 1 else ""}Bars: its share of a category; '
            "black ticks: that of all rows. "
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
        "<h2>Model</h2><p>A mixture of Dirichlet-multinomials over the clients' histograms: a kind of clients "
        "has a mean and says how far its clients vary about it. It is fitted by sums over clients in "
        f"{plural(about['rounds'], 'round')} of {about['bytes_up']:,} bytes each.</p>"
        f"<div class='grid'>{''.join(cards)}</div>"
    )
    return "model", "Model", content


def _share_of_kind(kind: About) -> str:
    interval = between(kind["share"], percent)
    return f"{percent(kind['share']['value'])} of the clients are of kind {kind['kind']} (95% interval {interval}). "


def _choice(candidates: Sequence[About], chosen: int) -> str:
    rows: list[dict[str, Any]] = [
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
    reading = (
        "Mean log-likelihood of clients held out, less that of the best; the fewest kinds within one standard "
        "error are chosen."
    )
    return card("How many kinds", figure, reading)


def _price(about: About) -> str:
    rows = [
        [
            (p["epsilon"], f"{p['epsilon']:g}"),
            (p["multiplier"], number(p["multiplier"], 2)),
            (p["error"], percent(p["error"])),
        ]
        for p in about["price"]
    ]
    table = table_of(["epsilon", "noise", "expected error"], rows, sorts=False, numbers=(0, 1, 2))
    spent = about.get("census")
    if spent is None:
        reading = (
            "Nothing was released privately in this study, so no privacy was spent: the numbers on this page "
            "are exact, computed where all the data lie. This is what one private count of the categories would cost: "
            "the noise multiplier and how far shares would be off (unit client, delta 1e-5)."
        )
    else:
        entry = spent["spent"][0]
        reading = (
            f"One private count was made: epsilon {entry['epsilon']:.3g}, delta {entry['delta']:g}, unit "
            f"{entry['unit']}, "
            f"{entry['relation']}, {entry['place']}; its shares are {percent(spent['error'])} off. All else on "
            "this page is exact."
        )
    return card("Privacy: spent, and its price", table, reading)

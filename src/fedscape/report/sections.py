"""Sections on the data and on distances between clients: each (anchor, title, markup)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from fedscape.display import decimals
from fedscape.report import figures as draw
from fedscape.report.parts import card, legend_of_reference, reference_of, table_of
from fedscape.report.words import About, number, percent, safe

if TYPE_CHECKING:
    from fedscape.studies.schema import Result


def describe(result: Result) -> tuple[str, str, str]:
    about = result["describe"]
    total = len(about["categories"]["names"])
    stacks = [_sizes(result), _categories(result)]
    # below the shorter one: the histogram is about as tall as six rows
    shorter = min(total, 12) < 6
    stacks[shorter] += _columns(result)
    remarks, many = _remarks(result), len(result.get("findings", [])) > 6
    stacks[not shorter] += "" if many else remarks
    content = (
        "<h2>Describe</h2><p>The data, before anything is modelled.</p><div class='grid'>"
        + "".join(f"<div class='stack'>{stack}</div>" for stack in stacks)
        + (f"<div class='wide'>{remarks}</div></div>" if many else "</div>")
    )
    return "describe", "Describe", content


def _sizes(result: Result) -> str:
    about = result["describe"]
    edges, tally, spread = about["sizes"]["edges"], about["sizes"]["clients"], about["rows_per_client"]
    reference, label = None, "Histogram of rows per client"
    if sizes := reference_of(result).get("sizes"):
        joint = draw.joint_edges(edges, sizes["edges"])
        tally = [tally[edges.index(e)] if e in edges[:-1] else 0 for e in joint[:-1]]
        share = sum(tally) / max(sum(sizes["clients"]), 1)
        reference = [share * n for n in draw.spread_over(joint, sizes["edges"], sizes["clients"])]
        edges, label = joint, f"{label}, and of the reference"
    reading = (
        f"Half of the clients have {spread['q1']:,.0f} to {spread['q3']:,.0f} rows, the largest has "
        f"{spread['largest'].removesuffix(' rows')}."
        + (f" {about['clients_without_rows']:,} have none." if about["clients_without_rows"] else "")
        + (f" Line: {reference_of(result)['source']}, as if of as many clients." if reference else "")
    )
    picture = draw.histogram(edges, tally, label=label, reference=reference)
    return card("Rows per client", picture, reading, path="describe.sizes")


def _categories(result: Result) -> str:
    categories = result["describe"]["categories"]
    total = max(sum(categories["rows"]), 1)
    order = sorted(range(len(categories["names"])), key=lambda j: -categories["rows"][j])
    top = order[0]
    if categories.get("ordered"):
        order.sort()
    before = reference_of(result).get("rows")
    rows: list[list[tuple[Any, str]]] = []
    for j in order[:12]:
        share = categories["rows"][j] / total
        row: list[tuple[Any, str]] = [
            (categories["names"][j], categories["names"][j]),
            (categories["rows"][j], number(categories["rows"][j], 0)),
            (share, percent(share)),
        ]
        row += [(before[j], percent(before[j]))] if before else []
        rows.append([*row, (categories["clients"][j], number(categories["clients"][j], 0))])
    names = ["category", "rows", "share", *(["reference"] if before else []), "clients"]
    table = table_of(names, rows, sorts=True, numbers=tuple(range(1, len(names))), label="Categories")
    reading = (
        f"The most frequent, {categories['names'][top]}, has {percent(categories['rows'][top] / total)} of the rows."
        + (f" The first 12 of {len(order)}; all are in the CSV." if len(order) > 12 else "")
        + (f" Reference: shares in {reference_of(result)['source']}." if before else "")
        + " Clients: how many have it."
    )
    return card("Categories", table, reading, path="describe.categories", table="categories")


def _columns(result: Result) -> str:
    about = result["describe"]["columns"]
    rows = [
        [
            (c["name"], c["name"]),
            (c["type"], c["type"] + (f"{c['shape']}" if c["shape"] else "")),
            (c["missing"], number(c["missing"], 0)),
            (c.get("categories", ""), str(c.get("categories", ""))),
        ]
        for c in about
    ]
    table = table_of(["column", "type", "missing", "categories"], rows, sorts=False, numbers=(2, 3), label="Columns")
    missing = sum(c["missing"] for c in about)
    return card("Columns", table, f"{missing:,} values are missing.", path="describe.columns")


def _remarks(result: Result) -> str:
    """What was odd in the data, and what was done about it."""
    remarks = "".join(f"<li>{safe(finding['text'])}</li>" for finding in result.get("findings", []))
    if not remarks:
        return ""
    used = safe(", ".join(result["about"]["features"]) or "none")
    return (
        '<div class="card" id="data"><h3>Findings in the data</h3><ul class="notes">'
        f"{remarks}<li>features: {used}</li></ul></div>"
    )


def measure(result: Result) -> tuple[str, str, str]:
    about: About = result["measure"]
    before = reference_of(result).get("measure", {})
    rows = []
    for name, called in (("labels", "Labels"), ("features", "Features")):
        if "value" in about.get(name, {}):
            rows.append({"name": called, "about": about[name], "reference": before.get(name)})
    by_labels = about.get("features", {}).get("by_labels", {})
    if "value" in by_labels:
        name = "Features, as far as labels explain"
        rows.append({"name": name, "about": by_labels, "kind": 4, "reference": before.get("by_labels")})
    legend = draw.legend(legend_of_reference(result)) if before else ""
    cards = []
    if rows:
        low, high = draw.span([r["about"] for r in rows] + [r["reference"] for r in rows if r["reference"]], 0.0)
        show = partial(number, digits=decimals([high]))
        cards.append(
            card(
                "How far clients are apart",
                legend + draw.forest(rows, low=low, high=high, marks=(0.0,), show=show),
                _skew_reading(about),
                path="measure",
                anchor="apart",
            )
        )
    sizes = {"name": "Sizes (Gini)", "about": about["quantity"], "reference": before.get("quantity")}
    effective = about["quantity"]["effective_clients"]
    reading = (
        "0: all clients have as many rows; 1: one has all. In sums over rows these "
        f"{about['quantity']['clients']:,} clients weigh as much as {effective:,.0f} equal ones."
    )
    gini = legend + draw.forest([sizes], low=0.0, high=1.0, marks=(0.0,))
    cards.append(card("How uneven sizes are", gini, reading, path="measure.quantity"))
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
    if about["quantity"]["low"] is None and about["quantity"]["clients"] > 2:
        text += " Intervals are over the rows inside each site: the sites are all there are, and their sizes are known."
    return text


def _map(result: Result) -> str:
    about: About = result["measure"]["map"]
    kinds = [ord(k) - ord("A") for k in about["kind"]]
    ways = [name for name in ("features", "labels") if name in about]
    buttons = "".join(
        f'<button data-show="map-{way}" aria-pressed="{str(i == 0).lower()}">by {way}</button>'
        for i, way in enumerate(ways)
    )
    panels = "".join(
        f'<div class="panel{" on" if i == 0 else ""}" id="map-{way}">'
        + (draw.legend(legend_of_reference(result)) if way == "labels" and _centres(result) else "")
        + draw.scatter(
            about[way]["points"], kinds, label=f"Map of clients by {way}",
            centres=_centres(result) if way == "labels" else (),
        )
        + f'<p class="reading">By {way}: the two directions shown hold {percent(about[way]["explained"], 0)} of the '
        f"differences; the farther apart two points, the less alike the clients.{_directions(result, way)}</p></div>"
        for i, way in enumerate(ways)
    )  # fmt: skip
    picks = "".join(
        f'<li><button class="pick" data-pick="{chr(ord("A") + k)}" aria-pressed="false">{draw.mark(k)}kind '
        f"{chr(ord('A') + k)}</button></li>"
        for k in sorted(set(kinds))
    )
    marks = f'<ul class="legend">{picks}</ul>'
    tabs = f'<div class="tabs" role="group" aria-label="Map of clients">{buttons}</div>' if len(ways) > 1 else ""
    shown, total = len(kinds), result["describe"]["clients"]
    few = f"{shown:,} of {total:,} clients are drawn. " if shown < total else ""
    names = "" if result["about"]["show_clients"] else "; their numbers are those of their places on the map"
    reading = (
        f"{few}Drag over the map, or pick a kind, and the page shows only those clients. With the keyboard: arrows go "
        f"from point to point, space picks one, escape shows all again. A point says its kind and size{names}."
    )
    return card("A map of clients", marks + tabs + panels, reading, path="measure.map", anchor="map")


def _place(axes: Sequence[Sequence[float]], shares: Sequence[float]) -> list[float]:
    """Where shares of the categories are on the map of labels."""
    return [sum(w * s for w, s in zip(weights, [*shares, 1.0], strict=True)) for weights in axes]


def _centres(result: Result) -> list[tuple[str, list[float]]]:
    """The kinds of the reference on the map of labels."""
    axes = result["measure"]["map"]["labels"].get("axes")
    if not axes or not reference_of(result):
        return []
    source = reference_of(result)["source"]
    return [(f"kind {k['kind']} of {source}", _place(axes, k["means"])) for k in reference_of(result)["kinds"]]


def _directions(result: Result, way: str) -> str:
    """Which categories clients have more of to the right and upwards on the map of labels."""
    toward = result["measure"]["map"]["labels"].get("toward") if way == "labels" else None
    if not toward:
        return ""
    right, top = (f"more {most} and less {least}" for most, least in toward)
    text = f" Clients to the right have {right}, those at the top {top}."
    if reference_of(result) and not _centres(result):
        text += " The reference is placed on it only with --show-clients."
    return safe(text)

"""The section on kinds of clients: who they are, how many there are, and what a private count would cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fedscape.errors import plural
from fedscape.report import figures as draw
from fedscape.report.parts import card, legend_of_reference, reference_of, table_of
from fedscape.report.words import About, between, number, percent, safe

if TYPE_CHECKING:
    from fedscape.studies.schema import Result

_MOST_BARS = 14


def model(result: Result) -> tuple[str, str, str]:
    about = result["model"]
    kinds = about["components"]
    buttons = "".join(
        f'<button data-show="kind-{k["kind"]}" data-kind="{k["kind"]}" aria-pressed="{str(i == 0).lower()}">Kind '
        f"{k['kind']}: {percent(k['share']['value'], 0)}</button>"
        for i, k in enumerate(kinds)
    )
    tabs = f'<div class="tabs" role="group" aria-label="Kinds of clients">{buttons}</div>' if len(kinds) > 1 else ""
    legend = draw.legend(legend_of_reference(result)) if reference_of(result) else ""
    panels = "".join(_panel(result, i) for i in range(len(kinds)))
    bars = "Bars: its share of a category; ticks: that of all rows."
    if reference_of(result):
        bars += f" Rhombi: the mean share of a client in {reference_of(result)['source']}."
    cards = [
        card(
            f"{len(kinds)} kind{'s' * (len(kinds) > 1)} of clients",
            legend + tabs + panels,
            f"{bars} {'The categories that differ most.' if len(kinds) > 1 else 'The most frequent categories.'}",
            path="model.components",
            wide=True,
            table="kinds",
            anchor="kinds",
        )
    ]
    if len(about["candidates"]) > 1:
        cards.append(_choice(result, about["candidates"], len(kinds)))
    cards.append(_price(result))
    content = (
        "<h2>Model</h2><p>A mixture of Dirichlet-multinomials over the clients' histograms: a kind of clients "
        "has a mean and says how far its clients vary about it. It is fitted by sums over clients in "
        f"{plural(about['rounds'], 'round')} of {about['bytes_up']:,} bytes each.</p>"
        f"<div class='grid'>{''.join(cards)}</div>"
    )
    return "model", "Model", content


def _panel(result: Result, i: int) -> str:
    """One kind: in words, in numbers, and the categories in which it differs."""
    about = result["model"]
    names, pool, kind, several = about["names"], about["pool"], about["components"][i], len(about["components"]) > 1
    if several:
        order = sorted(range(len(names)), key=lambda j: -abs(kind["means"][j] - pool[j]))[:_MOST_BARS]
        order.sort(key=lambda j: pool[j] - kind["means"][j])
    else:
        order = sorted(range(len(names)), key=lambda j: -kind["means"][j])[:_MOST_BARS]
    if result["describe"]["categories"].get("ordered"):
        order.sort()
    before = reference_of(result).get("mean_share")
    return (
        f'<div class="panel{" on" if i == 0 else ""}" id="kind-{kind["kind"]}"><p>{safe(kind["words"])}</p>'
        + (_facts(result, kind) if several else "")
        + draw.bars(
            [(names[j], kind["means"][j], pool[j]) for j in order],
            kind=i,
            called=f"kind {kind['kind']}",
            reference=[before[j] for j in order] if before else None,
        )
        + "</div>"
    )


def _facts(result: Result, kind: About) -> str:
    """What is known of the clients of one kind, and a button that shows only them."""
    letter = kind["kind"]
    facts = {
        "of the clients": (percent(kind["share"]["value"], 0), between(kind["share"], lambda v: percent(v, 0))),
        "rows a client, mean": (number(kind["size"], 0), ""),
    }
    learn: About = result.get("learn", {})
    served = next((k for k in learn.get("by_kind", ()) if k["kind"] == f"kind {letter}"), None)
    if served is not None and served["value"] is not None:
        facts["accuracy of the advised" if learn["advised"] else "accuracy of the best"] = (
            percent(served["value"]),
            between(served, percent),
        )
    if (near := reference_of(result).get("closest", {}).get(letter)) is not None:
        facts[f"share of kind {near['kind']} of the reference, the nearest"] = (
            percent(near["share"]["value"], 0),
            f"means {number(near['distance'], 2)} apart",
        )
    boxes = "".join(
        f"<div><b>{safe(value)}</b><span>{safe(name)}</span>{f'<small>{safe(more)}</small>' if more else ''}</div>"
        for name, (value, more) in facts.items()
    )
    return (
        f'<div class="facts kind">{boxes}</div><p><button class="pick" data-pick="{letter}" aria-pressed="false">Show '
        f"only clients of kind {letter}</button></p>"
    )


def _choice(result: Result, candidates: Sequence[About], chosen: int) -> str:
    before = {c["components"]: _behind(c) for c in reference_of(result).get("candidates", ())}
    rows: list[dict[str, Any]] = [
        {
            "name": f"{c['components']} kind{'s' * (c['components'] > 1)}"
            + (" (chosen)" if c["components"] == chosen else ""),
            "about": _behind(c),
            "kind": 2 if c["components"] == chosen else 0,
            "reference": before.get(c["components"]),
        }
        for c in candidates
    ]
    low, high = draw.span([r["about"] for r in rows] + [r["reference"] for r in rows if r["reference"]], 0.0)
    figure = draw.legend(legend_of_reference(result)) if before else ""
    figure += draw.forest(rows, low=low, high=high, marks=(0.0,), show=lambda v: number(v, 2))
    reading = (
        "Mean log-likelihood of clients held out, less that of the best; the fewest kinds within one standard "
        "error are chosen."
    )
    return card("How many kinds", figure, reading, path="model.candidates")


def _behind(candidate: About) -> dict[str, float]:
    """How far a number of kinds is from the best, below zero where it is behind."""
    value, reach = -candidate["behind"], 1.96 * candidate["error"]
    return {"value": value, "low": value - reach, "high": value + reach}


def _price(result: Result) -> str:
    about: About = result["model"]
    rows = [
        [
            (p["epsilon"], f"{p['epsilon']:g}"),
            (p["multiplier"], number(p["multiplier"], 2)),
            (p["error"], percent(p["error"])),
        ]
        for p in about["price"]
    ]
    table = table_of(
        ["epsilon", "noise", "expected error"], rows, sorts=False, numbers=(0, 1, 2), label="Price of privacy"
    )
    spent = about.get("census")
    if spent is None:
        reading = (
            "Nothing was released privately in this study, so no privacy was spent: the numbers on this page "
            "are exact, computed where all the data lie. This is what one private count of the categories would cost: "
            "the noise multiplier and how far shares would be off (unit client, delta 1e-5)."
        )
    else:
        entry, search = spent["spent"][0], spent.get("found")
        reading = ""
        if search is not None:
            names = plural(len(search["names"]), "category", "categories")
            reading = f"{names} that {search['clients']:.0f} clients or more have were found privately. "
        reading += (
            f"One private count was made: epsilon {entry['epsilon']:.3g}, delta {entry['delta']:g}, unit "
            f"{entry['unit']}, "
            f"{entry['relation']}, {entry['place']}; its shares are {percent(spent['error'])} off. All else on "
            "this page is exact."
        )
    return card(
        "Privacy: spent, and its price",
        table,
        reading,
        wide=len(about["candidates"]) < 2,
        path="model.price",
        anchor="privacy",
    )

"""The page: from a study's result to one self-contained HTML text."""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from fedscape.report.parts import capital
from fedscape.report.sections import describe, measure, model
from fedscape.report.tournament import learn, simulate
from fedscape.report.words import embedded, number, safe

if TYPE_CHECKING:
    from fedscape.studies.schema import Result


def render(result: Result, tables: dict[str, list[dict[str, Any]]]) -> str:
    """The whole page. The same result gives the same bytes."""
    style, script = (files("fedscape.report").joinpath(name).read_text("utf-8") for name in ("style.css", "script.js"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; base-uri 'none'; "
        "form-action 'none'"
    )
    sections = [s for s in (describe(result), measure(result), model(result), simulate(result), learn(result)) if s]
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
        '<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="referrer" '
        'content="no-referrer">'
        f"<title>{safe(title)}</title><style>{style}</style></head>\n<body>"
        f"{_top(result)}<nav aria-label='Sections'><ul>{nav}</ul></nav>\n<main>"
        f'<section id="advice">{_advice(result)}</section>{body}<section id="computed">{_computed(result)}'
        "</section></main>"
        f'{_foot(result)}<div id="tip" role="status"></div>'
        f'<script type="application/json" id="tables">{embedded(tables)}</script><script>{script}</script>'
        "</body></html>\n"
    )


def summary(result: Result) -> str:
    """The advice alone, for a notebook."""
    items = "".join(
        f"<dt><b>{safe(i['question'])}</b> {safe(i['answer'])}</dt><dd>{safe(i['text'])}</dd>" for i in result["advise"]
    )
    return f"<dl>{items}</dl>"


def _top(result: Result) -> str:
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
    odd = "".join(f"<li>{safe(finding['text'])}</li>" for finding in result.get("findings", []))
    used = safe(", ".join(about["features"]) or "none")
    findings = (
        '<div class="card" id="findings"><h3>Findings in the data</h3><ul class="notes">'
        f"{odd}<li>features: {used}</li></ul></div>"
        if odd
        else ""
    )
    return (
        f'<header class="top"><p class="eyebrow">fedscape study</p><h1>{safe(about["source"])}: how its '
        "clients differ, "
        f'and what to do about it</h1><p class="lede">{safe(_lede(result))}</p>{shared}<div class="facts">'
        f"{boxes}</div>{findings}</header>"
    )


def _lede(result: Result) -> str:
    first = {item["question"]: item for item in result["advise"]}
    parts = [f"Column studied: {result['about']['column']}."]
    if "Which method?" in first:
        advice = first["Which method?"]["answer"]
        if advice == "none":
            parts.append("Advice: none of the methods, as none is shown to beat guessing.")
        else:
            what = "federation" if result["learn"]["advised"] == "local" else "personalisation"
            worth = first[f"Is {what} worth it?"]["answer"]
            verdict = f"that {what} pays is not shown" if worth == "not shown" else f"{what} is {worth}"
            parts.append(f"Advice: {advice}; {verdict}.")
    return " ".join(parts)


#: Anchor of the evidence for an answer, the most important question first.
_EVIDENCE = {
    "Which method?": "accuracy",
    "Who gains by joining?": "sites",
    "Is federation worth it?": "methods",
    "Is personalisation worth it?": "gains",
    "For whom does it fail?": "methods",
    "Do clients differ?": "measure",
    "How many kinds of clients?": "model",
    "How many clients a round?": "cohorts",
    "What does it cost?": "costs",
    "Could it have been planned on simulated clients?": "accuracy",
}


def _advice(result: Result) -> str:
    cards = []
    order = list(_EVIDENCE)
    for item in sorted(result["advise"], key=lambda item: order.index(item["question"])):
        first = " first" if item["question"] == "Which method?" else ""
        anchor = _EVIDENCE[item["question"]]
        cards.append(
            f'<article class="answer{first}"><p class="q">{safe(item["question"])}</p>'
            f'<p class="a">{safe(capital(item["answer"]))}</p><p class="t">{safe(item["text"])} '
            f'<a href="#{anchor}">evidence<span class="hidden"> for: {safe(item["question"])}</span></a></p></article>'
        )
    notes = "".join(f"<li>{safe(note)}</li>" for note in result["notes"])
    remarks = (
        '<div class="card" style="margin-top:14px"><h3>What to know about this study</h3><ul class="notes">'
        f"{notes}</ul></div>"
        if notes
        else ""
    )
    return (
        '<div class="head"><h2>Advice</h2><button class="csv" data-table="advice">CSV</button></div>'
        "<p>Numbers in brackets are 95% intervals. A gain below one point of accuracy is not worth a more complicated "
        f'method.</p><div class="answers">{"".join(cards)}</div>{remarks}'
    )


def _command(result: Result) -> str:
    """How to repeat this study: the command, ready for a shell in the folder of the data, or the call."""
    about, options = result["about"], result["about"]["asked"]
    if about.get("command"):
        return str(about["command"])
    arguments = {
        "column": about["column"] if about["labels"] else None,
        **options,
    }  # no column holds cells of the features
    arguments |= {"show_clients": about["show_clients"] or None, "seed": about["seed"]}
    listed = "".join(f", {name}={value!r}" for name, value in arguments.items() if value is not None)
    return f"fedscape.study(federation{listed})"


def _computed(result: Result) -> str:
    about = result["about"]
    command = _command(result)
    spent = result["model"].get("census", {}).get("spent", [])
    ledger = "; ".join(
        f"epsilon {e['epsilon']:.4g} at delta {e['delta']:g} (unit {e['unit']}, {e['relation']}, {e['place']})"
        for e in spent
    )
    sees = (
        "In a federation: sums over clients, and of single clients only the arrays named in the table of "
        "costs. Without secure= the server sees each node's sum. This study itself was computed in one "
        "place with all the data at hand."
    )
    intervals = (
        "95%. Means over clients: Student's t; of a few sites: over the rows of each (Wilson, Bonett and Price). "
        "Gains: paired, variance over trainings (pooled over the methods, Nadeau and Bengio's factor) added, Welch and "
        "Satterthwaite's degrees of freedom, Bonferroni over the methods; with one repeat they leave trainings out. "
        "Worst tenth: posterior of a beta law fitted to resampled clients. Gini: bootstrap of clients. "
        "Heterogeneity: jackknife of clients. They say how the numbers would vary with other clients (of sites: other "
        "rows), not with another model or longer training."
    )
    hidden = "Clients appear as numbers in the order of the map, sizes as ranges; no id is in this file."
    entries = {
        "Command": f"<code>{safe(command)}</code>",
        "Seed": safe(about["seed"]),
        "Features": safe(", ".join(about["features"]) or "none"),
        "Versions": safe(", ".join(f"{n} {v}" for n, v in about["versions"].items())) + f", {safe(about['machine'])}",
        "Ledger": safe(ledger or "empty: nothing was released privately"),
        "What the server sees": sees,
        "Intervals": intervals,
        "Who is in it": "Clients appear with their ids." if about["show_clients"] else hidden,
    }
    listed = "".join(f"<dt>{name}</dt><dd>{value}</dd>" for name, value in entries.items())
    return f'<h2>How this was computed</h2><div class="card"><dl>{listed}</dl></div>'


def _foot(result: Result) -> str:
    return (
        f"<footer>Made by fedscape {safe(result['about']['versions']['fedscape'])}. This file is complete: it "
        "asks no other host for anything. The same data, seed and versions give the same bytes.</footer>"
    )

"""The page: from a study's result to one self-contained HTML text."""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from fedscape.report.findings import findings_section
from fedscape.report.kinds import model
from fedscape.report.media import images, sequences
from fedscape.report.numbers import numbers
from fedscape.report.parts import COMMAND, reference_of
from fedscape.report.presence import presence
from fedscape.report.sections import describe, measure
from fedscape.report.sharing import sharing_card, sharing_line
from fedscape.report.timeline import timeline
from fedscape.report.tournament import learn, simulate
from fedscape.report.words import About, embedded, number, safe

if TYPE_CHECKING:
    from fedscape.studies.schema import Result


_SCRIPTS = ("script.js", "select.js", "save.js")
_MOST_CLIENTS = 5000  # rows of a table in the page: it stays below a megabyte


def render(result: Result, tables: dict[str, list[dict[str, Any]]]) -> str:
    """The whole page. The same result gives the same bytes."""
    style, *scripts = (files("fedscape.report").joinpath(name).read_text("utf-8") for name in ("style.css", *_SCRIPTS))
    script, command = "\n".join(scripts), safe(_command(result))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; style-src 'unsafe-inline'; img-src blob:; script-src 'sha256-{digest}'; base-uri 'none'; "
        "form-action 'none'"
    )
    makers = (describe, images, sequences, timeline, measure, model, simulate, learn, numbers, presence)
    sections = [section for section in (make(result) for make in makers) if section]
    links = [
        ("findings", "Findings"),
        *[(name, title) for name, title, _ in sections],
        ("computed", "How this was computed"),
    ]
    title = f"{result['about']['source']}: a study of its clients"
    body = "".join(f'<section id="{name}">{content}</section>' for name, _, content in sections)
    body = body.replace(COMMAND, command)
    nav = "".join(f'<li><a href="#{name}">{safe(text)}</a></li>' for name, text in links)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{safe(policy)}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="referrer" '
        'content="no-referrer">'
        f"<title>{safe(title)}</title><style>{style}</style></head>\n<body>"
        f"{_top(result)}<nav aria-label='Sections'><ul>{nav}</ul></nav>\n<main>"
        f'<section id="findings">{findings_section(result)}</section>{body}<section id="computed">'
        f"{_computed(result)}</section></main>"
        f'{_foot(result)}<div id="tip" role="tooltip"></div><div id="chosen" hidden><span role="status"></span> '
        "<button>Show all</button></div>"
        f'<script type="application/json" id="tables">{embedded(_compact(tables))}</script>'
        f'<script type="application/json" id="brush">{embedded(_brush(result))}</script><script>{script}</script>'
        "</body></html>\n"
    )


def _compact(tables: dict[str, list[dict[str, Any]]]) -> dict[str, list[list[Any]]]:
    """Tables for the page: the names of the columns, then one list a row."""
    short: dict[str, list[list[Any]]] = {}
    for name, rows in tables.items():
        columns = list(dict.fromkeys(key for row in rows for key in row))
        short[name] = [columns, *([row.get(key) for key in columns] for row in rows[:_MOST_CLIENTS])]
    return short


def _brush(result: Result) -> dict[str, Any]:
    """What the script filters the page by: kind, size and name of the points, and what methods do for each kind."""
    points = result["measure"]["map"]
    by_kind: About = {k["kind"][-1]: k.get("methods", {}) for k in result.get("learn", {}).get("by_kind", ())}
    return {
        "client": points["client"],
        "kind": points["kind"],
        "size": points["size"],
        "clients": result["describe"]["clients"],
        "methods": {kind: {name: v["value"] for name, v in about.items()} for kind, about in by_kind.items()},
        "shown": result["about"]["show_clients"],
        "made": f"fedscape {result['about']['versions']['fedscape']}, {result['about']['source']}",
    }


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
    return (
        f'<header class="top"><p class="eyebrow">fedscape study</p><h1>{safe(about["source"])}: how its '
        "clients differ, "
        f'and what to do about it</h1><p class="lede">{safe(_lede(result))}</p>{sharing_line(result)}'
        f'<div class="facts">{boxes}</div></header>'
    )


def _lede(result: Result) -> str:
    first = {item["question"]: item for item in result["advise"]}
    parts = [f"Column studied: {result['about']['column']}."]
    if "Which method?" in first:
        advice = first["Which method?"]["answer"]
        if advice == "none":
            parts.append("Advice: none of the methods, as none is shown to beat guessing.")
        else:
            advised = result["numbers"]["advised"] if "numbers" in result else result["learn"]["advised"]
            what = "federation" if advised in ("local", "glm", "trees") else "personalisation"
            words = {"not shown": f"that {what} pays is not shown", "a little": f"{what} pays a little"}
            words["not known"] = f"whether {what} pays is not known"
            worth = first.get(f"Is {what} worth it?")  # no personal method may have taken part
            verdict = "" if worth is None else f"; {words.get(worth['answer'], f'{what} is ' + worth['answer'])}"
            parts.append(f"Advice: {advice}{verdict}.")
    return " ".join(parts)


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
    reference = ", against=reference" if "against" in result else ""
    reference += ", events=events" if "presence" in result and result["presence"]["column"] is None else ""
    listed = reference + "".join(f", {name}={value!r}" for name, value in arguments.items() if value is not None)
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
        "Worst tenth: posterior of a beta law fitted to resampled clients. Gini: jackknife of clients. "
        "Heterogeneity: jackknife of clients, of a few sites: of the rows of each. "
        "They say how the numbers would vary with other clients (of sites: other rows), not with another "
        "model or longer training."
    )
    entries = {
        "Command": f"<code>{safe(command)}</code>",
        "Seed": safe(about["seed"]),
        "Features": safe(", ".join(about["features"]) or "none"),
        "Versions": safe(", ".join(f"{n} {v}" for n, v in about["versions"].items())) + f", {safe(about['machine'])}",
        "Ledger": safe(ledger or "empty: nothing was released privately"),
        "What the server sees": sees,
        "Intervals": intervals,
    }
    if reference := reference_of(result):
        form = "study" if reference["form"] == "study" else "population, which keeps only kinds and shares"
        entries["Reference"] = safe(f"{reference['source']}, {form}; its clients are taken as other draws.")
    listed = "".join(f"<dt>{name}</dt><dd>{value}</dd>" for name, value in entries.items())
    return f'<h2>How this was computed</h2><div class="card"><dl>{listed}</dl></div>{sharing_card(result)}'


def _foot(result: Result) -> str:
    return (
        f"<footer>Made by fedscape {safe(result['about']['versions']['fedscape'])}. This file is complete: it "
        "asks no other host for anything. The same data, seed and versions give the same bytes.</footer>"
    )

"""The findings of a study, ranked: what to mend, what changed, the advice, what is shown and what is not."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedscape.errors import plural
from fedscape.report.parts import capital
from fedscape.report.words import About, number, percent, safe

if TYPE_CHECKING:
    from fedscape.studies.schema import Result

#: Levels in the order of the page, and how each is called there.
LEVELS = {
    "mend": "mend first",
    "moved": "changed",
    "advice": "advice",
    "shown": "shown",
    "open": "not shown",
    "data": "to know",
}
#: Anchor of the evidence for an answer, the most important question first.
EVIDENCE = {
    "Which method?": "accuracy",
    "Who gains by joining?": "sites",
    "Is federation worth it?": "methods",
    "Is personalisation worth it?": "gains",
    "For whom does it fail?": "methods",
    "Do clients differ?": "apart",
    "How many kinds of clients?": "kinds",
    "How many clients a round?": "cohorts",
    "What does it cost?": "costs",
    "Could it have been planned on simulated clients?": "accuracy",
}
_SEVERE = ("leak", "text in numbers", "spelling", "infinite", "outlier")
_OPEN = ("not shown", "not known", "unknown", "not measurably", "with care")
_MOST_SEVERE = 3


@dataclass(frozen=True)
class Ranked:
    """A finding of the page: its level, the question, a short answer, a sentence, and the anchor of its evidence."""

    level: str
    question: str
    answer: str
    text: str
    anchor: str


def ranked(result: Result) -> list[Ranked]:
    """All findings, the most important first: by level, inside a level in the order of the questions."""
    findings = [*_of_data(result), *_of_reference(result), *_of_advice(result)]
    order = list(LEVELS)
    return sorted(findings, key=lambda finding: order.index(finding.level))


def _of_data(result: Result) -> list[Ranked]:
    findings = result.get("findings", [])
    severe = [finding for finding in findings if finding["kind"] in _SEVERE]
    listed = [
        Ranked(
            "mend", "Are the data sound?", f"{capital(finding['kind'])}: {finding['column']}", finding["text"], "data"
        )
        for finding in severe[:_MOST_SEVERE]
    ]
    rest = len(findings) - len(listed)
    if rest:
        answer = plural(rest, "further remark" if listed else "remark")
        text = "Columns left out, values missing or read in another way, and what was done about each."
        listed.append(Ranked("data", "What was odd in the data?", answer, text, "data"))
    return listed


def _of_reference(result: Result) -> list[Ranked]:
    against: About = result.get("against", {})
    if not against.get("drift"):
        return []
    drift = against["drift"]
    most = drift["moved"][0] if drift["moved"] else None
    text = (
        f"Mean shares of the categories are {number(drift['value'])} apart [{number(drift['low'])}, "
        f"{number(drift['high'])}] from those of {against['source']}; without a change {number(drift['none'])} "
        f"would be seen (p = {drift['p']:.2g})."
    )
    if most is not None:
        text += f" Most moved: {most['category']}, {percent(most['first'])} to {percent(most['second'])}."
    changed = drift["p"] < 0.05
    answer = "Yes, the labels" if changed else "No change of the labels is shown"
    return [Ranked("moved" if changed else "open", "Has it changed since the reference?", answer, text, "categories")]


def _of_advice(result: Result) -> list[Ranked]:
    order, elsewhere = list(EVIDENCE), "time" if "time" in result else "describe"  # a question about a column of dates
    places = {question: i for i, question in enumerate(order)}
    return [
        Ranked(
            _level(item),
            item["question"],
            capital(item["answer"]),
            item["text"],
            EVIDENCE.get(item["question"], elsewhere),
        )
        for item in sorted(result["advise"], key=lambda item: places.get(item["question"], len(order)))
    ]


def _level(item: About) -> str:
    question, answer = item["question"], item["answer"]
    if question == "Which method?":
        return "advice"
    if question == "What does it cost?":
        return "data"
    nobody = question == "Who gains by joining?" and not re.search(r"\b(gains?|loses?)\b", answer)
    return "open" if nobody or answer in _OPEN else "shown"


def findings_section(result: Result) -> str:
    """The section of findings: a ranked list, each linking to its evidence, and what to know about the study."""
    items = "".join(
        f'<li class="finding {finding.level}"><p class="q"><span class="chip">{LEVELS[finding.level]}</span> '
        f'{safe(finding.question)}</p><p class="a">{safe(finding.answer)}</p><p class="t">{safe(finding.text)} '
        f'<a href="#{finding.anchor}">evidence<span class="hidden"> for: {safe(finding.question)}</span></a></p></li>'
        for finding in ranked(result)
    )
    notes = "".join(f"<li>{safe(note)}</li>" for note in result["notes"])
    remarks = (
        f'<div class="card notescard"><h3>What to know about this study</h3><ul class="notes">{notes}</ul></div>'
        if notes
        else ""
    )
    return (
        '<div class="head"><h2>Findings</h2><button class="csv" data-table="advice" aria-label="CSV of the advice">CSV'
        "</button></div><p>Ranked: what to mend first, what changed, the advice, what the data show, what they do not "
        "show. Numbers in brackets are 95% intervals. A gain below one point of accuracy is not worth a more "
        f'complicated method.</p><ol class="findings">{items}</ol>{remarks}'
    )

"""What a study answers to the questions of times: no answer claims what its interval does not show."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedscape.studies.virtual_time import SHARE

_SIGNIFICANCE = 0.05


def advice(section: dict[str, Any]) -> list[dict[str, Any]]:
    """The answers of a study to the three questions of who is there. None claims what its interval does not show."""
    return [
        _when(section),
        *([_left_out(section["training"]), _helps(section["training"])] if "training" in section else []),
    ]


def _p(value: float) -> str:
    """A p-value as text.

    >>> _p(0.0312), _p(1e-9)
    ('p = 0.031', 'p < 0.001')
    """
    return f"p = {value:.2g}" if value >= 0.001 else "p < 0.001"


def _when(section: dict[str, Any]) -> dict[str, Any]:
    source = "The log of times" if section["column"] is None else f"Rows as check-ins (column {section['column']!r})"
    text = (
        f"{source}: {section['devices']:,} clients, {section['days']:.3g} days, on average {section['at_once']:.3g} at "
        "once."
    )
    p, shown = section["rhythm"], section["rhythm"] is not None and section["rhythm"] < _SIGNIFICANCE
    if shown and section["most"] is not None:
        high, low = section["hours"][section["most"]], section["hours"][section["fewest"]]
        text += (
            f" Most are there at {section['most']}:00 ({100 * high['value']:.2g}%), fewest at {section['fewest']}:00 "
            f"({100 * low['value']:.2g}%), by the clock of the log ({_p(p)})."
        )
    else:
        text += " No daily rhythm of all is shown" + ("." if p is None else f" ({_p(p)}).")
    for kind, about in section.get("kinds", {}).items():
        listed = [share for share in about["shares"] if share is not None]
        if listed and about["rhythm"] is not None and about["rhythm"] < _SIGNIFICANCE:
            shown, peak = True, about["shares"].index(max(listed))
            text += f" Kind {kind} is there most at {peak}:00 ({100 * max(listed):.2g}%, {_p(about['rhythm'])})."
    if section["twin"] is not None:
        twin = section["twin"]
        verdict = "is told apart" if twin["p"] < _SIGNIFICANCE else "is not told apart"
        text += f" A twin of half of them {verdict} from the other half ({_p(twin['p'])}"
        text += f", most by {twin['worst']})." if twin["p"] < _SIGNIFICANCE else ")."
    item = {"question": "When are clients there?", "value": p, "low": None, "high": None, "text": text}
    return {**item, "answer": "by the hour" if shown else "no rhythm shown"}


def _left_out(about: dict[str, Any]) -> dict[str, Any]:
    """Kinds whose simultaneous interval lies below their fair share."""
    behind = [part for part in about["parts"] if part["ratio"]["high"] is not None and part["ratio"]["high"] < 1]
    text = (
        f"Rounds of {about['size']} with a deadline of {about['deadline']:.3g} s for {about['days']:.3g} days, on "
        f"{about['of']}"
    )
    text += ": equally fast devices are assumed, a minute for an average client. " if about["assumed"] else ". "
    for part in behind:
        ratio, gap = part["ratio"], part["gap"]
        text += (
            f"Kind {part['kind']} gives {ratio['value']:.2f} of its fair share of reports [{ratio['low']:.2f}, "
            f"{ratio['high']:.2f}]"
        )
        if gap["high"] is not None:
            worse = (
                "its accuracy is below that of all" if gap["high"] < 0 else "that its accuracy is lower is not shown"
            )
            text += f"; {worse} ({100 * gap['value']:+.1f} points [{100 * gap['low']:+.1f}, {100 * gap['high']:+.1f}])"
        text += ", but few of its clients reported at all. " if part["rare"] else ". "
    if not behind:
        text += "No kind is shown to be left out. "
    item = {"question": "Who would be left out by a deadline?", "value": None, "low": None, "high": None}
    if behind:
        lowest = min(behind, key=lambda part: float(part["ratio"]["value"]))
        item = {**item, **lowest["ratio"]}
    answer = ", ".join(f"kind {part['kind']}" for part in behind) or "not shown"
    return {**item, "answer": answer, "text": text.strip()}


def _helps(about: dict[str, Any]) -> dict[str, Any]:
    sooner = about["asynchronous"]
    item = {"question": "Does asynchronous training help?", "value": sooner["hours"]}
    item |= {"low": sooner["low"], "high": sooner["high"]}
    answer = {"yes": "yes", "no": "no"}.get(sooner["answer"], "not shown")
    goal = f"an accuracy of {100 * about['target']:.1f}% ({SHARE:.0%} of FedAvg's in the tournament)"
    if answer == "not shown":
        text = f"Not shown: {sooner['answer'].removeprefix('not known: ')}, for {goal}."
    else:
        most = "at least " if sooner["at_least"] else ""
        ends = ["" if end is None or not np.isfinite(end) else f"{end:.2g}" for end in (sooner["low"], sooner["high"])]
        which = "sooner" if answer == "yes" else "later"
        text = (
            f"FedBuff reaches {goal} {most}{abs(sooner['hours']):.2g} hours {which} than synchronous rounds "
            f"[{ends[0]}, {ends[1]}], {about['runs']} runs in virtual time."
        )
    return {**item, "answer": answer, "text": text}

"""What the answers of a study are made of: a verdict, and estimates written with their intervals."""

from __future__ import annotations

from typing import Any

from fedscape.studies.choose import WORTH

ENDS = ("low", "high")
#: The answer to whether something is worth it, by its verdict.
WORTH_IT = {"yes": "worth it", "no": "not worth it", "little": "a little", "unclear": "not shown"}

Item = dict[str, Any]


def verdict(gain: dict[str, float] | None) -> str:
    """Judge a gain: "yes" if it is shown and at least a point, "no" if shown to be below a point.

    Else it is "little" if it is shown to be above 0, and "unclear" if not.

    >>> verdict({"value": 0.05, "low": 0.02, "high": 0.08}), verdict({"value": 0.0, "low": -0.004, "high": 0.004})
    ('yes', 'no')
    >>> verdict({"value": 0.008, "low": 0.002, "high": 0.014}), verdict({"value": 0.03, "low": -0.01, "high": 0.07})
    ('little', 'unclear')
    """
    if gain is None or gain["value"] is None:
        return "no"
    low, high = gain["low"], gain["high"]
    shown = low is not None and low > 0
    if shown and gain["value"] >= WORTH:
        return "yes"
    if high is not None and high < WORTH:
        return "no"
    return "little" if shown else "unclear"


def points(about: dict[str, float], *, sign: bool = True) -> str:
    """Format a difference of accuracies in points, with its interval.

    >>> points({"value": -0.0001, "low": -0.012, "high": 0.05})
    '+0.0 points [-1.2, +5.0]'
    """
    mark = "+" if sign else ""
    ends = ["unknown" if about[end] is None else f"{100 * about[end]:{mark}.1f}" for end in ENDS]
    return f"{100 * about['value']:{mark}z.1f} points [{ends[0]}, {ends[1]}]"


def percent(about: dict[str, float]) -> str:
    """Format an accuracy with its interval.

    >>> percent({"value": 0.5, "low": 0.4, "high": None})
    '50.0% [40.0%, unknown]'
    """
    ends = ["unknown" if about[end] is None else f"{100 * about[end]:.1f}%" for end in ENDS]
    return f"{100 * about['value']:.1f}% [{ends[0]}, {ends[1]}]"


def in_last_stage(section: dict[str, Any], row: Item) -> bool:
    """Whether a method took part in the last stage, so that its numbers stand beside those of the advice.

    >>> in_last_stage({"stages": [{"methods": ["fedavg", "ifca"]}, {"methods": ["fedavg"]}]}, {"method": "ifca"})
    False
    """
    return bool(row["method"] in section["stages"][-1]["methods"])


def answer_item(question: str, answer: str, text: str, about: dict[str, Any]) -> Item:
    return {"question": question, "answer": answer, "text": text} | {k: about.get(k) for k in ("value", "low", "high")}

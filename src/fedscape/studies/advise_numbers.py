"""What follows for a number: which model, whether own models and federation pay, for whom it fails, what it costs."""

from __future__ import annotations

from typing import Any

from fedscape.display import called_in
from fedscape.studies.advise import (
    instead_text,
    joining_item,
    listed_names,
    not_sure,
    stability_text,
    tied_text,
    unsettled,
)
from fedscape.studies.answers import WORTH_IT, Item, answer_item, in_last_stage, points, verdict


def advise_numbers(about: dict[str, Any]) -> list[Item | None]:
    """Questions and answers from the section numbers."""
    rows = {row["method"]: row for row in about["true"]}
    best = rows.get(about["advised"])
    items: list[Item | None] = [_method(about, rows, best)]
    if best is not None:
        items += [_personal(about, rows, best), _federated(about)]
    items += [joining_item(about, "R2")]
    if best is not None:
        items += [_worst(about, best), _cost(about, best)]
    return items


def amount(value: float | None) -> str:
    """A number in units of the target, four digits.

    >>> amount(1234.567), amount(0.0012345)
    ('1,235', '0.001234')
    """
    return "unknown" if value is None else f"{float(f'{value:.4g}'):,.10g}"


def amounts(about: dict[str, Any]) -> str:
    """A number in units of the target with its interval.

    >>> amounts({"value": 2.5, "low": 2.0, "high": 3.0})
    '2.5 [2, 3]'
    """
    return f"{amount(about['value'])} [{amount(about['low'])}, {amount(about['high'])}]"


def share(about: dict[str, Any]) -> str:
    """R2 with its interval.

    >>> share({"value": 0.251, "low": -0.1, "high": 0.4})
    '0.251 [-0.100, 0.400]'
    """
    ends = ["unknown" if about[end] is None else f"{about[end]:.3f}" for end in ("low", "high")]
    return f"{about['value']:.3f} [{ends[0]}, {ends[1]}]"


def _method(about: dict[str, Any], rows: dict[str, Item], best: Item | None) -> Item:
    over, top, who = about["over"], rows[about["best"]], "sites" if about["sites"] else "clients"
    lead = f"{top['called']}, the most exact, explains {points(over)} of the variance more than '{over['baseline']}'"
    if best is None:
        text = f"None: no model is shown to beat a mean. {lead}, where the interval would have to lie above 0"
        return answer_item("Which method?", "none", f"{text}{unsettled(about)}. {stability_text(about)}", over)
    others = [rows[name]["called"] for name in about["tied"] if name != best["method"]]
    answer = best["called"] + (f", tied with {listed_names(others)}" if others else "")
    text = (
        f"{best['called']}: off by {amounts(best['rmse'])} (root mean square) and {amounts(best['mae'])} (mean "
        f"absolute) on rows held out, R2 {share(best['together'])}, mean over {who}; {points(best['over'])} of the "
        f"variance more than '{over['baseline']}'."
    )
    if best["method"] != about["best"]:
        text += f" The most exact, {top['called']}, is {points(best['behind'], sign=False)} ahead."
    text += instead_text(best, about["true"], over["baseline"]) + tied_text(about, others)
    simplest = rows[about["simplest"]]
    if simplest is not best:
        behind = f"{points(simplest['behind'], sign=False)} behind {top['called']}"
        text += (
            f" The simplest method that is not shown to be a point or more behind is {simplest['called']}, {behind}."
        )
    return answer_item("Which method?", answer, f"{text} {stability_text(about)}", best["together"])


def _personal(about: dict[str, Any], rows: dict[str, Item], best: Item) -> Item:
    others = [rows[name] for name in ("linear+", "hlcr")]
    others = [row for row in others if in_last_stage(about, row)] or others
    one = best if best["method"] in ("linear+", "hlcr") else max(others, key=lambda row: float(row["gain"]["value"]))
    judgement, gain = verdict(one["gain"]), one["gain"]
    body = f"{called_in(about, one)} has {points(gain)} of the variance over one linear model, paired, "
    body += "all comparisons together"
    if judgement == "yes":
        text = f"Worth it: {body}; {100 * one['better']:.0f}% of the {'sites' if about['sites'] else 'clients'} gain."
    else:
        text = f"Not worth it: {body}; less than 1 point." if judgement == "no" else not_sure(judgement, body, about)
    return answer_item("Is personalisation worth it?", WORTH_IT[judgement], text, gain)


def _federated(about: dict[str, Any]) -> Item:
    gain, judgement = about["federated"], verdict(about["federated"])
    who = "sites" if about["sites"] else "clients"
    body = f"{about['federated_method']} has {points(gain)} of the variance over {who} that fit their own rows alone"
    lead = {"yes": f"Yes: {body}, paired.", "no": f"No: {body}, and the interval ends below a point."}
    text = lead.get(judgement) or not_sure(judgement, body, about)
    return answer_item("Is federation worth it?", WORTH_IT[judgement], text, gain)


def _worst(about: dict[str, Any], best: Item) -> Item | None:
    worst, n = best["worst"], best["worst"]["clients"]
    if worst["value"] is None:
        return None
    if about["sites"]:
        text = f"The site served worst is off by {amounts(worst)} with {best['called']}, mean absolute error, where "
        text += f"the mean over sites is {amount(best['mae']['value'])}."
        return answer_item("For whom does it fail?", f"off by {amount(worst['value'])} at the worst site", text, worst)
    text = (
        f"The {n} clients served worst were off by {amount(worst['seen'])} with {best['called']} (mean absolute "
        f"error), partly by bad luck in few rows. Chosen by half of their rows and judged by the other half they are "
        f"off by {amounts(worst)}, where the mean is {amount(best['mae']['value'])}."
    )
    return answer_item("For whom does it fail?", f"off by {amount(worst['value'])} among the worst {n}", text, worst)


def _cost(about: dict[str, Any], best: Item) -> Item:
    cost = next(c for c in about["costs"] if c["method"] == best["method"])
    up, down = cost["bytes_up"] / 1000, cost["bytes_down"] / 1000
    sent = f"{up:,.1f} kB up and {down:,.1f} kB down in its costliest round"
    text = f"{best['called']}: {sent}." if up else f"{best['called']}: nothing is sent."
    return answer_item("What does it cost?", f"{up:,.1f} kB up" if up else "nothing", text, {})

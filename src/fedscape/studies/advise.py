"""The advice of a study: sentences with a number and its interval. "Not worth it" is a possible answer."""

from __future__ import annotations

from typing import Any

from fedscape.display import called_in, decimals
from fedscape.methods import METHODS
from fedscape.studies.answers import ENDS, WORTH_IT, Item, answer_item, in_last_stage, percent, points, verdict
from fedscape.studies.budget import LARGEST
from fedscape.studies.choose import WORTH
from fedscape.studies.intervals import FEW

#: Assumed device, a plain phone: multiply-adds per second, bytes per second up and down.
DEVICE = {"operations": 1e9, "up": 1e6, "down": 4e6}

_STEADY = 0.8  # share of redraws with the same advice, below which agreement with it says little


def advise(result: dict[str, Any]) -> list[Item]:
    """Answer the questions of a study from its result; a missing section gives no answers."""
    items: list[Item | None] = [_differ(result)]
    if "numbers" in result:
        from fedscape.studies.advise_numbers import advise_numbers  # it words its answers with what is here

        items += advise_numbers(result["numbers"])
    elif "learn" in result:
        learn = result["learn"]
        best = next((row for row in learn["true"] if row["method"] == learn["advised"]), None)
        items += [_method(learn, best, rounds=result["about"]["asked"]["rounds"])]
        if best is not None:
            items += [_worth(learn, best), _alone(learn, best), joining_item(learn), _worst(learn, best)]
            items += [_cohort(learn), _cost(learn, best), _planning(learn)]
        else:
            items += [joining_item(learn)]
    else:
        items.append(_kinds(result))
    return [item for item in items if item is not None]


def not_sure(answer: str, body: str, section: dict[str, Any]) -> str:
    """The text about a gain that is neither worth it nor not."""
    if answer == "little":
        return f"A little: {body}. A gain is shown, that it is a point is not{settled_by(section)}."
    return f"Not shown: {body}{settled_by(section)}."


def _differ(result: dict[str, Any]) -> Item:
    question, measured = "Do clients differ?", result["measure"]
    measures = {name: measured[name] for name in ("labels", "features") if "value" in measured.get(name, {})}
    if not measures:
        return answer_item(question, "unknown", "Unknown: fewer than two clients have two rows or more.", {})
    if len(measures) > 1:
        measures = {name: _of_two(about) for name, about in measures.items()}
    sure = {name: about for name, about in measures.items() if about["low"] is not None and about["low"] > 0}
    together = " (simultaneous intervals)" if len(measures) > 1 else ""
    numbers = " and ".join(_heterogeneity(name, about) for name, about in measures.items()) + together
    if not sure:
        text = f"Clients look like random parts of one pool: {numbers}, where IID clients have 0."
        return answer_item(question, "not measurably", text, next(iter(measures.values())))
    text = (
        f"Clients differ in {' and '.join(sure)}: {numbers}, where IID clients have 0 and clients that share nothing 1."
    )
    if "labels" in sure and "tvd" in measured["labels"]:
        text += _in_plain_words(measured["labels"])
    return answer_item(question, "yes", text, max(sure.values(), key=lambda about: float(about["value"])))


def _of_two(about: dict[str, Any]) -> dict[str, Any]:
    """Widen the interval (Bonferroni for two), so that both intervals hold with 95%."""
    wider = 2.2414 / 1.96  # normal quantiles at 1 - 0.025 / 2 and 1 - 0.025
    ends = {end: None if about[end] is None else about["value"] + wider * (about[end] - about["value"]) for end in ENDS}
    return {"value": about["value"], **ends}


def _heterogeneity(name: str, about: dict[str, Any]) -> str:
    digits = decimals(about[end] for end in ("value", *ENDS))
    text = f"heterogeneity of {name} {about['value']:z.{digits}f}"
    if about["low"] is None or about["high"] is None:
        return f"{text}, from two clients: no interval"
    return f"{text} [{about['low']:.{digits}f}, {about['high']:.{digits}f}]"


def _in_plain_words(labels: dict[str, Any]) -> str:
    """The distance as a share of rows, beside what chance gives for clients of these sizes."""
    chance, reach = labels["tvd_iid"], 1.96 * labels["tvd_iid_sd"]
    low, high = (100 * max(chance + sign * reach, 0.0) for sign in (-1, 1))
    return (
        f" On average {100 * labels['tvd']:.0f}% of a client's rows would need other labels to match the overall "
        f"shares; by chance alone it would be {100 * chance:.1f}% [{low:.1f}%, {high:.1f}%]."
    )


def _kinds(result: dict[str, Any]) -> Item:
    model = result["model"]
    share = model["components"][0]["share"]
    n = len(model["components"])
    if "undecided" in model:
        return answer_item("How many kinds of clients?", "not known", model["undecided"], share)
    word = "kind" if n == 1 else "kinds"
    text = f"{n} {word} of clients; the most frequent has {percent(share)} of them."
    return answer_item("How many kinds of clients?", str(n), text, share)


def _called(learn: dict[str, Any], method: str) -> str:
    return str(next(row["called"] for row in learn["true"] if row["method"] == method))


def _method(learn: dict[str, Any], best: Item | None, *, rounds: int | None) -> Item:
    question, over = "Which method?", learn["over"]
    lead = (
        f"{_called(learn, learn['best'])}, the most accurate, {'leads' if over['value'] >= 0 else 'has'} {points(over)}"
    )
    held = stability_text(learn)
    if best is None:
        text = (
            f"None: no method is shown to beat guessing. {lead} over '{over['baseline']}', which needs no training, "
            f"where the interval would have to lie above 0{unsettled(learn)}.{climbing_text(learn, rounds)} {held}"
        )
        return answer_item(question, "none", text, over)
    others = [_called(learn, name) for name in learn["tied"] if name != best["method"]]
    answer = best["called"] + (f", tied with {listed_names(others)}" if others else "")
    text = f"{best['called']}: accuracy {percent(best['together'])} on rows held out, mean over {_clients(learn)}, as "
    text += f"one of {sum(not row['baseline'] for row in learn['true'])} methods (simultaneous intervals)"
    text += f", {points(best['over'])} over '{over['baseline']}'."
    if best["method"] != learn["best"]:
        text += f" The most accurate, {_called(learn, learn['best'])}, is {points(best['behind'], sign=False)} ahead."
    text += instead_text(best, learn["true"], over["baseline"]) + tied_text(learn, others)
    simplest = next(row for row in learn["true"] if row["method"] == learn["simplest"])
    if simplest is not best:
        behind = f"{points(simplest['behind'], sign=False)} behind {_called(learn, learn['best'])}"
        text += (
            f" The simplest method that is not shown to be a point or more behind is {simplest['called']}, {behind}."
        )
    return answer_item(question, answer, f"{text}{climbing_text(learn, rounds)} {held}", best["together"])


def climbing_text(learn: dict[str, Any], rounds_asked: int | None) -> str:
    """Name the methods that may still overtake by climbing on, each with what its last rounds brought.

    Rounds that were asked for are those of every budget.
    """
    rounds = {row["method"]: row.get("rounds") for row in learn["true"]}
    which = [
        f"{_called(learn, name)} ({100 * brought:+.1f} points in the second half of its {rounds[name]} rounds)"
        for name, brought in learn.get("climbing", {}).items()
    ]
    if not which:
        return ""
    larger = rounds_asked is None and learn["budget"] != LARGEST
    more = "a larger --budget trains longer" if larger else "so do more --rounds"
    return f" Still climbing, so that more rounds may change the advice: {listed_names(which)}; {more}."


def tied_text(learn: dict[str, Any], others: list[str]) -> str:
    """Name the methods that are tied with the one advised, and say whether that is settled."""
    named = f": {listed_names(others)}" if others else ""
    if learn["stages"][-1]["settled"]:
        text = " None of the others is more than a point ahead (simultaneous intervals)."
        return f" Tied with it{named}.{text}" if others else text
    return f" Tied with it, as far as these data tell{named}{settled_by(learn)}." if others else ""


def unsettled(learn: dict[str, Any]) -> str:
    """Say that none is a point ahead of guessing where that is shown, else what would give a clearer answer."""
    if learn["stages"][-1]["settled"]:
        return "; that none leads by more than a point is shown"
    return settled_by(learn)


def instead_text(best: Item, rows: list[Item], baseline: str) -> str:
    """Explain a method that is advised without a gain over the common one that is shown: that one may be guessing."""
    gain = best["gain"]
    if gain is None or best["method"] == "local" or (gain["low"] is not None and gain["low"] > 0):
        return ""
    common = next(row for row in rows if not row["baseline"] and row["gain"] is None)
    if common["over"]["low"] is not None and common["over"]["low"] > 0:
        return ""
    return (
        f" Its gain over {common['called']} is not shown, but {common['called']} is not shown to beat '{baseline}': "
        f"{points(common['over'])}."
    )


def listed_names(names: list[str]) -> str:
    return ", ".join(names[:-1]) + f" and {names[-1]}" if len(names) > 1 else names[0]


def _clients(learn: dict[str, Any]) -> str:
    return "sites" if learn["sites"] else "clients"


def settled_by(learn: dict[str, Any]) -> str:
    """Say what would give a clearer answer: a larger budget, if it would go on."""
    if learn["stages"][-1]["settled"]:
        return "; the tournament ended before that, as which method to advise was settled"
    if learn["capped"] and learn.get("budget") == LARGEST:
        return "; the largest --budget leaves out clients or rows, and no budget has more"
    if learn["capped"]:
        return "; a larger --budget uses more of the clients and rows"
    if learn.get("climbing"):
        return "; only more clients, rows or rounds would tell"
    return "; only more clients or rows would tell"


def stability_text(learn: dict[str, Any]) -> str:
    """Say how often the same method is advised for redrawn clients."""
    about = learn["stability"]
    what = "rows inside each site" if learn["sites"] else "clients"
    text = f"The same is advised in {about['same']} of {about['redraws']} redraws of the {what}"
    if about["others"]:
        name, often = max(about["others"].items(), key=lambda pair: int(pair[1]))
        text += f", {'none' if name == 'None' else _called(learn, name)} in {often}"
    return f"{text}."


def _worth(learn: dict[str, Any], best: Item) -> Item | None:
    question = "Is personalisation worth it?"
    others = [r for r in learn["true"] if r["gain"] is not None and r["gain"]["value"] is not None]
    # training alone is not personalisation, nor are trees and a GLM for all clients
    others = [r for r in others if r["method"] != "local" and METHODS[r["method"]].family == "personal"]
    if not others:
        return None
    last = [r for r in others if in_last_stage(learn, r)]  # a gain of a stage before is over a FedAvg of that stage
    personal = best if best in others else max(last or others, key=lambda r: r["gain"]["value"])
    answer, gain = verdict(personal["gain"]), personal["gain"]
    verb = "gains" if gain["value"] >= 0 else "has"
    body = f"{called_in(learn, personal)} {verb} {points(gain)} over FedAvg, paired, corrected for all comparisons"
    body += _one_seed(learn)
    if answer == "yes":
        better = personal.get("better")
        text = (
            f"Worth it: {body}; {100 * better:.0f}% of the {_clients(learn)} gain."
            if better is not None
            else f"Worth it: {body}."
        )
    elif answer == "no":
        text = f"Not worth it: {body}; less than {100 * WORTH:.0f} point."
    else:
        text = not_sure(answer, body, learn)
    if METHODS[best["method"]].family == "tabular":
        text += f" {best['called']}, which is advised, is one model for all."
    return answer_item(question, WORTH_IT[answer], text, gain)


def _one_seed(learn: dict[str, Any]) -> str:
    return " (one seed: the interval leaves out the variation between seeds)" if learn["seeds"] == 1 else ""


def _alone(learn: dict[str, Any], best: Item) -> Item | None:
    about = learn.get("federated")
    if about is None or about["value"] is None:
        return None
    method = learn["federated_method"]
    body = f"{method} has {points(about)} over {_clients(learn)} that train alone, each at its own learning rate"
    answer = verdict(about)
    lead = {"yes": f"Yes: {body}, paired{_one_seed(learn)}.", "no": f"No: {body}, and the interval ends below a point."}
    text = lead.get(answer) or not_sure(answer, body, learn)
    if METHODS[best["method"]].family == "tabular" and answer != "yes":
        text = f"Of linear models: {text} {best['called']} was trained by all together only, not alone."
        return answer_item("Is federation worth it?", "not known", text, about)
    return answer_item("Is federation worth it?", WORTH_IT[answer], text, about)


def joining_item(learn: dict[str, Any], measure: str = "accuracy") -> Item | None:
    """Say which of a few sites gain by joining."""
    about = learn.get("joining")
    if about is None or not about["rows"]:
        return None
    by = {word: [r for r in about["rows"] if r["verdict"] == word] for word in ("gains", "loses", "not shown")}
    many = len(about["rows"]) > 5
    sites = {
        word: str(len(rows)) if many else listed_names([r["site"] for r in rows]) for word, rows in by.items() if rows
    }
    parts = [
        f"{sites[word]} {word if len(by[word]) == 1 else word[:-1]}" for word in ("gains", "loses") if word in sites
    ]
    if by["not shown"]:
        of = f" of {len(about['rows'])}" if many else ""
        all_of = len(by["not shown"]) == len(about["rows"])
        who = f"any of the {len(about['rows'])} sites" if all_of else f"{sites['not shown']}{of}"
        parts.append(f"not shown for {who}")
    each = "; ".join(f"{r['site']} {points(r['gain'])}" for r in about["rows"])
    spread = about["spread"]
    text = (
        f"Against training alone, {about['called']} changes the {measure} on each site's own rows by {each} "
        f"(simultaneous intervals). Mean over sites {points(about['pooled'])}. Heterogeneity of the sites: I2 "
        f"{100 * spread['i2']:.0f}%, tau {100 * spread['tau2'] ** 0.5:.1f} points, p = {spread['p']:.2g}."
    )
    return answer_item("Who gains by joining?", "; ".join(parts), text, about["pooled"])


def _worst(learn: dict[str, Any], best: Item) -> Item:
    about = best["worst"]
    mean = f"{100 * best['accuracy']['value']:.1f}%"
    n = about["clients"]
    if learn["sites"]:
        text = f"The site served worst has {percent(about)} with {best['called']}, where the mean is {mean}."
        return answer_item("For whom does it fail?", f"{100 * about['value']:.0f}% at the worst site", text, about)
    text = (
        f"The {n} clients served worst have {100 * about['seen']:.1f}% of their test rows right with "
        f"{best['called']}, partly by bad luck on few rows (if all were served equally, the worst {n} would have "
        f"{100 * about['equal']:.1f}%). Corrected for that, the accuracy of the worst {n} is {percent(about)}; the "
        f"mean is {mean}."
    )
    kinds = [k for k in learn["by_kind"] if k["value"] is not None]
    if len(kinds) > 1:
        low = min(kinds, key=lambda k: k["value"])
        withheld = sum(k["clients"] for k in kinds) < learn["clients"]  # smaller kinds are withheld
        which = f"Of the kinds of {FEW} clients or more here" if withheld else "Of the kinds"
        text += f" {which}, {low['kind']} has the least: {percent(low)} over {low['clients']} clients."
    return answer_item("For whom does it fail?", f"{100 * about['value']:.0f}% among the worst {n}", text, about)


def _behind(about: dict[str, Any]) -> str:
    """Format a difference as "behind", or as "ahead of" if it is negative."""
    if about["value"] >= 0:
        return f"{points(about, sign=False)} behind"
    ends = {"low": about["high"], "high": about["low"]}
    ahead: dict[str, Any] = {end: None if value is None else -value for end, value in ends.items()}
    return f"{points({'value': -about['value'], **ahead}, sign=False)} ahead of"


def _cohort(learn: dict[str, Any]) -> Item:
    question, rows = "How many clients a round?", learn["cohorts"]
    total = rows[-1]["clients"]
    fewer = [r for r in rows[:-1] if r["behind"]["value"] is not None]
    enough = next((r for r in fewer if r["behind"]["high"] is not None and r["behind"]["high"] <= WORTH), None)
    if enough is not None:
        text = (
            f"{enough['clients']} of {total} clients per round are enough: FedAvg with them is "
            f"{_behind(enough['behind'])} all {total} after {learn['rounds']} rounds"
            f"{_one_seed(learn)}."
        )
        return answer_item(question, str(enough["clients"]), text, enough["behind"])
    near = fewer[-1] if fewer else rows[-1]
    tail = f"with {near['clients']} per round FedAvg is {_behind(near['behind'])} all {total}"
    tail += f" after {learn['rounds']} rounds{_one_seed(learn)}."
    if not fewer or (near["behind"]["low"] is not None and near["behind"]["low"] > WORTH):
        return answer_item(question, str(total), f"All {total}: {tail}", near["behind"])
    text = f"Not shown that fewer than all {total} are within a point: {tail}"
    return answer_item(question, "not shown", text, near["behind"])


def _cost(learn: dict[str, Any], best: Item) -> Item:
    cost = next(c for c in learn["costs"] if c["method"] == best["method"])
    rounds = cost.get("rounds", learn["rounds"])
    up, down, seconds = cost["bytes_up"] / 1000, cost["bytes_down"] / 1000, cost["seconds"]
    if best["method"] == "local":
        text = f"{best['called']}: clients send no model; {down:,.1f} kB down for the first one."
        return answer_item("What does it cost?", "no model is sent", text, cost["seconds"])
    text = (
        f"{rounds} rounds, each {up:,.1f} kB up, {down:,.1f} kB down and {seconds['value']:.2g} s on a device "
        f"[{seconds['low']:.2g}, {seconds['high']:.2g} for the middle half of the clients; assumed: 1 GFLOP/s, "
        f"1 MB/s up, 4 MB/s down].{_settling(learn)}"
    )
    return answer_item("What does it cost?", f"{rounds} rounds", text, cost["seconds"])


def _settling(learn: dict[str, Any]) -> str:
    """Say when FedAvg had settled."""
    rounds, settled = learn["rounds"], learn["settled"]
    return f" FedAvg is within a point of its accuracy after {rounds} rounds by round {settled}."


def _planning(learn: dict[str, Any]) -> Item | None:
    about = learn.get("prediction")
    if about is None:
        return None
    stable, guess, true = learn["stability"], about["gain"], about["true_gain"]
    held = guess["low"] is not None and guess["low"] <= true["value"] <= guess["high"]
    steady = stable["same"] >= _STEADY * stable["redraws"]
    first = f"Simulated clients put {about['predicted']} first, the true ones {about['realised']}"
    if about["same"] and not steady:
        first += f", and so do only {stable['same']} of {stable['redraws']} redraws of the true ones"
    text = (
        f"{first}. For {about['method']} they predict {points(guess)} over FedAvg, where the true clients have "
        f"{points(true)}{'' if held else ', outside of what was predicted'}; predicted accuracies are "
        f"{100 * about['error']:.1f} points off, mean over the methods. The learning rates were tuned on the true "
        "clients; planning without them means guessing the rates."
    )
    answer = "yes" if about["same"] and held and steady else "with care"
    return answer_item("Could it have been planned on simulated clients?", answer, text, guess)

"""A tournament in stages: what a larger budget has, a smaller one had; what is shown to lose leaves and stays away."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from fedscape import Federation
from fedscape.studies.budget import BUDGETS, Budget, Limits, budget_of
from fedscape.studies.choose import ORDER, choose, may_lead
from fedscape.studies.judged import BASELINES, Judged
from fedscape.studies.staged import clients_of_stage, fewer_rows, most_per_client, notes_of, staged

LADDER = BUDGETS["20min"].stages
NOTHING = dict.fromkeys(ORDER, 0.6) | dict.fromkeys(BASELINES, 0.6)
LEVEL = dict.fromkeys(ORDER, 0.7) | dict.fromkeys(BASELINES, 0.4)


def federation(clients=700, rows=8, *, seed=0, spread=0.0) -> Federation:
    sizes = np.round(rows * np.exp(spread * np.random.default_rng(seed).normal(size=clients))).astype(int)
    offsets = np.concatenate(([0], np.cumsum(sizes)))
    return Federation({"at": np.arange(offsets[-1])}, offsets)


def play_of(accuracy: dict, calls: list, seed=0):
    """Methods that hit each row of the federation with their own chance, whatever they were trained on."""

    def play(rows: Federation, limits: Limits, those: tuple[str, ...]):
        calls.append((len(rows), rows.n_rows, those))
        hits = {}
        for name in (*[name for name in ORDER if name in those], *BASELINES):
            luck = np.random.default_rng([seed, sorted(NOTHING).index(name)]).random(20_000)[rows["at"]]
            fold = rows["at"] % limits.repeats
            hits[name] = np.where(fold == np.arange(limits.repeats)[:, None], luck < accuracy[name], -1).astype(np.int8)
        return Judged(hits, rows.client_of_row, len(rows), 4), {name: [0.1] for name in those}

    return play


def played(accuracy: dict, budget: str = "20min", *, seed=0, rows=None):
    calls: list = []
    rows = federation() if rows is None else rows
    return staged(rows, budget_of(budget), play_of(accuracy, calls, seed), order=ORDER, common="fedavg", seed=0), calls


@pytest.mark.parametrize(
    ("clients", "rows", "spread"), [(700, 8, 1.0), (90, 400, 0.5), (30, 5_000, 1.5), (5_000, 30, 0.3)]
)
def test_a_stage_has_the_clients_and_rows_of_the_one_before(clients, rows, spread):
    fed, before, each = federation(clients, rows, spread=spread), set(), 200
    for limits in LADDER:
        who = clients_of_stage(fed, limits, each=each, seed=3)
        mine = fewer_rows(fed.take(who), most=limits.rows, seed=3)
        assert len(who) <= limits.clients
        assert mine.n_rows <= max(limits.rows, len(who))
        assert before <= set(mine["at"].tolist())
        before, each = set(mine["at"].tolist()), max(each, int(mine.sizes.max()))
    assert len(before) > 0.2 * min(fed.n_rows, LADDER[-1].rows)


def test_rows_of_a_client_are_given_up_only_where_more_clients_wait():
    sites = federation(6, 1_500)
    assert fewer_rows(sites, most=12_000, seed=0).n_rows == 9_000
    assert len(clients_of_stage(federation(300, 1_000), LADDER[1], each=200, seed=0)) == 60
    assert len(clients_of_stage(federation(300, 30), LADDER[1], each=200, seed=0)) == 240
    assert most_per_client(np.array([3, 3]), 1) == 1


def test_a_larger_budget_begins_as_a_smaller_one_does():
    for less, more in (("30s", "2min"), ("2min", "20min")):
        assert BUDGETS[more].stages[: len(BUDGETS[less].stages)] == BUDGETS[less].stages
    for first, second in itertools.pairwise(LADDER):
        assert first.clients < second.clients
        assert first.rows <= second.rows
        assert first.rounds <= second.rounds
        assert first.repeats <= second.repeats


@pytest.mark.parametrize("seed", range(6))
def test_more_budget_keeps_settled_advice_and_brings_no_method_back(seed):
    rng = np.random.default_rng(seed)
    accuracy = {name: 0.7 + 0.02 * rng.random() for name in ORDER} | dict.fromkeys(BASELINES, 0.4)
    small, large = played(accuracy, "30s", seed=seed)[0], played(accuracy, "20min", seed=seed)[0]
    for mine, theirs in zip(small, large, strict=False):
        assert mine.choice == theirs.choice
        assert mine.settled == theirs.settled
    if small[-1].settled:
        assert len(large) == len(small)
    for first, second in itertools.pairwise(large):
        assert set(second.used) == {
            m for m in first.used if m in ("local", "fedavg", first.choice.advised, *first.rivals)
        }
        assert set(first.rivals) <= set(first.choice.tied)
        assert second.rows.n_rows > first.rows.n_rows or second.limits.rounds > first.limits.rounds


def test_advice_that_is_settled_takes_one_stage():
    stages, calls = played(LEVEL | {"fedavg": 0.9, "local": 0.5})
    assert [stage.settled for stage in stages] == [True]
    assert stages[0].choice.advised == "fedavg"
    assert len(calls) == 1
    assert notes_of(federation(), stages, "30s") == [
        "The tournament uses 60 of the 700 clients, chosen by the seed; that settled the advice."
    ]


def test_methods_shown_to_lose_leave_and_two_always_stay():
    stages, calls = played(LEVEL | {"fedavg": 0.5, "fedem": 0.85, "fedgmm": 0.85, "ifca": 0.845})
    assert tuple(calls[0][2]) == ORDER
    assert set(calls[1][2]) == {"local", "fedavg", "ifca", "fedem", "fedgmm"}
    assert [clients for clients, _, _ in calls][:3] == [60, 240, 700][: len(calls)]
    assert stages[-1].choice.advised in ("ifca", "fedem", "fedgmm")


def climbs_of(name: str, calls: list):
    """A play where a method is right more often the more rounds it has, and says so."""

    def play(rows: Federation, limits: Limits, those: dict[str, int]):
        calls.append(dict(those))
        chance = LEVEL | {"fedavg": 0.72, "local": 0.5, name: 0.42 + 0.006 * those[name]}
        judged = play_of(chance, [])(rows, limits, tuple(those))[0]
        return judged, {m: [0.2 if m == name else 0.0] for m in those}

    return play


@pytest.mark.parametrize("clients", [700, 50])
def test_a_method_that_climbs_has_more_rounds_and_is_advised_for_them(clients):
    """With 50 clients the next stage has no more clients, and is played for the rounds alone."""
    calls: list = []
    stages = staged(
        federation(clients), budget_of("30s"), climbs_of("fedem", calls), order=ORDER, common="fedavg", seed=0,
        climbs=lambda used: used[0],
    )  # fmt: skip
    assert [call["fedem"] for call in calls] == [20, 80]
    assert [call["fedavg"] for call in calls] == [20, 80]  # as long as what it is compared with
    assert [stage.choice.advised for stage in stages] == ["fedavg", "fedem"]
    assert stages[0].climbing == {"fedem": 0.2}  # though it is shown to be behind
    assert "fedem" not in stages[0].choice.tied


def test_a_stage_that_would_use_nothing_more_is_left_out():
    limits = Limits(240, 12_000, 3, 4)
    calls: list = []
    stages = staged(
        federation(30, 6), Budget("b", (limits, Limits(1_000, 24_000, 3, 4))), play_of(LEVEL, calls), order=ORDER,
        common="fedavg", seed=0,
    )  # fmt: skip
    assert len(stages) == len(calls) == 1
    assert not stages[0].settled
    assert notes_of(federation(30, 6), stages, "30s") == []


def test_no_advice_is_settled_where_no_method_leads_guessing_by_a_point():
    fed = federation(2_000, 8)
    judged = play_of(NOTHING, [])(fed, LADDER[0], ORDER)[0]
    choice = choose(judged)
    assert choice.advised is None
    ahead = {m: judged.difference(m, choice.baseline, comparisons=5)["high"] for m in ORDER}
    assert {m for m in ORDER if may_lead(judged, m, choice)} == {m for m in ORDER if ahead[m] > 0.01}
    few = play_of(NOTHING, [])(fed.take(np.arange(20)), LADDER[0], ORDER)[0]
    assert any(may_lead(few, m, choose(few)) for m in choose(few).tied)


def test_intervals_stay_simultaneous_for_all_that_entered():
    judged = play_of(LEVEL, [])(federation(), LADDER[0], ("local", "fedavg", "fedem"))[0]
    choice = choose(judged)
    assert set(choice.tied) <= {"local", "fedavg", "fedem"}
    mine = choice.advised
    ahead = {m: judged.difference(m, mine, comparisons=5)["high"] for m in ("local", "fedavg", "fedem")}
    assert {m for m in ahead if may_lead(judged, m, choice)} == {m for m in ahead if m != mine and ahead[m] > 0.01}
    assert may_lead(judged, "local", replace(choice, advised="ifca"))  # never compared with it


def test_a_method_comes_back_if_what_it_was_compared_with_is_no_longer_advised():
    """FedGMM leaves as at most a point ahead of FedEM; then FedAvg is advised, which it was not shown to be near."""
    calls: list = []

    def play(rows: Federation, limits: Limits, those: tuple[str, ...]):
        chance = LEVEL | {"local": 0.5, "fedavg+": 0.5, "ifca": 0.795, "fedem": 0.8, "fedgmm": 0.803}
        chance["fedavg"] = 0.7 if not calls else 0.797
        calls.append(those)
        luck, fold = np.random.default_rng(5).random((2, rows.n_rows)), rows["at"] % 4
        hits = {
            name: np.where(fold == np.arange(4)[:, None], luck[int(name == "ifca")] < chance[name], -1).astype(np.int8)
            for name in (*those, *BASELINES)
        }
        return Judged(hits, rows.client_of_row, len(rows), 4), {name: [0.1] for name in those}

    stages = staged(federation(3_000, 12), budget_of("20min"), play, order=ORDER, common="fedavg", seed=0)
    assert [stage.choice.advised for stage in stages[:2]] == ["fedem", "fedavg"]
    assert "fedgmm" in calls[0]
    assert "fedgmm" not in calls[1]
    assert "fedgmm" in stages[1].rivals
    assert "fedgmm" in calls[2]


def test_a_forecast_is_checked_on_a_method_of_the_last_stage():
    """FedGMM has the largest gain on simulated clients, but left: its gain here is over the FedAvg of its stage."""
    from fedscape.studies.learn import _beside

    order = ("fedavg", "fedem", "fedgmm", "local")
    judged = play_of(LEVEL, [])(federation(60), LADDER[0], ("local", "fedavg", "fedem"))[0]
    gains = {"fedavg": None, "fedem": {"value": 0.01}, "fedgmm": {"value": 0.09}, "local": {"value": -0.1}}
    rows = [{"method": m, "called": m, "gain": gains[m], "accuracy": {"value": 0.7}} for m in order]
    section = {"true": rows, "simulated": rows, "cohorts": [{"curve": [[2, 0.6], [4, 0.7]]}]}
    choice = choose(judged)
    told = _beside(section, judged, choice, choice, np.ones((60, 1)), order)["prediction"]
    assert told["method"] == "fedem"
    gains["local"] = {"value": 0.02}  # training alone is no personalisation, unless nothing else is left
    rows[:] = [{**row, "gain": gains[row["method"]]} for row in rows]
    assert _beside(section, judged, choice, choice, np.ones((60, 1)), order)["prediction"]["method"] == "fedem"
    alone = play_of(LEVEL, [])(federation(60), LADDER[0], ("local", "fedavg"))[0]
    told = _beside(section, alone, choice, choice, np.ones((60, 1)), order)["prediction"]
    assert told["method"] == "local"


@pytest.mark.parametrize(("name", "trees"), [("fedem", 20), ("trees", 80)])
def test_methods_whose_rounds_are_of_another_kind_have_more_only_where_they_climb(name, trees):
    """A round of trees is a level of one tree: that FedEM climbs says nothing about them."""
    calls: list = []

    def play(rows: Federation, limits: Limits, those: dict[str, int]):
        calls.append(dict(those))
        judged = play_of(LEVEL, [])(rows, limits, tuple(m for m in those if m != "trees"))[0]
        hits = {**judged.hits, **({"trees": judged.hits["local"]} if "trees" in those else {})}
        return replace(judged, hits=hits), {m: [0.2 if m == name else 0.0] for m in those}

    staged(
        federation(50), budget_of("30s"), play, order=(*ORDER, "trees"), common="fedavg", seed=0,
        climbs=lambda used: used[0], apart=["trees"],
    )  # fmt: skip
    assert calls[0] == dict.fromkeys((*ORDER, "trees"), 20)
    others = {n for m, n in calls[1].items() if m != "trees"}
    assert (calls[1]["trees"], others) == (trees, {80 if name == "fedem" else 20})

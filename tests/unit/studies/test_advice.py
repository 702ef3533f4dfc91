"""What a tournament shows: intervals against closed forms and simulation, and advice that follows from them alone."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from fedscape import DataError, Federation
from fedscape.studies import study
from fedscape.studies import tournament as learn
from fedscape.studies.budget import budget_of
from fedscape.studies.choose import ORDER, choose, stability
from fedscape.studies.guessing import further_variance, of_folds
from fedscape.studies.intervals import mean_interval, plain
from fedscape.studies.judged import BASELINES, Judged, wilson
from fedscape.studies.sites import are_sites, joining, pooled
from fedscape.studies.standing import equal_tenth, standing, worst_interval, worst_tenth

NAMES = (*learn.ENTRANTS, *BASELINES)


def judged(accuracy: dict, *, clients=40, rows=40, repeats=4, sites=False, seed=0, moves=0.0, spread=0.0) -> Judged:
    """Hits of clients whose rows every method hits with its own chance: each row is held out once in four repeats."""
    rng = np.random.default_rng(seed)
    owner = np.repeat(np.arange(clients), rows)
    fold = np.arange(len(owner)) % 4
    own = np.clip(rng.normal(0, spread, clients), -0.2, 0.2)[owner]
    luck, hits = rng.random(len(owner)), {}  # one luck for all: what is hard for one is hard for the others
    for name in NAMES:
        moved = rng.normal(0, moves, repeats) if name in learn.ENTRANTS else np.zeros(repeats)
        chance = accuracy.get(name, 0.5) + own
        runs = np.full((repeats, len(owner)), -1, dtype=np.int8)
        for r in range(repeats):
            mixed = np.where(rng.random(len(owner)) < 0.5, luck, rng.random(len(owner)))
            runs[r] = np.where(fold == r % 4, mixed < chance + moved[r], -1)
        hits[name] = runs
    return Judged(hits, owner, clients, 4, sites)


def test_many_clients_have_the_paired_t_interval_of_scipy():
    found = judged({"fedem": 0.7, "fedavg": 0.6}, repeats=1)
    apart = found.clients["fedem"] - found.clients["fedavg"]
    low, high = stats.t.interval(0.95, len(apart) - 1, apart.mean(), stats.sem(apart))
    assert found.difference("fedem", "fedavg") == plain({"value": apart.mean(), "low": low, "high": high})


def test_a_share_has_wilsons_interval():
    known = stats.binomtest(3, 11).proportion_ci(method="wilson")
    about = wilson(3, 11)
    assert (about["low"], about["high"]) == pytest.approx((known.low, known.high), abs=1e-6)
    assert wilson(0, 0)["value"] is None


def test_the_difference_at_one_site_is_that_of_bonett_and_price():
    hits = {"local": np.array([[1] * 30 + [0] * 10]), "fedavg": np.array([[1] * 25 + [0] * 12 + [1] * 3])}
    found = Judged(hits, np.zeros(40, dtype=int), 1, 4, True)
    n, first, second = 40, 5, 3  # rows that only one of the two has right
    p1, p2 = (first + 1) / (n + 2), (second + 1) / (n + 2)
    reach = stats.t.ppf(0.975, n - 1) * np.sqrt((p1 + p2 - (p1 - p2) ** 2) / (n + 2))
    about = found.site_differences("local", "fedavg")[0]
    assert about["value"] == pytest.approx(2 / 40)
    assert (about["low"], about["high"]) == pytest.approx((p1 - p2 - reach, p1 - p2 + reach), abs=1e-6)


@pytest.mark.parametrize(("sites", "clients", "rows"), [(True, 4, 60), (False, 30, 30)])
def test_intervals_of_gains_cover_the_truth(sites, clients, rows):
    covered = []
    for seed in range(300):
        found = judged({"fedem": 0.75, "fedavg": 0.7}, clients=clients, rows=rows, sites=sites, seed=seed)
        about = found.difference("fedem", "fedavg")
        covered.append(about["low"] <= 0.05 <= about["high"])
    assert np.mean(covered) > 0.95 - 5 * np.sqrt(0.95 * 0.05 / 300)
    assert np.mean(covered) < 0.999 or sites


def test_trainings_that_differ_make_intervals_wider_and_these_cover():
    truth, covered, widths = 0.05, [], []
    for seed in range(200):
        found = judged({"fedem": 0.75, "fedavg": 0.7}, clients=30, rows=40, seed=seed, moves=0.03)
        about = found.difference("fedem", "fedavg")
        covered.append(about["low"] <= truth <= about["high"])
        widths.append(about["high"] - about["low"])
    calm = judged({"fedem": 0.75, "fedavg": 0.7}, clients=30, rows=40).difference("fedem", "fedavg")
    assert np.mean(covered) > 0.95 - 5 * np.sqrt(0.95 * 0.05 / 200)
    assert np.mean(widths) > 1.5 * (calm["high"] - calm["low"])


def test_heterogeneity_of_sites_is_dersimonian_and_lairds():
    y, v = np.array([0.10, 0.30, 0.35, 0.65, 0.45, 0.15]), np.array([0.03, 0.03, 0.05, 0.01, 0.05, 0.02])
    w = 1 / v
    q = (w * (y - (w * y).sum() / w.sum()) ** 2).sum()
    tau2 = (q - 5) / (w.sum() - (w**2).sum() / w.sum())
    found = pooled(y, v)
    weight = 1 / (v + tau2)
    assert found["q"] == pytest.approx(q, abs=1e-6)
    assert found["tau2"] == pytest.approx(tau2, abs=1e-6)
    assert found["i2"] == pytest.approx((q - 5) / q, abs=1e-6)
    assert found["value"] == pytest.approx((weight * y).sum() / weight.sum(), abs=1e-6)
    by_hand = pooled([0.0, 2.0], [1.0, 1.0])  # Q = 1 + 1, tau2 = (2 - 1) / (2 - 1)
    assert (by_hand["q"], by_hand["tau2"], by_hand["i2"], by_hand["value"]) == (2.0, 1.0, 0.5, 1.0)
    assert found["p"] == pytest.approx(stats.chi2.sf(q, 5), abs=1e-6)
    assert pooled([0.2, 0.2], [0.1, 0.1])["tau2"] == 0
    one = pooled([0.2], [0.01])
    assert (one["value"], one["tau2"], one["i2"], one["p"], one["sites"]) == (0.2, 0.0, 0.0, 1.0, 1)
    assert (one["low"], one["high"]) == (pytest.approx(0.004), pytest.approx(0.396))


def test_advice_is_per_site_who_gains_and_who_loses():
    rng = np.random.default_rng(0)
    owner = np.repeat([0, 1, 2], 200)
    alone = rng.random(600) < np.repeat([0.5, 0.9, 0.7], 200)
    hits = {name: alone[None].astype(np.int8) for name in NAMES}
    hits["fedavg"] = (rng.random(600) < np.repeat([0.9, 0.5, 0.7], 200))[None].astype(np.int8)
    about = joining(Judged(hits, owner, 3, 4, True), "fedavg", ["a", "b", "c"], least=5)
    assert [row["verdict"] for row in about["rows"]] == ["gains", "loses", "not shown"]
    assert about["spread"]["i2"] > 0.9
    assert are_sites(4, None)
    assert not are_sites(30, None)
    assert are_sites(30, True)


def test_where_nothing_beats_the_commonest_class_no_method_is_advised():
    found = judged(dict.fromkeys(NAMES, 0.6))
    choice = choose(found)
    assert choice.advised is None
    assert choice.over["low"] <= 0
    sure = judged(dict.fromkeys(learn.ENTRANTS, 0.8) | dict.fromkeys(BASELINES, 0.4))
    assert choose(sure).advised == "local"
    assert set(choose(sure).tied) == set(learn.ENTRANTS)


def test_advised_is_the_simplest_near_the_most_accurate_that_is_supported():
    level = dict.fromkeys(learn.ENTRANTS, 0.7) | dict.fromkeys(BASELINES, 0.4)
    assert choose(judged(level | {"local": 0.5}, rows=80)).advised == "fedavg"
    far = choose(judged(level | {"local": 0.5, "fedem": 0.85}, rows=80))
    assert (far.advised, far.tied, far.simplest) == ("fedem", ("fedem",), "fedem")
    both = choose(judged(level | {"local": 0.5, "fedavg": 0.5, "fedavg+": 0.849, "fedgmm": 0.85}, rows=80))
    assert both.advised == "fedavg+"
    assert ORDER[:2] == ("local", "fedavg")


def test_of_methods_that_cannot_be_told_apart_the_better_estimate_is_advised_and_the_simplest_named():
    """Oracle: the rule, written anew for each draw from its intervals."""
    near = {"local": 0.66, "fedavg": 0.5, "fedavg+": 0.64, "ifca": 0.66, "fedem": 0.675, "fedgmm": 0.655}
    seen = set()
    for seed in range(12):
        found = judged(near | dict.fromkeys(BASELINES, 0.3), clients=40, rows=30, seed=seed)
        choice, means = choose(found), found.means
        shown = [
            m for m in ORDER if m in ("local", "fedavg") or found.difference(m, "fedavg", comparisons=5)["low"] > 0
        ]
        top = max((m for m in shown if m in choice.tied), key=lambda m: means[m])
        assert means[top] - means[choice.advised] < 0.005 or found.difference(top, choice.advised)["high"] < 0.011
        assert ORDER.index(choice.simplest) <= ORDER.index(choice.advised)
        assert choice.simplest in choice.tied
        assert choice.advised in choice.tied
        seen.add(choice.advised)
    assert "fedem" in seen


def test_nothing_is_advised_whose_gain_over_fedavg_is_not_shown():
    for seed in range(40):
        near = {"local": 0.5, "fedavg": 0.66, "fedavg+": 0.68, "ifca": 0.7, "fedem": 0.72, "fedgmm": 0.72}
        found = judged(near | dict.fromkeys(BASELINES, 0.3), clients=20, rows=20, seed=seed)
        advised = choose(found).advised
        if advised not in (None, "local", "fedavg"):
            assert found.difference(advised, "fedavg", comparisons=5)["low"] > 0


def test_stability_is_that_of_advice_when_clients_are_drawn_anew():
    level = dict.fromkeys(learn.ENTRANTS, 0.6) | dict.fromkeys(BASELINES, 0.3)
    sure = judged(level | {"fedavg": 0.9, "local": 0.4}, rows=60)
    about = stability(sure, choose(sure), seed=0)
    assert about == {"redraws": 100, "same": 100, "others": {}}
    edge = judged(level | {"local": 0.6, "fedavg": 0.645, "fedem": 0.645}, rows=30, clients=30)
    about = stability(edge, choose(edge), seed=0)
    assert 5 < about["same"] < 100
    assert about["same"] + sum(about["others"].values()) == 100


def test_a_redraw_keeps_all_that_is_known_of_a_client():
    found = judged({"fedavg": 0.7}, clients=6, rows=9)
    again = found.redrawn(np.random.default_rng(0))
    mine, theirs = found.clients["fedavg"], again.clients["fedavg"]
    assert set(np.round(theirs, 9)) <= set(np.round(mine, 9))
    rows = Judged(found.hits, found.owner, 6, 4, True).redrawn(np.random.default_rng(0))
    assert (rows.owner == found.owner).all()


def test_the_table_has_baselines_and_intervals_that_hold_together():
    found = judged({"fedavg": 0.7, "local": 0.6})
    rows = {row["method"]: row for row in standing(found, seed=0)}
    assert set(rows) == set(NAMES)
    assert [name for name, row in rows.items() if row["baseline"]] == list(BASELINES)
    extra = found.training_variance("fedavg", "")
    known = mean_interval(found.clients["fedavg"], comparisons=6, least=0.0, most=1.0, variance=extra)
    assert rows["fedavg"]["together"] == plain(known)
    assert rows["fedavg"]["gain"] is None
    assert rows["fedavg"]["over"]["low"] > 0.1
    assert rows["commonest"]["over"] is None


def test_the_worst_clients_of_four_rows_have_an_honest_interval():
    rng = np.random.default_rng(6)
    right = rng.binomial(4, 0.7, size=60).astype(float)
    about = worst_interval(right, np.full(60, 4), seed=0)
    assert worst_tenth(right / 4) < 0.4  # as seen, though all have 70%
    assert about["low"] < 0.7
    assert about["high"] > 0.6
    assert about["high"] - about["low"] > 0.05
    assert abs(worst_tenth(right / 4) - equal_tenth(right / 4, np.full(60, 4), seed=0)) < 0.15


def test_the_interval_of_the_worst_tenth_covers_it():
    covered = []
    for seed in range(120):
        rng = np.random.default_rng(seed)
        accuracy, tests = rng.beta(7, 3, 60), rng.integers(8, 40, 60)
        about = worst_interval(rng.binomial(tests, accuracy).astype(float), tests, seed=seed, draws=150)
        covered.append(about["low"] <= worst_tenth(accuracy) <= about["high"])
    assert np.mean(covered) > 0.95 - 5 * np.sqrt(0.95 * 0.05 / 120)


def fed(n_clients=8, rows=13, seed=0) -> Federation:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n_clients * rows, 3)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int32)
    made = Federation({"x": x, "y": y}, np.arange(0, len(y) + 1, rows), names={"y": ["a", "b"]})
    return made.with_column("z", x.astype(float))


def test_every_row_is_held_out_once_in_as_many_repeats_as_there_are_folds():
    rows = fed().with_column("at", np.arange(8 * 13))
    seen = [learn.held_out(rows, repeat=r, seed=3) for r in range(4)]
    tested = np.concatenate([clients.test["at"] for clients in seen])
    assert sorted(tested.tolist()) == list(range(8 * 13))
    for clients in seen:
        assert not set(clients.train["at"].tolist()) & set(clients.test["at"].tolist())
        assert (clients.train.sizes >= 9).all()
    again = learn.held_out(rows, repeat=4, seed=3)
    assert set(again.test["at"].tolist()) != set(seen[0].test["at"].tolist())


def test_a_learning_rate_is_chosen_without_a_look_at_the_rows_that_judge(monkeypatch):
    rows = fed().with_column("at", np.arange(8 * 13))
    clients = learn.held_out(rows, repeat=0, seed=0)
    seen, train = set(), learn.trained
    monkeypatch.setattr(learn, "trained", lambda m, c, **how: (seen.update(c["at"].tolist()), train(m, c, **how))[1])
    lr, start = learn.tuned("ifca", clients, seed=0, n_rounds=2)
    assert lr in (0.1, 0.4, 1.6, 6.4)
    assert start in (0, 1000, 2000)
    assert learn.tuned("local", clients, seed=0, n_rounds=2)[1] == 0
    assert seen
    assert not seen & set(clients.test["at"].tolist())


def test_a_budget_refuses_what_it_does_not_know():
    with pytest.raises(DataError, match="budget must be one of 30s, 2min, 20min, not '5min'"):
        budget_of("5min")
    with pytest.raises(DataError, match="rounds and seeds must be at least 1, not 0 and 4"):
        budget_of("30s", rounds=0, repeats=4)


def test_four_sites_are_studied_as_sites_and_noise_is_not_advised():
    rng = np.random.default_rng(2)
    x = rng.normal(size=(160, 3))
    noise = Federation({"x": x, "y": rng.integers(0, 2, 160)}, np.arange(0, 161, 40))
    result = study(noise, rounds=2, seeds=2, progress=False).result
    assert result["learn"]["sites"]
    assert len(result["learn"]["joining"]["rows"]) == 4
    answers = {item["question"]: item for item in result["advise"]}
    assert answers["Which method?"]["answer"] == "none"
    assert "no method is shown to beat guessing" in answers["Which method?"]["text"]
    assert "Who gains by joining?" in answers
    assert result["learn"]["joining"]["rows"][0]["site"] == "site 1"  # no id is in a report that is shared


@pytest.mark.parametrize(("clients", "sites"), [(30, False), (4, True)])
def test_the_commonest_of_nearly_equal_classes_varies_more_than_clients_explain(clients, sites):
    """Oracle: the variance of the mean over many draws of the whole federation, folds and all."""
    rng = np.random.default_rng(0)
    drawn = [rng.multinomial(np.full((4, clients), 30), [0.48, 0.47, 0.05]) for _ in range(600)]
    shares = np.array([of_folds(folds)[0] / 120 for folds in drawn])
    true = shares.mean(axis=1).var(ddof=1)
    known = (shares * (1 - shares) / 120).mean() / clients if sites else shares.var(axis=1, ddof=1).mean() / clients
    assert known < 0.7 * true  # what rows or clients explain
    further = [further_variance(folds, sites=sites, seed=s)["commonest"] for s, folds in enumerate(drawn[:60])]
    assert abs(known + np.mean(further) - true) < 0.5 * true


def test_trainings_that_do_not_move_hardly_widen_an_interval():
    """Rows tested on explain how repeats differ: the variance added is a fraction of that of the rows."""
    added, rows = [], []
    for seed in range(40):
        found = judged(dict.fromkeys(NAMES, 0.7), seed=seed)
        added.append(found.training_variance("fedem", "fedavg")[0])
        rows.append(found._moves["fedem", "fedavg"][1] / 4)
    assert np.mean(added) < 0.6 * np.mean(rows)


def test_trainings_that_move_widen_it_by_as_much():
    found = [judged(dict.fromkeys(NAMES, 0.7), seed=seed, moves=0.05).training_variance("fedem", "")[0]
             for seed in range(60)]  # fmt: skip
    true = 0.05**2 * (1 / 4 + 1 / 3)
    assert abs(np.mean(found) - true) < 5 * np.std(found, ddof=1) / np.sqrt(60)


@pytest.mark.parametrize("seed", range(12))
def test_the_advice_follows_from_the_table_where_little_is_shown(seed):
    """None is advised only if no lead over guessing lies above 0; what is advised is shown to beat it, and is near."""
    level = dict.fromkeys(NAMES, 0.4) | {"ifca": 0.45, "fedem": 0.46, "fedgmm": 0.44, "local": 0.38 + 0.02 * (seed % 4)}
    found = judged(level, clients=40, rows=20, seed=seed, spread=0.05)
    choice, rows = choose(found), {row["method"]: row for row in standing(found, seed=seed)}
    shown = {m for m in learn.ENTRANTS if rows[m]["over"]["low"] > 0}
    assert (choice.advised is None) == (not shown)
    assert choice.over == rows[choice.best]["over"]
    if choice.advised is not None:
        assert {choice.advised, choice.simplest} <= shown
        gain = rows[choice.advised]["gain"]
        common = choice.advised in ("local", "fedavg") or gain["low"] > 0
        assert common or "fedavg" not in shown or "fedavg" not in choice.tied
        federated = found.difference(max(set(shown) - {"local"}, key=found.means.get, default="fedavg"), "local",
                                     comparisons=5)  # fmt: skip
        assert choice.advised != "local" or federated["low"] <= 0 or federated["value"] < 0.01

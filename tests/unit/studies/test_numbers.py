"""A number to predict: models against scikit-learn, intervals against closed forms, advice for laws that are known."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from sklearn.linear_model import Ridge

from fedscape import Federation, datasets
from fedscape.studies import study
from fedscape.studies.budget import Limits
from fedscape.studies.choose import choose
from fedscape.studies.judged_numbers import JudgedNumbers, chosen_worst
from fedscape.studies.linear_models import alone, fitted, with_deviations
from fedscape.studies.numbers import COMMON, ORDER, tournament

SHORT = Limits(clients=60, rows=12_000, rounds=8, repeats=4)


def drawn(law: str, *, clients=24, rows=24, seed=0) -> Federation:
    """Clients whose number follows one rule, two rules, own rules, own levels, or nothing."""
    rng = np.random.default_rng(seed)
    owner = np.repeat(np.arange(clients), rows)
    x = rng.normal(size=(len(owner), 3))
    rules = {
        "one": np.tile([1.0, -1.0, 0.5], (clients, 1)),
        "two": np.array([[2.0, 0.0, 0.0], [-2.0, 0.0, 0.0]])[np.arange(clients) % 2],
        "own": 2.0 * rng.normal(size=(clients, 3)),
        "noise": np.zeros((clients, 3)),
    }[law]
    v = (x * rules[owner]).sum(axis=1) + (1.0 if law == "noise" else 0.5) * rng.normal(size=len(owner))
    return Federation({"x": x.astype(np.float32), "v": 7.0 + 3.0 * v}, np.arange(0, len(owner) + 1, rows))


def test_local_models_are_the_ridge_of_each_clients_rows():
    fed = drawn("own", clients=3, rows=9)
    said = alone(fed, 2.5)(fed)
    for c in range(3):
        one = fed.take([c])
        known = Ridge(alpha=2.5).fit(one["x"].astype(float), one["v"]).predict(one["x"].astype(float))
        assert said[fed.client_of_row == c] == pytest.approx(known, abs=1e-6)


def test_more_inputs_than_rows_give_the_same_ridge():
    rng = np.random.default_rng(1)
    fed = Federation({"x": rng.normal(size=(4, 9)), "v": rng.normal(size=4)}, [0, 4])
    known = Ridge(alpha=0.7).fit(fed["x"], fed["v"]).predict(fed["x"])
    assert alone(fed, 0.7)(fed) == pytest.approx(known, abs=1e-9)


def test_the_common_model_is_the_ridge_of_the_pooled_rows():
    fed = drawn("own")
    known = Ridge(alpha=30.0).fit(fed["x"].astype(float), fed["v"]).predict(fed["x"].astype(float))
    assert fitted("linear", fed, 30.0, rounds=1, seed=0)(fed) == pytest.approx(known, rel=1e-6)


def test_own_deviations_are_the_ridge_of_what_the_common_model_leaves():
    fed = drawn("own", clients=4, rows=12)
    common = fitted("linear", fed, 1.0, rounds=1, seed=0)
    said = with_deviations(fed, common, 5.0)(fed)
    design = np.column_stack([fed["x"].astype(float), np.ones(fed.n_rows)])
    for c in range(4):
        mine = fed.client_of_row == c
        left = (fed["v"] - common(fed))[mine]
        known = Ridge(alpha=5.0, fit_intercept=False).fit(design[mine], left).predict(design[mine])
        assert said[mine] - common(fed)[mine] == pytest.approx(known, abs=1e-6)


def test_a_strong_penalty_leaves_the_common_model():
    fed = drawn("own", clients=4)
    common = fitted("linear", fed, 1.0, rounds=1, seed=0)
    assert with_deviations(fed, common, 1e12)(fed) == pytest.approx(common(fed), abs=1e-6)


def test_r2_has_the_t_interval_of_clients_and_rmse_follows_from_it():
    rng = np.random.default_rng(0)
    owner = np.repeat(np.arange(20), 10)
    errors = {"local": rng.normal(size=(1, 200)), "mean": 2 * rng.normal(size=(1, 200))}
    judged = JudgedNumbers(errors, owner, 20, 4, spread=4.0)
    each = (1 - errors["local"][0] ** 2 / 4.0).reshape(20, 10).mean(axis=1)
    low, high = stats.t.interval(0.95, 19, each.mean(), stats.sem(each))
    about, rmse = judged.accuracy("local"), judged.rmse("local")
    assert (about["low"], about["high"]) == pytest.approx((low, high), abs=1e-6)
    assert rmse["value"] == pytest.approx(np.sqrt((errors["local"] ** 2).mean()), abs=1e-6)
    assert (rmse["low"], rmse["high"]) == pytest.approx((2 * np.sqrt(1 - high), 2 * np.sqrt(1 - low)), abs=1e-6)
    mae = np.abs(errors["local"][0]).reshape(20, 10).mean(axis=1)
    assert judged.mae("local")["value"] == pytest.approx(mae.mean(), abs=1e-6)


def test_sites_have_intervals_over_their_rows():
    rng = np.random.default_rng(2)
    errors = {"local": rng.normal(size=(1, 80)), "linear": rng.normal(size=(1, 80)), "mean": np.ones((1, 80))}
    judged = JudgedNumbers(errors, np.repeat([0, 1], 40), 2, 4, True, spread=2.0)
    mine = 1 - errors["local"][0, :40] ** 2 / 2
    low, high = stats.t.interval(0.95, 39, mine.mean(), stats.sem(mine))
    about = judged.of_sites("local")[0]
    assert (about["value"], about["low"], about["high"]) == pytest.approx((mine.mean(), low, high), abs=1e-6)
    apart = (errors["linear"][0] ** 2 - errors["local"][0] ** 2) / 2
    assert judged.site_differences("local", "linear")[1]["value"] == pytest.approx(apart[40:].mean(), abs=1e-6)
    assert judged.difference("local", "linear")["value"] == pytest.approx(apart.mean(), abs=1e-6)


def test_rows_that_were_not_held_out_count_nowhere():
    errors = np.full((2, 4), np.nan)
    errors[0, :2], errors[1, 2:] = 1.0, 2.0
    judged = JudgedNumbers({"local": errors}, np.array([0, 0, 1, 1]), 2, 2, spread=4.0)
    assert judged.clients["local"].tolist() == [0.75, 0.0]
    assert judged.tests.tolist() == [[2, 0], [0, 2]]


def test_the_worst_are_not_worse_than_luck_where_all_are_alike():
    held, seen, mean = [], [], np.sqrt(2 / np.pi)
    for seed in range(200):
        errors = {"linear": np.random.default_rng(seed).normal(size=(1, 60 * 16))}
        about = JudgedNumbers(errors, np.repeat(np.arange(60), 16), 60, 4, spread=1.0).worst("linear", seed=seed)
        held.append(about["low"] <= mean <= about["high"])
        seen.append(about["seen"])
    assert abs(np.mean(held) - 0.95) < 5 * np.sqrt(0.95 * 0.05 / 200)
    assert min(seen) > mean  # as they look, the worst are worse than the mean in every draw


def test_the_worst_are_found_where_they_are():
    halves = np.column_stack([np.r_[np.full(6, 9.0), np.ones(54)]] * 2)
    assert chosen_worst(halves).tolist() == [9.0] * 6


@pytest.mark.parametrize(("law", "advised"), [("one", {"linear"}), ("own", {"local"}), ("noise", {None})])
def test_the_advice_is_what_the_law_is_made_for(law, advised):
    judged, _ = tournament(drawn(law), SHORT, seed=0, say=lambda _: None)
    assert choose(judged, order=ORDER, common=COMMON).advised in advised


def test_two_rules_have_two_classes_that_beat_one_model_and_own_ones():
    judged, _ = tournament(drawn("two", clients=30, rows=8, seed=3), SHORT, seed=0, say=lambda _: None)
    assert judged.means["hlcr"] > judged.means["linear"] + 0.5
    assert judged.means["hlcr"] > judged.means["local"]
    assert choose(judged, order=ORDER, common=COMMON).advised == "hlcr"


def test_units_do_not_change_the_advice_and_scale_the_errors():
    fed = drawn("one", clients=12, rows=12)
    first, _ = tournament(fed, SHORT, seed=0, say=lambda _: None)
    again, _ = tournament(fed.with_column("v", 1000 * fed["v"] - 5), SHORT, seed=0, say=lambda _: None)
    assert again.means["linear"] == pytest.approx(first.means["linear"], abs=1e-9)
    assert again.rmse("linear")["value"] == pytest.approx(1000 * first.rmse("linear")["value"], rel=1e-6)


def test_a_study_of_a_number_advises_a_model_and_its_page_has_its_errors(tmp_path):
    flights = datasets.load("flights-mini")
    done = study(flights, column="arr_delay", features=["dep_delay", "distance"], rounds=4, progress=False)
    about = done.result["numbers"]
    assert "learn" not in done.result
    assert {row["method"] for row in about["true"]} == {*ORDER, "mean", "own-mean"}
    by = {row["method"]: row for row in about["true"]}
    assert by["linear"]["r2"]["value"] > 0.5 > by["mean"]["r2"]["value"]
    assert by["linear"]["rmse"]["low"] < by["linear"]["rmse"]["value"] < by["linear"]["rmse"]["high"]
    questions = {item["question"]: item for item in done.result["advise"]}
    assert "root mean square" in questions["Which method?"]["text"]
    page = (done.save(tmp_path) / "report.html").read_text()
    assert "root mean squared error" in page
    assert "hit the class" not in page
    assert {"rmse", "mae", "r2_low", "worst_mae"} <= set(done.tables()["methods"][0])


def test_a_study_of_a_number_is_the_same_bytes_again():
    fed = drawn("own", clients=8, rows=12).with_column("score", drawn("own", clients=8, rows=12)["v"])
    fed = fed.select(["x", "score"])
    first, again = (study(fed, column="score", seeds=2, rounds=3, progress=False).result for _ in range(2))
    assert first == again
    assert len(first["numbers"]["joining"]["rows"]) == 8

"""Who takes part in a tournament: any method of the table by name, trees and a GLM on tables, heavy tails cut."""

from __future__ import annotations

import numpy as np
import pytest

from fedscape import DataError, Federation, study
from fedscape.methods import METHODS, names
from fedscape.statistics.tails import tails
from fedscape.studies import tournament as learning

SCHEDULED = names("temporal")


def shop(n: int = 24, seed: int = 0) -> Federation:
    """A table in which the price says the product, as only trees see, and one quantity is enormous."""
    rng = np.random.default_rng(seed)
    price = rng.uniform(0, 10, 20 * n)
    odd = rng.random(len(price)) < 0.15
    product = np.where(odd, rng.integers(0, 4, len(price)), np.floor(price * 1.2).astype(int) % 4)
    quantity = rng.integers(1, 9, len(price)).astype(float)
    quantity[3] = 80_995.0
    return Federation({"quantity": quantity, "price": price, "label": product}, np.arange(0, 20 * n + 1, 20))


@pytest.mark.parametrize("name", [name for name in METHODS if name not in SCHEDULED])
def test_any_method_of_the_table_can_be_named_and_has_its_rate_tuned(name):
    fed = shop(6)
    x = np.stack([fed["price"], np.log(fed["quantity"])], axis=1)
    rows = Federation({"x": x, "y": fed["label"].astype(np.int32)}, fed.offsets, names={"y": list("abcd")})
    clients = learning.held_out(learning.directions(rows, table=True), repeat=0, seed=0)
    assert name in learning.entrants([name])
    lr, start = learning.tuned(name, clients, seed=0, n_rounds=1)
    assert lr > 0
    done = learning.trained(name, clients.train, lr=lr, seed=start, n_rounds=2)
    assert done.predict(clients.test).shape == (clients.test.n_rows,)


@pytest.mark.parametrize("name", SCHEDULED)
def test_a_method_on_a_schedule_is_refused_in_one_line(name):
    with pytest.raises(DataError, match=f"{name} needs a schedule of rounds, which a study does not have"):
        study(shop(6), methods=[name])


def test_a_study_of_a_table_has_trees_and_a_glm_with_all_that_others_have():
    done = study(shop(), rounds=4, seeds=2, progress=False)
    learn = done.result["learn"]
    rows = {row["method"]: row for row in learn["true"]}
    assert set(rows) >= {"trees", "glm", "fedavg", "local"}
    assert rows["trees"]["accuracy"]["value"] > 0.6 > rows["fedavg"]["accuracy"]["value"]
    assert rows["trees"]["gain"]["low"] > 0
    assert rows["glm"]["lr"] is None
    assert rows["trees"]["lr"] in (0.1, 0.3)
    assert learn["advised"] == "trees"
    assert {cost["method"]: cost.get("rounds") for cost in learn["costs"]}["trees"] == 20
    assert any("cut to their quantiles 0.005 and 0.995" in note for note in done.result["notes"])
    question = next(item for item in done.result["advise"] if item["question"] == "Is personalisation worth it?")
    assert question["text"].endswith("Boosted trees, which is advised, is one model for all.")
    joined = next(item for item in done.result["advise"] if item["question"] == "Is federation worth it?")
    assert (joined["answer"] == "worth it") == (joined["low"] > 0 and joined["value"] >= 0.01)
    assert joined["answer"] in ("worth it", "not known")  # trees were not trained alone
    assert "Advice: Boosted trees; " in done.html()


def test_a_tournament_without_a_personal_method_asks_nothing_about_one():
    done = study(shop(), methods=["glm"], rounds=2, seeds=2, progress=False)
    assert {row["method"] for row in done.result["learn"]["true"] if not row["baseline"]} == {"fedavg", "glm", "local"}
    assert all("ersonalisation" not in item["question"] for item in done.result["advise"])
    assert "Which method?" in done.html()


def test_training_alone_sends_no_model_and_a_forecast_that_failed_is_no_yes():
    from fedscape.studies.advise import _cost, _planning

    cost = {"method": "local", "bytes_up": 16, "bytes_down": 400, "seconds": {"value": 0.1, "low": 0.1, "high": 0.1}}
    item = _cost({"costs": [cost], "settled": 4, "rounds": 20}, {"method": "local", "called": "Local (alone)"})
    assert item["answer"] == "no model is sent"
    about = {"predicted": "IFCA", "realised": "IFCA", "same": True, "method": "IFCA", "error": 0.01}
    about |= {
        "gain": {"value": 0.05, "low": 0.02, "high": 0.08},
        "true_gain": {"value": 0.04, "low": 0.01, "high": 0.07},
    }
    steady = {"same": 90, "redraws": 100, "others": {}}
    assert _planning({"prediction": about, "stability": steady})["answer"] == "yes"
    moved = _planning({"prediction": about, "stability": {**steady, "same": 60}})
    assert (moved["answer"], "60 of 100 redraws" in moved["text"]) == ("with care", True)
    off = about | {"true_gain": {"value": 0.09, "low": 0.06, "high": 0.12}}
    failed = _planning({"prediction": off, "stability": steady})
    assert (failed["answer"], "outside of what was predicted" in failed["text"]) == ("with care", True)


def test_named_methods_are_those_of_the_tournament_beside_fedavg_and_local():
    done = study(shop(), rounds=2, seeds=1, methods=["trees", "fedper"], progress=False)
    assert [row["method"] for row in done.result["learn"]["true"] if not row["baseline"]] == [
        "fedavg", "trees", "fedper", "local",
    ]  # fmt: skip
    assert done.result["about"]["asked"]["methods"] == ["trees", "fedper"]
    with pytest.raises(DataError, match=r"method must be one of fedavg, .* not 'fedmagic'"):
        study(shop(6), methods=["fedmagic"])


def test_far_values_are_cut_to_quantiles_of_the_pooled_rows():
    rng = np.random.default_rng(2)
    values = np.stack([rng.standard_t(1.2, 4000), rng.normal(size=4000)], axis=1)
    values[5, 0] = np.nan
    low, high = tails(values, np.arange(0, 4001, 40))
    known = values[np.isfinite(values[:, 0]), 0]
    ends = np.quantile(known, [0.005, 0.995], method="inverted_cdf")
    np.testing.assert_allclose([low[0], high[0]], ends)
    assert (low[1], high[1]) == (values[:, 1].min(), values[:, 1].max())
    assert tails(values[:, 1:], np.arange(0, 4001, 40)) is None


def test_rates_are_climbed_to_the_best():
    for best in (0.1, 0.4, 1.6, 6.4):
        scores = learning.climbed((0.1, 0.4, 1.6, 6.4), lambda rate, best=best: abs(np.log(rate / best)))
        assert min(scores, key=lambda rate: scores[rate]) == best
        assert len(scores) == 3


def test_the_page_names_the_most_accurate_method_of_the_last_stage():
    """A method that left with 60 clients may have a higher number there than any has now."""
    import copy

    done = study(shop(), methods=["glm"], rounds=2, seeds=2, progress=False)
    result = copy.deepcopy(done.result)
    rows = {row["method"]: row for row in result["learn"]["true"]}
    left = next(m for m in ("glm", "fedavg", "local") if m != result["learn"]["best"])
    rows[left]["accuracy"], rows[left]["clients"] = {"value": 0.999, "low": 0.9, "high": 1.0}, 7
    page = type(done)(result).html()
    assert f"Of the methods {rows[result['learn']['best']]['called']} is the most accurate" in page

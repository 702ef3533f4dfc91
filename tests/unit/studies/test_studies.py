"""The main job: known answers on clients made for them, and an answer for every kind of input."""

from __future__ import annotations

import json
import sys
from functools import cache

import dp_accounting
import numpy as np
import pytest
from dp_accounting import pld

import fedscape as fs
from fedscape import DataError, Federation
from fedscape.formats.kinds import Overrules
from fedscape.methods import METHODS
from fedscape.studies import Study, compare, explain, study
from fedscape.studies import tournament as learn
from fedscape.studies.advise import advise
from fedscape.studies.answers import verdict
from fedscape.studies.budget import Limits
from fedscape.studies.compare import drift
from fedscape.studies.explain import names
from fedscape.studies.intervals import gini, gini_interval, mean_interval, plain
from fedscape.studies.kinds import census, price
from fedscape.studies.prepare import MOST_CATEGORIES, prepare
from fedscape.tabular.saved import METHODS as TABLES


def short(fed: Federation, *, rounds: int = 2, **how) -> dict:
    """A study of few rounds: what is tested is the way, not the accuracy."""
    return study(fed, rounds=rounds, seeds=1, progress=False, **how).result


@cache
def done() -> Study:
    return study(skewed(), rounds=2, seeds=1, progress=False)


@cache
def races() -> Study:
    return study(fs.datasets.load("acs-race").take(slice(24)), epsilon=2.0, progress=False)


def skewed(n_clients: int = 24, rows: int = 30, *, seed: int = 0, flipped: bool = False) -> Federation:
    """Two kinds of clients by label; where flipped, the second kind also has the opposite rule."""
    rng = np.random.default_rng(seed)
    kind = np.arange(n_clients * rows) // rows % 2
    x = rng.normal(size=(n_clients * rows, 5)) + 0.8 * kind[:, None]
    y = (x[:, 0] + 0.3 * rng.normal(size=len(x)) > 0.4).astype(int)
    if flipped:
        y = np.where(kind == 1, 1 - y, y)
    return Federation({"x": x, "y": y}, np.arange(0, len(x) + 1, rows), [f"patient-{i:03d}" for i in range(n_clients)])


def test_an_interval_over_clients_is_that_of_students_t():
    from scipy import stats

    values = np.array([0.2, 0.5, 0.9, 0.4])
    low, high = stats.t.interval(0.95, 3, values.mean(), stats.sem(values))
    assert mean_interval(values) == plain({"value": values.mean(), "low": low, "high": high})
    wider = mean_interval(values, comparisons=5)
    assert wider["low"] < low < high < wider["high"]
    assert mean_interval(np.array([0.9, 1.0, 0.2]), least=0.0, most=1.0)["high"] == 1.0


def test_two_sources_of_variance_have_the_degrees_of_freedom_of_welch():
    from scipy import stats

    first, second = np.array([0.1, 0.4, 0.2, 0.7]), np.array([0.3, 0.35, 0.5])
    welch = stats.ttest_ind(first, second, equal_var=False).confidence_interval()
    about = mean_interval(first - second.mean(), variance=(second.var(ddof=1) / 3, 2))
    assert (about["low"], about["high"]) == pytest.approx(tuple(welch), abs=1e-6)


def test_fewer_clients_are_enough_only_if_the_interval_says_so():
    from fedscape.studies.advise import _cohort

    def answer(**behind: float) -> dict:
        rows = [{"clients": 5, "behind": behind}, {"clients": 10, "behind": apart(0.0, 0.0, 0.0)}]
        return _cohort({"cohorts": rows, "rounds": 3, "seeds": 1})

    assert answer(**apart(0.0, -0.03, 0.03))["answer"] == "not shown"
    assert answer(**apart(0.0, -0.005, 0.005))["answer"] == "5"
    assert answer(**apart(0.05, 0.03, 0.07))["answer"] == "10"
    assert "one seed" in answer(**apart(0.05, 0.03, 0.07))["text"]


def test_one_client_has_no_interval_and_nobody_no_mean():
    assert mean_interval(np.array([0.5, np.nan])) == {"value": 0.5, "low": None, "high": None}
    assert mean_interval(np.array([])) == {"value": None, "low": None, "high": None}


def test_gini_is_half_the_relative_mean_difference():
    sizes = np.array([1, 4, 5, 10])
    brute = np.abs(sizes[:, None] - sizes).mean() / (2 * sizes.mean())
    assert gini(sizes) == pytest.approx(brute)
    assert gini_interval(sizes)["low"] <= brute <= gini_interval(sizes)["high"]


def test_the_sections_of_a_study_and_the_same_bytes_twice(tmp_path):
    made = done()
    assert {"describe", "measure", "model", "simulate", "learn", "advise"} <= set(made.result)
    made.save(tmp_path / "a")
    study(skewed(), rounds=2, seeds=1, progress=False).save(tmp_path / "b")
    files = [path.relative_to(tmp_path / "a") for path in (tmp_path / "a").rglob("*") if path.is_file()]
    assert len(files) > 8
    for name in files:
        if name.name != "seconds.json":
            assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes(), name
    again = Study.load(tmp_path / "a")
    assert again.result == json.loads(json.dumps(made.result))


def test_every_answer_carries_a_number_and_an_interval():
    for item in done().result["advise"]:
        assert None not in (item["value"], item["low"], item["high"]), item["question"]
        assert any(c.isdigit() for c in item["text"])
        assert "[" in item["text"]


def test_where_clients_have_opposite_rules_personalisation_is_worth_it():
    result = short(skewed(24, 60, flipped=True), rounds=8)
    answers = {item["question"]: item for item in result["advise"]}
    assert answers["Is personalisation worth it?"]["answer"] == "worth it"
    assert answers["Is personalisation worth it?"]["low"] > 0.1
    assert answers["Which method?"]["answer"] != "FedAvg"


def test_where_clients_are_alike_it_is_not_worth_it():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(20 * 60, 4))
    fed = Federation({"x": x, "y": (x[:, 0] > 0).astype(int)}, np.arange(0, 1201, 60))
    answers = {item["question"]: item for item in short(fed, rounds=8)["advise"]}
    assert answers["Do clients differ?"]["answer"] == "not measurably"
    assert answers["Is personalisation worth it?"]["answer"] in ("not worth it", "not shown")
    assert answers["Which method?"]["answer"].startswith(("FedAvg", "Clustered", "FedEM", "FedGMM"))


def apart(value: float, low: float, high: float) -> dict:
    return {"value": value, "low": low, "high": high}


def test_clients_differ_if_labels_or_features_do_and_the_answer_says_which():
    noise, skew = apart(0.001, -0.01, 0.01), apart(0.417, 0.327, 0.508)
    answer = advise_of({"labels": skew, "features": noise})
    assert answer["answer"] == "yes"
    assert answer["text"].startswith("Clients differ in labels:")
    assert answer["value"] == 0.417
    assert advise_of({"labels": noise, "features": skew})["text"].startswith("Clients differ in features:")
    assert advise_of({"labels": skew, "features": skew})["text"].startswith("Clients differ in labels and features:")
    assert advise_of({"labels": noise, "features": noise})["answer"] == "not measurably"
    barely = apart(0.2, 0.01, 0.39)  # of two intervals one lies above 0 by chance more often than one alone
    assert advise_of({"labels": barely})["answer"] == "yes"
    assert advise_of({"labels": barely, "features": noise})["answer"] == "not measurably"


def test_the_first_answer_says_how_many_rows_would_need_other_labels():
    labels = apart(0.417, 0.327, 0.508) | {"tvd": 0.25, "tvd_iid": 0.05, "tvd_iid_sd": 0.01}
    ending = (
        "On average 25% of a client's rows would need other labels to match the overall shares; by chance alone it "
        "would be 5.0% [3.0%, 7.0%]."
    )
    assert advise_of({"labels": labels})["text"].endswith(ending)


def test_the_kind_served_worst_is_said_to_be_one_of_those_shown():
    from fedscape.studies.advise import _worst

    best = {"called": "FedAvg", "accuracy": apart(0.6, 0.5, 0.7), "worst": apart(0.4, 0.3, 0.5)}
    best["worst"] |= {"clients": 5, "seen": 0.3, "equal": 0.45}
    kinds = [{"kind": f"kind {k}", "clients": 6, **apart(v, v, v)} for k, v in (("A", 0.7), ("B", 0.8))]
    for clients, said in ((12, " Of the kinds, kind A"), (15, " Of the kinds of 5 clients or more here, kind A")):
        assert said in _worst({"by_kind": kinds, "clients": clients, "sites": False}, best)["text"]


def advise_of(measured: dict) -> dict:
    kinds = {"components": [{"share": apart(1.0, 1.0, 1.0)}]}
    return advise({"measure": measured, "model": kinds})[0]


def test_a_negative_distance_behind_is_said_as_ahead():
    from fedscape.studies.advise import _cohort

    rows = [{"clients": 7, "behind": {"value": -0.012, "low": -0.237, "high": 0.214}}, {"clients": 15, "behind": {}}]
    text = _cohort({"cohorts": rows, "rounds": 20, "seeds": 4})["text"]
    assert "with 7 per round FedAvg is 1.2 points [-21.4, 23.7] ahead of all 15 after 20 rounds" in text


def test_training_alone_is_no_personalisation():
    from fedscape.studies.advise import _worth

    rows = [
        {"method": m, "called": m, "baseline": False, "accuracy": apart(v, v, v), "gain": g, "clients": 9}
        for m, v, g in (
            ("fedavg", 0.7, None),
            ("fedem", 0.7, apart(0.001, -0.003, 0.004)),
            ("local", 0.9, apart(0.2, 0.1, 0.3)),
        )
    ]
    stages = [{"methods": ["fedavg", "fedem", "local"], "settled": True}]
    section = {"true": rows, "stages": stages, "clients": 9, "seeds": 2, "sites": False, "capped": False}
    item = _worth(section, rows[2])
    assert item["answer"] == "not worth it"
    assert "fedem" in item["text"]


def test_a_method_that_left_is_no_evidence_beside_a_common_one_with_more_rounds():
    """Stages of the same clients differ in rounds alone: what left had its gain over FedAvg with fewer rounds."""
    from fedscape.display import called_in
    from fedscape.studies.advise import _worth

    gains = {"fedavg": None, "ifca": apart(0.05, 0.03, 0.07), "fedem": apart(0.001, -0.003, 0.004)}
    rounds = {"fedavg": 80, "ifca": 20, "fedem": 80}
    rows = [
        {"method": m, "called": m, "baseline": False, "gain": g, "better": 0.9, "clients": 30, "rounds": rounds[m]}
        for m, g in gains.items()
    ]
    stages = [{"methods": list(gains), "settled": False}, {"methods": ["fedavg", "fedem"], "settled": True}]
    section = {"true": rows, "stages": stages, "clients": 30, "seeds": 2, "sites": False, "capped": False}
    item = _worth(section, rows[0])
    assert item["answer"] == "not worth it"
    assert item["text"].startswith("Not worth it: fedem")
    alone = _worth(section | {"true": rows[:2]}, rows[0])  # none is left but one of a stage before
    assert alone["text"].startswith("Worth it: ifca (left after 20 rounds) gains +5.0 points")
    assert [called_in(section, row) for row in rows] == ["fedavg", "ifca (left after 20 rounds)", "fedem"]
    rows[1]["rounds"] = None  # a GLM has none
    assert called_in(section, rows[1]) == "ifca (left in stage 1)"
    assert called_in(section, {"method": "majority", "called": "Commonest", "baseline": True}) == "Commonest"


def test_who_gave_the_rounds_is_told_to_give_more():
    from fedscape.studies.advise import climbing_text

    section = {
        "true": [{"method": "fedem", "called": "FedEM", "rounds": 40}], "climbing": {"fedem": 0.02}, "budget": "30s",
    }  # fmt: skip
    assert climbing_text(section, None).endswith("a larger --budget trains longer.")
    assert climbing_text(section, 40).endswith("so do more --rounds.")
    assert climbing_text(section | {"budget": "20min"}, None).endswith("so do more --rounds.")


def test_fedavg_is_said_to_have_settled_on_a_curve_as_long_as_its_training():
    from fedscape.studies.advise import _cost

    cost = {"method": "ifca", "bytes_up": 16, "bytes_down": 400, "rounds": 20, "seconds": apart(0.1, 0.1, 0.1)}
    text = _cost({"costs": [cost], "settled": 12, "rounds": 20}, {"method": "ifca"})["text"]
    assert text.endswith("4 MB/s down]. FedAvg is within a point of its accuracy after 20 rounds by round 12.")


@pytest.mark.parametrize(("rounds", "marks"), [(3, [2, 3]), (20, list(range(2, 21, 2))), (80, list(range(8, 81, 8)))])
def test_cohorts_train_for_the_rounds_of_the_tournament(rounds, marks):
    limits = Limits(clients=60, rows=12_000, rounds=rounds, repeats=1)
    for row in learn.cohorts(skewed(6), limits, lr=0.1, seed=1, say=str):
        assert [number for number, _ in row["curve"]] == marks


def test_verdicts_need_both_size_and_certainty():
    assert verdict({"value": 0.05, "low": -0.01, "high": 0.11}) == "unclear"
    assert verdict({"value": 0.004, "low": 0.001, "high": 0.007}) == "no"
    assert verdict(None) == "no"


def test_feature_skew_beyond_labels_is_told_from_what_labels_explain():
    rng = np.random.default_rng(2)
    y = np.repeat([0, 1], 300)  # twelve clients of one label each: labels explain all
    x = 3.0 * y[:, None] + rng.normal(size=(600, 3))
    about = short(Federation({"x": x, "y": y}, np.arange(0, 601, 50)))["measure"]["features"]
    assert about["value"] > 0.1
    assert about["by_labels"]["value"] == pytest.approx(about["value"], rel=0.15)
    own = np.repeat(rng.normal(scale=3.0, size=(12, 3)), 50, axis=0)  # each client has a place of its own
    mixed = rng.integers(0, 2, 600)
    fed = Federation({"x": own + rng.normal(size=(600, 3)), "y": mixed}, np.arange(0, 601, 50))
    about = short(fed)["measure"]["features"]
    assert about["by_labels"]["value"] < 0.1 * about["value"]


def test_no_simulated_client_is_tested_on_a_row_that_anyone_trained_on():
    from fedscape.simulate import FullyIID
    from fedscape.studies.fidelity import clients_of

    rows = Federation({"x": np.zeros((40, 1)), "y": np.zeros(40, dtype=int)}, [0, 40], names={"y": ["a"]})
    drawn = clients_of(rows, FullyIID(30), 5, seed=0)  # 150 rows of 40
    made = learn.held_out(drawn, repeat=0, seed=0)
    assert not np.isin(made.test["row"], made.train["row"]).any()
    assert made.train.n_rows > 0


def test_the_price_of_a_private_count_is_near_what_counts_in_fact_cost():
    counts = fs.datasets.load("acs-race").counts("y")
    said = next(row for row in price(counts) if row["epsilon"] == 2.0)
    made = census(counts, epsilon=2.0)
    assert 0.2 * said["error"] < made["error"] < 3 * said["error"]
    assert made["spent"][0]["epsilon"] <= 2.0


def test_the_noise_of_one_release_is_what_the_accountant_finds():
    accountant = pld.PLDAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
    said = next(row for row in price(np.eye(5)) if row["epsilon"] == 2.0)
    accountant.compose(dp_accounting.GaussianDpEvent(said["multiplier"]))
    assert accountant.get_epsilon(1e-5) == pytest.approx(2.0, rel=0.01)


def test_drift_is_found_where_it_is_and_seldom_where_it_is_not():
    def about(shift: float, seed: int) -> dict:
        rng = np.random.default_rng(seed)
        p = np.array([0.5 - shift, 0.3, 0.2 + shift])
        counts = np.stack([rng.multinomial(40, rng.dirichlet(20 * p)) for _ in range(60)])
        shares = counts / 40
        return of_shares(shares)

    found = drift(about(0.0, 1), about(0.1, 2))
    assert found["p"] < 0.001
    assert found["low"] < 0.1 < found["high"]
    assert found["moved"][0]["category"] in ("a", "c")
    false = np.mean([drift(about(0.0, 10 + i), about(0.0, 500 + i))["p"] < 0.05 for i in range(100)])
    assert false < 0.05 + 5 * np.sqrt(0.05 * 0.95 / 100)


def of_shares(shares: np.ndarray) -> dict:
    n, categories = shares.shape
    spread = np.cov(shares.T) / n if n > 1 else np.zeros((categories, categories))
    names = [str(j) for j in range(categories)] if categories != 3 else ["a", "b", "c"]
    return {"names": names, "mean_share": shares.mean(0), "covariance": spread, "clients_with_rows": n}


def test_drift_of_few_clients_is_seldom_found_where_there_is_none():
    rng = np.random.default_rng(0)
    for n in (3, 5):
        found = [
            drift(*(of_shares(rng.dirichlet([1.0, 1.0], n)) for _ in "ab"), seed=i, draws=500)["p"] < 0.05
            for i in range(300)
        ]
        assert np.mean(found) < 0.05 + 5 * np.sqrt(0.05 * 0.95 / 300)
    about = drift(of_shares(np.array([[1.0, 0.0]])), of_shares(rng.dirichlet([1.0, 1.0], 20)))
    assert about["p"] == 1.0
    assert (about["low"], about["high"]) == (0.0, 1.0)


def test_the_interval_of_a_small_drift_covers_it():
    rng = np.random.default_rng(0)
    apart = 1.5 * np.sqrt(2 / 12 / 400)  # in standard errors of the difference
    covered = []
    for i in range(300):
        a, b = rng.uniform(0, 1 - apart, 400), rng.uniform(apart, 1, 400)
        about = drift(of_shares(np.c_[a, 1 - a]), of_shares(np.c_[b, 1 - b]), seed=i, draws=500)
        covered.append(about["low"] <= apart <= about["high"])
    assert np.mean(covered) > 0.95 - 5 * np.sqrt(0.95 * 0.05 / 300)


def test_two_studies_are_compared_by_their_results_alone():
    one = done()
    about = compare(one, Study(json.loads(json.dumps(one.result))))
    assert about["drift"]["p"] == 1.0
    assert {"clients", "heterogeneity of labels", "accuracy of FedAvg"} <= {row["what"] for row in about["rows"]}
    with pytest.raises(DataError, match="share no category"):
        compare(one, races())


@pytest.mark.parametrize("method", names())
def test_every_method_is_explained_and_reveals_are_named(method):
    about = explain(method)
    assert about["phases"]
    for phase in about["phases"]:
        assert phase["bytes_up"] == sum(array["bytes"] for array in phase["sent"])
        revealed = {array["name"] for array in phase["sent"] if array["seen"] == "client by client"}
        assert revealed == set(phase["reveals"])
    listed = METHODS[method].reveals if method in METHODS else ()
    assert about["reveals"] == sorted(listed)


def test_a_first_round_that_sends_other_arrays_is_explained_too():
    first, later = (phase["sent"] for phase in explain("feddbe")["phases"])
    assert [array["name"] for array in first] == ["features", "weight"]
    assert "features" not in {array["name"] for array in later}


def test_an_explanation_says_what_a_new_client_gets_and_why_a_method_cannot_be_private():
    assert explain("fedavg")["new_client"] == "the common model"
    assert explain("fedper")["new_client"] == "no prediction before it has trained its own part"
    assert explain("feddbe")["new_client"] == "the common model with no shift"
    assert explain("moments")["new_client"] is None
    assert explain("profiles")["cannot_be_private"].startswith("its groups are first found by exact sums")
    assert explain("fedavg")["cannot_be_private"] == ""


def test_every_method_of_the_command_line_is_explained():
    assert {*METHODS, *TABLES} <= set(names())


def test_an_unknown_method_is_refused():
    with pytest.raises(DataError, match=r"method must be one of fedavg, .*, not 'fedmagic'"):
        explain("fedmagic")


def test_a_result_is_made_to_be_shared():
    assert "client 1" in json.dumps(done().result)
    assert "patient" not in json.dumps(done().result)
    shown = short(skewed(8, 12), rounds=1, show_clients=True)
    assert shown["clients"][3]["client"] == "patient-003"
    assert 0 <= shown["clients"][3]["fedavg"] <= 1


def test_numbers_of_clients_are_the_same_whatever_the_order_of_their_ids():
    from types import SimpleNamespace

    from fedscape.studies.describe import name_clients

    rng = np.random.default_rng(3)
    counts, shares = rng.integers(1, 40, size=(30, 3)), rng.dirichlet([1, 1], size=30)
    where: list = rng.integers(0, 9, size=(30, 2)).tolist()
    where[4], where[9] = [None, None], [None, None]

    def numbered(order: np.ndarray) -> dict:
        points = {"clients": list(range(30)), "labels": {"points": [where[i] for i in order]}}
        data = SimpleNamespace(counts=counts[order], table=SimpleNamespace(ids=order))
        name_clients({"measure": {"map": points}}, data, shares[order], {}, False)
        return points

    first = numbered(np.arange(30))
    assert first["client"] == [f"client {i + 1}" for i in range(30)]
    assert first == numbered(rng.permutation(30))
    assert first["labels"]["points"] != where


def test_what_fewer_than_five_clients_have_is_not_in_a_shared_result():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 400)
    y[[5, 45, 46]], y[90] = 3, 4  # "scurvy" at two clients, "leprosy" at one
    sizes = np.append(np.full(38, 10), 20)
    names = ["flu", "cold", "cough", "scurvy", "leprosy"]
    fed = Federation({"y": y}, np.concatenate(([0], np.cumsum(sizes))), names={"y": names})
    data = prepare(fed, least=5)
    assert data.names[-1] == "(all other)"
    assert (data.counts[:, -1] > 0).sum() >= 5  # the next rarest joined them
    assert data.counts.sum() == 400
    assert data.rows.counts("y").tolist() == data.counts.tolist()
    assert not {"scurvy", "leprosy"} & set(data.names)
    assert prepare(fed).names == tuple(names)
    few = prepare(fed.take(slice(4)), least=5)
    assert "flu" in few.names
    assert any("look before you share" in note for note in few.notes)
    ready = Federation({"y": fed.counts("y")}, np.arange(40), names={"y": names})
    assert prepare(ready, least=5).counts.tolist() == data.counts.tolist()


def test_sizes_of_single_clients_and_kinds_of_few_are_withheld():
    from types import SimpleNamespace

    from fedscape.studies.describe import described

    sizes = np.append(np.full(19, 10), 777)
    fed = Federation({"y": np.arange(sizes.sum()) % 2}, np.concatenate(([0], np.cumsum(sizes))))
    data = SimpleNamespace(table=fed, counts=fed.counts("y"), names=("0", "1"), ordered=False)
    about = described(data, False)
    assert about["rows_per_client"]["largest"] == "512 to 1,023 rows"
    assert not {"min", "max"} & set(about["rows_per_client"])
    assert sum(about["sizes"]["clients"]) == 20
    assert not {777, 778} & set(about["sizes"]["edges"])
    assert described(data, True)["rows_per_client"]["max"] == 777
    assert all(kind["clients"] >= 5 for kind in done().result["learn"]["by_kind"])


# -- input of every kind ---------------------------------------------------------------------------------------------


def test_one_client_is_refused():
    with pytest.raises(DataError, match="needs at least two, the data have 1"):
        study(Federation({"y": [0, 1]}, [0, 2]))


def test_clients_without_any_rows_are_refused():
    with pytest.raises(DataError, match="none of the clients has any"):
        study(Federation({"y": np.empty(0, dtype=int)}, [0, 0, 0]))


def test_two_rows_a_client_are_studied_to_the_end():
    result = short(skewed(30, 2))
    assert result["learn"]["test_rows"] == 30
    assert result["advise"]


def test_one_row_a_client_leaves_out_what_needs_two():
    result = short(skewed(30, 1))
    assert "learn" not in result
    assert any("needs 4" in note for note in result["notes"])
    assert result["advise"][0]["answer"] == "unknown"


def test_without_labels_cells_of_the_features_stand_in():
    result = short(skewed().select(["x"]))
    assert "learn" not in result
    assert result["describe"]["categories"]["names"][0] == "cell 1"
    assert any("no column of labels" in note for note in result["notes"])


def test_without_labels_and_features_there_is_nothing_to_study():
    fed = Federation({"when": np.array(["2020-01-01"] * 4, dtype="datetime64[D]")}, [0, 2, 4])
    with pytest.raises(DataError, match=r"nothing to study: name a column .* the columns are: 'when'"):
        study(fed)


def test_of_ten_thousand_categories_the_rare_ones_are_together():
    rng = np.random.default_rng(0)
    y = (rng.pareto(0.3, 40_000) * 5).astype(np.int64) % 10_000
    y[:10_000] = np.arange(10_000)
    texts = np.array([f"word {v}" for v in y])
    fed = Federation({"x": rng.normal(size=(40_000, 3)), "y": texts}, np.arange(0, 40_001, 1000))
    data = prepare(fed)
    assert len(data.names) == MOST_CATEGORIES
    assert data.counts.sum() == 40_000
    assert any("10,000 categories" in note for note in data.notes)


def test_texts_are_features_where_they_are_few_and_left_out_where_they_are_many():
    n = 200
    fed = Federation(
        {"city": ["a", "b"] * 100, "remark": [f"t{i}" for i in range(n)], "y": np.arange(n) % 3},
        np.arange(0, n + 1, 20),
    )
    data = prepare(fed)
    assert data.features == ("city",)
    assert [(found.kind, found.column) for found in data.reading.findings] == [("id", "remark")]


def test_missing_values_are_said_and_rows_without_a_label_left_out():
    x = np.ones((60, 1)) * np.arange(60)[:, None]
    x[3] = np.nan
    y = np.arange(60) % 2.0
    y[[5, 6]] = np.nan
    data = prepare(Federation({"a": x[:, 0], "y": y}, np.arange(0, 61, 6)))
    assert data.counts.sum() == 58
    assert np.isfinite(data.rows["x"]).all()
    assert any("2 of 60 rows have no 'y'" in note for note in data.notes)
    assert any("1 missing values" in note for note in data.notes)


def test_a_continuous_target_is_cut_at_its_quantiles():
    rng = np.random.default_rng(0)
    data = prepare(
        Federation({"a": rng.normal(size=500), "income": rng.lognormal(size=500)}, [0, 250, 500]), column="income"
    )
    assert len(data.names) == 5
    assert data.counts.sum(axis=0) == pytest.approx([100] * 5, abs=1)
    assert data.features == ("a",)
    assert any("cut at its quantiles" in note for note in data.notes)
    assert data.names[0].startswith("below ")  # the least and the largest value are those of one row
    assert data.ordered
    assert not prepare(skewed()).ordered
    assert data.names[-1].endswith(" and more")


def test_classes_of_a_large_number_are_named_without_an_exponent():
    wages = np.linspace(0, 100_000, 501)
    data = prepare(Federation({"a": wages % 7, "wage": wages}, [0, 250, 501]), column="wage")
    assert data.names == ("below 20,000", "20,000 to 40,000", "40,000 to 60,000", "60,000 to 80,000", "80,000 and more")


def test_a_column_that_says_the_label_in_other_words_is_no_feature():
    y = np.arange(90) % 3
    data = prepare(Federation({"code": y + 7, "a": np.random.default_rng(0).normal(size=90), "y": y}, [0, 45, 90]))
    assert data.features == ("a",)


def test_a_column_that_is_the_same_in_all_rows_of_a_client_is_a_feature_only_if_asked_for():
    fed = skewed()
    region = fed.client_of_row % 3 * 10.0
    region[fed.client_of_row == 1] = np.nan
    fed = Federation({"a": fed["x"][:, 0], "region": region, "y": fed["y"]}, fed.offsets)
    made = prepare(fed)
    assert made.features == ("a",)
    said = {found.column: str(found) for found in made.reading.findings if found.kind == "of client"}
    assert "tells clients apart as an id does" in said["region"]
    assert prepare(fed, overrules=Overrules(keep=("region",))).features == ("a", "region")
    assert prepare(fed, features=["a", "region"]).features == ("a", "region")
    once = Federation({"a": np.arange(4.0), "y": [0, 1, 0, 1]}, [0, 1, 2, 3, 4])
    assert prepare(once).features == ("a",)  # one row each: nothing can be told of the client


def test_an_unknown_column_and_one_of_a_single_value_are_refused():
    with pytest.raises(DataError, match="there is no column 'z'"):
        study(skewed(), column="z")
    with pytest.raises(DataError, match="is '1' in all rows"):
        study(Federation({"y": [1, 1, 1]}, [0, 1, 3]))


def test_ready_counts_are_studied_without_features():
    result = races().result
    assert result["model"]["census"]["spent"][0]["epsilon"] <= 2.0
    assert "learn" not in result
    assert result["measure"]["labels"]["low"] > 0
    assert advise(result)[1]["question"] == "How many kinds of clients?"


def test_many_rows_are_looked_at_in_part_and_counted_in_full(monkeypatch):
    monkeypatch.setattr(sys.modules["fedscape.studies.prepare"], "MOST_ROWS", 300)
    data = prepare(skewed())
    assert data.counts.sum() == 720
    assert 200 < data.rows.n_rows < 400
    assert any("look at about 300" in note for note in data.notes)


def test_of_texts_the_last_characters_are_learned_from():
    fed = fs.datasets.load("shakespeare-mini").take(slice(3))
    data = prepare(fed)
    assert data.width == 3 * len(fed.names["y"])
    assert np.all(data.rows["x"].sum(axis=1) == 3)
    assert any("is text" in note for note in data.notes)


def test_a_mixture_of_joined_categories_is_as_likely_as_brute_force_says():
    """A Dirichlet-multinomial of sums is one whose concentrations are summed: the law of two of three is a sum."""
    from fedscape import MixtureOfDirichletMultinomials
    from fedscape.studies.kinds import joined

    counts = np.random.default_rng(0).multinomial(4, [0.5, 0.3, 0.2], 60)
    whole = MixtureOfDirichletMultinomials(1, sizes=None, rounds=5).fit(counts)
    made = joined(whole, np.array([0, 1, 1]), ("a", "b or c"))
    for a in range(5):
        split = [(a, b, 4 - a - b) for b in range(5 - a)]
        law = sum(np.exp(whole.score(np.array([row]))) for row in split)
        assert np.exp(made.score(np.array([[a, 4 - a]]))) == pytest.approx(law, rel=1e-9)

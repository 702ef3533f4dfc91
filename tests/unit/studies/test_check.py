"""A check against a reference: seldom an alarm where nothing changed, one where something did, and what to mend."""

from __future__ import annotations

import numpy as np
import pytest

from fedscape import DataError, Federation, MixtureOfDirichletMultinomials
from fedscape.studies import Study, check, check_population, study
from fedscape.studies.check import NIGHTS, power
from fedscape.studies.profile import duplicates, of_clients, profile


def draw(n: int = 60, *, seed: int = 0, tilt: float = 0.0, shift: float = 0.0) -> Federation:
    """Clients with shares of three categories and two numbers, one of them with gaps."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(12, 40, n)
    owner = np.repeat(np.arange(n), sizes)
    shares = rng.dirichlet(np.array([6.0, 3.0 + 8 * tilt, 3.0]), n)
    y = np.minimum((rng.random(len(owner))[:, None] > np.cumsum(shares, axis=1)[owner]).sum(axis=1), 2)
    age = 50 + shift + 4 * rng.normal(size=n)[owner] + 10 * rng.normal(size=len(owner))
    height = 170 + 2 * rng.normal(size=n)[owner] + 8 * rng.normal(size=len(owner))
    height[rng.random(len(height)) < 0.1] = np.nan
    columns = {"age": age, "height": height, "y": np.array(["a", "b", "c"])[y]}
    return Federation(columns, np.concatenate(([0], np.cumsum(sizes))), [f"ward {i}" for i in range(n)])


@pytest.fixture(scope="module")
def known() -> Study:
    return study(draw(), rounds=1, seeds=1, progress=False)


def as_texts(fed: Federation) -> np.ndarray:
    return np.array(fed.names["y"])[fed["y"]]


def changed(fed: Federation, column: str, client: int, change) -> Federation:
    values = (as_texts(fed) if column == "y" else fed[column]).copy()
    mine = slice(fed.offsets[client], fed.offsets[client + 1])
    values[mine] = change(values[mine])
    return fed.with_column(column, values)


def test_alarms_are_as_rare_as_said_where_nothing_changed(known):
    found = [check(draw(seed=100 + s), known, alarms_per_year=0.2 * NIGHTS, seed=s) for s in range(40)]
    share = np.mean([run["alarms"] > 0 for run in found])
    assert share < 0.2 + 5 * np.sqrt(0.2 * 0.8 / 40)
    assert sum(len(run["problems"]) for run in found) == 0
    assert {test["test"] for test in found[0]["tests"]} == {"labels", "sizes", "features", "kinds"}
    assert all(test["threshold"] == pytest.approx(0.2 / 4) for test in found[0]["tests"])


@pytest.mark.parametrize(("change", "test"), [({"tilt": 1.0}, "labels"), ({"shift": 6.0}, "features")])
def test_what_drifted_is_named(known, change, test):
    found = check(draw(seed=7, **change), known)
    assert next(one["test"] for one in found["tests"] if one["alarm"]) == test
    assert found["alarms"] >= 1


def test_clients_of_a_new_kind_and_other_sizes_are_seen(known):
    fed = draw(seed=8)
    odd = np.isin(fed.client_of_row, np.arange(20))
    y = np.where(odd, np.where(np.arange(fed.n_rows) % 2 == 0, "b", "c"), as_texts(fed))
    found = {one["test"]: one for one in check(fed.with_column("y", y), known)["tests"]}
    assert found["kinds"]["alarm"]
    half = fed.where(np.arange(fed.n_rows) % 3 == 0)
    assert {one["test"]: one for one in check(half, known)["tests"]}["sizes"]["alarm"]


@pytest.mark.parametrize(
    ("column", "change", "kind"),
    [
        ("age", lambda values: values * np.nan, "missing"),
        ("age", lambda values: 0 * values + 44.0, "constant"),
        ("height", lambda values: values / 2.54, "another unit"),
        ("age", lambda values: np.where(np.arange(len(values)) == 0, 999.0, values), "out of range"),
    ],
)
def test_a_problem_of_one_client_is_said_with_its_name(known, column, change, kind):
    found = check(changed(draw(seed=9), column, 5, change), known)["problems"]
    assert [(one["client"], one["column"], one["kind"]) for one in found] == [("ward 5", column, kind)]


def test_repeated_rows_a_column_that_is_gone_and_a_new_category_are_said(known):
    fed = draw(seed=9)
    mine = np.flatnonzero(fed.client_of_row == 5)
    rows = np.arange(fed.n_rows)
    rows[mine] = mine[np.arange(len(mine)) // 4]
    again = Federation({name: fed[name][rows] for name in fed.columns}, fed.offsets, fed.ids, names=fed.names)
    assert [one["kind"] for one in check(again, known)["problems"]] == ["duplicated"]
    assert check(fed.select(["age", "y"]), known)["problems"][0]["kind"] == "missing column"
    other = changed(fed, "y", 3, lambda values: np.full(len(values), "z"))
    first = check(other, known)["problems"][0]
    assert first["kind"] == "new category"
    assert "reference lacks" in first["text"]


def test_a_number_is_cut_where_the_reference_cut_it():
    fed = draw(80)
    known = study(fed.select(["age", "height"]), column="age", rounds=1, seeds=1, progress=False)
    assert len(known.result["reference"]["cuts"]) == 4
    moved = {one["test"]: one for one in check(draw(80, seed=3, shift=8.0), known)["tests"]}
    assert moved["labels"]["alarm"]
    assert not {one["test"]: one for one in check(draw(80, seed=3), known)["tests"]}["labels"]["alarm"]


def test_a_population_is_checked_by_one_sum_and_privately():
    fed = draw(400)
    codes = Federation({"y": fed["y"]}, fed.offsets, names={"y": ["a", "b", "c"]})
    model = MixtureOfDirichletMultinomials(1, sizes="histogram").fit(codes, progress=False)
    new = draw(400, seed=5, tilt=0.7)
    drifted = Federation({"y": new["y"]}, new.offsets, names={"y": ["a", "b", "c"]})
    assert check_population(codes, model)["alarms"] == 0
    found = check_population(drifted, model, epsilon=4.0)
    assert found["alarms"] >= 1
    assert found["problems"] == []
    assert found["clients"] is None  # how many there are is no sum that was paid for


def test_a_profile_has_the_numbers_of_numpy_and_no_value_of_a_row():
    fed = draw(20)
    about = {one["name"]: one for one in profile(fed, ["age", "height"])}
    means = [np.nanmean(fed["age"][a:b]) for a, b in zip(fed.offsets[:-1], fed.offsets[1:], strict=True)]
    assert about["age"]["mean"] == pytest.approx(np.mean(means), abs=1e-8)
    assert about["age"]["sd"] == pytest.approx(np.std(means, ddof=1), abs=1e-8)
    assert about["height"]["missing"] == pytest.approx(np.isnan(fed["height"]).mean(), abs=1e-8)
    assert about["age"]["low"] < fed["age"].min() < fed["age"].max() < about["age"]["high"]
    assert about["age"]["high"] == float(f"{about['age']['high']:.2g}")
    medians = of_clients(fed, fed["height"])["median"]
    assert medians[3] == np.nanmedian(fed["height"][fed.offsets[3] : fed.offsets[4]])


def test_repeated_rows_are_counted_as_brute_force_does():
    rng = np.random.default_rng(0)
    fed = Federation({"a": rng.integers(0, 3, 60), "b": np.array(list("xy"))[rng.integers(0, 2, 60)]}, [0, 20, 40, 60])
    for c in range(3):
        own = [(fed["a"][i], fed["b"][i]) for i in range(20 * c, 20 * c + 20)]
        assert duplicates(fed)[c] == pytest.approx(1 - len(set(own)) / 20)


def test_what_cannot_be_checked_is_refused(known):
    with pytest.raises(DataError, match="alarms per year must be above 0 and at most 365, not 0"):
        check(draw(), known, alarms_per_year=0)
    with pytest.raises(DataError, match="has none of the categories of the reference, such as 'a'"):
        check(draw().with_column("y", np.full(draw().n_rows, "zzz")), known)
    without = Study({name: part for name, part in known.result.items() if name != "reference"})
    with pytest.raises(DataError, match="has no reference: run it again"):
        check(draw(), without)


def test_equal_sizes_and_constants_that_did_not_change_are_no_drift():
    """A study keeps nine digits, and log(7) has more: the difference is no drift, however small the spread."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 210)
    same = Federation({"x": np.full(210, 1 / 3), "z": rng.normal(size=210), "y": y}, np.arange(0, 211, 7))
    of_seven = study(same, rounds=1, seeds=1, progress=False)
    assert check(same, of_seven)["alarms"] == 0
    more = Federation(
        {"x": np.full(240, 1 / 3), "z": rng.normal(size=240), "y": np.resize(y, 240)}, np.arange(0, 241, 8)
    )
    assert [test["test"] for test in check(more, of_seven)["tests"] if test["alarm"]] == ["sizes"]


def test_a_handful_of_clients_is_too_few_to_tell(known):
    few, many = check(draw(8, seed=3), known), check(draw(60, seed=3), known)
    assert few["too_few"]
    assert not many["too_few"]
    assert few["detectable"] > 2 * many["detectable"] > 0


def test_a_shift_of_the_detectable_size_is_seen_in_four_of_five_runs():
    reach, rng, n = power(60, 60, 0.2 * NIGHTS, 1)["detectable"], np.random.default_rng(0), 2000
    z = (rng.normal(reach, np.sqrt(2 / 60), n)) / np.sqrt(2 / 60)
    assert abs(np.mean(np.abs(z) > 1.2816) - 0.8) < 5 * np.sqrt(0.8 * 0.2 / n)


def test_the_worst_tenth_is_who_fits_no_kind(known):
    fed = draw(seed=9)
    odd = changed(fed, "y", 4, lambda values: np.full(len(values), "c"))
    found = check(odd, known)["worst"]
    assert found["clients"][0] == "ward 4"
    assert len(found["clients"]) == 6
    assert found["value"] > found["chance"]

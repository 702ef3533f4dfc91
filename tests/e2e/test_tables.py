"""Four tables as people have them, with all their faults, through the commands as people run them."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from shell import fedscape, ok, refused
from tables import NASTY, WHOLE

TASKS = {  # the client column and the label
    "census": ("ST", "label"),
    "ratings": ("user_id", "stars"),
    "forum": ("verfasser", "gelöscht"),
    "clinic": ("clinic", "grade"),
}
WANTED = {
    "census": {
        ("leak", "BRACKET"),
        ("text in numbers", "INCOME"),
        ("infinite", "INCOME"),
        ("id", "SERIALNO"),
        ("weight", "PWGTP"),
        ("code", "OCCP"),
        ("constant", "COUNTRY"),
        ("duplicate", "AGE2"),
        ("missing", "HOURS"),
        ("missing", "INCOME"),
    },
    "ratings": {
        ("id", "film_id"),
        ("id", "__index_level_0__"),
        ("date", "rated_at"),
        ("missing", "minutes"),
        ("clients", ""),
    },
    "forum": {("no label", "gelöscht"), ("id", "post"), ("text", "text"), ("clients", ""), ("dialect", "")},
    "clinic": {
        ("text in numbers", "sugar"),
        ("id", "patient"),
        ("constant", "unit"),
        ("missing", "sugar"),
        ("missing", "dose"),
    },
}
FEATURES = {
    "census": ["AGE", "OCCP", "HOURS", "INCOME"],
    "ratings": ["minutes", "genre"],
    "forum": ["stunde", "länge"],
    "clinic": ["age", "pressure", "sugar", "dose", "treated"],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("tables")


def asked(folder, name: str) -> list[object]:
    client, label = TASKS[name]
    return [WHOLE[name](folder), "--client", client, "--column", label]


@pytest.mark.parametrize("name", WHOLE)
def test_findings_and_features_come_first_for_people_and_for_programs(name, folder):
    about = json.loads(ok("describe", *asked(folder, name), "--json"))
    assert {(found["kind"], found["column"]) for found in about["findings"]} == WANTED[name]
    assert about["features"] == FEATURES[name]
    shown = ok("describe", *asked(folder, name)).splitlines()
    assert shown[: len(about["findings"])] == [found["text"] for found in about["findings"]]
    assert shown[len(about["findings"]) + 1] == f"features: {', '.join(FEATURES[name])}"


def test_the_text_in_a_number_column_is_shown_with_its_row(folder):
    shown = ok("describe", *asked(folder, "census"))
    assert "'INCOME' is a number, but 1 row holds a text (row 413: 'n/a (refused)')" in shown
    assert "'INCOME' is infinite or beyond 1e+30 in 2 rows (row 978: 'inf')" in shown


@pytest.mark.parametrize("name", ["ratings", "clinic"])
def test_describe_fit_and_study_count_the_same_classes(name, folder, tmp_path):
    call = asked(folder, name)
    described = json.loads(ok("describe", *call, "--json"))["skew"]["categories"]
    fitted = ok("fit", *call, "--components", 1, "--quiet", "--out", tmp_path / "p.json")
    names = json.loads((tmp_path / "p.json").read_text())["learned"]["category_names_"]
    short = ["--rounds", 1, "--seeds", 1, "--out", tmp_path / "s", "--quiet", "--show-clients"]
    studied = json.loads(ok("study", *call, *short, "--json"))  # else what few clients have is put together
    assert described == len(studied["describe"]["categories"]["names"]) == 5
    assert names is None or len(names) == 5  # 0 to 4 are codes and need no names
    assert "kinds of clients" in fitted or "1 kind" in fitted


def test_one_cell_of_text_costs_no_accuracy_and_a_leak_gives_none(folder, tmp_path):
    """A study of the census with a text among the incomes is that without, and no method is near 100%."""
    path = WHOLE["census"](tmp_path)
    clean = tmp_path / "clean.csv"
    clean.write_text(path.read_text().replace("n/a (refused)", ""))
    rates = []
    for which in (path, clean):
        call = ["study", which, "--client", "ST", "--rounds", 5, "--seeds", 1, "--out", tmp_path / which.stem, "--json"]
        result = json.loads(ok(*call, "--quiet"))
        assert result["about"]["features"] == FEATURES["census"]
        rates.append(max(row["accuracy"]["value"] for row in result["learn"]["true"]))
    assert rates[0] == pytest.approx(rates[1], abs=0.02)
    assert 0.7 < rates[0] < 0.97
    page = (tmp_path / "census" / "report.html").read_text()
    assert page.index("gives the label away") < page.index("Which method?")  # mend first, then the advice
    assert "n/a (refused)" not in page  # a value of one row


def test_options_overrule_what_a_column_is(folder):
    path = WHOLE["ratings"](folder)
    call = ["describe", path, "--client", "user_id", "--column", "stars"]
    assert "stars: number, 1 to 5; --categorical stars overrules" in ok(*call, "--numeric", "stars")
    shown = ok(*call, "--names", "bad,poor,fair,good,great", "--ignore", "film_id,rated_at")
    assert "film_id" not in shown
    assert "--names gives 2 names, but the column 'stars' has 5 classes" in refused(2, *call, "--names", "bad,good")
    assert "film_id: class" not in ok(*call)
    kinds = {
        each["name"]: each["kind"] for each in json.loads(ok(*call, "--categorical", "film_id", "--json"))["kinds"]
    }
    assert kinds["film_id"] == "class"
    assert "--numeric names 'genre', but none of its texts is a number" in refused(2, *call, "--numeric", "genre")


def test_train_says_findings_first_and_leaves_ids_weights_and_leaks_out(folder, tmp_path):
    call = ["train", WHOLE["census"](folder), "--client", "ST", "--column", "label", "--model", "linear", "--rounds", 2]
    shown = ok(*call, "--fill", "mean", "--standardise", "--cohort", 0, "--json", "--out", tmp_path / "run")
    assert json.loads(shown)["table"][-1]["accuracy_pooled"] < 0.97
    said = fedscape(*map(str, call), "--fill", "mean", "--standardise", "--cohort", "0").stderr
    assert "features: AGE, OCCP, HOURS, INCOME" in said
    assert re.search(r"'BRACKET' alone predicts 'label' in 100\.0% of held-out rows", said)
    kept = ok(*call, "--fill", "mean", "--standardise", "--cohort", 0, "--rounds", 20, "--keep", "BRACKET", "--json")
    assert json.loads(kept)["table"][-1]["accuracy_pooled"] > 0.97


SAME = ["boolean labels", "boolean labels with gaps", "labels with NaN", "negative labels", "labels of a billion"]


@pytest.mark.parametrize("name", [*SAME, "semicolons", "decimal commas", "UTF-16", "tabs", "compressed", "JSON lines"])
def test_two_classes_are_two_classes_however_they_are_written(name, folder):
    about = json.loads(ok("describe", NASTY[name](folder), "--column", "label", "--json"))
    assert about["skew"]["categories"] == 2
    sound = NASTY["semicolons"](folder)
    if name not in SAME:
        assert about["skew"] == json.loads(ok("describe", sound, "--column", "label", "--json"))["skew"]


def test_a_population_fitted_to_stars_is_simulated_from_stars_and_compared_by_them(folder, tmp_path):
    path = WHOLE["ratings"](folder)
    whose = ["--client", "user_id", "--column", "stars"]
    ok("fit", path, *whose, "--components", 1, "--quiet", "--out", tmp_path / "p.json")
    call = ["simulate", path, *whose, "--population", tmp_path / "p.json", "--clients", 40, "--policy", "replace"]
    ok(*call, "--out", tmp_path / "sim.parquet")
    sim = tmp_path / "true.parquet"
    ok("data", "convert", path, sim, "--client", "user_id")
    about = json.loads(ok("fidelity", sim, tmp_path / "sim.parquet", "--column", "stars", "--json"))
    assert about["pool"]["value"] < 0.1  # by number and by name the same five classes
    assert np.isfinite(about["auc"]["value"])

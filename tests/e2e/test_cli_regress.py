"""fedscape regress as a real process."""

from __future__ import annotations

import json

import numpy as np
import pyarrow.parquet as pq
import pytest
from shell import ok, refused, started

from fedscape import datasets

FLIGHTS = ("flights-mini", "--entity", "tailnum", "--target", "arr_delay", "--quiet", "--rounds", 8)


def test_regress_chooses_classes_and_tests_them():
    about = json.loads(ok("regress", *FLIGHTS, "--features", "dep_delay,distance", "--components", "1-3", "--json"))
    assert [row["components"] for row in about["candidates"]] == [1, 2, 3]
    shares = [found["share"] for found in about["classes"]]
    assert shares == sorted(shares, reverse=True)
    assert sum(shares) == pytest.approx(1)
    assert set(about["classes"][0]["coefficients"]) == {"dep_delay", "distance"}
    assert 0.7 < about["test"]["R2"] < 0.95
    assert sum(found["events"] for found in about["classes"]) + about["test"]["rows"] == 4620


def test_regress_prints_a_table_of_classes():
    shown = started("regress", *FLIGHTS, "--features", "dep_delay", "--components", 2)
    assert "2 classes of entities: arr_delay by class" in shown
    assert "dep_delay" in shown
    assert "R2" in shown


def test_regress_leaves_out_rows_without_a_number_and_says_so():
    about = json.loads(ok("regress", *FLIGHTS, "--features", "dep_delay,seats", "--components", 1, "--json"))
    assert about["test"]["rows_left_out"] > 0


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (("--features", "depdelay"), "there is no column 'depdelay'"),
        (("--features", "dep_delay,tailnum"), "the column 'tailnum' holds texts, not numbers: make indicator columns"),
        (("--features", ","), "features must name at least one column"),
        (("--features", "dep_delay,dep_delay"), "features must name a column once: 'dep_delay' is there 2 times"),
        (("--features", "dep_delay,arr_delay"), "features must not name 'arr_delay', the target"),
        (("--features", "dep_delay", "--method", "gibbs"), "method must be one of"),
        (("--features", "dep_delay", "--components", "0-2"), "--components must be"),
        (("--features", "dep_delay", "--alpha", "-1"), "alpha must be a positive number"),
    ],
)
def test_regress_refuses_with_one_line(extra, message):
    error = refused(2, "regress", *FLIGHTS, *extra)
    assert message in error
    assert error.count("\n") == 1


def test_regress_refuses_a_table_without_rows(tmp_path):
    (tmp_path / "empty.csv").write_text("a,x,y\n")
    error = refused(2, "regress", tmp_path / "empty.csv", "--agent", "a", "--target", "y", "--features", "x", "--quiet")
    assert "there are no events to learn from" in error
    assert error.count("\n") == 1


def test_a_kept_regression_predicts_in_another_process(tmp_path):
    model, predicted = tmp_path / "reg.json", tmp_path / "predicted.parquet"
    kept = ("--features", "dep_delay", "--components", 2, "--chains", 2, "--learn-prior", "--out", model)
    shown = ok("regress", *FLIGHTS, *kept)
    assert "largest R-hat" in shown
    assert " late draws per chain are too few to tell, use --rounds 100" in " ".join(shown.split())
    assert "agree" not in shown
    assert "already exists: pass --force" in refused(2, "regress", *FLIGHTS, *kept)
    about = json.loads(started("predict", model, "flights-mini", "--out", predicted, "--json"))
    made = pq.read_table(predicted)
    assert made.column_names == ["client", "row", "prediction", "deviation"]
    fed = datasets.load("flights-mini")
    error = fed["arr_delay"] - made["prediction"].to_numpy()
    assert made["client"].to_pylist() == fed.ids[fed.client_of_row].tolist()
    assert 1 - error.var() / fed["arr_delay"].var() > 0.7
    assert about["RMSE"] == pytest.approx(np.sqrt((error**2).mean()))
    (tmp_path / "gap.csv").write_text("who,tailnum,dep_delay\nAA,N1,5\nAA,N1,\n")
    about = json.loads(
        ok("predict", model, tmp_path / "gap.csv", "--client", "who", "--out", tmp_path / "g.csv", "--json")
    )
    assert about["rows_without_prediction"] == 1
    assert (tmp_path / "g.csv").read_text().splitlines()[2] == '"AA",1,,'
    assert "--probabilities needs classes" in refused(2, "predict", model, "flights-mini", "--probabilities")
    assert "cannot be read" in refused(2, "predict", tmp_path / "none.json", "flights-mini")


def test_regress_has_a_link_for_answers(tmp_path):
    rows = ["a,x,y", *(f"{i % 5},{i % 7},{int(i % 7 > 3)}" for i in range(70))]
    (tmp_path / "answers.csv").write_text("\n".join(rows) + "\n")
    about = json.loads(
        ok(
            "regress", tmp_path / "answers.csv", "--agent", "a", "--target", "y", "--features", "x", "--components", 1,
            "--link", "probit", "--quiet", "--json",
        )
    )  # fmt: skip
    assert about["link"] == "probit"
    assert about["test"]["R2"] > 0.5


def test_the_column_of_agents_is_named_as_the_message_says(tmp_path):
    lines = [f"{'ab'[i % 2]},{i % 7},{2 * (i % 7) + i % 3}" for i in range(60)]
    (tmp_path / "t.csv").write_text("\n".join(["who,u,y", *lines]) + "\n")
    call = ("regress", tmp_path / "t.csv", "--target", "y", "--features", "u", "--components", 1, "--rounds", 2)
    assert "with --client" in refused(2, *call)
    assert ok(*call, "--client", "who", "--json") == ok(*call, "--agent", "who", "--json")


def test_a_number_that_is_not_known_is_null(tmp_path):
    lines = [f"{'ab'[i % 2]},{i % 7},4" for i in range(60)]
    (tmp_path / "t.csv").write_text("\n".join(["who,u,y", *lines]) + "\n")
    call = ("regress", tmp_path / "t.csv", "--agent", "who", "--target", "y", "--features", "u", "--components", 1)
    shown = ok(*call, "--rounds", 2, "--json")
    assert "NaN" not in shown
    assert json.loads(shown)["test"]["R2"] is None


def test_regress_fills_missing_features_and_predict_fills_with_the_same(tmp_path):
    rng = np.random.default_rng(4)
    x = rng.normal(5, 1, 240)
    lines = ["agent,x,z,y"]
    for i, v in enumerate(x):
        seen = "" if i % 4 == 0 else f"{v:.4f}"
        lines.append(f"{i % 8},{seen},{i % 7},{3 * v + 0.01 * rng.normal():.4f}")
    (tmp_path / "d.csv").write_text("\n".join(lines) + "\n")
    how = ("regress", tmp_path / "d.csv", "--client", "agent", "--column", "y", "--features", "x,z", "--components", 1)
    dropped = json.loads(ok(*how, "--quiet", "--json"))
    assert dropped["test"]["rows_left_out"] == 60
    assert dropped["classes"][0]["coefficients"]["x"] == pytest.approx(3, abs=0.05)
    fills = {}
    for fill in ("mean", "median"):
        about = json.loads(ok(*how, "--fill", fill, "--quiet", "--json", "--out", tmp_path / f"{fill}.json"))
        assert about["test"]["rows_left_out"] == 0
        fills[fill] = json.loads((tmp_path / f"{fill}.json").read_text())["learned"]["fills_"]["x"]
        assert abs(fills[fill][0] - 5) < 0.4
        out = tmp_path / f"{fill}.parquet"
        said = json.loads(ok("predict", tmp_path / f"{fill}.json", tmp_path / "d.csv", "--client", "agent",
                             "--out", out, "--json"))  # fmt: skip
        assert said["rows_without_prediction"] == 0
        assert np.isfinite(pq.read_table(out)["prediction"].to_numpy()).all()
    assert fills["mean"] != fills["median"]
    said = refused(2, *how, "--fill", "zero")
    assert "fill must be one of drop, mean, median, not 'zero'" in said
    assert said.count("\n") == 1

"""New clients and novelty from the command line."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from shell import fedscape, ok, refused, started

from fedscape import Federation, GaussianMixture
from fedscape.learning import LocalSGD, cross_entropy, models
from fedscape.methods import train
from fedscape.personal import FedGMM, save_personal


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A trained model, known rows, rows that are far away, and new clients without labels."""
    rng = np.random.default_rng(0)
    where = tmp_path_factory.mktemp("personal")
    x = rng.normal(size=(400, 3)) + 4.0 * rng.integers(0, 2, (400, 1))
    fed = Federation({"x": x, "y": (x[:, 0] > 2).astype(np.int64)}, np.arange(0, 401, 40))
    fed.save(where / "known")
    Federation({"x": x[:80] + 40, "y": fed["y"][:80]}, [0, 40, 80], ids=[100, 101]).save(where / "far")
    Federation({"x": x[:80]}, [0, 40, 80], ids=[200, 201]).save(where / "bare")
    local = LocalSGD(models.linear(3, 2), cross_entropy, lr=0.3, epochs=1, batch_size=8)
    model = train(FedGMM(local, GaussianMixture(2).fit(fed), 2), local, fed, n_rounds=3)
    save_personal(where / "model", model, architecture="linear", arguments={"n_features": 3, "n_classes": 2})
    (where / "notes.txt").write_text("hello\n")
    return where


def test_adapt_learns_shares_with_and_without_labels(folder, tmp_path):
    found = json.loads(ok("adapt", folder / "model", folder / "known", "--json"))
    assert found["labelled"]
    assert found["numbers_per_client"] == 4
    assert found["accuracy_after"] > 0.8
    assert "numbers_per_client" in ok("adapt", folder / "model", folder / "bare", "--out", tmp_path / "more")
    again = json.loads(started("adapt", tmp_path / "more", folder / "bare", "--json"))
    assert again["clients"] == 2
    assert "pass --force" in refused(2, "adapt", folder / "model", folder / "bare", "--out", tmp_path / "more")


def test_novelty_raises_alarms_for_far_rows_and_few_for_known_ones(folder):
    far = json.loads(ok("novelty", folder / "model", folder / "known", folder / "far", "--json"))
    assert far["share_new"] == 1.0
    assert {c["client"] for c in far["clients"]} == {"100", "101"}
    near = json.loads(ok("novelty", folder / "model", folder / "known", folder / "known", "--rate", "0.1", "--json"))
    assert near["share_new"] <= 0.1
    assert "highest scores" in started(
        "novelty", folder / "model", folder / "known", folder / "far", "--score", "typicality"
    )


def test_rows_that_find_the_median_of_typicality_do_not_set_the_threshold(folder):
    asked = ("novelty", folder / "model", folder / "known", folder / "far", "--json")
    assert json.loads(ok(*asked, "--score", "typicality"))["calibrated_on_rows"] == 200
    assert json.loads(ok(*asked))["calibrated_on_rows"] == 400


def test_bad_input_is_one_line(folder):
    assert "not a fedscape checkpoint" in refused(2, "adapt", folder / "notes.txt", folder / "known")
    said = refused(2, "novelty", folder / "model", folder / "known", folder / "far", "--score", "odd")
    assert "score must be one of" in said
    assert said.count("\n") == 1
    assert "rate must be between 0 and 1" in refused(
        2, "novelty", folder / "model", folder / "known", folder / "far", "--rate", "3"
    )


def test_training_by_a_method_that_reveals_says_so():
    command = ("train", "femnist-mini", "--model", "linear", "--rounds", "1", "--cohort", "4", "--quiet", "--method")
    said = "clustered: on a deployment the server would see, client by client: update"
    for method, lines in (("clustered", 1), ("ifca", 0)):
        done = fedscape(*command, method)
        assert done.returncode == 0
        assert done.stderr.count(said) == lines


def test_people_read_four_digits_and_what_accuracy_is_of(folder):
    shown = ok("adapt", folder / "model", folder / "known")
    exact = json.loads(ok("adapt", folder / "model", folder / "known", "--json"))["accuracy_after"]
    assert f"{exact:.4g}" in shown
    far = ok("novelty", folder / "model", folder / "known", folder / "far")
    assert not re.findall(r"\.0*[1-9]\d{4,}", shown + far)
    assert "are of these same rows" in " ".join(ok("adapt", "--help").split())

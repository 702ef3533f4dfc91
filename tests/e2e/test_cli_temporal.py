"""`fedscape train` on a schedule of day and night."""

from __future__ import annotations

import json

import numpy as np
import pytest
from safetensors.numpy import load_file
from shell import ok, refused, started

from fedscape.trained import load

SMALL = [
    "femnist-mini",
    "--model",
    "mlp",
    "--cohort",
    "4",
    "--rounds",
    "3",
    "--every",
    "3",
    "--batch-size",
    "64",
    "--json",
]


@pytest.mark.parametrize("method", ["fedclock", "fedtem", "fedtkm", "vanilla", "t-shot"])
def test_methods_train_on_a_schedule(method):
    prior = ["--prior", "linear"] if method.startswith("fed") else []
    told = ok("train", *SMALL, "--method", method, "--schedule", "cosine:p=1,T=4", *prior, "--modes", "y:10")
    result = json.loads(told)
    assert result["method"] == method
    assert 30 < result["clients"] <= 60  # 30 writers, most with digits and with letters
    assert 0 <= result["table"][-1]["accuracy_pooled"] <= 1


def test_a_schedule_without_a_method_is_for_fedclock():
    how = ["--schedule", "linear:T=4"]
    for prior in ([], ["--prior", "harmonics"]):  # by default the curve linear; or only the period
        assert json.loads(ok("train", *SMALL, *how, *prior))["method"] == "fedclock"
    said = refused(2, "train", *SMALL, *how, "--method", "fedtkm", "--prior", "harmonics")
    assert "Harmonics is for FedClock alone" in said


def test_a_run_on_a_schedule_goes_on_to_the_same_numbers(tmp_path):
    how = ["--method", "fedtkm", "--schedule", "linear:T=4", "--server-lr", "0.01"]
    whole = json.loads(started("train", *SMALL, *how, "--out", str(tmp_path / "whole")))
    short = [*SMALL[:5], "--rounds", "2", "--every", "1", *SMALL[9:]]
    ok("train", *short, *how, "--out", str(tmp_path / "part"))
    on = json.loads(ok("train", *SMALL, *how, "--out", str(tmp_path / "part"), "--resume"))
    assert on["table"][-1]["loss_pooled"] == whole["table"][-1]["loss_pooled"]
    assert (tmp_path / "part" / "model.safetensors").exists()


def test_the_weights_beside_a_model_of_fedclock_are_those_that_predict(tmp_path):
    ok("train", *SMALL, "--schedule", "linear:T=4", "--out", str(tmp_path / "run"))
    state = load(tmp_path / "run").model.ready()
    weights = load_file(tmp_path / "run" / "model.safetensors")
    for name in (n.removeprefix("mean.") for n in state if n.startswith("mean.")):
        np.testing.assert_array_equal(weights[name], state[f"mean.{name}"])
        assert not np.array_equal(weights[name], state[f"model.{name}"])


def test_a_private_run_on_a_schedule_says_what_it_spent():
    told = ok("train", *SMALL, "--method", "fedtkm", "--schedule", "linear:T=4", "--epsilon", "100")
    assert list(json.loads(told)["epsilon"]) == ["client replace-one central"]
    assert json.loads(told)["parts_of_a_client"] == 2  # protected together


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--method", "fedtem"], "fedtem needs --schedule"),
        (["--method", "fedtem", "--schedule", "tide:T=4"], "must begin with one of linear"),
        (["--schedule", "linear:T=4", "--modes", "y"], "a column and where to cut it"),
        (["--schedule", "linear:T=4", "--modes", "z:3"], "not 'z': the columns are x, y"),
        (["--modes", "y:10"], "--modes needs --schedule"),
        (["--method", "fedtem", "--schedule", "linear:T=4", "--prior", "zones:T=4"], "prior has 3 modes"),
        (["--schedule", "linear:T=4", "--modes", "y:10,36"], "modes go up to 2, but the curve has 2"),
    ],
)
def test_bad_schedules_are_one_line(options, said):
    assert said in refused(2, "train", *SMALL, *options)

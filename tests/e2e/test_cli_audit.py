"""fedscape audit, as a real process."""

from __future__ import annotations

import json

import pytest
from shell import fedscape, ok, python, refused, started

QUICK = ("--epsilon", 1, "--clients", 50, "--repeats", 300, "--confidence", 0.999999)


def test_audit_of_a_histogram_says_bound_claim_verdict_and_power(tmp_path):
    text = started("audit", "histogram", *QUICK, "--out", tmp_path / "a")
    assert "holds" in text
    about = json.loads((tmp_path / "a" / "audit.json").read_text())
    assert about["claim"] == pytest.approx(1.0, rel=2e-3)
    assert about["bound"] <= about["claim"]
    assert about["holds"] is True
    assert about["power"]["0.333"] >= about["power"]["0.9"]
    assert (tmp_path / "a" / "audit.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize(
    "what", ["moments", "kmeans", "mixture", "sketch", "fedavg", "quantiles", "heavy-hitters", "trees", "glm", "twin"]
)
def test_every_named_path_is_audited_and_claims_what_was_asked(what):
    about = json.loads(ok("audit", what, *QUICK, "--json"))
    assert about["holds"] is True
    assert about["claim"] == pytest.approx(1.0, rel=2e-3)


@pytest.mark.parametrize(
    "how",
    [
        ("--unit", "row", "--mechanism", "laplace"),
        ("--place", "local"),
        ("--place", "distributed"),
        ("--sampler", "poisson:0.2"),
        ("--sampler", "fixed:10"),
    ],
)
def test_units_places_and_samplers_claim_what_was_asked(how):
    about = json.loads(ok("audit", "histogram", *QUICK, *how, "--json"))
    assert about["holds"] is True
    assert about["claim"] == pytest.approx(1.0, rel=5e-3)


def test_exit_is_1_where_the_bound_is_above_the_claim(tmp_path):
    planted = (
        "import sys; from fedscape import Gaussian\n"
        "Gaussian.draw_ = Gaussian.draw\n"
        "Gaussian.draw = lambda self, stream, spread, n: self.draw_(stream, spread / 50, n)\n"
        "from fedscape.cli import main\n"
        "sys.argv = ['fedscape', 'audit', 'histogram', '--clients', '50', '--repeats', '300', '--json']\n"
        "main()\n"
    )
    done = python(planted, tmp_path)
    assert done.returncode == 1, done.stderr
    about = json.loads(done.stdout)
    assert about["holds"] is False
    assert about["bound"] > about["claim"]


def test_bad_input_is_refused():
    assert "one of histogram" in refused(2, "audit", "salary")
    assert "poisson:RATE" in refused(2, "audit", "histogram", "--sampler", "poisson:x")
    assert "gaussian or laplace" in refused(2, "audit", "histogram", "--mechanism", "cauchy")
    assert "repeats must be a whole number of at least 100" in refused(2, "audit", "histogram", "--repeats", 5)
    assert "confidence" in refused(2, "audit", "histogram", "--confidence", 2)
    assert "one of repeats" in refused(2, "audit", "histogram", "--method", "guess")
    assert fedscape("audit", "histogram", "--epsilon", -1).returncode == 2

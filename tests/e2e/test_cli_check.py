"""A check on the command line: exit codes that a scheduler reads, a log, a timeline, JUnit."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from shell import fedscape, ok, refused, started

from fedscape import datasets


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """The study of count vectors, other clients of the same population, and clients of another part of the country."""
    base = tmp_path_factory.mktemp("checks")
    races = datasets.load("acs-race")
    order = np.random.default_rng(0).permutation(1000)
    races.take(np.sort(order[:60])).save(base / "first")
    races.take(np.sort(order[60:120])).save(base / "again")
    races.take(np.argsort(-races["y"][:, 1])[:60]).save(base / "other")
    ok("study", base / "first", "--out", base / "study", "--quiet")
    ok("fit", base / "first", "--column", "y", "--out", base / "population.json", "--quiet")
    return base


def test_nothing_new_exits_with_0_and_drift_with_3(place):
    log = ("--log", place / "log")
    assert "0 alarms" in started("check", place / "again", "--against", place / "study", *log, "--label", "2026-11-01")
    done = fedscape("check", place / "other", "--against", place / "study", *log, "--junit", place / "junit.xml")
    assert done.returncode == 3
    assert "DRIFT" in done.stdout
    suite = ET.parse(place / "junit.xml").getroot()
    assert int(suite.get("failures")) == len(suite.findall("testcase/failure")) >= 1
    assert "2 with an alarm" in started("log", place / "log")
    runs = json.loads(ok("log", place / "log", "--json"))["runs"]
    assert [run["run"] for run in runs] == ["00001-2026-11-01", "00002"]
    assert [run["alarms"] > 0 for run in runs] == [False, True]


def test_a_population_is_checked_too(place):
    said = json.loads(ok("check", place / "again", "--against", place / "population.json", "--column", "y", "--json"))
    assert said["alarms"] == 0
    assert len(said["tests"]) == 6
    done = fedscape("check", place / "other", "--against", place / "population.json", "--column", "y")
    assert done.returncode == 3


def test_what_cannot_be_checked_gives_one_line(place):
    said = refused(2, "check", place / "again", "--against", place / "nowhere")
    assert said.startswith("fedscape: no study or population at")
    assert said.count("\n") == 1
    (place / "torn.json").write_text("{")
    assert "neither a study nor a population" in refused(2, "check", place / "again", "--against", place / "torn.json")
    assert "--epsilon needs a population" in refused(
        2, "check", place / "again", "--against", place / "study", "--epsilon", 1
    )
    assert "no runs in" in refused(2, "log", place / "nowhere")
    (place / "bad").mkdir()
    (place / "bad" / "00001.json").write_text("[]")
    assert "is not a run of a check" in refused(2, "log", place / "bad")

"""fedscape sketch, as a real process."""

from __future__ import annotations

import json

import numpy as np
import pytest
from shell import ok, refused, started

from fedscape import Federation


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sketch")
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.normal(m, 1.0, (60, 3)) for m in ([3, 0, 0], [0, 3, 0], [3, 0, 0.2], [0, 3, 0.2])])
    Federation({"x": x, "y": np.zeros(240, int)}, np.arange(0, 241, 60), ids=["a", "b", "c", "d"]).save(folder / "fed")
    started("sketch", "build", folder / "fed", "--out", folder / "s", "--rows", 80, "--centre", 0)
    return folder


def test_build_says_what_it_made_and_does_not_write_over_it(made):
    about = json.loads(ok("sketch", "build", made / "fed", "--out", made / "t", "--json"))
    assert about["clients"] == 4
    assert about["rows"] == 16  # the root of 240, rounded up
    assert "--force" in refused(2, "sketch", "build", made / "fed", "--out", made / "s")


def test_compare_is_the_library_call(made):
    from fedscape.sketches.files import compare

    found = json.loads(started("sketch", "compare", made / "s", "--json"))
    assert found == compare(made / "s")
    assert found["low"] > 0.05
    assert found["distance"] > 2 * found["iid"]
    two = json.loads(ok("sketch", "compare", made / "s", made / "s", "--json"))
    assert two == {"distance": 0.0, "debiased": 0.0, "tvd_at_least": 0.0}
    assert "rows is 80 in one and 16" in refused(2, "sketch", "compare", made / "s", made / "t")


def test_neighbours_are_found(made):
    found = json.loads(started("sketch", "neighbours", made / "s", "--client", "a", "-k", 2, "--json"))
    assert found["neighbours"][0]["client"] == "c"
    many = json.loads(ok("sketch", "neighbours", made / "s", "--client", "a", "-k", 10**15, "--json"))
    assert len(many["neighbours"]) == 3
    assert "the first of 4 is 'a'" in refused(2, "sketch", "neighbours", made / "s", "--client", "z")
    assert "-k must be at least 1" in refused(2, "sketch", "neighbours", made / "s", "--client", "a", "-k", 0)


@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
def test_private_sketches_spend_what_was_asked(made, relation):
    call = ("sketch", "build", made / "fed", "--out", made / f"p{relation}", "--centre", 0, "--epsilon", 2, "--json")
    about = json.loads(ok(*call, "--relation", relation, "--typical-size", 60))
    assert about["epsilon"] == {f"row, {relation}, local": 2.0}
    assert about["rows"] <= 10


def test_bad_input_is_one_line(made):
    build = ("sketch", "build", made / "fed", "--out", made / "bad")
    assert "must be numbers: the data" in refused(2, *build, "--epsilon", 1, "--rows", 5)
    assert "give --rows, or --typical-size" in refused(2, *build, "--epsilon", 1, "--centre", 0)
    assert "use fewer --rows or --bits" in refused(2, *build, "--rows", 4096, "--bits", 16, "--centre", 0)
    assert "'mean' or 'deviation'" in refused(2, *build, "--centre", "middle")
    assert "not a fedscape checkpoint" in refused(2, "sketch", "compare", next((made / "fed").glob("*.npy")))


def test_texts_are_not_sketched_as_numbers(tmp_path):
    names = ["ash", "oak"]
    Federation({"t": np.arange(40) % 2}, [0, 20, 40], names={"t": names}).save(tmp_path / "fed")
    call = ("sketch", "build", tmp_path / "fed", "--column", "t", "--out", tmp_path / "s")
    said = refused(2, *call)
    assert "the column 't' holds texts, and family 'srp' compares numbers: take --family minhash" in said
    assert said.count("\n") == 1
    assert not (tmp_path / "s").exists()
    assert json.loads(ok(*call, "--family", "minhash", "--json"))["clients"] == 2

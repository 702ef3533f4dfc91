"""Images and sequences of a study: sums against plain formulas, and nothing of a single row on the page."""

from __future__ import annotations

import numpy as np
import pytest

from fedscape import Federation, datasets
from fedscape.report.media import images as images_section
from fedscape.report.media import sequences as sequences_section
from fedscape.report.media import tiles
from fedscape.report.sharing import hidden
from fedscape.studies.media import between_clients, foretold, images, sequences
from fedscape.studies.prepare import prepare


def pictures(clients=8, rows=20, *, colours=False, dark=0) -> Federation:
    """Images whose brightness is the client's, with a bright corner in class 1."""
    rng = np.random.default_rng(0)
    owner = np.repeat(np.arange(clients), rows)
    y = rng.integers(0, 2, len(owner))
    x = rng.uniform(0, 60, size=(len(owner), 16, 16)) + 10.0 * owner[:, None, None]
    x[y == 1, :4, :4] = 255
    x = np.where(owner[:, None, None] < dark, 0.0, x)
    x = np.repeat(x[..., None], 3, axis=3) if colours else x
    columns = {"x": x.astype(np.uint8), "y": y.astype(np.int32)}
    return Federation(columns, np.arange(0, len(y) + 1, rows), names={"y": ["plain", "corner"]})


@pytest.mark.parametrize("colours", [False, True])
def test_mean_images_are_means_of_the_rows_of_a_category(colours):
    fed = pictures(colours=colours)
    section = images(prepare(fed))
    assert section["shape"] == ([16, 16, 3] if colours else [16, 16])
    by = {m["category"]: np.array(m["shades"]) for m in section["means"]}
    assert by["corner"].shape == (14, 14)
    assert (by["corner"][:3, :3] == 9).all()
    assert by["plain"].max() < 5
    grey = fed["x"].astype(float) / 255
    of_clients = np.array([grey[fed.client_of_row == c].mean() for c in range(8)])
    assert section["brightness"]["value"] == pytest.approx(of_clients.mean(), abs=1e-5)


def test_a_mean_image_needs_five_clients_fifty_rows_and_nobody_who_dominates():
    few = images(prepare(pictures(clients=4, rows=60)))
    assert few["means"] == []
    assert images(prepare(pictures(clients=8, rows=6)))["means"] == []
    fed = pictures(clients=6, rows=40)
    one = fed.where((fed.client_of_row == 0) | (np.arange(fed.n_rows) % 40 < 5))
    assert images(prepare(one))["means"] == []


def test_the_part_between_clients_is_the_intraclass_correlation():
    """Oracle: the ratio of variances that rows were drawn with."""
    rng = np.random.default_rng(1)
    owner = np.repeat(np.arange(400), 10)
    values = rng.normal(0, 1, 400)[owner] + rng.normal(0, 2, 4000)
    assert between_clients(values, owner, 400) == pytest.approx(0.2, abs=0.04)
    assert between_clients(rng.normal(size=4000), owner, 400) < 0.02


def test_bits_are_those_of_the_law_where_it_is_known():
    """Oracle: a chain of two letters that stays with 0.9, whose law gives each row its bits."""
    rng = np.random.default_rng(2)
    chain = np.cumsum(rng.random(20_003) < 0.1) % 2
    x = np.stack([chain[:-3], chain[1:-2], chain[2:-1]], axis=1)
    fed = Federation({"x": x, "y": chain[3:].astype(np.int32)}, np.arange(0, 20_001, 1_000))
    held = rng.random(20_000) < 0.25
    bits = foretold(fed, "x", fed["y"], 2, held)
    known = -np.log2(np.where(x[held, -1] == chain[3:][held], 0.9, 0.1)).mean()
    means = {name: values.mean() for name, values in bits.items()}
    assert means["every character as likely"] == 1
    assert means["how common it is"] == pytest.approx(1, abs=0.01)
    assert means["the character before"] == pytest.approx(known, abs=0.005)
    assert means["the two before"] == pytest.approx(known, abs=0.01)


def test_a_study_of_real_texts_and_images_has_their_sections():
    data = prepare(datasets.load("shakespeare-mini"))
    assert "(space)" in data.names
    texts = sequences(data, seed=0)
    bits = [model["bits"]["value"] for model in texts["models"]]
    assert bits[0] == pytest.approx(np.log2(texts["letters"]))  # of the characters that occur
    assert bits[0] > bits[1] > bits[3] > 2
    page = sequences_section({"sequences": texts})[2]
    assert "perplexity" in page
    writers = images(prepare(datasets.load("femnist-mini")))
    assert len(writers["means"]) == 12
    assert all(m["rows"] >= 50 for m in writers["means"])
    assert "<svg" in images_section({"images": writers})[2]
    table = prepare(datasets.load("acs-mini"), column="race")
    assert images(table) is None
    assert sequences(table, seed=0) is None
    assert images_section({}) is None
    assert sequences_section({}) is None


def test_a_shared_page_says_that_no_image_or_text_is_in_it():
    about = {"about": {"show_clients": False}, "describe": {"clients": 9, "categories": {"names": []}}}
    lines = " ".join(hidden({**about, "images": {}, "sequences": {}}))
    assert "Every image" in lines
    assert "Every text" in lines


def test_tiles_have_one_path_for_each_shade():
    drawn = tiles([[0, 9], [9, 3]], 'a "name"')
    assert drawn.count("<path") == 3  # black beneath, and two shades of white
    assert "&quot;" in drawn

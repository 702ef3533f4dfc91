"""A dataset card: the Hub reads it, and it has no row and no id."""

from __future__ import annotations

import re

import pytest
import yaml

from fedscape import DataError, Federation, datasets

EVIL = 'a|b\n<script>alert("x")</script>: `c` \\'


def meta(text):
    return yaml.safe_load(re.match(r"---\n(.*?)\n---\n", text, re.DOTALL).group(1))


def test_the_hub_reads_the_metadata():
    hub = pytest.importorskip("huggingface_hub")
    about = datasets.info("femnist-mini")
    fed = datasets.load("femnist-mini")
    text = datasets.card(fed, name="Handwriting", label="y", licence=about["licence"], citation=about["citation"])
    card = hub.DatasetCard(text)
    assert card.data.pretty_name == "Handwriting"
    assert card.data.size_categories == ["1K<n<10K"]
    assert {f["name"]: f.get("shape") for f in meta(text)["dataset_info"]["features"]}["x"] == [28, 28]
    assert "30 clients, 7,115 rows" in text
    assert about["citation"] in text


def test_differences_are_those_of_the_counts():
    fed = Federation({"y": [0, 0, 1, 1]}, [0, 2, 4])  # each client has one of two equally common labels
    assert "distance of 0.50 from those of all rows" in datasets.card(fed, name="n", label="y")
    alike = Federation({"y": [0, 1, 0, 1]}, [0, 2, 4])
    assert "distance of 0.00 from those of all rows" in datasets.card(alike, name="n", label="y")


def test_no_row_and_no_id_is_in_a_card_and_names_cannot_break_it():
    texts = [f"secret {i}" for i in range(101)]
    fed = Federation.from_arrays({EVIL: [123456.5] * 101, "note": texts}, clients=["hidden-1"] * 100 + ["hidden-2"])
    text = datasets.card(fed, name=EVIL, description=EVIL)
    for hidden in ("hidden", "secret", "123456"):
        assert hidden not in text
    about = meta(text)
    assert about["pretty_name"] == EVIL
    assert [f["name"] for f in about["dataset_info"]["features"]] == ["client", EVIL, "note"]
    body = text.split("\n---\n", 1)[1]
    assert "<script" not in body
    assert len([line for line in body.splitlines() if line.startswith("|")]) == 2 + 2


def test_a_label_that_is_not_there_is_refused():
    with pytest.raises(DataError, match="there is no column 'z'"):
        datasets.card(Federation({"y": [0]}, [0, 1]), name="n", label="z")

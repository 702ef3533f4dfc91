"""A reference beside a study: aligned by names of categories, nothing of single clients."""

from __future__ import annotations

import json

import numpy as np
import pytest

from fedscape import DataError, Federation
from fedscape.mixtures import MixtureOfDirichletMultinomials
from fedscape.studies import Study, study
from fedscape.studies.against import _aligned, is_population, read_reference, with_reference


def clients(shares, names, *, n=24, seed=0, ids="ward"):
    rng = np.random.default_rng(seed)
    y = np.concatenate([rng.choice(len(names), 40, p=shares[i % len(shares)]) for i in range(n)])
    return Federation({"y": y}, np.arange(0, 40 * n + 1, 40), [f"{ids} {i}" for i in range(n)], names={"y": names})


TWO = ([0.8, 0.1, 0.1], [0.1, 0.1, 0.8])


@pytest.fixture(scope="module")
def pair():
    first = study(clients(TWO, ["a", "b", "c"]), show_clients=True, source="before", progress=False)
    fed = clients(TWO, ["a", "b", "c"], ids="bed")
    turned = fed.with_column("y", np.array([1, 2, 0], dtype=np.int32)[fed["y"]], names=["c", "a", "b"])
    return first, study(turned, source="now", progress=False)


def test_shares_are_aligned_by_name_and_others_go_to_other():
    assert _aligned([0.5, 0.3, 0.2], ["x", "y", "z"], ["z", "(all other)", "x"]) == [0.2, 0.3, 0.5]
    assert _aligned([0.5, 0.5], ["x", "y"], ["y"]) == [0.5]


def test_kinds_are_matched_whatever_their_order(pair):
    first, second = pair
    against = with_reference(second, first).result["against"]
    names = second.result["model"]["names"]
    place = {name: j for j, name in enumerate(first.result["model"]["names"])}
    for kind in second.result["model"]["components"]:
        near = against["closest"][kind["kind"]]
        theirs = next(k for k in first.result["model"]["components"] if k["kind"] == near["kind"])
        apart = sum(abs(kind["means"][j] - theirs["means"][place[name]]) for j, name in enumerate(names)) / 2
        assert near["distance"] == pytest.approx(apart, abs=1e-5)
        assert near["distance"] < 0.01
    assert len(against["closest"]) == 2
    assert against["drift"]["value"] < 0.01


def test_nothing_of_a_single_client_of_the_reference_is_kept(pair):
    first, second = pair
    assert "ward 3" in json.dumps(first.result)
    text = json.dumps(with_reference(second, first).result)
    assert "ward " not in text
    assert "bed " not in text


def test_a_result_with_a_reference_is_read_again(pair, tmp_path):
    both = with_reference(pair[1], pair[0])
    assert Study.load(both.save(tmp_path / "s")).html() == both.html()


def test_studies_and_populations_are_told_apart(pair, tmp_path):
    counts = Federation({"y": np.tile([[30, 5, 5], [5, 5, 30]], (10, 1))}, np.arange(21))
    model = MixtureOfDirichletMultinomials(2, column="y", seed=0).fit(counts, progress=False)
    model.save(tmp_path / "population.json")
    pair[0].save(tmp_path / "s")
    assert is_population(tmp_path / "population.json")
    assert not is_population(tmp_path / "s")
    assert isinstance(read_reference(tmp_path / "s" / "result.json"), Study)
    with pytest.raises(DataError, match="no study or population"):
        read_reference(tmp_path / "nowhere")
    (tmp_path / "torn.json").write_text("{")
    with pytest.raises(DataError, match="neither a study nor a population"):
        read_reference(tmp_path / "torn.json")
    with pytest.raises(DataError, match="share no category"):  # 0, 1, 2 and a, b, c
        with_reference(pair[0], read_reference(tmp_path / "population.json"))


def test_a_dozen_clients_of_whom_none_is_held_out_are_one_kind():
    """With some seeds no client of a few is held out to choose the number of kinds: the study goes on with one."""
    fed = clients(TWO, ["a", "b", "c"], n=10)
    results = [study(fed, seed=seed, progress=False).result["model"] for seed in range(30)]
    undecided = [model for model in results if "undecided" in model]
    assert undecided
    assert all(len(model["components"]) == 1 and model["candidates"] == [] for model in undecided)

"""Heavy hitters, against counting all texts in one place."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from fedscape import DataError, Federation, Gaussian, HeavyHitters, Laplace, Ledger

WORDS = ["flu", "flush", "fluke", "cold", "co", "Grippe é", "a text that is far too long for the tree"]


def clinics(n: int = 400, seed: int = 0) -> Federation:
    rng = np.random.default_rng(seed)
    shares = np.array([0.5, 0.3, 0.02, 0.4, 0.1, 0.2, 0.05])
    rows = [(i, w) for i in range(n) for w, share in zip(WORDS, shares, strict=True) if rng.random() < share]
    rows += [(i, f"rare {i}") for i in range(n)] + [(0, "flu")] * 50
    order = rng.permutation(len(rows))
    return Federation.from_arrays({"y": [rows[i][1] for i in order]}, clients=[rows[i][0] for i in order])


def by_hand(fed: Federation, threshold: int, length: int) -> dict[str, int]:
    names = fed.names["y"]
    cut = [name.encode()[:length].decode(errors="ignore") for name in names]
    seen = {(c, cut[y]) for c, y in zip(fed.client_of_row.tolist(), fed["y"].tolist(), strict=True)}
    return {text: n for text, n in Counter(text for _, text in seen).items() if n >= threshold}


@pytest.mark.parametrize("threshold", [5, 40, 150])
@pytest.mark.parametrize("length", [8, 16, 64])
def test_exactly_the_texts_of_enough_clients_are_found(threshold, length):
    fed = clinics()
    hitters = HeavyHitters(threshold, length=length, most=None).fit(fed)
    assert dict(zip(hitters.names_, hitters.counts_.astype(int).tolist(), strict=True)) == by_hand(
        fed, threshold, length
    )
    assert (np.diff(hitters.counts_) <= 0).all()


def test_whole_numbers_are_found_by_their_digits():
    fed = Federation.from_arrays({"y": [7, 71, -3, 71, 7, 7]}, clients=[0, 0, 1, 1, 1, 2])
    assert HeavyHitters(2, most=None).fit(fed).names_ == ("7", "71")


def test_what_is_found_can_be_declared():
    fed = clinics()
    hitters = HeavyHitters(100, most=None).fit(fed)
    assert fed.declare("y", hitters.names_).is_declared("y")


def test_a_client_fills_no_more_cells_than_it_may():
    fed = clinics()
    for most in (1, 2):
        computation = HeavyHitters(5, most=most)
        sent, _ = computation.step(computation.start(0), fed, _key())
        assert sent["clients_with"].reshape(len(fed), -1).sum(axis=1).max() == most


def test_one_row_more_moves_what_a_client_sends_by_its_bound_at_most():
    for most in (None, 2):
        computation, largest = HeavyHitters(5, most=most), 0.0
        for seed in range(30):
            words = np.random.default_rng(seed).choice([chr(97 + i) for i in range(20)], 9).tolist()
            less, more = (Federation.from_arrays({"y": w}, clients=[seed] * len(w)) for w in (words[1:], words))
            a, b = (computation.step(computation.start(0), f, _key())[0]["clients_with"] for f in (less, more))
            largest = max(largest, float(np.abs(a - b).sum()))
        assert largest <= computation.row_bound({}, 1)


def _key():
    from fedscape import Key

    return Key(0)


@pytest.mark.parametrize(
    "privacy",
    [Gaussian(clip=2.0, multiplier=2.0, noise_seed=1), Laplace(clip=4.0, epsilon=1.0, noise_seed=1)],
    ids=["gaussian", "laplace"],
)
def test_privately_no_rare_text_is_found_and_the_frequent_ones_are(privacy):
    fed, ledger = clinics(1_500), Ledger()
    hitters = HeavyHitters(10, most=4, length=8).fit(fed, privacy=privacy, ledger=ledger)
    truth = by_hand(fed, 1, 8)
    assert set(hitters.names_) <= {text for text, n in truth.items() if n >= hitters.threshold_ / 2}
    assert {"flu", "cold"} <= set(hitters.names_)
    assert hitters.threshold_ > 10
    assert sum(line["kind"] == "release" for line in ledger.entries()) == len(hitters.history_)


def test_noise_alone_finds_nothing():
    """The threshold lets noise through once in twenty fits at most, over all cells of a full tree."""
    fed = Federation.from_arrays({"y": ["a"] * 3}, clients=[0, 1, 2])
    found = 0
    for seed in range(40):
        privacy = Gaussian(clip=1.0, multiplier=3.0, noise_seed=seed)
        found += len(HeavyHitters(1, length=3).fit(fed, privacy=privacy).names_) > 0
    assert found / 40 <= 0.05 + 5 * np.sqrt(0.05 * 0.95 / 40)


def test_what_is_refused():
    with pytest.raises(DataError, match="threshold must be a positive"):
        HeavyHitters(0).fit(clinics())
    with pytest.raises(DataError, match="must hold texts or whole numbers"):
        HeavyHitters().fit(Federation({"y": [0.5]}, [0, 1]))

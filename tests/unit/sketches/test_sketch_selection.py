"""Clients near the whole are asked more often: Algorithm 3 and its form by sums."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from fedscape import (
    DataError,
    DistributionSketch,
    Federation,
    Gaussian,
    Histogram,
    Key,
    Local,
    PrivacyError,
    Sampler,
    rounds,
)
from fedscape.sketches import KeyedCoin, NearTheWhole, OwnWeights, distance, logits

NOBODY = Federation({}, [0] * 6)


def federation(n=40, seed=0):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(0, 30, n)
    x = np.concatenate([rng.normal(rng.normal(0, 1, 3), 1.0, (s, 3)) for s in sizes])
    return Federation({"x": x}, np.concatenate(([0], np.cumsum(sizes))))


def test_clients_are_drawn_one_after_the_other_in_proportion_to_their_weight():
    d = np.array([1.0, 2.0, 4.0, 1.5, 3.0])
    w = np.exp(logits(d))
    law = dict.fromkeys(itertools.combinations(range(5), 2), 0.0)
    for a, b in itertools.permutations(range(5), 2):
        law[min(a, b), max(a, b)] += w[a] / w.sum() * w[b] / (w.sum() - w[a])
    sampler, n = NearTheWhole(d, size=2, active=5), 4000
    seen = dict.fromkeys(law, 0)
    for t in range(n):
        a, b = sampler.draw(NOBODY, Key(0, t))
        seen[int(a), int(b)] += 1
    chi2 = sum((seen[pair] - n * p) ** 2 / (n * p) for pair, p in law.items())
    assert chi2 < 9 + 5 * np.sqrt(18)  # nine degrees of freedom


def test_active_clients_are_drawn_alike_first():
    sampler = NearTheWhole([0.1, 1.0, 1.0, 1.0, 1.0], size=1, active=3, temperature=0.01)
    chosen = [int(sampler.draw(NOBODY, Key(1, t))[0]) for t in range(1000)]
    share = np.mean(np.array(chosen) == 0)  # it always wins, where it is awake
    assert abs(share - 3 / 5) < 5 * np.sqrt(0.24 / 1000)


def test_the_papers_norm_is_nearly_uniform_and_its_codes_nearly_certain():
    frobenius = np.concatenate((np.linspace(2.36, 4.35, 15), np.linspace(1.37, 1.56, 15)))
    for d, low, high in ((frobenius, 1.5, 1.8), (frobenius / np.sqrt(1000), 1e5, 1e8)):
        w = logits(d, scale=1.0)
        assert low < np.exp(w.max() - w.min()) < high
    ours = logits(frobenius)
    assert np.allclose(ours, logits(frobenius / np.sqrt(1000)))  # whatever the rows
    assert 2 < np.exp(ours.max() - ours.min()) < 10


def test_a_draw_is_a_function_of_its_key_and_empty_clients_never_take_part():
    d = [1.0, np.nan, 2.0, 3.0, np.nan]
    sampler = NearTheWhole(d, size=3)
    assert isinstance(sampler, Sampler)
    assert sampler.draw(NOBODY, Key(0)).tolist() == [0, 2, 3]
    wide = NearTheWhole(np.ones(40), size=4)
    fed = federation()
    assert np.array_equal(wide.draw(fed, Key(3, 1)), wide.draw(fed, Key(3, 1)))
    assert repr(wide) != repr(NearTheWhole(np.full(40, 2.0), size=4))


def test_the_form_by_sums_gives_the_weights_of_the_form_that_reveals():
    fed = federation()
    sketch = DistributionSketch(30, bits=3).fit(fed)
    engine = Local(fed)
    *_, last = rounds(OwnWeights(sketch, sketch.total_, temperature=0.5), engine, n_rounds=2)
    d = distance(sketch.transform(fed), sketch.total_)
    weight = np.exp(logits(d, temperature=0.5))
    kept = engine.kept()["weight"].flat
    assert np.allclose(kept, weight)
    assert float(last.state["weight"]) == pytest.approx(weight.sum())
    coin = KeyedCoin(kept, total=float(last.state["weight"]), size=5)
    drawn = [coin.draw(fed, Key(0, t)) for t in range(2000)]
    rate = np.bincount(np.concatenate(drawn), minlength=len(fed)) / 2000
    law = np.minimum(1, 5 * weight / weight.sum())
    assert (np.abs(rate - law) <= 5 * np.sqrt(law * (1 - law) / 2000) + 1e-12).all()
    assert rate[fed.sizes == 0].max(initial=0) == 0


@pytest.mark.parametrize("sampler", [NearTheWhole(np.ones(5), size=2), KeyedCoin(np.ones(5), total=5.0, size=2)])
@pytest.mark.parametrize("place", ["central", "distributed", "local"])
def test_a_sampler_that_reads_the_data_is_refused_under_privacy(sampler, place):
    privacy = Gaussian(clip=1.0, multiplier=1.0, place=place)
    fed = Federation({"y": [0] * 5}, np.arange(6))
    with pytest.raises(PrivacyError, match=f"{type(sampler).__name__} chooses clients by their data, which no accou"):
        Histogram(2).fit(fed, sampler=sampler, privacy=privacy)
    assert Histogram(2).fit(fed, sampler=sampler).counts_.sum() <= 5


BAD = {
    "active not below it": lambda: NearTheWhole([1.0, 1.0], size=2, active=1),
    "must be positive": lambda: NearTheWhole([1.0], size=1, temperature=0),
    "must not be negative": lambda: NearTheWhole([-1.0], size=1),
    "2 distances for 5 clients": lambda: NearTheWhole([1.0, 1.0], size=1).draw(NOBODY, Key(0)),
    "cannot be drawn from 1 clients": lambda: NearTheWhole([1.0] + [np.nan] * 4, size=2).draw(NOBODY, Key(0)),
    "2 weights for 5 clients": lambda: KeyedCoin([1.0, 1.0], total=2.0, size=1).draw(NOBODY, Key(0)),
}


@pytest.mark.parametrize("message", BAD)
def test_bad_input_is_refused_with_a_reason(message):
    with pytest.raises(DataError, match=message):
        BAD[message]()

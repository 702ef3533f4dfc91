"""Cold start: the nearest warm client or component, and when nobody is near enough."""

from __future__ import annotations

import numpy as np
import pytest

from fedscape import DataError, DistributionSketch, Federation, Laplace, NotFittedError
from fedscape.personal.cold_start import ColdStart, Match, NearestComponent
from fedscape.sketches import noise_variance, pairwise

SKETCH = DistributionSketch(60, bits=3, seed=2)


def clients(means, n, seed=0, first=0):
    rng = np.random.default_rng(seed)
    sizes = np.broadcast_to(n, len(means))
    x = np.concatenate([rng.normal(m, 1.0, (k, len(m))) for m, k in zip(means, sizes, strict=True)])
    return Federation({"x": x}, np.concatenate(([0], np.cumsum(sizes))), ids=np.arange(first, first + len(means)))


def kinds(k, d=4, seed=0):
    return np.random.default_rng(seed).normal(0, 1.5, (k, d))


def test_a_new_client_is_given_its_twins_model():
    means = kinds(12)
    cold = ColdStart(SKETCH).fit(clients(means, 60))
    found = cold.match(clients(means, 60, seed=1, first=100))
    assert (found.nearest == np.arange(12)).mean() > 0.9
    models = found.models([f"m{i}" for i in range(12)], fallback="global")
    assert models[3] in ("m3", "global")


def test_counts_are_enough_and_may_be_private():
    means = kinds(6)
    warm, new = clients(means, 900), clients(means, 900, seed=1, first=100)
    few = DistributionSketch(8, bits=3)
    own = Laplace(clip=8.0, epsilon=4.0, unit="row", place="local")
    noisy = ColdStart(few, alpha=0.0, noise=noise_variance(own)).fit(few.counts(warm, privacy=own))
    assert (noisy.match(few.counts(new, privacy=own)).index == np.arange(6)).mean() > 0.6
    exact = ColdStart(few).fit(few.counts(warm)).match(few.counts(new))
    assert np.array_equal(exact.index, ColdStart(few).fit(warm).match(new).index)


def test_a_client_that_belongs_is_turned_away_no_more_often_than_alpha():
    turned, trials = 0, 300
    for seed in range(trials):
        rng = np.random.default_rng(seed)
        means = rng.normal(0, 0.5, (20, 4))
        fed = clients(means, rng.integers(10, 60, 20), seed=seed)
        cold = ColdStart(SKETCH, alpha=0.1).fit(fed.take(slice(0, 19)))
        turned += int(cold.match(fed.take([19])).index[0] == -1)
    assert turned / trials <= 0.1 + 5 * np.sqrt(0.09 / trials)
    assert turned > 0


def test_a_stranger_is_turned_away():
    cold = ColdStart(SKETCH, alpha=0.1).fit(clients(np.tile([2.0, 0, 0, 0], (30, 1)), 40))
    found = cold.match(clients([[-3.0, 0, 0, 0], [2.0, 0, 0, 0]], 40, seed=1, first=100))
    assert found.p_value[0] == pytest.approx(1 / 31)
    assert found.index.tolist()[0] == -1
    assert found.nearest[0] >= 0
    assert found.index[1] >= 0
    assert ColdStart(SKETCH, alpha=0.0).fit(clients(kinds(3), 9)).match(clients(kinds(3), 9)).index.min() >= 0


def test_clients_without_rows_have_no_match_and_are_nobodys():
    warm = clients(kinds(4), [0, 30, 30, 30])
    found = ColdStart(SKETCH, alpha=0.0).fit(warm).match(clients(kinds(2), [0, 30], first=50))
    assert found.index[0] == -1
    assert found.models(list("abcd"), fallback="g")[0] == "g"
    assert found.index[1] >= 1


def test_a_client_of_one_row_is_given_the_nearest_and_is_not_turned_away():
    rng = np.random.default_rng(0)
    means = 6 * np.eye(4)[np.arange(12) % 4]
    warm = Federation({"x": np.concatenate([rng.normal(m, 1.0, (50, 4)) for m in means])}, np.arange(0, 601, 50))
    new = Federation({"x": rng.normal(6 * np.eye(4), 0.5)}, [0, 1, 2, 3, 4, 4])
    match = ColdStart(DistributionSketch(rows=100), alpha=0.5).fit(warm).match(new)
    assert (match.index[:4] % 4).tolist() == [0, 1, 2, 3]
    assert np.isnan(match.p_value[:4]).all()
    assert match.index[4] == -1
    assert match.p_value[4] == 0


def test_no_new_clients_have_no_match():
    rng = np.random.default_rng(0)
    warm = Federation({"x": rng.normal(size=(60, 3))}, np.arange(0, 61, 10))
    nobody = warm.take(slice(0, 0))
    sketch = DistributionSketch(rows=10)
    assert ColdStart(sketch).fit(warm).match(nobody).index.shape == (0,)
    assert NearestComponent(sketch, 2).fit(warm).match(nobody).shape == (0,)
    assert pairwise(sketch.transform(nobody), sketch.transform(warm)).shape == (0, 6)


def test_components_by_sums_bring_like_clients_together():
    means = np.repeat(kinds(3, seed=3), 8, axis=0)
    fed = clients(means, 50)
    made = NearestComponent(SKETCH, 3).fit(fed)
    truth = np.repeat(np.arange(3), 8)
    pure = [len(set(made.labels_[truth == k])) for k in range(3)]
    assert pure == [1, 1, 1]
    assert len(set(made.labels_)) == 3
    new = made.match(clients(means[::8], [50, 0, 50], seed=5, first=100))
    assert new.tolist() == [made.labels_[0], -1, made.labels_[16]]


def test_no_row_of_a_client_is_seen_only_sums_of_a_few_numbers():
    made = NearestComponent(SKETCH, 2, dimension=5).fit(clients(kinds(6), 30))
    assert made.means_.centres_.shape == (2, 5)
    assert max(made.means_.history_["bytes_up"]) <= 8 * 8 * 2 * 6  # starts x components x (dimension + 1)


BAD = {
    "alpha must be": lambda: ColdStart(SKETCH, alpha=1.0),
    "dimension must be": lambda: NearestComponent(SKETCH, 2, dimension=0),
    "two warm clients with two or more rows, there are 1": lambda: ColdStart(SKETCH).fit(clients(kinds(2), [1, 5])),
    "only 1 models": lambda: Match(np.array([1]), np.array([1]), np.zeros(1), np.ones(1)).models(["a"], fallback="b"),
}


@pytest.mark.parametrize("message", BAD)
def test_bad_input_is_refused_with_a_reason(message):
    with pytest.raises(DataError, match=message):
        BAD[message]()


def test_results_before_fit_are_refused():
    with pytest.raises(NotFittedError, match="call fit"):
        ColdStart(SKETCH).match(clients(kinds(1), 5))
    with pytest.raises(NotFittedError, match="call fit"):
        NearestComponent(SKETCH, 2).match(clients(kinds(1), 5))

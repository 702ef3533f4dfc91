"""Laws of client sizes: likely where seen, possible everywhere, sampled as they say."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize

from fedscape.errors import DataError
from fedscape.mixtures import SizeLaws
from fedscape.mixtures.size_laws import FLOOR, background, bin_of, most_likely, size_edges


@pytest.mark.parametrize("kind", ["bins", "histogram"])
@pytest.mark.parametrize("reach", [1, 7, 100, 5000])
def test_edges_cover_every_size_once(kind, reach):
    edges = size_edges(kind, reach)
    assert edges[0] == 0
    assert edges[-1] == 2**31
    assert (np.diff(edges) > 0).all()
    if kind == "histogram":
        assert (np.diff(edges[: reach + 2]) == 1).all()  # one bin for each size that occurs


def test_bins_are_few_even_for_sizes_in_the_hundred_thousands():
    assert len(size_edges("bins", 400_000)) < 100


def test_an_unknown_kind_is_refused_in_one_line():
    with pytest.raises(DataError, match="sizes must be 'bins', 'histogram' or None, not 'normal'"):
        size_edges("normal", 10)


def test_a_law_adds_up_to_one_over_all_sizes():
    edges = size_edges("bins", 50)
    laws = SizeLaws.fit(np.random.default_rng(0).gamma(1.0, 5.0, (3, len(edges) - 1)), edges)
    np.testing.assert_allclose(laws.probabilities.sum(axis=1), 1.0, rtol=1e-12)
    below = laws.log_pmf(np.arange(edges[20]))
    np.testing.assert_allclose(np.exp(below).sum(axis=0), laws.probabilities[:, :20].sum(axis=1), rtol=1e-9)


def test_unseen_sizes_are_possible_and_seen_ones_hardly_change():
    edges = size_edges("histogram", 100)
    seen = np.bincount([20] * 60 + [30] * 40, minlength=len(edges) - 1)[None].astype(float)
    laws = SizeLaws.fit(seen, edges)
    assert np.isfinite(laws.log_pmf([0, 25, 101, 10**6, 2**31 - 1])).all()
    np.testing.assert_allclose(np.exp(laws.log_pmf([20, 30]))[:, 0], [0.6, 0.4], rtol=2 * FLOOR)


def test_the_law_is_the_most_likely_one_above_the_floor():
    rng = np.random.default_rng(1)
    weights, floor = rng.gamma(0.3, 2.0, 8), 0.3 * rng.dirichlet(np.ones(8))
    found = most_likely(weights[None], floor)[0]
    assert (found >= floor * (1 - 1e-12)).all()
    assert (found <= floor * (1 + 1e-12)).any()  # the floor matters in this example
    best = minimize(
        lambda p: -(weights * np.log(p)).sum(),
        np.full(8, 1 / 8),
        bounds=[(f, 1.0) for f in floor],
        constraints=[{"type": "eq", "fun": lambda p: p.sum() - 1}],
        options={"ftol": 1e-12, "maxiter": 500},
    )
    assert (weights * np.log(found)).sum() >= -best.fun - 1e-9


def test_a_component_without_clients_has_the_background_law():
    edges = size_edges("bins", 40)
    laws = SizeLaws.fit(np.zeros((1, len(edges) - 1)), edges)
    np.testing.assert_allclose(laws.probabilities[0], background(edges), rtol=1e-12)


def test_sizes_are_sampled_as_often_as_the_law_says():
    edges = size_edges("bins", 200)
    sizes = np.repeat([3, 17, 150], [500, 300, 200])
    counts = np.bincount(bin_of(sizes, edges), minlength=len(edges) - 1)[None].astype(float)
    laws = SizeLaws.fit(np.vstack((counts, counts[:, ::1])), edges)
    drawn = laws.sample(np.zeros(20_000, dtype=int), np.random.default_rng(0))
    share = np.bincount(bin_of(drawn, edges), minlength=len(edges) - 1) / len(drawn)
    for size, p in ((3, 0.5), (17, 0.3), (150, 0.2)):
        assert abs(share[bin_of(size, edges)] - p) < 5 * np.sqrt(p * (1 - p) / len(drawn)) + FLOOR
    inside = drawn[bin_of(drawn, edges) == bin_of(150, edges)]
    low, high = edges[bin_of(150, edges)], edges[bin_of(150, edges) + 1]
    assert low <= inside.min() <= inside.max() < high
    spread = np.sqrt(((high - low) ** 2 - 1) / 12 / len(inside))
    assert abs(inside.mean() - (low + high - 1) / 2) < 5 * spread  # sizes in one bin are equally likely


def test_a_size_that_cannot_be_is_refused():
    laws = SizeLaws.fit(np.ones((1, 3)), np.array([0, 1, 2, 2**31]))
    with pytest.raises(DataError, match=r"sizes must be from 0 to 2\*\*31 - 1, got -1 to 3"):
        laws.log_pmf([-1, 3])

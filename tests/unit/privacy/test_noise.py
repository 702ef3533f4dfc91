from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from fedscape.privacy.noise import Stream, discrete_gaussian, discrete_laplace


def chi_square(draws: np.ndarray, weight) -> float:
    reach = int(np.abs(draws).max()) + 5
    x = np.arange(-reach, reach + 1)
    p = weight(x) / weight(np.arange(-100 - 40 * reach, 101 + 40 * reach)).sum()
    expected = p * len(draws)
    seen = np.array([(draws == v).sum() for v in x])
    big = expected >= 5
    chi = ((seen[big] - expected[big]) ** 2 / expected[big]).sum()
    rest_seen, rest_expected = len(draws) - seen[big].sum(), len(draws) - expected[big].sum()
    if rest_expected > 1:
        chi += (rest_seen - rest_expected) ** 2 / rest_expected
    return float(stats.chi2.sf(chi, big.sum()))


@pytest.mark.parametrize("sigma", [0.4, 1.0, 2.5, 4.0, 11.3])
def test_discrete_gaussian_has_its_law(sigma):
    draws = discrete_gaussian(Stream(b"a"), sigma, 200_000)
    assert chi_square(draws, lambda x: np.exp(-(x**2) / (2 * sigma**2))) > 1e-6


@pytest.mark.parametrize("scale", [0.3, 1.0, 3.7, 9.0])
def test_discrete_laplace_has_its_law(scale):
    draws = discrete_laplace(Stream(b"b"), scale, 200_000)
    assert chi_square(draws, lambda x: np.exp(-np.abs(x) / scale)) > 1e-6


def test_on_a_fine_grid_the_laws_are_the_continuous_ones():
    fine = 2.0**32
    gauss = discrete_gaussian(Stream(b"c"), 1.7 * fine, 100_000) / fine
    assert stats.kstest(gauss / 1.7, "norm").pvalue > 1e-6
    laplace = discrete_laplace(Stream(b"d"), 1.7 * fine, 50_000) / fine
    assert stats.kstest(laplace / 1.7, "laplace").pvalue > 1e-6
    assert len(np.unique(gauss)) > 99_990


def test_the_same_key_gives_the_same_noise_and_another_key_another():
    assert (discrete_gaussian(Stream(b"k"), 5.0, 999) == discrete_gaussian(Stream(b"k"), 5.0, 999)).all()
    assert (discrete_gaussian(Stream(b"k"), 5.0, 999) != discrete_gaussian(Stream(b"l"), 5.0, 999)).any()


def test_words_do_not_repeat_and_are_uniform():
    stream = Stream(b"x")
    first, second = stream.words(1000), stream.words(1000)
    assert len(set(first.tolist()) | set(second.tolist())) == 2000
    assert stats.kstest(Stream(b"y").uniform(50_000), "uniform").pvalue > 1e-6

"""Noise on whole numbers is a lattice: a coarse one costs more than the continuous law that the ledger counts."""

from __future__ import annotations

import numpy as np
import pytest

from fedscape import All, Gaussian, Laplace
from fedscape.privacy.accounting import epsilon_of
from fedscape.privacy.mechanisms import AdaptiveClip
from fedscape.privacy.release import INSIDE, Release

DELTA = 1e-6


def epsilon_from(losses: np.ndarray, masses: np.ndarray) -> float:
    """Epsilon at DELTA of a privacy loss distribution."""
    low, high = 0.0, float(losses.max())
    for _ in range(60):
        middle = (low + high) / 2
        above = losses > middle
        beyond = float((masses[above] * -np.expm1(middle - losses[above])).sum()) > DELTA
        low, high = (middle, high) if beyond else (low, middle)
    return high


def of_lattice_gaussian(sigma: float, moved: int) -> float:
    """One release of discrete Gaussian noise of this many cells on a sum that moves by so many cells."""
    x = np.arange(-int(14 * sigma) - moved, int(14 * sigma) + moved + 1, dtype=float)
    masses = np.exp(-(x**2) / (2 * sigma**2))
    return epsilon_from((moved**2 - 2 * moved * x) / (2 * sigma**2), masses / masses.sum())


def of_lattice_laplace(scale: float, moved: int, times: int) -> float:
    """So many releases of discrete Laplace noise; the loss |x - moved| - |x|, in cells, is a whole number."""
    q = np.exp(-1 / scale)
    one, x = np.zeros(2 * moved + 1), np.arange(1, moved)
    one[2 * moved], one[0], one[2 * (moved - x)] = 1 / (1 + q), q**moved / (1 + q), (1 - q) / (1 + q) * q**x
    size = 2 * moved * times + 1
    padded = 1 << int(np.ceil(np.log2(size)))
    masses = np.maximum(np.fft.irfft(np.fft.rfft(one, padded) ** times, padded)[:size], 0.0)
    return epsilon_from((np.arange(size) - moved * times) / scale, masses)


def lattice_of_rows(privacy) -> tuple[float, int]:
    """The noise on a count of rows, and how far one row moves it, in cells."""
    release = Release(privacy, privacy.clip, b"", False, 1, 1.0)
    release.on_clients({"counts": np.ones((1, 2), dtype=np.int64)}, None)
    grid = release.grids["counts"]
    return privacy.spread() * release.sensitivity / grid, round(1 / grid)


@pytest.mark.parametrize("multiplier", [0.3, 1.0, 2.0, 2.05, 3.7])
def test_counts_of_rows_with_gaussian_noise_cost_what_is_booked(multiplier):
    privacy = Gaussian(clip=1.0, multiplier=multiplier, unit="row")
    booked = epsilon_of([(privacy.entries(All(), 9)["sum"], 1)], DELTA)
    assert of_lattice_gaussian(*lattice_of_rows(privacy)) <= booked


@pytest.mark.parametrize(("epsilon", "times"), [(0.5, 30), (1.0, 20), (0.3, 40)])
def test_counts_of_rows_with_laplace_noise_cost_what_is_booked(epsilon, times):
    privacy = Laplace(clip=1.0, epsilon=epsilon, unit="row")
    booked = epsilon_of([(privacy.entries(All(), 9)["sum"], times)], DELTA)
    assert of_lattice_laplace(*lattice_of_rows(privacy), times) <= booked


def cells_in(noise: float, spread: float) -> float:
    """How many cells of the coarsest lattice that this number lies on the noise is wide."""
    step = 1.0
    while noise % step:
        step /= 2
    return spread / step


def test_the_number_of_clients_and_the_bit_of_a_clip_lie_on_fine_lattices():
    spread = 0.28  # as whole numbers they would cost 9% more than is booked at delta 1e-3
    clip, privacy = AdaptiveClip(1.0, multiplier=spread), Gaussian(clip=1.0, multiplier=spread, count_share=0.999)
    counted = [Release(privacy, 1.0, bytes([i]), True, 1).on_total({}, 1000)["clients"] for i in range(9)]
    assert max(cells_in(float(number), spread) for number in counted) > 2**12
    inside = []
    for i in range(9):
        release = Release(Gaussian(clip=clip, multiplier=1.0), 1.0, bytes([i]), False, 1)
        release.on_total({INSIDE: np.array(512)}, 1024)  # a share in cells of a thousandth is exact
        inside.append(release.inside * 1024)
    assert max(cells_in(share, spread) for share in inside) > 2**12
    laplace = [Release(Laplace(clip=1.0, epsilon=9.0), 1.0, bytes([i]), True, 1).on_total({}, 1000) for i in range(9)]
    assert max(cells_in(float(total["clients"]), 1.0) for total in laplace) > 2**12


def test_large_counts_of_rows_stay_exact():
    release = Release(Gaussian(clip=1.0, multiplier=1e-3, unit="row"), 1.0, b"k", False, 1, 1.0)
    sent = release.on_clients({"counts": np.array([[2**34, 3]])}, None)
    total = release.on_total({"counts": sent["counts"][0]}, 1)["counts"]
    assert total == pytest.approx([2**34, 3], abs=0.01)

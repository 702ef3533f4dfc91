"""FedTEM, FedTKM and semi-cyclic SGD as printed."""

from __future__ import annotations

import numpy as np
import pytest

import fedscape as fs
from fedscape.methods import Options, make
from fedscape.papers import temporal_as_printed
from fedscape.temporal import Linear, Soft
from fedscape.temporal.fedtem import small_example


def test_methods_by_name_pass_the_scatter_of_equation_10():
    _, step, _ = small_example()
    for name in ("fedtem", "em-only"):
        assert make(name, step, Options(prior=Linear(8), scatter="within_clients")).scatter == "within_clients"
        assert make(name, step, Options(prior=Linear(8))).scatter == "all"


def test_as_printed_equation_10_averages_the_variances_of_clients():
    """A round of the whole method against the formula: sum of rows x variance over rows, of the clients of a mode."""
    _, step, _ = small_example()
    method = temporal_as_printed("fedtem", step, Linear(8))
    rng = np.random.default_rng(0)
    rows, d = np.array([3.0, 5.0, 2.0]), method.start(0)["means"].shape[1]
    mean, variance = rng.normal(size=(3, d)), rng.uniform(0.5, 2.0, (3, d))
    share = np.log([[0.9, 0.1], [0.8, 0.2], [0.1, 0.9]])
    likely = np.array([6.0, 4.0])
    total = {"log_share": share, "mean": mean, "variance": variance, "rows": rows, "likely": likely}
    found = method.learn(method.start(0), total, fs.Key(0, 2))  # q = 1/2: floor(1.5 + 1/2) = 2 clients of the first
    expected = (rows[:2, None] * variance[:2]).sum(axis=0) / rows[:2].sum()
    np.testing.assert_allclose(found["variances"][0], expected, rtol=1e-12)
    np.testing.assert_allclose(found["variances"][1], variance[2], rtol=1e-12)
    mended = make("fedtem", step, Options(prior=Linear(8))).learn(method.start(0), total, fs.Key(0, 2))
    centre = (rows[:2, None] * mean[:2]).sum(axis=0) / rows[:2].sum()
    between = (rows[:2, None] * (mean[:2] - centre) ** 2).sum(axis=0) / rows[:2].sum()
    np.testing.assert_allclose(mended["variances"][0], expected + between, rtol=1e-12)


def test_constant_eta_moves_the_factor_where_equation_27_rests():
    _, step, _ = small_example()
    moved = {}
    for name in ("fedtkm", "fedtkm-constant"):
        method = temporal_as_printed(name, step, Linear(8), rate=0.3)
        state = method.start(0)
        total = {"near": np.array([4.0, 0.0]), "mass": np.array([9.0, 0.0]), "away": np.zeros_like(state["centres"])}
        moved[name] = method.learn(state, total, fs.Key(0, 2))["factors"]  # q = 1/2, all clients near the first
    np.testing.assert_allclose(moved["fedtkm"], [1.0, 1.0])
    np.testing.assert_allclose(moved["fedtkm-constant"], [1.0, np.exp(0.3 * (0.0 - 0.5))])  # equation (13)


def test_scsgd_trains_one_branch_in_the_first_half_of_each_period():
    fed, step, _ = small_example()
    printed = temporal_as_printed("scsgd", step, Linear(8), strength=0.5)
    around_the_peak = make("scsgd", step, Options(prior=Linear(8)))
    branches = [
        [int(m.choose({}, fed, fs.Key(0, t))[0][0].argmax()) for t in range(16)] for m in (printed, around_the_peak)
    ]
    assert branches[0] == [0, 0, 0, 0, 1, 1, 1, 1] * 2
    assert branches[1] == [0, 0, 0, 1, 1, 1, 0, 0] * 2


def test_other_names_are_refused_and_a_soft_prior_has_a_period():
    _, step, _ = small_example()
    with pytest.raises(fs.errors.DataError, match="name must be one of fedtem, fedtkm, fedtkm-constant, scsgd"):
        temporal_as_printed("ifca", step, Linear(8))
    assert temporal_as_printed("scsgd", step, Soft(16)).schedule.period == 16
    with pytest.raises(fs.errors.DataError, match="needs a prior with a period"):
        temporal_as_printed("scsgd", step, None)

"""The synthetic federations against closed forms, SciPy and brute force; 5 standard errors throughout."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from scipy import integrate, stats

from fedscape.core.federation import Federation
from fedscape.core.random import Key, dirichlet
from fedscape.datasets.generators import (
    dirichlet_multinomial,
    fedgmm_bayes,
    fedgmm_partial,
    fedgmm_synthetic,
    gaussian_pair,
    hlcr_synthetic,
    mdm_a2,
    mdm_table1,
)
from fedscape.datasets.generators.counts import BLOCK, TABLE_1
from fedscape.datasets.generators.draws import pick
from fedscape.errors import DataError

Made = tuple[Federation, dict[str, np.ndarray]]
RARE = 5.7e-7  # the two-sided probability of 5 standard errors

MAKERS: dict[str, Callable[[int], Made]] = {
    "dirichlet_multinomial": lambda seed: dirichlet_multinomial(
        50, weights=[0.3, 0.7], concentrations=[[1.0, 2.0], [5.0, 0.1]], sizes=np.arange(50), seed=seed
    ),
    "mdm_table1": lambda seed: mdm_table1("high-3", 50, seed=seed),
    "mdm_a2": lambda seed: mdm_a2(50, seed=seed),
    "fedgmm_synthetic": lambda seed: fedgmm_synthetic(5, 20, dimension=4, seed=seed),
    "fedgmm_laplace": lambda seed: fedgmm_synthetic(5, 20, dimension=4, law="laplace", seed=seed),
    "fedgmm_beta": lambda seed: fedgmm_synthetic(5, 20, dimension=4, law="beta", seed=seed),
    "fedgmm_partial": lambda seed: fedgmm_partial(5, 20, n_other=2, dimension=4, seed=seed),
    "hlcr_synthetic": lambda seed: hlcr_synthetic(5, seed=seed),
    "gaussian_pair": lambda seed: gaussian_pair(20, z=1.0, seed=seed),
}

# A maker of n clients, whatever n: a client must not depend on how many there are.
GROWING: dict[str, Callable[[int], Made]] = {
    "dirichlet_multinomial": lambda n: dirichlet_multinomial(
        n, weights=[0.3, 0.7], concentrations=[[1.0, 2.0], [5.0, 0.1]], sizes=np.arange(n) % 7
    ),
    "mdm_table1": lambda n: mdm_table1("medium-3", n),
    "fedgmm_synthetic": lambda n: fedgmm_synthetic(n, 7, dimension=4),
    "fedgmm_partial": lambda n: fedgmm_partial(n, 7, n_other=0, dimension=4),
    "hlcr_synthetic": lambda n: hlcr_synthetic(n, entities=3, events=2),
}


def everything(made: Made) -> list[tuple[str, str, bytes]]:
    fed, truth = made
    parts: dict[str, Any] = {**fed.columns, "offsets": fed.offsets, **{f"truth {k}": v for k, v in truth.items()}}
    return [(name, f"{array.dtype}{array.shape}", array.tobytes()) for name, array in parts.items()]


def within_five(values: np.ndarray, expected: Any) -> None:
    """The mean over the first axis agrees with `expected` within five of its standard errors."""
    error = values.std(axis=0, ddof=1) / np.sqrt(len(values))
    assert np.all(np.abs(values.mean(axis=0) - expected) < 5 * error)


def fits(seen: np.ndarray, expected: np.ndarray) -> None:
    """A chi-square test of counts, cells with an expectation below 5 put together."""
    few = expected < 5
    seen = np.append(seen[~few], seen[few].sum()) if few.any() else seen
    expected = np.append(expected[~few], expected[few].sum()) if few.any() else expected
    if len(expected) > 1:
        assert stats.chisquare(seen, expected).pvalue > RARE
    assert seen.sum() == pytest.approx(expected.sum())


# -- what holds for all ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MAKERS)
def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(name: str) -> None:
    assert everything(MAKERS[name](3)) == everything(MAKERS[name](3))
    assert MAKERS[name](3)[0].columns.keys() == MAKERS[name](4)[0].columns.keys()
    column = next(iter(MAKERS[name](3)[0].columns))
    assert not np.array_equal(MAKERS[name](3)[0][column], MAKERS[name](4)[0][column])


@pytest.mark.parametrize("name", MAKERS)
def test_the_global_generator_is_neither_read_nor_moved(name: str) -> None:
    before = np.random.get_state()[1].tolist()  # noqa: NPY002
    MAKERS[name](0)
    assert np.random.get_state()[1].tolist() == before  # noqa: NPY002


@pytest.mark.parametrize("name", GROWING)
def test_a_client_does_not_depend_on_how_many_follow(name: str) -> None:
    number = BLOCK + 9 if name in ("dirichlet_multinomial", "mdm_table1") else 9
    few, many = GROWING[name](number)[0], GROWING[name](2 * number)[0].take(slice(0, number))
    assert all(np.array_equal(few[column], many[column]) for column in few.columns)
    assert len(GROWING[name](0)[0]) == 0


# -- draws -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", [[0.4, 0.4, 0.4], [1.0, 4.0, 0.5], [30.0, 10.0, 5.0], [1e-3, 2e-3, 1e-3]])
def test_dirichlet_has_the_moments_of_its_law(alpha: list[float]) -> None:
    a = np.array(alpha)
    shares = dirichlet(Key(1).generator(), np.tile(a, (40_000, 1)))
    np.testing.assert_allclose(shares.sum(axis=1), 1.0, rtol=1e-12)
    within_five(shares, a / a.sum())
    within_five(shares**2, a * (a + 1) / (a.sum() * (a.sum() + 1)))


def test_dirichlet_is_sound_for_concentrations_that_underflow() -> None:
    shares = dirichlet(Key(1).generator(), np.full((1000, 3), 1e-100))
    assert np.isfinite(shares).all()
    assert set(shares.sum(axis=1).tolist()) == {1.0}


def test_pick_never_takes_a_category_without_weight() -> None:
    drawn = pick(Key(2).generator(), np.array([0.0, 0.25, 0.0, 0.75, 0.0]), 20_000)
    fits(np.bincount(drawn, minlength=5)[[1, 3]], np.array([5_000.0, 15_000.0]))
    assert set(drawn.tolist()) == {1, 3}


# -- mixtures of Dirichlet-multinomials --------------------------------------------------------------------------------


def test_two_categories_follow_a_mixture_of_beta_binomials() -> None:
    n, clients = 6, 30_000
    fed, _ = dirichlet_multinomial(
        clients, weights=[0.3, 0.7], concentrations=[[0.5, 2.0], [4.0, 1.0]], sizes=n, seed=5
    )
    k = np.arange(n + 1)
    law = 0.3 * stats.betabinom.pmf(k, n, 0.5, 2.0) + 0.7 * stats.betabinom.pmf(k, n, 4.0, 1.0)
    fits(np.bincount(fed["y"][:, 0], minlength=n + 1), clients * law)


def test_three_categories_follow_the_law_written_out_outcome_by_outcome() -> None:
    clients, alpha = 30_000, [0.2, 1.0, 3.0]
    fed, _ = dirichlet_multinomial(clients, weights=[1.0], concentrations=[alpha], sizes=3, seed=6)
    outcomes = [(i, j, 3 - i - j) for i in range(4) for j in range(4 - i)]
    law = np.array([stats.dirichlet_multinomial.pmf(o, alpha, 3) for o in outcomes])
    assert law.sum() == pytest.approx(1.0)
    fits(np.array([(fed["y"] == o).all(axis=1).sum() for o in outcomes]), clients * law)


@pytest.mark.parametrize("setting", TABLE_1)
def test_table_1_has_the_component_frequencies_and_means_it_prints(setting: str) -> None:
    fed, truth = mdm_table1(setting, 20_000, n=20, seed=7)
    weights, alpha = truth["weights"], truth["concentrations"]
    assert alpha.shape == (int(setting[-1]), 10)
    fits(np.bincount(truth["component"], minlength=len(weights)), 20_000 * weights)
    within_five(fed["y"].astype(float), 20 * weights @ (alpha / alpha.sum(axis=1, keepdims=True)))
    for k in range(len(weights)):
        counts, mean, total = fed["y"][truth["component"] == k], alpha[k] / alpha[k].sum(), alpha[k].sum()
        variance = 20 * mean * (1 - mean) * (20 + total) / (1 + total)
        within_five((counts - 20 * mean) ** 2, variance)


def test_table_1_is_copied_right() -> None:
    sums = {setting: [round(sum(row), 10) for row in rows] for setting, (_, rows) in TABLE_1.items()}
    assert sums == {
        "low-1": [10.0],
        "low-2": [5.0, 25.0],
        "low-3": [25.0, 5.0, 11.0],
        "medium-1": [8.0],
        "medium-2": [8.0, 23.0],
        "medium-3": [32.0, 8.0, 23.0],
        "high-1": [1.58],
        "high-2": [1.58, 20.3],
        "high-3": [26.4, 1.58, 20.3],
    }


def test_appendix_a2_has_the_likelihood_found_elsewhere() -> None:
    fed, truth = mdm_a2(5_000, seed=8)
    each = np.stack([stats.dirichlet_multinomial.logpmf(fed["y"], row, 100) for row in truth["concentrations"]])
    likelihood = np.logaddexp.reduce(each + np.log(truth["weights"])[:, None])
    spread = likelihood.std() * np.sqrt(1 / 5_000 + 1 / 1_000)  # the other figure is a mean over 1,000 clients
    assert abs(likelihood.mean() - -13.254) < 5 * spread


def test_every_client_has_the_size_asked_for() -> None:
    sizes = np.arange(3000) % 11
    fed, _ = dirichlet_multinomial(3000, weights=[1.0], concentrations=[[1.0, 2.0, 3.0]], sizes=sizes)
    np.testing.assert_array_equal(fed.counts("y").sum(axis=1), sizes)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weights": [0.5, 0.6]}, "weights must be at least 0 and sum to 1, not to 1.1"),
        ({"weights": [1.5, -0.5]}, "weights must be at least 0"),
        ({"weights": [1.0]}, r"not \[2, 2\] and \[1\]"),
        ({"concentrations": [1.0, 2.0]}, r"not \[2\] and \[2\]"),
        ({"concentrations": [[1.0, 0.0], [1.0, 1.0]]}, "at least 1e-100; the smallest is 0.0"),
        ({"concentrations": [[1.0, np.nan], [1.0, 1.0]]}, "concentrations must be finite"),
        ({"sizes": -1}, "sizes must be a whole number from 0 on, or one for each of the 4 clients, not -1"),
        ({"sizes": [1, 2]}, r"sizes must be .* not \[1 2\]"),
        ({"sizes": 1.5}, "sizes must be a whole number"),
        ({"n_clients": -1}, "n_clients must be a whole number of at least 0, not -1"),
        ({"seed": -1}, "seed must be a whole number"),
    ],
)
def test_bad_parameters_of_a_mixture_are_refused(change: dict[str, Any], message: str) -> None:
    good = {"n_clients": 4, "weights": [0.5, 0.5], "concentrations": [[1.0, 2.0], [3.0, 4.0]], "sizes": 5}
    with pytest.raises(DataError, match=message) as caught:
        dirichlet_multinomial(**{**good, **change})
    assert "\n" not in str(caught.value)


def test_an_unknown_setting_of_table_1_is_refused() -> None:
    with pytest.raises(DataError, match=r"setting must be one of low-1, .* high-3, not 'low-4'"):
        mdm_table1("low-4")


# -- FedGMM ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("law", ["gaussian", "laplace", "beta"])
def test_a_component_has_the_moments_of_its_law(law: str) -> None:
    fed, truth = fedgmm_synthetic(40, 300, dimension=6, law=law, seed=9)
    for m in range(3):
        x, mu = fed["x"][truth["component"] == m], truth["mu"][m]
        a, b = truth["a"][m], truth["b"][m]
        law_of_x = {
            "gaussian": stats.norm(mu),
            "laplace": stats.laplace(mu, np.sqrt(0.5)),
            "beta": stats.beta(a, b),
        }[law]
        np.testing.assert_allclose(law_of_x.mean(), mu)
        within_five(x, mu)
        within_five((x - mu) ** 2, law_of_x.var())
        for d in range(6):
            one = {"gaussian": (mu[d],), "laplace": (mu[d], np.sqrt(0.5)), "beta": (a[d], b[d])}[law]
            assert stats.kstest(x[:, d], {"gaussian": "norm"}.get(law, law), args=one).pvalue > RARE
    if law != "beta":
        assert np.abs(truth["mu"]).max() <= 1.0


@pytest.mark.parametrize("law", ["gaussian", "laplace", "beta"])
def test_labels_are_the_rule_of_the_paper_row_by_row(law: str) -> None:
    fed, truth = fedgmm_synthetic(6, 30, dimension=5, law=law, seed=10)
    for row in range(fed.n_rows):
        m = int(truth["component"][row])
        v = truth["mu"][(m + 1) % 3] - truth["mu"][m]
        np.testing.assert_allclose(truth["v"][m], v)
        assert fed["y"][row] == int((fed["x"][row] - truth["mu"][m]) @ v > 0)


def test_shares_are_dirichlet_and_components_follow_them() -> None:
    fed, truth = fedgmm_synthetic(2_000, 20, dimension=2, seed=11)
    within_five(truth["shares"], 1 / 3)
    within_five(truth["shares"] ** 2, 0.4 * 1.4 / (1.2 * 2.2))
    seen = Federation({"m": truth["component"]}, fed.offsets).counts("m", 3)
    expected = 20 * truth["shares"]
    many = expected.min(axis=1) > 3  # clients of enough rows in every component for the chi-square law
    square = ((seen - expected) ** 2 / expected)[many].sum()
    assert abs(square - 2 * many.sum()) < 5 * np.sqrt(2 * 2 * many.sum() * 1.1)


def test_deviation_scales_the_spread_about_the_means() -> None:
    one, truth = fedgmm_synthetic(5, 50, dimension=3, seed=12)
    half, again = fedgmm_synthetic(5, 50, dimension=3, deviation=0.5, seed=12)
    mu = truth["mu"][truth["component"]]
    np.testing.assert_array_equal(truth["component"], again["component"])
    np.testing.assert_allclose(half["x"] - mu, 0.5 * (one["x"] - mu), atol=1e-12)


@pytest.mark.parametrize(
    "made", [fedgmm_synthetic(3, 40, dimension=2, law=law) for law in ("gaussian", "laplace", "beta")]
)
def test_bayes_is_the_posterior_computed_with_scipy(made: Made) -> None:
    fed, truth = made
    laws = {
        "gaussian": lambda m: stats.norm(truth["mu"][m]),
        "laplace": lambda m: stats.laplace(truth["mu"][m], np.sqrt(0.5)),
        "beta": lambda m: stats.beta(truth["a"][m], truth["b"][m]),
    }
    expected = []
    for client, (begin, end) in enumerate(pairwise(fed.offsets)):
        for x in fed["x"][begin:end]:
            joint = [truth["shares"][client, m] * laws[str(truth["law"][m])](m).pdf(x).prod() for m in range(3)]
            ones = [(x - truth["mu"][m]) @ truth["v"][m] > 0 for m in range(3)]
            expected.append(np.dot(joint, ones) / np.sum(joint))
    np.testing.assert_allclose(fedgmm_bayes(fed, truth), expected, atol=1e-12)


@pytest.mark.parametrize("law", ["gaussian", "laplace", "beta"])
def test_bayes_is_calibrated_and_near_one_in_many_dimensions(law: str) -> None:
    fed, truth = fedgmm_synthetic(100, 50, dimension=2, law=law, seed=13)
    p = fedgmm_bayes(fed, truth)
    assert abs((fed["y"] - p).sum()) < 5 * np.sqrt((p * (1 - p)).sum())
    accuracy = ((p > 0.5) == fed["y"]).mean()
    assert abs(accuracy - np.maximum(p, 1 - p).mean()) < 5 * np.sqrt((p * (1 - p)).sum()) / len(p)
    fed, truth = fedgmm_synthetic(100, 50, law=law, seed=13)
    assert ((fedgmm_bayes(fed, truth) > 0.5) == fed["y"]).mean() > 0.98


@pytest.mark.parametrize("law", ["laplace", "beta"])
def test_partial_has_two_populations_that_share_nothing(law: str) -> None:
    fed, truth = fedgmm_partial(30, 20, law=law, dimension=8, seed=14)
    assert truth["law"].tolist() == ["gaussian"] * 3 + [law] * 3
    assert (truth["component"].reshape(30, 20)[:20] < 3).all()
    assert (truth["component"].reshape(30, 20)[20:] >= 3).all()
    np.testing.assert_allclose(truth["shares"].sum(axis=1), 1.0)
    gaussian, _ = fedgmm_synthetic(20, 20, dimension=8, seed=14)
    np.testing.assert_array_equal(fed.take(slice(0, 20))["x"], gaussian["x"])
    assert not np.isin(truth["mu"][3:], truth["mu"][:3]).any()
    p = fedgmm_bayes(fed, truth)
    assert abs((fed["y"] - p).sum()) < 5 * np.sqrt((p * (1 - p)).sum())


def test_clients_may_have_different_numbers_of_rows_even_none() -> None:
    fed, truth = fedgmm_synthetic(3, [4, 0, 2], dimension=3)
    assert fed.sizes.tolist() == [4, 0, 2]
    assert fedgmm_bayes(fed, truth).shape == (6,)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"law": "cauchy"}, "law must be one of gaussian, laplace, beta, not 'cauchy'"),
        ({"law": "beta", "deviation": 2.0}, "law='beta' has its own spread: leave deviation at 1.0, not 2.0"),
        ({"components": 1}, "components must be a whole number of at least 2, not 1"),
        ({"dimension": 0}, "dimension must be a whole number of at least 1, not 0"),
        ({"concentration": 0.0}, "concentration must be a finite number above 0, not 0.0"),
        ({"deviation": np.inf}, "deviation must be a finite number above 0, not inf"),
        ({"n_rows": [1, 2]}, "n_rows must be a whole number from 0 on, or one for each of the 3 clients"),
    ],
)
def test_bad_parameters_of_fedgmm_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        fedgmm_synthetic(**{"n_clients": 3, "n_rows": 5, "dimension": 2, **change})


# -- FedHLCR -----------------------------------------------------------------------------------------------------------


def test_hlcr_noise_and_features_are_normal() -> None:
    fed, truth = hlcr_synthetic(64, sigma=0.3, seed=15)
    z = truth["z"][fed.client_of_row, fed["entity"]]
    noise = fed["y"] - np.einsum("rf,rf->r", fed["x"], truth["coefficients"][z])
    assert stats.kstest(noise / 0.3, "norm").pvalue > RARE
    assert stats.kstest(fed["x"].ravel(), "norm").pvalue > RARE
    within_five(noise**2, 0.09)


def test_hlcr_coefficients_come_back_by_least_squares() -> None:
    fed, truth = hlcr_synthetic(32, entities=8, events=20, components=3, sigma=0.5, seed=16)
    z = truth["z"][fed.client_of_row, fed["entity"]]
    for k in range(3):
        x, y = fed["x"][z == k], fed["y"][z == k]
        inverse = np.linalg.inv(x.T @ x)
        error = inverse @ x.T @ y - truth["coefficients"][k]
        assert np.all(np.abs(error) < 5 * 0.5 * np.sqrt(np.diag(inverse)))


def test_hlcr_laws_of_the_hidden_parts() -> None:
    _, truth = hlcr_synthetic(3_000, entities=5, events=0, components=6, delta=2.0, alpha=3.0, beta=4.0, seed=17)
    psi, theta, z = truth["psi"], truth["theta"], truth["z"]
    within_five(theta, psi)
    within_five((theta - psi) ** 2, psi * (1 - psi) / 5)
    within_five(np.stack([(z == k).mean(axis=1) for k in range(6)], axis=1), psi)
    many = [hlcr_synthetic(0, components=6, delta=2.0, alpha=3.0, seed=seed)[1] for seed in range(400)]
    within_five(np.array([one["psi"] ** 2 for one in many]), 0.5 * 1.5 / (3 * 4))
    within_five(np.array([one["coefficients"].ravel() ** 2 for one in many]), 4.0)


def test_hlcr_rows_lie_entity_by_entity() -> None:
    fed, truth = hlcr_synthetic(3, entities=2, events=4, features=5)
    assert fed.client(1)["entity"].tolist() == [0] * 4 + [1] * 4
    assert fed["x"].shape == (24, 5)
    assert truth["coefficients"].shape == (16, 5)


def test_hlcr_numbers_of_entities_and_events_can_be_drawn_with_the_papers_means() -> None:
    fed, truth = hlcr_synthetic(400, entities=4, events=5, features=2, numbers="poisson", seed=3)
    entities = (truth["z"] >= 0).sum(axis=1)
    events = np.unique(fed.client_of_row * 1000 + fed["entity"], return_counts=True)[1]
    assert len(events) == entities.sum()  # nobody is empty
    within_five(entities, 4.0)
    within_five(events, 5.0)
    within_five((events - 5.0) ** 2, 4.0)
    alone = hlcr_synthetic(2, entities=4, events=5, features=2, numbers="poisson", seed=3)[0]
    np.testing.assert_array_equal(alone["y"], fed["y"][: alone.n_rows])
    with pytest.raises(DataError, match="numbers must be 'exact' or 'poisson', not 'mean'"):
        hlcr_synthetic(2, numbers="mean")  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "value"), [("sigma", 0.0), ("delta", -1.0), ("alpha", np.nan), ("beta", "much")])
def test_bad_scales_of_hlcr_are_refused(name: str, value: Any) -> None:
    with pytest.raises(DataError, match=f"{name} must be a finite number above 0, not {value!r}"):
        hlcr_synthetic(2, **{name: value})


@pytest.mark.parametrize(("name", "value"), [("entities", 0), ("events", -1), ("features", 0), ("components", 0.5)])
def test_bad_numbers_of_hlcr_are_refused(name: str, value: Any) -> None:
    with pytest.raises(DataError, match=f"{name} must be a whole number of at least [01], not {value!r}"):
        hlcr_synthetic(2, **{name: value})


# -- two Gaussians -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("z", [0.0, 0.5, 0.95, 2.0, 6.0])
def test_the_distance_is_the_integral_of_the_density_difference(z: float) -> None:
    _, truth = gaussian_pair(1, z=z)
    assert np.linalg.norm(truth["means"][0] - truth["means"][1]) == pytest.approx(z)
    half = integrate.quad(lambda t: 0.5 * abs(stats.norm.pdf(t) - stats.norm.pdf(t - z)), -12, 18, points=[z / 2])[0]
    assert float(truth["tvd"]) == pytest.approx(half, abs=1e-7)


def test_the_best_half_space_tells_the_clients_apart_as_the_distance_says() -> None:
    fed, truth = gaussian_pair(20_000, tvd=0.4, dimension=5, seed=18)
    assert float(truth["tvd"]) == pytest.approx(0.4)
    first, second = truth["means"]
    side = (fed["x"] - (first + second) / 2) @ (second - first) > 0
    gap = side[20_000:].mean() - side[:20_000].mean()
    assert abs(gap - 0.4) < 5 * np.sqrt(2 * 0.3 * 0.7 / 20_000)
    within_five(fed.client(0)["x"], first)
    within_five(fed.client(1)["x"], second)
    within_five((fed.client(1)["x"] - second) ** 2, 1.0)


@pytest.mark.parametrize("tvd", [0.0, 0.1, 0.5, 0.999])
def test_z_and_tvd_say_the_same(tvd: float) -> None:
    given, truth = gaussian_pair(10, tvd=tvd)
    again, _ = gaussian_pair(10, z=float(truth["z"]))
    assert float(truth["tvd"]) == pytest.approx(tvd, abs=1e-12)
    np.testing.assert_array_equal(given["x"], again["x"])


def test_more_rows_begin_with_the_same_ones() -> None:
    few, many = gaussian_pair(10, z=1.0)[0], gaussian_pair(15, z=1.0)[0]
    np.testing.assert_array_equal(few.client(1)["x"], many.client(1)["x"][:10])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "needs z or tvd, one of them: got z=None and tvd=None"),
        ({"z": 1.0, "tvd": 0.5}, "got z=1.0 and tvd=0.5"),
        ({"z": -1.0}, "z must be a finite number of at least 0, not -1.0"),
        ({"tvd": 1.0}, "tvd must be at least 0 and below 1, not 1.0"),
        ({"tvd": np.nan}, "tvd must be at least 0 and below 1, not nan"),
        ({"z": 1.0, "dimension": 0}, "dimension must be a whole number of at least 1, not 0"),
    ],
)
def test_bad_distances_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        gaussian_pair(10, **given)

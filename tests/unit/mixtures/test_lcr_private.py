"""Private latent class regression: cut values, bounded sums, the ledger, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from fedscape import (
    DataError,
    Federation,
    FixedSize,
    Gaussian,
    Key,
    LatentClassRegression,
    Ledger,
    NotFittedError,
    Poisson,
    PrivacyError,
)
from fedscape.datasets.generators import hlcr_synthetic
from fedscape.mixtures.latent_class.private import share_of
from fedscape.mixtures.latent_class.rounds import ClassAssignment
from fedscape.mixtures.latent_class.table import Table
from fedscape.privacy.mechanisms import AdaptiveClip
from fedscape.temporal.availability import Dropping

RANGES = {"x": (-3.0, 3.0), "y": (-6.0, 6.0)}


def data(agents=400, k=2, seed=1):
    fed, _ = hlcr_synthetic(agents, entities=3, events=10, features=2, components=k, sigma=0.5, delta=1.5, seed=seed)
    place = np.arange(fed.n_rows) % 10
    return fed.where(place < 8), fed.where(place >= 8)


def test_ranges_make_the_same_regression_without_a_survey():
    train, test = data(100)
    with_ranges = LatentClassRegression(2, ranges=RANGES, beta=2.0, seed=0).fit(train)
    plain = LatentClassRegression(2, beta=2.0, seed=0).fit(train)
    assert with_ranges.score(test) == pytest.approx(plain.score(test), abs=0.03)
    assert len(with_ranges.history_) == 20
    assert len(plain.history_) == 22


def test_values_are_cut_to_their_ranges():
    fed = Federation({"x": [0.0, 1.0, 50.0], "y": [0.0, 1.0, -9.0]}, [0, 3])
    cut = Federation({"x": [0.0, 1.0, 2.0], "y": [0.0, 1.0, -1.0]}, [0, 3])
    settings = {"ranges": {"x": (-2.0, 2.0), "y": (-1.0, 1.0)}, "entity": None}
    one, two = (LatentClassRegression(1, **settings).fit(part) for part in (fed, cut))
    assert one.coefficients_.tobytes() == two.coefficients_.tobytes()


@pytest.mark.parametrize("intercept", [True, False])
def test_one_row_moves_the_sums_of_one_line_by_no_more_than_its_bound(intercept):
    work = ClassAssignment(Table(ranges=((-2.0, 4.0), (0.0, 10.0)), intercept=intercept), 2 + intercept, 1, gamma=0.5)
    rng = np.random.default_rng(0)
    x, y = rng.normal(0, 9, (200, 2)), rng.normal(0, 20, 200)
    centre, half = work.table.units(Federation({"x": x[:1], "y": y[:1]}, [0, 1]))
    state = work.begin(centre, half[:-1], deviation=1.0)
    for norm in (1, 2):
        bound = work.row_bound(state, norm)
        for i in range(200):
            fed = Federation({"x": x[[i]], "y": y[[i]], "entity": [0]}, [0, 1])
            sent, _ = work.step(work.prepare(state), fed, Key(0, 0))
            assert np.linalg.norm(sent["sums"].ravel(), norm) <= bound * (1 + 1e-12)
    assert ClassAssignment(Table(ranges=((-2.0, 4.0), (0.0, 10.0))), 3, 2, gamma=0.5).row_bound(state, 2) is None


def test_a_private_fit_stays_in_its_budget_and_learns():
    train, test = data(400)
    reg = LatentClassRegression(2, ranges=RANGES, beta=2.0, rounds=6, seed=0)
    private, ledger = Gaussian(clip=30.0, multiplier=1.0, noise_seed=0), Ledger(epsilon=20.0, delta=1e-6)
    reg.fit(train, privacy=private, ledger=ledger)
    assert sum(line["kind"] == "release" for line in ledger.entries()) == reg.n_releases() == 6
    assert 10 < max(ledger.spent().values()) <= 20  # a Gaussian of multiplier 1 / sqrt(6)
    assert reg.ledger_ is ledger
    assert reg.score(test) > LatentClassRegression(1, ranges=RANGES).fit(train).score(test)
    with pytest.raises(PrivacyError, match="beyond the budget"):
        reg.fit(train, privacy=private, ledger=ledger)


@pytest.mark.parametrize("sampler", [Poisson(0.5), FixedSize(30)])
def test_private_sums_of_a_cohort_are_scaled_up_by_what_is_known_beforehand(sampler):
    train, _ = data(60, k=1)
    settings = {"ranges": RANGES, "rounds": 12, "seed": 0}
    little = Gaussian(clip=30.0, multiplier=0.001, noise_seed=0)
    reg = LatentClassRegression(1, **settings).fit(train, privacy=little, sampler=sampler)
    exact = LatentClassRegression(1, **settings).fit(train)
    np.testing.assert_allclose(reg.coefficients_, exact.coefficients_, atol=0.1)
    assert reg.events_.sum() == pytest.approx(train.n_rows, rel=0.5)


def test_a_wrapped_sampler_has_the_share_of_the_one_inside():
    for sampler in (Poisson(0.1), FixedSize(5)):
        assert share_of(Dropping(Dropping(sampler, 0.1), 0.1), 50) == share_of(sampler, 50) == 0.1


def test_strong_noise_leaves_finite_numbers_near_the_prior():
    train, test = data(50)
    for link in ("identity", "logistic"):
        part = train if link == "identity" else train.with_column("y", (train["y"] > 0) * 1.0)
        settings = {"ranges": {**RANGES, "y": (0.0, 1.0)} if link == "logistic" else RANGES, "link": link, "rounds": 5}
        reg = LatentClassRegression(3, **settings).fit(part, privacy=Gaussian(clip=5.0, multiplier=50.0, noise_seed=1))
        assert np.isfinite(reg.coefficients_).all()
        assert np.isfinite(reg.predict(test)).all()
        assert not reg.ledger_.private


def line(agents=200, events=5, seed=0):
    """Agents with a few events of one line, whose coefficients are 1 and -0.5."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(agents * events, 2)).clip(-3, 3)
    y = x @ [1.0, -0.5] + rng.normal(0, 0.5, agents * events)
    return Federation({"x": x, "y": y}, np.arange(0, agents * events + 1, events))


@pytest.mark.parametrize("sampler", [None, FixedSize(400)])
def test_noise_that_agents_add_themselves_grows_with_the_cohort_and_is_reckoned_with(sampler):
    fed = line(800)
    n = len(sampler.draw(fed, Key(0))) if sampler else len(fed)
    settings = {"ranges": {"x": (-3.0, 3.0), "y": (-5.0, 5.0)}, "entity": None, "rounds": 5}
    for seed in range(3):
        noise = {"noise_seed": seed, "place": "local"}
        clear = LatentClassRegression(1, **settings)
        clear.fit(fed, sampler=sampler, privacy=Gaussian(clip=8.0, multiplier=0.02, **noise))
        np.testing.assert_allclose(clear.coefficients_, [[1.0, -0.5]], atol=0.1)
        assert clear._placing.noise == pytest.approx(0.16 * np.sqrt(n))
        drowned = LatentClassRegression(1, **settings)
        drowned.fit(fed, sampler=sampler, privacy=Gaussian(clip=8.0, multiplier=5.0, **noise))
        assert np.abs(drowned.coefficients_).max() < 2  # what noise could have made is taken for nothing


def test_a_private_fit_has_no_errors_and_intervals_because_they_would_not_hold(tmp_path):
    fed = line()
    reg = LatentClassRegression(1, ranges={"x": (-3.0, 3.0), "y": (-5.0, 5.0)}, entity=None, rounds=5).fit(fed)
    assert reg.intervals_.shape == (1, 3, 2)
    reg.fit(fed, privacy=Gaussian(clip=8.0, multiplier=1.0, noise_seed=0))
    reg.save(tmp_path / "reg.json")
    for made in (reg, LatentClassRegression.load(tmp_path / "reg.json")):
        for name in ("errors_", "intervals_"):
            with pytest.raises(NotFittedError, match=f"a private fit has no {name}: the law of the coefficients knows"):
                getattr(made, name)
            assert not hasattr(made, name)
    assert reg.fit(fed).errors_.shape == (1, 2)
    with pytest.raises(AttributeError, match="no attribute 'nonsense_'"):
        _ = reg.nonsense_


def test_nobodys_own_events_are_taken_out_of_noisy_sums():
    fed = line(20)
    settings = {"ranges": {"x": (-3.0, 3.0), "y": (-5.0, 5.0)}, "entity": None, "rounds": 2, "gamma": 1.0}
    for place in ("central", "local"):
        reg = LatentClassRegression(1, **settings)
        reg.fit(fed, privacy=Gaussian(clip=8.0, multiplier=0.01, place=place, noise_seed=0))
        assert reg._draws[0].state["held"] == 0


def test_a_single_event_can_be_the_unit_for_one_line():
    train, _ = data(300, k=1)
    reg = LatentClassRegression(1, ranges=RANGES, rounds=2)
    reg.fit(train, privacy=Gaussian(clip=4.0, multiplier=1.0, unit="row", noise_seed=0))
    exact = LatentClassRegression(1, ranges=RANGES, rounds=2).fit(train)
    np.testing.assert_allclose(reg.coefficients_, exact.coefficients_, atol=0.05)
    with pytest.raises(PrivacyError, match="does not bound what one row can change"):
        LatentClassRegression(2, ranges=RANGES).fit(train, privacy=Gaussian(clip=4.0, multiplier=1.0, unit="row"))


@pytest.mark.parametrize(
    ("settings", "clip", "message"),
    [
        ({}, 1.0, r"a private regression needs ranges=\{column: \(low, high\)\}"),
        ({"ranges": RANGES, "n_components": (1, 2)}, 1.0, "one n_components and one chain"),
        ({"ranges": RANGES, "chains": 2}, 1.0, "one n_components and one chain"),
        ({"ranges": RANGES, "method": "central"}, 1.0, "method 'federated' or 'em', and gamma a number"),
        ({"ranges": RANGES, "gamma": "latest"}, 1.0, "method 'federated' or 'em', and gamma a number"),
        ({"ranges": RANGES, "alpha": None}, 1.0, "has alpha and beta given, not None: learned from noisy counts"),
        ({"ranges": RANGES, "beta": None}, 1.0, "has alpha and beta given, not None: learned from noisy counts"),
        ({"ranges": RANGES}, AdaptiveClip(1.0), "clip must be a number: sums are judged by their noise"),
    ],
)
def test_what_a_private_fit_refuses(settings, clip, message):
    with pytest.raises(PrivacyError, match=message):
        LatentClassRegression(**settings).fit(data(5)[0], privacy=Gaussian(clip=clip, multiplier=1.0))


@pytest.mark.parametrize(
    ("ranges", "message"),
    [
        ({"x": (0.0, 1.0)}, "ranges must name every feature and the target, but not y: add them"),
        ({"x": (1.0, 1.0), "y": (0.0, 1.0)}, "the range of 'x' must be a number and a greater one, not 1.0, 1.0"),
    ],
)
def test_bad_ranges_are_refused(ranges, message):
    with pytest.raises(DataError, match=message):
        LatentClassRegression(1, ranges=ranges).fit(data(5)[0])

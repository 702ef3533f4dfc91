"""Bounds against closed forms and jax-privacy's auditing module; coverage; what an audit says."""

from __future__ import annotations

import hashlib
import math
import subprocess
import sys
from itertools import count

import numpy as np
import pytest
from scipy.special import ndtr

from fedscape import (
    DataError,
    FedAvg,
    Federation,
    Gaussian,
    GaussianMixture,
    Histogram,
    Laplace,
    Local,
    Moments,
    Poisson,
    rounds,
)
from fedscape.learning import LocalSGD
from fedscape.learning.losses import cross_entropy
from fedscape.privacy import audit
from fedscape.privacy.bounds import (
    Booked,
    epsilon_of_mu,
    epsilon_of_rates,
    epsilon_one_run,
    mu_of_rates,
    mu_one_run,
    one_run_p_value,
    upper_limit,
)
from fedscape.privacy.mechanisms import Privacy

FED = Federation({"y": np.random.default_rng(0).integers(0, 5, 90)}, np.arange(0, 91, 3))
ALL = {"relation": "add-remove", "mechanism": "gaussian", "multiplier": 1.0, "sampling": {"kind": "all"}}
SURE = {"confidence": 1 - 1e-6, "simulations": 0}


@pytest.fixture
def same_noise(monkeypatch):
    numbers = count()
    monkeypatch.setattr(Privacy, "new_secret", lambda self: hashlib.sha256(str(next(numbers)).encode()).digest())


# jax_privacy 2.0.0: pip install --no-deps --target jaxp jax-privacy, then load jaxp/jax_privacy/auditing.py alone:
# _one_run_p_value(m, r, c, 1.0, 1e-5), _epsilon_one_run(0.0, m, r, c, 0.05, 1e-5), _epsilon_one_run_fdp(1e-3, ...)
JAX_PRIVACY = [
    (1000, 100, 90, 0.0008412885614385309, 1.6261436787042223, 2.456405067500314),
    (1000, 400, 300, 0.21420791202771178, 0.9035143928157686, 1.5386470458711723),
    (5000, 200, 200, 0.0014909885708393076, 4.055521816066196, 5.954716524220026),
]


@pytest.mark.parametrize(("m", "r", "c", "p", "epsilon", "gaussian"), JAX_PRIVACY)
def test_one_run_is_that_of_jax_privacy(m, r, c, p, epsilon, gaussian):
    assert one_run_p_value(m, r, c, 1.0, 1e-5) == pytest.approx(p, rel=1e-9)
    assert epsilon_one_run(m, r, c, 1e-5, 0.95) == pytest.approx(epsilon, abs=2e-6)
    assert epsilon_of_mu(mu_one_run(m, r, c, 0.95), 1e-5) == pytest.approx(gaussian, abs=2e-5)


def test_limits_are_clopper_and_pearsons():
    # jax_privacy 2.0.0: _clopper_pearson_upper(np.array([0, 3, 50, 100]), 100, 0.05)
    expected = [0.02951305, 0.07571079, 0.58637829, 1.0]
    assert upper_limit(np.array([0, 3, 50, 100]), 100, 0.95) == pytest.approx(expected, abs=1e-7)


@pytest.mark.parametrize("threshold", [-1.0, 0.0, 0.7, 2.0])
@pytest.mark.parametrize("multiplier", [0.5, 1.0, 4.0])
def test_exact_rates_of_a_gaussian_give_its_mu_and_break_nothing_weaker(multiplier, threshold):
    rates = float(ndtr(-threshold)), float(ndtr(threshold - 1 / multiplier))
    assert mu_of_rates(*rates) == pytest.approx(1 / multiplier, rel=1e-9)
    booked = Booked([({**ALL, "multiplier": multiplier}, 1)])
    assert not booked.broken(*rates, 0.999)
    assert booked.bound(*rates, 1e-6) == pytest.approx(booked.epsilon(1e-6), rel=0.02)
    assert epsilon_of_rates(*rates, 1e-6) <= booked.epsilon(1e-6)


def test_exact_rates_of_laplace_and_of_a_sampled_gaussian_touch_their_own_curve():
    laplace = Booked([({**ALL, "mechanism": "laplace"}, 1)])
    rates = 0.5 * math.exp(-1.0), 0.5
    assert epsilon_of_rates(*rates, 0.0) == pytest.approx(1.0)
    assert not laplace.broken(*rates, 0.99)
    assert laplace.broken(*rates, 1.05)
    sampled = Booked([({**ALL, "sampling": {"kind": "poisson", "rate": 0.1}}, 1)])
    t = 2.0
    rates = float(ndtr(-t)), float(0.9 * ndtr(t) + 0.1 * ndtr(t - 1))
    assert not sampled.broken(*rates, 0.98)
    assert sampled.broken(*rates, 1.05)


def test_a_bound_is_above_the_truth_no_more_often_than_it_says():
    rng, n, wrong, wrong_one_run = np.random.default_rng(0), 400, 0, 0
    for _ in range(400):
        inside, outside = rng.normal(1.0, 1.0, n), rng.normal(0.0, 1.0, n)
        limits = upper_limit(np.array([(outside > 0.5).sum(), (inside <= 0.5).sum()]), n, 0.95)
        wrong += mu_of_rates(*limits) > 1.0
        coins = rng.random(n) < 0.5
        scores = rng.normal(coins.astype(float), 1.0)
        order = np.argsort(scores)
        correct = int(coins[order[-50:]].sum() + (~coins[order[:50]]).sum())
        wrong_one_run += mu_one_run(n, 100, correct, 0.9) > 1.0
    assert wrong <= 400 * 0.1 + 5 * math.sqrt(400 * 0.1 * 0.9)
    assert wrong_one_run <= 400 * 0.1 + 5 * math.sqrt(400 * 0.1 * 0.9)


def test_an_audit_says_claim_bound_verdict_and_power(same_noise):
    found = audit(Histogram(5), FED, Gaussian(clip=1.0, multiplier=1.0), repeats=3000, simulations=40)
    assert found.claim == pytest.approx(epsilon_of_mu(1.0, 1e-6))
    assert 0.6 * found.claim < found.bound <= found.claim
    assert found.holds
    assert list(found.power.values()) == sorted(found.power.values())
    assert found.power[0.5] >= 0.8
    assert found.noticed >= 0.5
    assert found.about()["parts"] == ["counts", "number of clients"]
    assert "holds" in str(found)


def test_power_is_how_often_halved_noise_is_noticed(same_noise, monkeypatch):
    """The simulated power of a weak audit against the share of real ones that notice noise planted."""
    privacy, how = Gaussian(clip=1.0, multiplier=1.0), {"repeats": 150}
    stated = audit(Histogram(5), FED, privacy, simulations=200, **how).power[0.5]
    draw = Gaussian.draw
    monkeypatch.setattr(Gaussian, "draw", lambda self, stream, spread, n: draw(self, stream, spread / 2, n))
    real = np.mean([not audit(Histogram(5), FED, privacy, simulations=0, seed=s, **how).holds for s in range(30)])
    assert abs(real - stated) < 5 * math.sqrt(0.25 / 30 + 0.25 / 200)


def test_one_run_with_many_canaries_bounds_a_network_from_below(same_noise):
    fed = Federation({"y": np.zeros(600, dtype=int)}, np.arange(601))
    sound = audit(Histogram(600), fed, Gaussian(clip=1.0, multiplier=0.5), method="one-run", canaries=500, **SURE)
    assert sound.holds
    assert 0 < sound.bound < sound.claim
    loose = audit(Histogram(600), fed, Gaussian(clip=1.0, multiplier=4.0), method="one-run", canaries=500, **SURE)
    assert loose.bound <= loose.claim


def test_one_run_notices_that_the_noise_of_a_network_is_half_and_says_that_it_would(same_noise, monkeypatch):
    from torch import nn

    rng, n = np.random.default_rng(0), 3000
    fed = Federation({"x": rng.normal(size=(n, 30)), "y": rng.integers(0, 5, n)}, np.arange(n + 1))
    model = nn.Sequential(nn.Linear(30, 90), nn.ReLU(), nn.Linear(90, 5))
    computation = FedAvg(LocalSGD(model, cross_entropy, lr=0.1, epochs=1, batch_size=4))
    privacy, how = Gaussian(clip=1.0, multiplier=1.4), {"method": "one-run", "canaries": n, "simulations": 50}
    sound = audit(computation, fed, privacy, **how)
    assert sound.holds
    assert sound.power[0.5] >= 0.8
    assert sound.power[0.9] <= 0.2
    draw = Gaussian.draw
    monkeypatch.setattr(Gaussian, "draw", lambda self, stream, spread, n: draw(self, stream, spread / 2, n))
    broken = audit(computation, fed, privacy, **how)
    assert not broken.holds
    assert broken.bound > broken.claim


def test_gradient_canaries_metrics_and_several_rounds_of_a_network(same_noise):
    computation, fed = FedAvg.examples()[0]
    how = {"measure_privacy": Gaussian(clip=1.0, multiplier=3.0), "rounds": 2, "repeats": 200}
    found = audit(computation, fed, Gaussian(clip=1.0, multiplier=2.0), **how, **SURE)
    assert found.holds
    assert any(part.startswith("delta.") for part in found.parts)
    assert any(part.startswith("metric ") for part in found.parts)
    assert isinstance(computation.local, LocalSGD)


def test_an_estimator_of_several_phases_is_audited_by_its_first(same_noise):
    found = audit(
        GaussianMixture(2, n_init=1), Moments.examples()[0][1], Gaussian(clip=1.0, multiplier=2.0), repeats=200, **SURE
    )
    assert found.holds
    assert "GaussianMixture" not in found.computation


def test_the_audit_changes_neither_the_data_nor_the_computation(same_noise):
    before = [r.state["counts"].tolist() for r in rounds(Histogram(5), Local(FED), n_rounds=1)]
    audit(Histogram(5), FED, Laplace(clip=1.0, epsilon=1.0), sampler=Poisson(0.5), repeats=100, **SURE)
    assert before == [r.state["counts"].tolist() for r in rounds(Histogram(5), FED, n_rounds=1)]


def test_bad_arguments_are_refused():
    privacy = Gaussian(clip=1.0, multiplier=1.0)
    with pytest.raises(DataError, match="one of repeats, one-run, resume, not 'guess'"):
        audit(Histogram(5), FED, privacy, method="guess")
    with pytest.raises(DataError, match="repeats must be a whole number of at least 100, not 3"):
        audit(Histogram(5), FED, privacy, repeats=3)
    with pytest.raises(DataError, match="30 canaries, 5 numbers are sent"):
        audit(Histogram(5), FED, privacy, method="one-run")
    with pytest.raises(DataError, match="needs unit='client'"):
        audit(Histogram(5), FED, Gaussian(clip=1.0, multiplier=1.0, unit="row"), method="resume")


def test_the_audit_is_imported_when_it_is_asked_for():
    code = (
        "import fedscape, sys; assert not {'scipy', 'fedscape.privacy.auditing'} & set(sys.modules); "
        "fedscape.privacy.audit"
    )
    assert subprocess.run([sys.executable, "-W", "ignore", "-c", code]).returncode == 0

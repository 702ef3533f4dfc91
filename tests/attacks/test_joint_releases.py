"""What one cohort releases together is one subsampled event: amplification by sampling counts once."""

from __future__ import annotations

import numpy as np
import pytest

from fedscape import All, Federation, FixedSize, Gaussian, Histogram, Laplace, Ledger, Poisson, rounds
from fedscape.privacy import AdaptiveClip
from fedscape.privacy.accounting import epsilon_of

CENTRAL = ("client", "add-remove", "central")


class Measured(Histogram):
    def measure(self, state, clients):
        return {"rows": clients.sizes.astype(float)}


def spent(privacy, sampler, *, metrics=None, n_rounds=1, measure=1, group=CENTRAL):
    fed = Federation({"y": np.arange(200) % 3}, np.arange(201))
    ledger = Ledger(delta=1e-5)
    loop = rounds(
        Measured(3),
        fed,
        n_rounds=n_rounds,
        sampler=sampler,
        privacy=privacy,
        measure_privacy=metrics,
        ledger=ledger,
        measure=measure,
    )
    list(loop)
    return ledger, ledger.spent()[group]


def gaussian(multiplier, sampling, relation="add-remove"):
    about = {"unit": "client", "relation": relation, "place": "central", "mechanism": "gaussian"}
    return {**about, "sampling": sampling, "multiplier": multiplier}


def exact_delta(multiplier, rate, epsilon):
    """The larger hockey-stick divergence of (1 - q) N(0, s) + q N(1, s) and N(0, s), by quadrature: an oracle."""
    from scipy.stats import norm

    x = np.linspace(-12 * multiplier, 12 * multiplier + 1, 400_001)
    outside = norm.pdf(x, 0, multiplier)
    inside = (1 - rate) * outside + rate * norm.pdf(x, 1, multiplier)
    pairs = ((inside, outside), (outside, inside))
    return max(float(np.trapezoid(np.maximum(a - np.exp(epsilon) * b, 0), x)) for a, b in pairs)


@pytest.mark.parametrize("rate", [0.01, 0.3])
def test_a_sum_its_clip_bit_and_metrics_cost_what_one_release_of_all_of_them_costs(rate):
    privacy = Gaussian(clip=AdaptiveClip(1.0, multiplier=1.0), multiplier=1.0)
    ledger, epsilon = spent(privacy, Poisson(rate), metrics=Gaussian(clip=1.0, multiplier=1.0))
    joint = (3 / 1.0**2) ** -0.5
    assert exact_delta(joint, rate, epsilon) <= 1e-5  # at least what an attacker who sees all three can show
    assert exact_delta(joint, rate, 0.97 * epsilon) > 1e-5  # and not much more
    part = gaussian(1.0, {"kind": "poisson", "rate": rate})
    apart = epsilon_of([(part, 3)], 1e-5)
    if rate == 0.01:
        assert epsilon > 2 * apart  # what was booked before
    assert [line["mechanism"] for line in ledger.entries() if line["kind"] == "release"] == ["sum+clip+metrics"]


def test_the_default_clip_bit_counts():
    privacy = Gaussian(clip=AdaptiveClip(1.0), multiplier=1.0)
    _, epsilon = spent(privacy, Poisson(0.1))
    assert epsilon == pytest.approx(
        epsilon_of([(gaussian((1 + 0.01) ** -0.5, {"kind": "poisson", "rate": 0.1}), 1)], 1e-5), rel=1e-9
    )


def test_rounds_without_metrics_cost_less():
    privacy, metrics = Gaussian(clip=1.0, multiplier=1.0), Gaussian(clip=1.0, multiplier=1.0)
    ledger, epsilon = spent(privacy, Poisson(0.1), metrics=metrics, n_rounds=4, measure=2)
    names = [line["mechanism"] for line in ledger.entries() if line["kind"] == "release"]
    assert names == ["sum+metrics", "sum", "sum+metrics", "sum"]
    poisson = {"kind": "poisson", "rate": 0.1}
    wanted = epsilon_of([(gaussian(1.0, poisson), 2), (gaussian(0.5**0.5, poisson), 2)], 1e-5)
    assert epsilon == pytest.approx(wanted, rel=1e-9)


def test_fixed_size_samples_are_joint_too():
    privacy, metrics = Gaussian(clip=1.0, multiplier=4.0), Gaussian(clip=1.0, multiplier=4.0)
    group = ("client", "replace-one", "central")
    _, epsilon = spent(privacy, FixedSize(20), metrics=metrics, group=group)
    fixed = {"kind": "fixed", "size": 20, "of": 200}
    assert epsilon == pytest.approx(epsilon_of([(gaussian(2 * 0.5**0.5, fixed, "replace-one"), 1)], 1e-5), rel=1e-9)


def test_mechanisms_that_do_not_go_together_count_as_if_everyone_took_part():
    _, epsilon = spent(Laplace(clip=1.0, epsilon=0.2), Poisson(0.1), metrics=Gaussian(clip=1.0, multiplier=5.0))
    _, everyone = spent(Laplace(clip=1.0, epsilon=0.2), All(), metrics=Gaussian(clip=1.0, multiplier=5.0))
    assert epsilon == pytest.approx(everyone, rel=1e-9)
    _, alone = spent(Laplace(clip=1.0, epsilon=0.2), Poisson(0.1))
    assert alone < everyone / 5


def test_laplace_parts_add_up_before_they_are_amplified():
    privacy, metrics = Laplace(clip=1.0, epsilon=0.5), Laplace(clip=1.0, epsilon=0.5)
    _, epsilon = spent(privacy, Poisson(0.1), metrics=metrics)
    assert epsilon <= np.log1p(0.1 * np.expm1(1.0)) + 1e-9
    assert epsilon > 0.9 * np.log1p(0.1 * np.expm1(1.0)) - 1e-4

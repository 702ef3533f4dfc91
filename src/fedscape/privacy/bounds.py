"""Lower bounds on epsilon from the error rates of an attack.

An attack decides for each release whether the canary was in. Under (epsilon, delta) its false positive rate a and
false negative rate b obey 1 - b <= exp(epsilon) a + delta and 1 - a <= exp(epsilon) b + delta (Kairouz, Oh and
Viswanath 2015). Upper confidence limits of a and b that violate this prove a larger epsilon.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from fedscape.privacy.accounting import epsilon_of
from fedscape.types import Array

Counted = Sequence[tuple[Mapping[str, Any], int]]

_EPSILONS = np.concatenate(([0.0], np.geomspace(1e-3, 30.0, 90)))
FACTORS = np.geomspace(0.25, 4.0, 17)  # of the booked noise; the middle one is 1


def upper_limit(hits: Array | int, n: int, confidence: float) -> Array:
    """One-sided upper confidence limit of a rate with this number of hits in n trials (Clopper and Pearson 1934).

    >>> round(float(upper_limit(0, 100, 0.95)), 4)
    0.0295
    """
    from scipy.special import betaincinv

    k = np.asarray(hits, dtype=float)
    return np.where(k >= n, 1.0, betaincinv(k + 1, np.maximum(n - k, 1e-9), confidence))


def epsilon_of_rates(false_positive: float, false_negative: float, delta: float) -> float:
    """The smallest epsilon of any mechanism that admits an attack with these error rates.

    >>> round(epsilon_of_rates(0.1, 0.5, 0.0), 4)
    1.6094
    """

    def one(a: float, b: float) -> float:
        power = 1 - delta - b
        if power <= 0:
            return 0.0
        return math.log(power / a) if a > 0 else math.inf

    return max(0.0, one(false_positive, false_negative), one(false_negative, false_positive))


def mu_of_rates(false_positive: float, false_negative: float) -> float:
    """The smallest mu of a Gaussian mechanism (Dong, Roth and Su 2022) that admits an attack with these error rates.

    >>> round(mu_of_rates(0.5, 0.1587), 2)
    1.0
    """
    from scipy.special import ndtri

    return max(0.0, float(-ndtri(false_negative) - ndtri(false_positive)))


def epsilon_of_mu(mu: float, delta: float) -> float:
    """Epsilon at this delta of a Gaussian mechanism with sensitivity mu and unit noise.

    >>> round(epsilon_of_mu(1.0, 1e-6), 3)
    4.887
    """
    entry = {"relation": "add-remove", "mechanism": "gaussian", "multiplier": 1 / mu if mu else math.inf}
    return epsilon_of([({**entry, "sampling": {"kind": "all"}}, 1)], delta) if mu > 0 else 0.0


class Booked:
    """The booked mechanisms of a ledger, as the trade-off curve that they allow an attack.

    An entry names its mechanism: kind, multiplier, sampling. That is more than one epsilon at one delta: it fixes the
    lowest pair of error rates of any attack. `factor` scales all multipliers, which embeds the entries in a family of
    mechanisms ordered by noise.

    >>> entry = {"relation": "add-remove", "mechanism": "gaussian", "multiplier": 1.0, "sampling": {"kind": "all"}}
    >>> bool(Booked([(entry, 1)]).broken(0.1, 0.1))
    True
    """

    def __init__(self, counted: Counted) -> None:
        alike: dict[str, tuple[dict[str, Any], int]] = {}
        for entry, number in counted:  # equal entries share one privacy loss distribution
            law = {name: entry[name] for name in ("mechanism", "multiplier", "relation", "sampling")}
            name = repr(sorted(law.items()))
            alike[name] = (law, alike.get(name, (law, 0))[1] + number)
        self.counted = [(law, number) for law, number in alike.values() if number]
        self.lines = cache(self._lines)

    def epsilon(self, delta: float, factor: float = 1.0) -> float:
        """Epsilon by the ledger's accounting, with the noise scaled by the factor."""
        members = [(_scaled(e, factor), n) for e, n in self.counted]
        interval = 1e-4 if factor == 1 else max(_interval(e) for e, _ in members)
        return epsilon_of(members, delta, interval=interval)

    def broken(self, false_positive: Array | float, false_negative: Array | float, factor: float = 1.0) -> Array:
        """Whether error rates are below what the mechanism allows."""
        return self.excess(false_positive, false_negative, factor) > 0

    def excess(self, false_positive: Array | float, false_negative: Array | float, factor: float = 1.0) -> Array:
        """How far error rates are below what the mechanism allows, in standard errors of a trial; negative if above."""
        growth, deltas = self.lines(factor)
        a, b = np.asarray(false_positive)[..., None], np.asarray(false_negative)[..., None]
        one, other = 1 - b - deltas - growth * a, 1 - a - deltas - growth * b
        va, vb = a * (1 - a) + 1e-12, b * (1 - b) + 1e-12
        far = np.maximum(one / np.sqrt(growth**2 * va + vb), other / np.sqrt(growth**2 * vb + va))
        return np.asarray(far.max(axis=-1))

    def weakest(self, false_positive: Array, false_negative: Array) -> tuple[int, float]:
        """The pair of rates that rules out the most noise, and the smallest factor of `FACTORS` that it breaks."""
        low, high = 0, len(FACTORS) - 1
        far = {high: self.excess(false_positive, false_negative, FACTORS[high])}  # [pairs]
        while low < high and (far[high] > 0).any():  # rates that break some noise break more of it: bisect
            middle = (low + high) // 2
            far[middle] = self.excess(false_positive, false_negative, FACTORS[middle])
            low, high = (low, middle) if (far[middle] > 0).any() else (middle + 1, high)
        return int(far[high].argmax()), float(FACTORS[high] - far[high].max() * 1e-6)

    def bound(self, false_positive: float, false_negative: float, delta: float) -> float:
        """Epsilon of the noisiest mechanism of the family that these rates do not break; 0 if nothing is proven."""
        low, high = 0.05, 64.0
        if not self.broken(false_positive, false_negative, high):
            return 0.0
        if self.broken(false_positive, false_negative, low):
            return self.epsilon(delta, low)
        while high / low > 1.002:
            middle = math.sqrt(low * high)
            low, high = (low, middle) if self.broken(false_positive, false_negative, middle) else (middle, high)
        return self.epsilon(delta, high)

    def _lines(self, factor: float) -> tuple[Array, Array]:
        """exp(epsilon) and delta(epsilon) of lines that support the trade-off curve."""
        members = [(_scaled(e, factor), n) for e, n in self.counted]
        whole = [(e, n) for e, n in members if e["mechanism"] == "gaussian" and e["sampling"]["kind"] == "all"]
        if len(whole) == len(members):
            mu = math.sqrt(sum(n / e["multiplier"] ** 2 for e, n in whole))
            return np.exp(_EPSILONS), _gaussian_deltas(mu)
        loss = None
        for entry, number in members:
            part = _loss_distribution(entry).self_compose(number) if number > 1 else _loss_distribution(entry)
            loss = part if loss is None else loss.compose(part)
        assert loss is not None
        return np.exp(_EPSILONS), np.asarray(loss.get_delta_for_epsilon(_EPSILONS.tolist()))


def _scaled(entry: Mapping[str, Any], factor: float) -> dict[str, Any]:
    return {**entry, "multiplier": entry["multiplier"] * factor}


def _gaussian_deltas(mu: float) -> Array:
    """delta(epsilon) of a Gaussian mechanism (Balle and Wang 2018, theorem 8)."""
    from scipy.special import log_ndtr, ndtr

    far = np.minimum(_EPSILONS + log_ndtr(-_EPSILONS / mu - mu / 2), 0.0)
    return np.asarray(np.maximum(ndtr(mu / 2 - _EPSILONS / mu) - np.exp(far), 0.0))


def _interval(entry: Mapping[str, Any]) -> float:
    """Discretisation interval of the privacy loss: wider for larger losses, for a constant number of cells."""
    return float(1e-3 * max(1.0, entry["multiplier"] ** -2))


def _loss_distribution(entry: Mapping[str, Any]) -> Any:
    """The privacy loss distribution of one release.

    Under replace-one, fixed-size sampling has the same worst pair as Poisson sampling under add-remove, with the
    multiplier relative to the replacement (Zhu, Dong and Wang 2022). It amplifies only Gaussian entries.
    """
    from dp_accounting.pld import privacy_loss_distribution as pld

    sampling = entry["sampling"]
    rate = sampling["rate"] if sampling["kind"] == "poisson" else 1.0
    if sampling["kind"] == "fixed" and entry["mechanism"] == "gaussian":
        rate = sampling["size"] / sampling["of"]
    how = {"value_discretization_interval": _interval(entry), "sampling_prob": rate}
    if entry["mechanism"] == "gaussian":
        return pld.from_gaussian_mechanism(entry["multiplier"], **how)
    return pld.from_laplace_mechanism(entry["multiplier"], **how)


def one_run_p_value(canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """P-value of the correct guesses in one run under (epsilon, delta) (Steinke, Nasr and Jagielski 2023, thm 5.2).

    Each canary is in by its own fair coin; the attack guesses some of the coins and abstains on the rest.

    >>> one_run_p_value(10, 10, 10, 0.0, 0.0) == 2.0**-10
    True
    """
    from scipy.special import bdtrc, expit

    def at_least(v: Array | int) -> Array:
        return np.where(np.asarray(v) <= 0, 1.0, bdtrc(np.maximum(np.asarray(v) - 1, 0), guesses, expit(epsilon)))

    beyond = float(at_least(correct))
    if delta == 0 or correct == 0:
        return min(1.0, beyond)
    i = np.arange(1, correct + 1)
    slope = float(((at_least(correct - i) - beyond) / i).max())
    return min(1.0, beyond + 2 * canaries * delta * slope)


def epsilon_one_run(canaries: int, guesses: int, correct: int, delta: float, confidence: float) -> float:
    """The largest epsilon that this number of correct guesses refutes; 0 if none.

    >>> epsilon_one_run(100, 20, 10, 1e-6, 0.95)
    0.0
    """
    return _largest(lambda e: one_run_p_value(canaries, guesses, correct, e, delta) <= 1 - confidence)


def mu_one_run(canaries: int, guesses: int, correct: int, confidence: float) -> float:
    """The largest mu of a Gaussian mechanism that one run refutes; 0 if none.

    >>> mu_one_run(100, 20, 10, 0.95)
    0.0
    """
    return _largest(lambda mu: mu_is_refuted(mu, canaries, guesses, correct, confidence))


def mu_is_refuted(mu: float, canaries: int, guesses: int, correct: int, confidence: float) -> bool:
    """Whether one run refutes this mu of a Gaussian mechanism (Mahloujifar, Melis and Chaudhuri 2024, algorithm 3).

    >>> mu_is_refuted(0.5, 100, 20, 20, 0.95), mu_is_refuted(1.0, 100, 20, 20, 0.95)
    (True, False)
    """
    from scipy.special import ndtr, ndtri

    right = (1 - confidence) * correct / canaries
    wrong = (1 - confidence) * (guesses - correct) / canaries
    for i in range(correct - 1, -1, -1):
        new = max(wrong, float(ndtr(ndtri(right) - mu)))
        if new == wrong:
            break
        right, wrong = min(1.0, right + (i / (guesses - i)) * (new - wrong)), new
    return right + wrong > guesses / canaries


def _largest(refuted: Any) -> float:
    if not refuted(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while refuted(high) and high < 256:
        low, high = high, 2 * high
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low

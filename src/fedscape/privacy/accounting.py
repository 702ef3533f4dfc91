"""Epsilon of the releases, and the noise for a budget."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fedscape.core.sampling import FixedSize, Sampler
from fedscape.core.validate import check_whole
from fedscape.errors import DataError
from fedscape.privacy.mechanisms import Gaussian
from fedscape.privacy.ranges import NOISE, check_positive, check_share

Entry = Mapping[str, Any]

_EXACT = 1e-4  # discretisation interval of privacy loss distributions in the ledger
# Renyi orders for a search; its result is checked with the ledger's accounting
_FEW_ORDERS = (*range(2, 17), 18, 20, 22, 24, 28, 32, 40, 48, 64, 96, 128, 256)


def epsilon_of(counted: Sequence[tuple[Entry, int]], delta: float, *, interval: float | None = _EXACT) -> float:
    """Epsilon at this delta of entries that share (unit, relation, place), each with its number of releases.

    Gaussian releases of everyone have a closed form. Poisson sampling is accounted for by privacy loss distributions,
    fixed-size sampling by Renyi divergences under replace-one; any other sampling counts as if everyone took part. Pure
    epsilons of Laplace entries add up. `interval` is the discretisation of these distributions. A wider one is much
    faster and slightly more conservative, and also uses fewer Renyi orders. None uses Renyi divergences instead of
    distributions: immediate, and more conservative.

    >>> entry = dict(unit="client", relation="add-remove", place="central", mechanism="laplace", multiplier=2.0)
    >>> epsilon_of([({**entry, "sampling": {"kind": "all"}}, 3)], 0.0)
    1.5
    """
    together: Counter[str] = Counter()
    for entry, number in counted:
        about = {name: entry[name] for name in ("relation", "mechanism", "multiplier", "sampling")}
        together[json.dumps(about, sort_keys=True)] += number
    members = [(json.loads(text), number) for text, number in together.items() if number]
    pure = _pure(members)
    if not members or delta == 0:
        return pure
    return min(pure, _accounted(_merged(members), delta, interval))


def _pure(members: Sequence[tuple[Entry, int]]) -> float:
    total = 0.0
    for entry, number in members:
        if entry["mechanism"] != "laplace":
            return math.inf
        single = 1.0 / entry["multiplier"]
        if entry["sampling"]["kind"] == "poisson":
            single = math.log1p(entry["sampling"]["rate"] * math.expm1(single))
        total += number * single
    return total


def _merged(members: Sequence[tuple[Entry, int]]) -> list[tuple[Entry, int]]:
    """Merge Gaussian releases of everyone into one Gaussian release: 1 / multiplier**2 adds up."""
    whole = [(e, n) for e, n in members if e["mechanism"] == "gaussian" and e["sampling"]["kind"] == "all"]
    if not whole:
        return list(members)
    precision = sum(n / e["multiplier"] ** 2 for e, n in whole)
    rest = [(e, n) for e, n in members if not (e["mechanism"] == "gaussian" and e["sampling"]["kind"] == "all")]
    return [*rest, ({**whole[0][0], "multiplier": precision**-0.5}, 1)]


def _accounted(members: Sequence[tuple[Entry, int]], delta: float, interval: float | None) -> float:
    entry, number = members[0]
    if len(members) == number == 1 and (entry["mechanism"], entry["sampling"]["kind"]) == ("gaussian", "all"):
        return _of_one_gaussian(entry["multiplier"], delta)
    import dp_accounting

    fixed = any(entry["sampling"]["kind"] == "fixed" for entry, _ in members)
    if fixed or interval is None:
        from dp_accounting import rdp

        relation = dp_accounting.NeighboringRelation
        accountant = rdp.RdpAccountant(
            orders=None if interval == _EXACT else _FEW_ORDERS,
            neighboring_relation=relation.REPLACE_ONE if fixed else relation.ADD_OR_REMOVE_ONE,
        )
    else:
        from dp_accounting import pld

        accountant = pld.PLDAccountant(
            dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE, value_discretization_interval=interval
        )
    for entry, number in members:
        accountant.compose(dp_accounting.SelfComposedDpEvent(_event(entry), number))
    return float(accountant.get_epsilon(delta))


def _of_one_gaussian(multiplier: float, delta: float) -> float:
    """Exact epsilon of one Gaussian release of everyone, rounded up: Balle and Wang 2018, theorem 8."""
    from scipy.special import log_ndtr, ndtr

    def beyond(epsilon: float) -> bool:
        near, far = 0.5 / multiplier - epsilon * multiplier, -0.5 / multiplier - epsilon * multiplier
        return bool(ndtr(near) - math.exp(min(epsilon + log_ndtr(far), 0.0)) > delta)

    if not beyond(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while beyond(high):
        low, high = high, 2 * high
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if beyond(middle) else (low, middle)
    return high


def _event(entry: Entry) -> Any:
    """Convert an entry to an accountant's event; its multiplier is noise over sensitivity under its relation."""
    import dp_accounting

    kind, sampling = entry["mechanism"], entry["sampling"]
    bare = (dp_accounting.GaussianDpEvent if kind == "gaussian" else dp_accounting.LaplaceDpEvent)(entry["multiplier"])
    if sampling["kind"] == "poisson":
        return dp_accounting.PoissonSampledDpEvent(sampling["rate"], bare)
    if sampling["kind"] == "fixed" and kind == "gaussian":
        return dp_accounting.SampledWithoutReplacementDpEvent(sampling["of"], sampling["size"], bare)
    return bare


def calibrate(
    epsilon: float, delta: float, *, rounds: int, sampler: Sampler, n_clients: int = 0, tolerance: float = 1e-3
) -> float:
    """The smallest Gaussian multiplier that keeps this many rounds within (epsilon, delta).

    Parameters
    ----------
    epsilon, delta
        The budget.
    rounds
        Number of releases.
    sampler
        Who takes part; FixedSize also needs n_clients. For unit "row" use All(): sampling clients does not hide rows.
    tolerance
        Relative tolerance; the result errs on the safe side.

    >>> from fedscape import All
    >>> round(calibrate(1.0, 1e-5, rounds=1, sampler=All()), 1)
    3.7
    """
    check_positive("epsilon", epsilon, NOISE, error=DataError)
    check_share("delta", delta, error=DataError)
    check_whole("rounds", rounds, least=1)
    check_share("tolerance", tolerance, error=DataError)
    if isinstance(sampler, FixedSize) and sampler.size > n_clients:
        raise DataError(f"FixedSize({sampler.size}) needs n_clients, at least that many, got {n_clients}")

    def spent(multiplier: float, interval: float | None) -> float:
        entry = Gaussian(clip=1.0, multiplier=multiplier).entries(sampler, n_clients)["sum"]
        return epsilon_of([(entry, rounds)], delta, interval=interval)

    rough = _smallest(lambda m: spent(m, None), epsilon, 1.0, 0.01)  # never too small, and immediate
    noise_multiplier = _smallest(
        lambda m: spent(m, 1e-3), epsilon, rough, tolerance
    )  # never too small either, in a tenth of the time
    while spent(noise_multiplier, _EXACT) > epsilon:  # as in the ledger: other intervals round differently
        noise_multiplier *= 1 + tolerance
    return noise_multiplier


def _smallest(spent: Callable[[float], float], epsilon: float, guess: float, tolerance: float) -> float:
    """The smallest multiplier with spent(multiplier) <= epsilon, within a relative tolerance, on the safe side.

    Epsilon is nearly a straight line on log-log scale: false position with the Illinois rule.
    """
    low, high = guess * 0.8, guess
    below, above = _excess(spent, low, epsilon), _excess(spent, high, epsilon)
    while above > 0:
        low, below, high = high, above, high * 2
        if high > 1e7:
            raise DataError(f"no multiplier below ten million keeps this many rounds within epsilon={epsilon}")
        above = _excess(spent, high, epsilon)
    while below <= 0:
        high, above, low = low, below, low / 2
        if low < 0.02:  # below that the accountants take minutes, and the result is useless
            return high
        below = _excess(spent, low, epsilon)
    while high / low > 1 + tolerance:
        part = min(max(below / (below - above), 0.02), 0.98)
        middle = float(low * (high / low) ** part)
        excess = _excess(spent, middle, epsilon)
        if excess > 0:
            low, below, above = middle, excess, above / 2
        else:
            high, above, below = middle, excess, below / 2
    return high


def _excess(spent: Callable[[float], float], multiplier: float, epsilon: float) -> float:
    return float(np.log(max(spent(multiplier), 1e-12) / epsilon))

"""Derive the number of neighbours of a client and the threshold from the shares of drop-outs and colluders.

The n clients of a cohort are placed on a ring in random order. The neighbours of a client are the k / 2 nearest on each
side (Bell et al. 2020), or all others if n - 1 <= k. A given share of the cohort may drop out, and a given share may
collude with the server. The numbers of both among the neighbours of a client are hypergeometric. Exact tails give

    d   bound on dead neighbours. With probability at most 2^-10 some client has more; the round is then abandoned.
    c   bound on colluding neighbours. With probability at most 2^-40 some client has more, even if the server tries
        2^60 rings: it sees all keys before it chooses cohorts and rounds, and can search for an order that suits it.
    t   the threshold, by default k - d: the number of neighbours that must send keys, and that must answer at the end.

Security against a lying server requires h = 2t - k - c >= 1. To open a client's self-mask takes t neighbours, of which
at least t - c are honest. Its vector is masked with at least t neighbours. So at least h honest neighbours are in both
sets, and for none of them does the server also get the key of its pairwise masks (see `protocol`). Any sum that the
server can open therefore contains at least h + 1 honest clients. If h > k / 2 on the ring, two such sets would overlap,
and no gap is longer than k - h. There is then a single sum, of at least floor(n / (2k + 1 - h)) (h + 1) honest clients.

If the server follows the protocol, the honest living clients must form a connected graph. The ring falls apart only if
k places, in two runs of k / 2, are all dead or colluding: n^2 / 2 times the probability of that must be below 2^-40.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, comb, floor

from fedscape.errors import PrivacyError
from fedscape.secure.shamir import LARGEST

ABANDONED = 10  # bits: a round with all allowed drop-outs is abandoned by chance with probability 2**-10
BROKEN = 40  # bits: more neighbours collude than allowed for with probability 2**-40
SEARCHED = 60  # bits: number of rings that a server may try, by choosing cohorts and rounds, before it asks anybody


@dataclass(frozen=True)
class Parameters:
    """The parameters of a cohort; `derive` computes them.

    `dead` and `colluding` bound the numbers of such clients in the cohort, `dead_near` and `colluding_near` among the
    neighbours of one client. At least `least` clients must stay to the end. Any sum that a lying server can open
    contains at least `smallest` honest clients.
    """

    clients: int
    neighbours: int
    threshold: int
    dead: int
    colluding: int
    dead_near: int
    colluding_near: int

    @property
    def least(self) -> int:
        return self.clients - self.dead

    @property
    def margin(self) -> int:
        """h in the module's docstring: the least number of honest neighbours in the same sum."""
        return 2 * self.threshold - self.neighbours - self.colluding_near

    @property
    def smallest(self) -> int:
        k, h = self.neighbours, self.margin
        if k < self.clients - 1 and 2 * h > k:
            return max(h + 1, self.clients // (2 * k + 1 - h) * (h + 1))
        return h + 1


def derive(
    clients: int, *, dropouts: float, colluders: float, neighbours: int | None = None, threshold: int | None = None
) -> Parameters:
    """Derive the parameters of a cohort; a PrivacyError says what it would need.

    >>> found = derive(100, dropouts=0.1, colluders=0.02)
    >>> found.neighbours, found.threshold, found.smallest
    (18, 11, 3)
    """
    if clients < 3:
        why = "a sum of fewer than 3 clients shows one to another"
        raise PrivacyError(_refusal(clients, dropouts, colluders, "any neighbours", why))
    if neighbours is not None:
        chosen = _at(clients, _even(clients, neighbours), dropouts, colluders, threshold)
        why = _lacking(chosen)
        if why:
            raise PrivacyError(_refusal(clients, dropouts, colluders, f"{chosen.neighbours} neighbours", why))
        return chosen
    why = ""
    for k in dict.fromkeys(_even(clients, k) for k in range(2, LARGEST, 2)):
        chosen = _at(clients, k, dropouts, colluders, threshold)
        why = _lacking(chosen)
        if not why:
            return chosen
    raise PrivacyError(_refusal(clients, dropouts, colluders, f"up to {min(clients - 1, LARGEST - 1)} neighbours", why))


def _even(clients: int, k: int) -> int:
    """Cap k at all other clients."""
    return clients - 1 if k >= clients - 1 else k


def _at(clients: int, k: int, dropouts: float, colluders: float, threshold: int | None) -> Parameters:
    dead, colluding = floor(dropouts * clients + 1e-9), ceil(colluders * clients - 1e-9)
    near = _quantile(clients, dead, k, ABANDONED), _quantile(clients, colluding, k, BROKEN + SEARCHED)
    return Parameters(clients, k, k - near[0] if threshold is None else threshold, dead, colluding, *near)


def _lacking(chosen: Parameters) -> str:
    """Why these parameters are unsafe or useless; "" if they are neither."""
    k, t, n = chosen.neighbours, chosen.threshold, chosen.clients
    if k < 2 or k > LARGEST or (k < n - 1 and k % 2):
        return f"neighbours must be even and from 2 to {LARGEST - 1}"
    if not 1 <= t <= k - chosen.dead_near:
        return f"{chosen.dead_near} neighbours may be dead, so threshold must be from 1 to {k - chosen.dead_near}"
    if chosen.margin < 1:
        return f"threshold {t} is not above ({k} + {chosen.colluding_near} colluding neighbours) / 2"
    bad = chosen.dead + chosen.colluding
    if k < n - 1 and bad >= k and comb(n - k, bad - k) * comb(n, 2) << BROKEN > comb(n, bad):
        return "drop-outs and colluders can cut the ring of neighbours in two"
    return ""


def _refusal(clients: int, dropouts: float, colluders: float, what: str, why: str) -> str:
    return (
        f"secure sums: {what} are not safe for a cohort of {clients} with dropouts={dropouts:g} and "
        f"colluders={colluders:g}: {why}; have more clients or neighbours, or expect fewer drop-outs and colluders"
    )


def _quantile(clients: int, marked: int, k: int, bits: int) -> int:
    """The smallest number of marked neighbours that some client exceeds with probability at most 2**-bits."""
    others, above = clients - 1, 0
    marked = min(marked, others)
    whole = comb(others, k)
    for number in range(min(marked, k), 0, -1):  # exact whole numbers: floats do not resolve tails this thin
        above += comb(marked, number) * comb(others - marked, k - number)
        if clients * above << bits > whole:
            return number
    return 0

"""How many neighbours a client shares its secrets with, and how many of them must answer.

A cohort of n clients stands on a ring in a random order; each has the k / 2 nearest on either side for neighbours (Bell
et al. 2020), or all others where n - 1 <= k. A stated share of the cohort may drop out, and a stated share may collude
with the server. Around one client their numbers are hypergeometric; exact tails give

    d   dead neighbours: some client has more with probability 2^-10 at most; then the round is abandoned.
    c   colluding neighbours: some client has more with probability 2^-40 at most, also if the server tries 2^60 rings:
        it chooses cohorts and rounds after it has seen all keys, and so can look for an order that suits it.
    t   the threshold, k - d by default: so many neighbours must send their keys, and so many must answer at the end.

Safe against a server that lies needs h = 2t - k - c >= 1. A client's self-mask is opened by t neighbours, of whom t - c
are honest, and its vector is masked with t neighbours at least. So h of them are both, and for none of them the server
also gets the key of its pairwise masks (see `protocol`): whatever sum the server can open holds h + 1 honest clients.
Where h > k / 2 on the ring, two such sets would overlap and no gap is longer than k - h: there is one sum, of at
least floor(n / (2k + 1 - h)) (h + 1) honest clients.

For a server that does not lie the honest living clients must be connected. The ring falls apart only where k places, in
two runs of k / 2, are all dead or colluding: n^2 / 2 times the chance of that must be below 2^-40.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, comb, floor

from fedscape.errors import PrivacyError
from fedscape.secure.shamir import LARGEST

ABANDONED = 10  # bits: with all allowed drop-outs a round is abandoned for bad luck with probability 2**-10
BROKEN = 40  # bits: more neighbours collude than was allowed for with probability 2**-40
SEARCHED = 60  # bits: so many rings a server may try, by other cohorts and rounds, before it asks anybody


@dataclass(frozen=True)
class Parameters:
    """What a cohort of `clients` uses; `derive` finds it.

    `dead` and `colluding` are how many of the cohort may be, `dead_near` and `colluding_near` how many of the
    neighbours of one client. `least` clients must live to the end. `smallest` honest clients at least are in any sum
    that a lying server can open.
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
        """h of the module: honest neighbours in the same sum, at least."""
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
    """The parameters of a cohort, or a refusal that says what it would need.

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
    """All others, or as many on either side."""
    return clients - 1 if k >= clients - 1 else k


def _at(clients: int, k: int, dropouts: float, colluders: float, threshold: int | None) -> Parameters:
    dead, colluding = floor(dropouts * clients + 1e-9), ceil(colluders * clients - 1e-9)
    near = _quantile(clients, dead, k, ABANDONED), _quantile(clients, colluding, k, BROKEN + SEARCHED)
    return Parameters(clients, k, k - near[0] if threshold is None else threshold, dead, colluding, *near)


def _lacking(chosen: Parameters) -> str:
    """What makes these parameters unsafe or useless; "" where nothing does."""
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
    """The fewest marked neighbours that no client exceeds, but with probability 2**-bits over the whole cohort."""
    others, above = clients - 1, 0
    marked = min(marked, others)
    whole = comb(others, k)
    for number in range(min(marked, k), 0, -1):  # exact whole numbers: floats do not resolve tails this thin
        above += comb(marked, number) * comb(others - marked, k - number)
        if clients * above << bits > whole:
            return number
    return 0

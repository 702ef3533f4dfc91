"""Clip on the client, noise on the sum.

The rows of a client's arrays, side by side and divided by their scales, are one vector; its norm is clipped on the
client. Rows are then cut to a grid and added as whole numbers, and whole-number noise is added to the sum, so the bits
of a release depend on the data only through a sum whose sensitivity is known. The noise is on the sum, not on a mean:
clients that drop out do not weaken it.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from fedscape.errors import DataError, PrivacyError
from fedscape.noise import Stream, discrete_gaussian, discrete_laplace
from fedscape.random import Array, HasKeys
from fedscape.sampling import FixedSize, Poisson, Sampler, marked

Arrays = dict[str, Array]

INSIDE = "privacy.inside"  # how many clients were within the clip, where the clip adapts
_FINE = 2.0**-32  # grid of real numbers, as a share of the noise
PLACES = ("central", "distributed", "local")
_RELATIONS = ("add-remove", "replace-one")


@dataclass(frozen=True)
class AdaptiveClip:
    """A clip that follows a quantile of the clients' norms (Andrew et al. 2021, equation 1).

    Each client also says whether it was within the clip; the noisy share s of those moves the clip by
    exp(-rate * (s - quantile)). That answer is a release of its own, with an entry of its own.

    Parameters
    ----------
    start
        The first clip.
    quantile
        The share of clients that should not be clipped.
    rate
        How fast the clip follows.
    multiplier
        Standard deviation of the noise on the number of clients within the clip.

    >>> AdaptiveClip(1.0).next(2.0, share=1.0) < 2.0
    True
    """

    start: float
    quantile: float = 0.5
    rate: float = 0.2
    multiplier: float = 10.0

    def __post_init__(self) -> None:
        if not (self.start > 0 and 0 < self.quantile < 1 and self.rate > 0 and self.multiplier > 0):
            raise PrivacyError(f"a clip, rate and multiplier must be positive and a quantile between 0 and 1: {self}")

    def next(self, clip: float, *, share: float) -> float:
        """The clip of the next round, where this share of clients was within the last one."""
        return float(clip * np.exp(-self.rate * (min(max(share, 0.0), 1.0) - self.quantile)))


@dataclass(frozen=True, kw_only=True)
class Privacy:
    """What Gaussian and Laplace share.

    Parameters
    ----------
    clip
        Bound on the norm of what one unit contributes; an AdaptiveClip follows the clients.
    unit
        "client": everything a client has is one contribution, clipped. "row": one row is; the computation must state
        how far a row can move its sums (`row_bound`), and the clip must not be below that.
    place
        "central": noise on the sum, by a server trusted to add it. "distributed": each client adds its part, so that
        `min_clients` of them make up the noise. "local": each client's own arrays are protected.
    scales
        For arrays whose size differs: the norm is that of array / scale.
    count_share
        The share of the squared (Laplace: of the) sensitivity spent on the number of clients, which is itself noisy
        unless the size of the cohort is fixed.
    noise_seed
        For tests: noise that can be foretold. Ledger and reports then say NOT PRIVATE.
    relation
        For unit "row", which two sets of rows must look alike: "add-remove" (one row more or less: how many rows there
        are is secret) or "replace-one" (one row exchanged: their number is public). Exchanging moves a sum by twice the
        clip, which the ledger counts.

    >>> isinstance(Gaussian(clip=1.0, multiplier=1.0), Privacy)
    True
    """

    clip: float | AdaptiveClip
    unit: str = "client"
    place: str = "central"
    scales: Mapping[str, float] = field(default_factory=dict)
    count_share: float = 0.1
    noise_seed: int | None = None
    relation: str = "add-remove"

    norm: ClassVar[int]

    def __post_init__(self) -> None:
        if isinstance(self.clip, AdaptiveClip):
            if self.unit == "row" or self.place != "central":
                raise PrivacyError("an adaptive clip needs unit='client' and place='central'")
        elif not 0 < self.clip < np.inf:
            raise PrivacyError(f"clip must be a positive number, not {self.clip}")
        if self.unit not in ("client", "row"):
            raise PrivacyError(f"unit must be 'client' or 'row', not {self.unit!r}")
        if self.place not in PLACES or (self.place == "distributed" and self.unit == "row"):
            raise PrivacyError(f"place must be one of {PLACES}, not 'distributed' for rows: it is {self.place!r}")
        if self.relation not in _RELATIONS or (self.relation != _RELATIONS[0] and self.unit == "client"):
            raise PrivacyError(
                f"relation must be one of {_RELATIONS} for rows; for clients it follows from sampler and place: "
                f"it is {self.relation!r}"
            )
        if self.unit == "row" and self.scales:
            raise PrivacyError("scales go with unit='client': what one row can change is bounded without them")
        if not 0 < self.count_share < 1 or any(not s > 0 for s in self.scales.values()):
            raise PrivacyError("scales must be positive and count_share between 0 and 1")

    # what the two mechanisms differ in
    def spread(self) -> float:
        """The scale of the noise for a sensitivity of one: a standard deviation, or a Laplace scale."""
        raise TypeError("use Gaussian or Laplace")

    def draw(self, stream: Stream, spread: float, n: int) -> Array:
        """Whole-number noise."""
        raise TypeError("use Gaussian or Laplace")

    def variance(self, spread: float) -> float:
        """The variance of that noise."""
        raise TypeError("use Gaussian or Laplace")

    def with_count(self, clip: float) -> float:
        """The sensitivity of clipped arrays and the number of clients together."""
        raise TypeError("use Gaussian or Laplace")

    @property
    def first_clip(self) -> float:
        """The clip of the first round."""
        return self.clip.start if isinstance(self.clip, AdaptiveClip) else self.clip

    def counts_clients(self, sampler: Sampler) -> bool:
        """Whether the number of clients is secret: not for rows, a fixed size, or where clients are seen."""
        return self.unit == "client" and self.place != "local" and not isinstance(sampler, FixedSize)

    def entries(self, sampler: Sampler, n_clients: int) -> dict[str, dict[str, Any]]:
        """For each mechanism of a round, what the ledger must know of it."""
        replace = self.relation == "replace-one" or (self.unit == "client" and marked(sampler, "exchanges"))
        if self.place == "local":
            replace = self.unit == "client" or self.relation == "replace-one"
        group = {
            "unit": self.unit,
            "relation": "replace-one" if replace else "add-remove",
            "place": "local" if self.place == "local" else "central",
        }
        # samplers draw clients: the other rows of a client come and go with it, which hides none of them
        drawn = self.place != "local" and self.unit == "client"
        sampling = _sampling(sampler, n_clients) if drawn else {"kind": "all"}
        halve = 2.0 if replace else 1.0  # replacing a contribution moves the sum by up to twice the clip
        secret = {"private": False} if self.noise_seed is not None else {}
        kind = "gaussian" if self.norm == 2 else "laplace"
        made = {
            "sum": {**group, "mechanism": kind, "multiplier": self.spread() / halve, "sampling": sampling, **secret}
        }
        if isinstance(self.clip, AdaptiveClip):
            clip = {**group, "mechanism": "gaussian", "sampling": sampling, **secret}
            made["clip"] = {**clip, "multiplier": self.clip.multiplier}  # one bit: it moves by at most one either way
        return made

    def new_secret(self) -> bytes:
        """32 bytes from the operating system; from the noise_seed where there is one."""
        if self.noise_seed is None:
            return os.urandom(32)
        return hashlib.sha256(f"noise_seed {self.noise_seed}".encode()).digest()


@dataclass(frozen=True)
class Gaussian(Privacy):
    """Gaussian noise on sums clipped in the L2 norm.

    The noise has standard deviation multiplier x sensitivity. `calibrate` finds the multiplier for a budget.

    >>> Gaussian(clip=1.0, multiplier=2.0).spread()
    2.0
    """

    multiplier: float = field(kw_only=True)
    norm: ClassVar[int] = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.multiplier < np.inf:
            raise PrivacyError(f"multiplier must be a positive number, not {self.multiplier}")

    def spread(self) -> float:
        return self.multiplier

    def draw(self, stream: Stream, spread: float, n: int) -> Array:
        return discrete_gaussian(stream, spread, n)

    def variance(self, spread: float) -> float:
        return spread**2  # to a billionth: grids are no coarser than half the noise

    def with_count(self, clip: float) -> float:
        return float(clip / np.sqrt(1 - self.count_share))


@dataclass(frozen=True)
class Laplace(Privacy):
    """Laplace noise on sums clipped in the L1 norm: pure epsilon for each release.

    >>> Laplace(clip=1.0, epsilon=0.5).spread()
    2.0
    """

    epsilon: float = field(kw_only=True)
    norm: ClassVar[int] = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.epsilon < np.inf:
            raise PrivacyError(f"epsilon must be a positive number, not {self.epsilon}")
        if self.place == "distributed":
            raise PrivacyError("Laplace noise cannot be made up of parts: use place='central', 'local', or Gaussian")

    def spread(self) -> float:
        return 1.0 / self.epsilon

    def draw(self, stream: Stream, spread: float, n: int) -> Array:
        return discrete_laplace(stream, spread, n)

    def variance(self, spread: float) -> float:
        return float(2 * np.exp(-1 / spread) / np.expm1(-1 / spread) ** 2)

    def with_count(self, clip: float) -> float:
        return clip / (1 - self.count_share)


@dataclass
class Release:
    """One round's release: what is done to clients' rows, and to their sum.

    Parameters
    ----------
    privacy
        The mechanism.
    clip
        The clip of this round.
    key
        The secret of this release and no other.
    counted
        Whether the number of clients is noised with the rest.
    min_clients
        How many clients make up distributed noise.
    row_bound
        For unit "row": how far one row can move the arrays.
    """

    privacy: Privacy
    clip: float
    key: bytes
    counted: bool
    min_clients: int
    row_bound: float | None = None
    inside: float | None = None

    def __post_init__(self) -> None:
        if self.privacy.unit == "row":
            if self.row_bound is None:
                raise PrivacyError("this computation does not bound what one row can change: use unit='client'")
            if self.row_bound > self.clip * (1 + 1e-9):
                raise PrivacyError(
                    f"one row can move the sums by {self.row_bound:.6g}, more than clip={self.clip:.6g}: raise the clip"
                )
        self._grids: dict[str, float] = {}

    @property
    def sensitivity(self) -> float:
        """How far one unit can move the arrays (divided by their scales) and the count."""
        if self.privacy.unit == "row":
            return self.clip * (1 + 2.0**-20)  # cutting a sum to the grid can move it by one cell more
        return self.privacy.with_count(self.clip) if self.counted else self.clip

    @property
    def grids(self) -> Mapping[str, float]:
        """The cell of each array that clients have cut to its grid."""
        return dict(self._grids)

    def without_secret(self) -> Release:
        """The same for another process of the engine: where noise is added to the sum, clients need no key."""
        return replace(self, key=b"") if self.privacy.place == "central" else self

    def on_clients(self, sent: Arrays, clients: HasKeys) -> Arrays:
        """Clip each client's row, and cut it to the grid: whole numbers that may be added."""
        unknown = set(self.privacy.scales) - set(sent)
        if unknown:
            raise PrivacyError(f"scales name {sorted(unknown)}, but what is sent is {sorted(sent)}")
        flat = {name: _flat(rows) for name, rows in sent.items()}  # [clients, numbers], float64
        shrink, within = self._factors(flat)
        out: Arrays = {}
        for name, rows in sent.items():
            grid = self._grids.setdefault(name, self._grid(name, rows.dtype.kind in "biu"))
            cells = flat[name] * ((1.0 if shrink is None else shrink[:, None]) / grid)
            out[name] = np.trunc(cells, out=cells).astype(np.int64).reshape(rows.shape)
        if self.privacy.place != "central":
            self._add_own_noise(out, clients)
        if isinstance(self.privacy.clip, AdaptiveClip):
            out[INSIDE] = within
        return out

    def take_grids(self, grids: Mapping[str, float]) -> None:
        """Learn the grids from clients elsewhere; only those that this release can have are believed."""
        for name, grid in grids.items():
            if grid not in (self._grid(name, True), self._grid(name, False)):
                raise PrivacyError(f"array {name!r} was cut to a grid of {grid!r}, which this release cannot have")
        self._grids.update(grids)

    def check_sum(self, total: Arrays, reported: int) -> None:
        """Refuse sums that so many clipped clients cannot have; where clients add noise, any sum can be."""
        if self.privacy.place != "central" or self.privacy.unit != "client":
            return
        inside = np.asarray(total.get(INSIDE, 0))
        length = 0.0  # of all arrays side by side, as clients are clipped
        for name, cells in total.items():
            if name != INSIDE:
                size = np.abs(cells.astype(float)) * (self._grids[name] / self._scale(name))
                length += float((size**self.privacy.norm).sum())
        if length ** (1 / self.privacy.norm) > reported * self.clip * (1 + 1e-9):
            raise PrivacyError(
                f"the sums of {sorted(set(total) - {INSIDE})} are more than {reported} clipped clients can have"
            )
        if inside.size != 1 or not 0 <= inside.item() <= reported:
            raise PrivacyError(f"not a number of clients within the clip among {reported}")

    def on_total(self, total: Arrays, reported: int) -> Arrays:
        """Add noise to the sum, and give it its own units again; `clients` is how many there were, noisy if secret."""
        if reported * self.sensitivity / min(self._grids.values(), default=1.0) > 2.0**62:
            raise PrivacyError(f"{reported:,} clients at this little noise overflow the sum: raise the multiplier")
        out: Arrays = {}
        for name, cells in total.items():
            if name == INSIDE:
                continue
            if self.privacy.place == "central":
                spread = self.privacy.spread() * self.sensitivity * self._scale(name) / self._grids[name]
                cells = cells + self._noise(name, spread, cells.size).reshape(cells.shape)
            out[name] = cells * self._grids[name]
        out["clients"] = np.asarray(self._number_of_clients(reported))
        if INSIDE in total and isinstance(self.privacy.clip, AdaptiveClip):
            noise = discrete_gaussian(self._stream("clip"), self.privacy.clip.multiplier, 1)[0]
            self.inside = float(total[INSIDE] + noise) / max(float(out["clients"]), 1.0)
        return out

    def variance(self, name: str, reported: int, *, whole: bool) -> float:
        """The variance of the noise in a number of this array's sum over so many clients; `whole` if it is a count."""
        grid, number = self._grid(name, whole), 1.0
        if self.privacy.place != "central":  # each client adds a part, or all, of its own
            number = reported / (self.min_clients if self.privacy.place == "distributed" else 1)
        return (
            number
            * grid**2
            * self.privacy.variance(self.privacy.spread() * self.sensitivity * self._scale(name) / grid)
        )

    def _number_of_clients(self, reported: int) -> float:
        if not self.counted:
            return float(reported)
        part = self.privacy.count_share ** (1 / self.privacy.norm)  # of the sensitivity, in its norm
        return max(1.0, float(reported + self._noise("clients", self.privacy.spread() / part, 1)[0]))

    def _factors(self, flat: Arrays) -> tuple[Array | None, Array]:
        """By how much each row must shrink, and whether it was within the clip."""
        length = np.zeros(len(next(iter(flat.values()))))
        for name, rows in flat.items():
            if self.privacy.norm == 2:
                length += np.einsum("ij,ij->i", rows, rows) / self._scale(name) ** 2
            else:
                length += np.abs(rows).sum(axis=1) / self._scale(name)
        if self.privacy.norm == 2:
            length = np.sqrt(length)
        within = (length <= self.clip).astype(np.int64)
        if self.privacy.unit == "row":
            return None, within
        # a hair below the clip, so that rounding in the product cannot end above it
        return np.where(within, 1.0, self.clip * (1 - 2.0**-40) / np.maximum(length, 1e-300)), within

    def _grid(self, name: str, whole: bool) -> float:
        """A power of two, fine beside the noise; for counts that no clip shrinks one, unless the noise is below two."""
        spread = self.privacy.spread() * self.sensitivity * self._scale(name)
        if self.privacy.place == "distributed":
            spread /= np.sqrt(self.min_clients)
        cell = float(2.0 ** np.floor(np.log2(spread / 2)))
        return min(1.0, cell) if whole and self.privacy.unit == "row" else cell * 2 * _FINE

    def _add_own_noise(self, rows: Arrays, clients: HasKeys) -> None:
        part = np.sqrt(self.min_clients) if self.privacy.place == "distributed" else 1.0
        for i, client in enumerate(clients.keys):
            for name, cells in rows.items():
                spread = self.privacy.spread() * self.sensitivity * self._scale(name) / self._grids[name] / part
                stream = self._stream(f"{name} of {int(client)}")
                cells[i] += self.privacy.draw(stream, spread, cells[i].size).reshape(cells[i].shape)

    def _scale(self, name: str) -> float:
        return float(self.privacy.scales.get(name, 1.0))

    def _noise(self, name: str, spread: float, n: int) -> Array:
        return self.privacy.draw(self._stream(name), spread, n)

    def _stream(self, what: str) -> Stream:
        return Stream(hmac.digest(self.key, what.encode(), "sha256"))


def _flat(rows: Array) -> Array:
    return rows.reshape(len(rows), int(np.prod(rows.shape[1:]))).astype(np.float64)


def release_key(secret: bytes, *parts: bytes) -> tuple[bytes, str]:
    """The key of a release and its public digest: anything that differs in the parts gives another of both."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return hmac.digest(secret, digest.digest(), "sha256"), digest.hexdigest()


def _sampling(sampler: Sampler, n_clients: int) -> dict[str, Any]:
    if isinstance(sampler, Poisson) and sampler.rate < 1:
        return {"kind": "poisson", "rate": float(sampler.rate)}
    if isinstance(sampler, FixedSize) and sampler.size < n_clients:
        return {"kind": "fixed", "size": int(sampler.size), "of": int(n_clients)}
    return {"kind": "all"}


def calibrate(
    epsilon: float, delta: float, *, rounds: int, sampler: Sampler, n_clients: int = 0, tolerance: float = 1e-3
) -> float:
    """The smallest Gaussian multiplier that keeps this many rounds within (epsilon, delta).

    Parameters
    ----------
    epsilon, delta
        The budget.
    rounds
        How many releases.
    sampler
        Who takes part; FixedSize also needs n_clients. For unit "row" use All(): sampling clients does not hide rows.
    tolerance
        How close, relative; the answer is on the safe side.

    >>> from fedscape import All
    >>> round(calibrate(1.0, 1e-5, rounds=1, sampler=All()), 1)
    3.7
    """
    from fedscape.ledger import epsilon_of

    if not (epsilon > 0 and 0 < delta < 1 and rounds >= 1):
        raise DataError(
            f"epsilon must be positive, delta between 0 and 1, rounds at least 1: {epsilon}, {delta}, {rounds}"
        )
    if isinstance(sampler, FixedSize) and sampler.size > n_clients:
        raise DataError(f"FixedSize({sampler.size}) needs n_clients, at least that many, got {n_clients}")

    def spent(multiplier: float, interval: float | None) -> float:
        entry = Gaussian(clip=1.0, multiplier=multiplier).entries(sampler, n_clients)["sum"]
        return epsilon_of([(entry, rounds)], delta, interval=interval)

    rough = _smallest(lambda m: spent(m, None), epsilon, 1.0, 0.01)  # never too small, and found at once
    found = _smallest(lambda m: spent(m, 1e-3), epsilon, rough, tolerance)  # nor is this, and a tenth of the time
    while spent(found, 1e-4) > epsilon:  # as the ledger counts: cells of another width may round otherwise
        found *= 1 + tolerance
    return found


def _smallest(spent: Callable[[float], float], epsilon: float, guess: float, tolerance: float) -> float:
    """The smallest multiplier, relative to the tolerance and on the safe side, with spent(multiplier) <= epsilon.

    On double logarithmic paper epsilon is nearly a straight line: false position, halving a side that stays (Illinois).
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
        if low < 0.02:  # below that the accountants need minutes, and no one the result
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

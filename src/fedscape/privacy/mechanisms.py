"""Clip on the client, add noise to the sum.

A client's arrays, divided by their scales, form one vector; its norm is clipped on the client. Contributions are then
rounded to a grid and added as integers, and integer noise is added to the sum. The bits of a release thus depend on
the data only through a sum with known sensitivity. The noise is on the sum, not on a mean: clients that drop out do
not weaken it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from fedscape.core.sampling import FixedSize, Poisson, Sampler, marked, parts_of_client
from fedscape.errors import PrivacyError
from fedscape.privacy.noise import Stream, discrete_gaussian, discrete_laplace
from fedscape.privacy.ranges import LENGTH, NOISE, check_positive, check_share
from fedscape.types import Array

if TYPE_CHECKING:
    from fedscape.core.engine import Engine
    from fedscape.privacy.guard import Guard
    from fedscape.privacy.ledger import Ledger

INSIDE = "privacy.inside"  # number of clients within the clip, if the clip adapts
_FINE = 2.0**-32  # grid of real numbers, as a fraction of the noise
PLACES = ("central", "distributed", "local")
_RELATIONS = ("add-remove", "replace-one")


@dataclass(frozen=True)
class AdaptiveClip:
    """A clip that tracks a quantile of the clients' norms (Andrew et al. 2021, equation 1).

    Each client also reports whether it was within the clip; the noisy share s of those moves the clip by
    exp(-rate * (s - quantile)). That bit is released with the sum, and part of its entry.

    Parameters
    ----------
    start
        The first clip.
    quantile
        The target share of clients that are not clipped.
    rate
        Learning rate of the clip.
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
        check_positive("start", self.start, LENGTH)
        check_share("quantile", self.quantile)
        check_positive("rate", self.rate, NOISE)
        check_positive("multiplier", self.multiplier, NOISE)

    def next(self, clip: float, *, share: float) -> float:
        """The next clip, if this share of clients was within the last one; kept within LENGTH."""
        step = np.clip(self.rate * (min(max(share, 0.0), 1.0) - self.quantile), -60, 60)  # from end to end
        return float(np.clip(clip * np.exp(-step), *LENGTH))


@dataclass(frozen=True, kw_only=True)
class Privacy:
    """The common part of Gaussian and Laplace.

    Parameters
    ----------
    clip
        Bound on the norm of one unit's contribution; an AdaptiveClip tracks the clients.
    unit
        "client": everything of a client is one contribution, clipped. "row": one row is. The computation must state how
        far a row can move its sums (`row_bound`), and the clip must not be smaller.
    place
        "central": noise on the sum, added by a trusted server. "distributed": each client adds its part, and the parts
        of `min_clients` clients make up the noise; the number of clients is then public. "local": each client's own
        arrays are protected.
    scales
        For arrays of different magnitude: the norm is that of array / scale.
    count_share
        The share of the squared (Laplace: of the) sensitivity spent on the number of clients, which is also noisy
        unless the cohort size is fixed.
    noise_seed
        For tests: predictable noise. Ledger and reports then say NOT PRIVATE.
    relation
        For unit "row", which two sets of rows must look alike: "add-remove" (one row more or less: the number of rows
        is secret) or "replace-one" (one row replaced: their number is public). Replacing moves a sum by twice the clip,
        which the ledger counts.

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
        else:
            check_positive("clip", self.clip, LENGTH)
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
        check_share("count_share", self.count_share)
        for name, scale in self.scales.items():
            check_positive(f"scales[{name!r}]", scale, LENGTH)

    # the differences between the two mechanisms
    def spread(self) -> float:
        """The scale of the noise for unit sensitivity: a standard deviation, or a Laplace scale."""
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
        """Whether the number of clients is secret: only if one client more or less must not show."""
        return self.unit == "client" and self.relation_of(sampler) == "add-remove"

    def relation_of(self, sampler: Sampler) -> str:
        """Which two federations look alike: one unit more or less, or one replaced if their number is public.

        A fixed-size sampler replaces clients. Local noise reveals each client, and so their number. The variance of
        distributed noise grows with every client that adds its part: their number is public.
        """
        if self.unit == "row":
            return self.relation
        return "replace-one" if self.place != "central" or marked(sampler, "exchanges") else "add-remove"

    def parts(self, sampler: Sampler, n_clients: int) -> dict[str, dict[str, Any]]:
        """The parts of a round's release: the sum, and the clip bit if the clip adapts."""
        relation = self.relation_of(sampler)
        group = {
            "unit": self.unit,
            "relation": relation,
            "place": "local" if self.place == "local" else "central",
        }
        # samplers draw clients: the rows of a client come and go together, which hides none of them
        drawn = self.place != "local" and self.unit == "client"
        sampling = _sampling(sampler, n_clients, relation) if drawn else {"kind": "all"}
        secret = {"private": False} if self.noise_seed is not None else {}
        about = {**group, "sampling": sampling, **secret}
        moved = 2.0 if relation == "replace-one" else 1.0  # in clips: a replacement removes one and adds another
        together = parts_of_client(sampler) if self.unit == "client" else 1  # parts of one client move together
        kind = "gaussian" if self.norm == 2 else "laplace"
        parts = {"sum": {**about, "mechanism": kind, "multiplier": self.spread() / moved / together}}
        if isinstance(self.clip, AdaptiveClip):  # one bit: a part moves it by at most one either way
            parts["clip"] = {**about, "mechanism": "gaussian", "multiplier": self.clip.multiplier / together}
        return parts

    def entries(self, sampler: Sampler, n_clients: int, *, metrics: Privacy | None = None) -> dict[str, dict[str, Any]]:
        """The ledger entries of a round, which also releases `metrics` if given."""
        parts = self.parts(sampler, n_clients)
        if metrics is not None:
            parts["metrics"] = metrics.parts(sampler, n_clients)["sum"]
        return joint(parts)

    def guard(
        self, sampler: Sampler, engine: Engine, *, ledger: Ledger | None = None, metrics: Privacy | None = None
    ) -> Guard:
        """The guard of a run, which clips, books and noises its rounds.

        Parameters
        ----------
        sampler, engine
            Who takes part, and where the clients run.
        ledger
            Where releases are booked in advance; by default one in memory.
        metrics
            How metrics are clipped and noised; without it none are measured.
        """
        from fedscape.privacy.guard import Guard

        return Guard(self, metrics, self.new_ledger() if ledger is None else ledger, sampler, engine)

    def new_ledger(self) -> Ledger:
        """A ledger in memory, without a budget."""
        from fedscape.privacy.ledger import Ledger

        return Ledger()

    def new_secret(self) -> bytes:
        """32 bytes from the operating system, or from the noise_seed if set."""
        if self.noise_seed is None:
            return os.urandom(32)
        return hashlib.sha256(f"noise_seed {self.noise_seed}".encode()).digest()


@dataclass(frozen=True)
class Gaussian(Privacy):
    """Gaussian noise on sums clipped in the L2 norm.

    The noise has standard deviation multiplier x sensitivity. `calibrate` computes the multiplier for a budget.

    >>> Gaussian(clip=1.0, multiplier=2.0).spread()
    2.0
    """

    multiplier: float = field(kw_only=True)
    norm: ClassVar[int] = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("multiplier", self.multiplier, NOISE)

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
        check_positive("epsilon", self.epsilon, NOISE)
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


def joint(parts: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Merge what one cohort releases into one entry, named by its parts; several if they cannot be merged.

    All parts share one sampled cohort, and amplification by sampling counts once. Gaussian parts form one Gaussian
    release, 1 / s^2 = sum of 1 / s_i^2; Laplace parts one Laplace release, 1 / s = sum of 1 / s_i. Parts of different
    mechanisms have no such form: each then counts as if everyone took part. Parts with another unit or relation get
    their own entries, as the ledger keeps them apart.

    >>> from fedscape import All
    >>> privacy = Gaussian(clip=AdaptiveClip(1.0, multiplier=4.0), multiplier=3.0)
    >>> joint(privacy.parts(All(), n_clients=9))["sum+clip"]["multiplier"]
    2.4
    """
    together: dict[tuple[str, str, str], dict[str, Mapping[str, Any]]] = {}
    for name, part in parts.items():
        together.setdefault((part["unit"], part["relation"], part["place"]), {})[name] = part
    entries: dict[str, dict[str, Any]] = {}
    for members in together.values():
        for kind in sorted({part["mechanism"] for part in members.values()}):
            alike = {name: part for name, part in members.items() if part["mechanism"] == kind}
            others = [name for name in members if name not in alike]
            entry = dict(next(iter(alike.values())))
            if len(alike) > 1:
                power = 2 if kind == "gaussian" else 1
                precision = sum(part["multiplier"] ** -power for part in alike.values())
                entry["multiplier"] = float(precision ** (-1 / power))
                entry["parts"] = {name: part["multiplier"] for name, part in alike.items()}
            if others:
                entry["sampling"] = {"kind": "all"}
            if not all(part.get("private", True) for part in alike.values()):
                entry["private"] = False
            entries["+".join(alike) + (f" beside {'+'.join(others)}" if others else "")] = entry
    return entries


def _sampling(sampler: Sampler, n_clients: int, relation: str) -> dict[str, Any]:
    """The accountant's view of a sampler; Poisson sampling amplifies only if the number of clients is secret."""
    if isinstance(sampler, Poisson) and sampler.rate < 1 and relation == "add-remove":
        return {"kind": "poisson", "rate": float(sampler.rate)}
    if isinstance(sampler, FixedSize) and sampler.size < n_clients:
        return {"kind": "fixed", "size": int(sampler.size), "of": int(n_clients)}
    return {"kind": "all"}

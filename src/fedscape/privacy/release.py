"""One release: the operations on clients' contributions and on their sum.

A client's arrays, divided by their scales, form one vector; its norm is clipped on the client. Contributions are then
rounded to a grid and added as integers, and integer noise is added to the sum. The bits of a release thus depend on
the data only through a sum with known sensitivity.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from fedscape.core.sampling import All, Sampler
from fedscape.errors import PrivacyError
from fedscape.privacy.mechanisms import AdaptiveClip, Privacy
from fedscape.privacy.noise import Stream, discrete_gaussian
from fedscape.privacy.ranges import LENGTH, check_positive
from fedscape.types import Array, Arrays, HasKeys

if TYPE_CHECKING:
    from fedscape.core.engine import Engine

INSIDE = "privacy.inside"  # number of clients within the clip, if the clip adapts
_FINE = 2.0**-32  # grid of real numbers, as a fraction of the noise
_STEPS = 2.0**32  # most grid steps in a clip: the sum of a billion clients does not overflow, so none is refused for it
_ROW_STEPS = 2.0**38  # the same for sums of rows: rounding 2**18 numbers moves a sum by 2**-20 of the clip at most
# grid steps in the noise on a count, which is an integer: a coarser lattice costs more than is booked
_COUNT_STEPS = 2.0**16
_LARGEST = 2.0**62  # grid steps of a client's sum of rows, which has no other bound
_LONGEST = 1e150  # a longer row shrinks to zero: the factor to the clip would lose its digits


@dataclass
class Release:
    """One round's release: the operations on clients' contributions and on their sum.

    Parameters
    ----------
    privacy
        The mechanism.
    clip
        The clip of this round.
    key
        The secret of this release only.
    counted
        Whether the number of clients is noised with the rest.
    min_clients
        Number of clients whose parts make up distributed noise.
    row_bound
        For unit "row": how far one row can move the arrays.
    shared_by
        Number of clients that share one part of distributed noise: those of a node with a masked sum.
    largest
        The most grid steps of a client's sum, cut before noise; masked sums lower it so that the total cannot overflow.
    """

    privacy: Privacy
    clip: float
    key: bytes
    counted: bool
    min_clients: int
    row_bound: float | None = None
    inside: float | None = None
    shared_by: int = 1
    largest: float = _LARGEST

    def __post_init__(self) -> None:
        check_positive("clip", self.clip, LENGTH)  # a server may send any
        self.check_rows(self.row_bound)
        self._grids: dict[str, float] = {}

    def check_rows(self, row_bound: float | None) -> None:
        """For unit "row", refuse a computation with rows that move the sums further than this release covers."""
        if self.privacy.unit != "row":
            return
        if row_bound is None:
            raise PrivacyError("this computation does not bound what one row can change: use unit='client'")
        if not row_bound <= self.clip * (1 + 1e-9):
            raise PrivacyError(
                f"one row can move the sums by {row_bound:.6g}, more than clip={self.clip:.6g}: raise the clip"
            )

    @property
    def sensitivity(self) -> float:
        """How far one unit can move the arrays (divided by their scales) and the count."""
        if self.privacy.unit == "row":
            return self.clip * (1 + 2.0**-20)  # rounding a sum to the grid can move it by one more cell
        return self.privacy.with_count(self.clip) if self.counted else self.clip

    @property
    def grids(self) -> Mapping[str, float]:
        """The grid step of each array that clients rounded."""
        return dict(self._grids)

    def without_secret(self) -> Release:
        """The release for another process of the engine: with noise on the sum, clients need no key."""
        return replace(self, key=b"") if self.privacy.place == "central" else self

    def on_clients(self, sent: Arrays, clients: HasKeys) -> Arrays:
        """Clip each client's contribution and round it to the grid: integers that may be added."""
        unknown = set(self.privacy.scales) - set(sent)
        if unknown:
            raise PrivacyError(f"scales name {sorted(unknown)}, but what is sent is {sorted(sent)}")
        flat = {name: _flat(rows) for name, rows in sent.items()}  # [clients, numbers], float64
        out: Arrays = {}
        with np.errstate(over="ignore"):  # an overflowing norm is infinite, and its row shrinks to zero
            shrink, within = self._factors(flat)
            for name, rows in sent.items():
                grid = self._grids.setdefault(name, self._grid(name, rows.dtype.kind in "biu"))
                cells = flat[name] * ((1.0 if shrink is None else shrink[:, None]) / grid)
                np.clip(
                    cells, -self.largest, self.largest, out=cells
                )  # sums of rows have any size; clipped ones do not
                out[name] = np.trunc(cells, out=cells).astype(np.int64).reshape(rows.shape)
        if self.privacy.place != "central":
            self._add_own_noise(out, clients)
        if isinstance(self.privacy.clip, AdaptiveClip):
            out[INSIDE] = within
        return out

    def take_grids(self, grids: Mapping[str, float]) -> None:
        """Take the grids from remote clients; refuse those that this release cannot have."""
        for name, grid in grids.items():
            if grid not in (self._grid(name, True), self._grid(name, False)):
                raise PrivacyError(f"array {name!r} was cut to a grid of {grid!r}, which this release cannot have")
        self._grids.update(grids)

    def check_sum(self, total: Arrays, reported: int) -> None:
        """Refuse sums that this number of clipped clients cannot reach; if clients add noise, any sum is possible."""
        if self.privacy.place != "central" or self.privacy.unit != "client":
            return
        inside = np.asarray(total.get(INSIDE, 0))
        length = 0.0  # of all arrays together, as clients are clipped
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
        """Add noise to the sum and restore its units; `clients` is their number, noisy if secret."""
        out: Arrays = {}
        for name, cells in total.items():
            if name == INSIDE:
                continue
            if self.privacy.place == "central":
                spread = self.privacy.spread() * self.sensitivity * self._scale(name) / self._grids[name]
                noise = self.privacy.draw(self._stream("array", name), spread, cells.size)
                cells = cells + noise.reshape(cells.shape)
            out[name] = cells * self._grids[name]
        out["clients"] = np.asarray(self._number_of_clients(reported))
        if INSIDE in total and isinstance(self.privacy.clip, AdaptiveClip):
            spread = self.privacy.clip.multiplier
            grid = _count_grid(spread)
            noise = discrete_gaussian(self._stream("clip bit"), spread / grid, 1)[0] * grid
            self.inside = float(total[INSIDE] + noise) / max(float(out["clients"]), 1.0)
        return out

    def variance(self, name: str, reported: float, *, whole: bool) -> float:
        """The variance of the noise in one number of this array's sum over `reported` clients; `whole` for counts."""
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
        spread = self.privacy.spread() / part
        grid = _count_grid(spread)
        return max(1.0, float(reported + self.privacy.draw(self._stream("clients"), spread / grid, 1)[0] * grid))

    def _factors(self, flat: Arrays) -> tuple[Array | None, Array]:
        """The factor that shrinks each row to the clip, and whether it was within."""
        length = np.zeros(len(next(iter(flat.values()))))
        for name, rows in flat.items():
            if self.privacy.norm == 2:
                length += np.einsum("ij,ij->i", rows, rows) / self._scale(name) ** 2
            else:
                length += np.abs(rows).sum(axis=1) / self._scale(name)
        if self.privacy.norm == 2:
            length = np.sqrt(length)
        length[length > _LONGEST] = np.inf
        within = (length <= self.clip).astype(np.int64)
        if self.privacy.unit == "row":
            return None, within
        # slightly below the clip: rounding in the product must not exceed it
        return np.where(within, 1.0, self.clip * (1 - 2.0**-40) / np.maximum(length, 1e-300)), within

    def _grid(self, name: str, whole: bool) -> float:
        """A power of two, fine beside the noise; at most one for counts that no clip shrinks."""
        spread = self.privacy.spread() * self.sensitivity * self._scale(name)
        if self.privacy.place == "distributed":
            spread /= np.sqrt(self.min_clients)
        cell = float(2.0 ** np.floor(np.log2(spread / 2)))
        if self.privacy.unit == "row":
            return _count_grid(spread) if whole else float(2.0 ** np.floor(np.log2(self.clip / _ROW_STEPS)))
        coarse = float(2.0 ** np.ceil(np.log2(self.clip * self._scale(name) / _STEPS)))
        return max(cell * 2 * _FINE, coarse)

    def _add_own_noise(self, rows: Arrays, clients: HasKeys) -> None:
        """Add each client's noise, keyed by everything it sends: other rows never get the same noise."""
        part = np.sqrt(self.min_clients * self.shared_by) if self.privacy.place == "distributed" else 1.0
        for i, client in enumerate(clients.keys):
            exact = digest_of({name: cells[i] for name, cells in rows.items()})
            for name, cells in rows.items():
                spread = self.privacy.spread() * self.sensitivity * self._scale(name) / self._grids[name] / part
                stream = self._stream("array", name, str(int(client)), exact.hex())
                cells[i] += self.privacy.draw(stream, spread, cells[i].size).reshape(cells[i].shape)

    def _scale(self, name: str) -> float:
        return float(self.privacy.scales.get(name, 1.0))

    def _stream(self, *purpose: str) -> Stream:
        return Stream(hmac.digest(self.key, json.dumps(purpose).encode(), "sha256"))


def _count_grid(spread: float) -> float:
    """A power of two whose lattice contains the integers, fine enough to make the noise nearly continuous."""
    return float(min(1.0, 2.0 ** np.floor(np.log2(spread / _COUNT_STEPS))))


def noise_sd(
    privacy: Privacy | None,
    name: str = "",
    *,
    sampler: Sampler | None = None,
    clients: float = 1,
    min_clients: int = 1,
    whole: bool = False,
) -> float:
    """The standard deviation of the noise in one number of a sum, 0 without privacy.

    Parameters
    ----------
    privacy
        The mechanism; an adaptive clip counts with its start.
    name
        The array; its scale matters.
    sampler
        Who takes part, by default all. A secret number of clients takes its share of the sensitivity.
    clients
        Number of clients in the sum; it matters if they add the noise themselves. One: a client's own.
    min_clients
        Number of clients whose parts make up distributed noise.
    whole
        Whether the numbers are counts, which have their own grid if the unit is a row.

    >>> from fedscape import Gaussian, Laplace
    >>> noise_sd(Gaussian(clip=3.0, multiplier=2.0, place="local"), clients=4)
    12.0
    >>> round(noise_sd(Laplace(clip=10.0, epsilon=1.0, unit="row"), whole=True) ** 2)
    200
    """
    if privacy is None:
        return 0.0
    clip, counted = privacy.first_clip, privacy.counts_clients(All() if sampler is None else sampler)
    release = Release(privacy, clip, b"", counted, min_clients, row_bound=clip)
    return float(np.sqrt(release.variance(name, clients, whole=whole)))


def noise_clients(engine: Engine, cohort: Array) -> int:
    """Number of clients that make up distributed noise: `min_clients`, or those in the smallest sum that can open."""
    number = getattr(engine, "noise_clients", None)
    return engine.min_clients if number is None else int(number(cohort))


def noise_shares(privacy: Privacy | None, engine: Engine, clients: float) -> tuple[float, int]:
    """The number of noise shares in a sum over this many clients, and the number that make up the full noise."""
    if privacy is None or privacy.place != "distributed":
        return clients, 1
    cohort = np.arange(round(clients))
    parties = getattr(engine, "parties", None)
    return clients if parties is None else parties(cohort), noise_clients(engine, cohort)


def _flat(rows: Array) -> Array:
    return rows.reshape(len(rows), int(np.prod(rows.shape[1:]))).astype(np.float64)


def digest_of(arrays: Mapping[str, Array]) -> bytes:
    """A digest of names, dtypes, shapes and values.

    >>> digest_of({"n": np.array([1, 2])}) == digest_of({"n": np.array([1, 3])})
    False
    """
    digest = hashlib.sha256()
    for name in sorted(arrays):
        values = np.ascontiguousarray(arrays[name])
        digest.update(json.dumps([name, values.dtype.str, values.shape]).encode())
        digest.update(values.tobytes())
    return digest.digest()

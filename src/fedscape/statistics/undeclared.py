"""Names and scales of columns that nobody declared, found by sums within one budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from fedscape.core.federation import Federation
from fedscape.core.sampling import All, FixedSize, Sampler
from fedscape.errors import DataError, PrivacyError
from fedscape.privacy.accounting import calibrate
from fedscape.privacy.ledger import Ledger
from fedscape.privacy.mechanisms import Gaussian
from fedscape.statistics.heavy_hitters import HeavyHitters
from fedscape.statistics.quantiles import Quantiles
from fedscape.statistics.scaling import Scaling
from fedscape.types import Array

_TEXT, _DIGITS = 24, 8  # bytes of a name that is a text, or a whole number
_MOST = 3  # names that a client counts for in a round
_SMALL = 1e-6  # numbers are searched for by their size, from this on
_WIDEST = 50.0  # arsinh of a number of 2.6e15 in that unit
_FURTHEST = 1e20  # to which numbers are cut: beyond what is searched, and far from what a float can hold
_STEP = 0.125  # and how near: an eighth of a number's size
_REACH = 4.0  # distances of the quartiles that the second search goes beyond them
_CUT = (0.02, 0.98)
_FAR = 4.0  # deviations from the median beyond which values are cut, too: noise is largest in the tails
_UNSURE = 0.5  # a bound for all ranks; their usual error is a fifth of it


class Scale(NamedTuple):
    """Where the numbers of a column lie: cuts, the median, and the deviation of a normal law; arrays of columns."""

    low: Array
    centre: Array
    scale: Array
    high: Array


@dataclass(frozen=True)
class Undeclared:
    """What nobody declared of a table: categories of some columns, and where the numbers of others lie.

    `find` looks for all of it at client level: names letter by letter with `HeavyHitters`, numbers by their size with
    `Quantiles` and then more finely with `Scaling`. No range is needed ahead.

    Parameters
    ----------
    names
        Columns of texts or whole numbers whose categories are sought. A text counts with its first 24 bytes.
    numbers
        Columns of numbers, of any trailing shape.

    >>> undeclared = Undeclared(names=("y",), numbers=("age",))
    >>> undeclared.n_releases({"y": True})
    32
    """

    names: tuple[str, ...] = ()
    numbers: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.names or self.numbers)

    def n_releases(self, is_text: Mapping[str, bool]) -> int:
        """The most releases that a search makes; `is_text` says which of `names` are texts."""
        letters = sum(_TEXT if is_text[name] else _DIGITS for name in self.names)
        return letters + ((_sizes(()).n_rounds() + _places(()).n_releases()) if self.numbers else 0)

    def find(
        self, clients: Federation, *, epsilon: float, delta: float, ledger: Ledger, exchanges: bool = False
    ) -> Discovery:
        """Search within this budget; every round is a release in the ledger.

        Refuse afterwards where the noise leaves nothing: no name that enough clients have, or ranks that it moves by
        half. Both follow from noisy sums alone. With `exchanges` it is booked as replacing a client, as what follows
        is where cohorts have a fixed size: relations are not added up, and one budget must be of one.
        """
        sampler: Sampler = FixedSize(len(clients)) if exchanges else All()
        is_text = {name: name in clients.names for name in self.names}
        n = self.n_releases(is_text)
        multiplier = calibrate(epsilon, delta, rounds=n, sampler=sampler, n_clients=len(clients))
        how: dict[str, Any] = {"ledger": ledger, "sampler": sampler, "progress": False}
        names, threshold = {}, 0.0
        for name in self.names:
            hitters = HeavyHitters(1, column=name, length=_TEXT if is_text[name] else _DIGITS, most=_MOST)
            hitters.fit(_categories(clients, name), privacy=Gaussian(clip=_MOST**0.5, multiplier=multiplier), **how)
            names[name], threshold = tuple(sorted(hitters.names_, key=_in_order)), hitters.threshold_
        scales = self._scales(clients, Gaussian(clip=1.0, multiplier=multiplier), how) if self.numbers else {}
        return Discovery(names, scales, threshold, epsilon, n)

    def _scales(self, clients: Federation, privacy: Gaussian, how: Mapping[str, Any]) -> dict[str, Scale]:
        columns = {name: np.asarray(clients[name], dtype=np.float64) for name in self.numbers}
        columns = {name: np.clip(values, -_FURTHEST, _FURTHEST) for name, values in columns.items()}

        def of(values: Mapping[str, Array]) -> Federation:
            return Federation(dict(values), clients.offsets, clients.ids)

        sizes = _sizes(self.numbers).fit(
            of({name: np.arcsinh(v / _SMALL) for name, v in columns.items()}), privacy=privacy, **how
        )
        if not sizes.rank_error_ < _UNSURE:
            off = min(sizes.rank_error_, 1.0)
            raise PrivacyError(
                f"noise may move ranks of the numbers by {off:.0%}, so no scale is found: spend more, take more "
                "clients, or declare ranges"
            )
        first, third = np.reshape(sizes.quantiles_, (2, -1))
        low, high = _SMALL * np.sinh(first - _STEP), _SMALL * np.sinh(third + _STEP)
        begin, unit = low - _REACH * (high - low), (1 + 2 * _REACH) * (high - low)
        ends = np.cumsum([0, *(int(np.prod(v.shape[1:])) for v in columns.values())])
        own = {name: slice(ends[i], ends[i + 1]) for i, name in enumerate(columns)}
        parts = {
            name: ((v.reshape(len(v), -1) - begin[own[name]]) / unit[own[name]]).reshape(v.shape)
            for name, v in columns.items()
        }
        places = _places(self.numbers).fit(of(parts), privacy=privacy, **how)
        centre, scale = begin + unit * places.centre_, unit * places.scale_
        low = np.maximum(begin + unit * places.low_, centre - _FAR * scale)
        high = np.minimum(begin + unit * places.high_, centre + _FAR * scale)
        return {name: Scale(*(each[own[name]] for each in (low, centre, scale, high))) for name in columns}


@dataclass(frozen=True)
class Discovery:
    """What a search found: names of categories in order, scales of numbers, and what it cost.

    `threshold` is how many clients a name needed, `epsilon` what the search may cost in `releases` releases at most.
    """

    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    scales: Mapping[str, Scale] = field(default_factory=dict)
    threshold: float = 0.0
    epsilon: float = 0.0
    releases: int = 0

    def classes(self, column: str) -> tuple[str, ...]:
        """The classes of a target: at least two."""
        names = self.names[column]
        if len(names) < 2:
            have = "no class" if not names else f"one class, {names[0]!r},"
            raise DataError(
                f"{have} of {column!r} is found that {self.threshold:.0f} clients have, as many as noise needs: spend "
                "more, take more clients, or declare the classes"
            )
        return names

    def ranges(self) -> dict[str, tuple[float, float]]:
        """The least and greatest value that columns of one number a row are cut to."""
        return {name: _apart(float(s.low[0]), float(s.high[0])) for name, s in self.scales.items() if len(s.low) == 1}

    def line(self) -> str:
        """What was found and spent, in a line."""
        parts = [f"{len(names)} of {name!r}" for name, names in self.names.items()]
        phrases = [f"categories that {self.threshold:.0f} clients have or more ({', '.join(parts)})"] if parts else []
        ranges = [f"{name} {low:.4g} to {high:.4g}" for name, (low, high) in self.ranges().items()]
        phrases += [f"scales ({', '.join(ranges[:8])}{', ...' if len(ranges) > 8 else ''})"] if self.scales else []
        return f"found for epsilon {self.epsilon:.3g}, in {self.releases} releases at most: {' and '.join(phrases)}"

    def to_json(self) -> dict[str, Any]:
        """What a file keeps, so that a run that goes on does not search again."""
        scales = {name: [part.tolist() for part in scale] for name, scale in self.scales.items()}
        about = {"threshold": self.threshold, "epsilon": self.epsilon, "releases": self.releases}
        return {"names": {name: list(names) for name, names in self.names.items()}, "scales": scales, **about}

    @classmethod
    def from_json(cls, saved: Mapping[str, Any]) -> Discovery:
        """What `to_json` gave."""
        return cls(
            {str(name): tuple(map(str, names)) for name, names in saved["names"].items()},
            {str(name): Scale(*(np.asarray(p, dtype=float) for p in parts)) for name, parts in saved["scales"].items()},
            float(saved["threshold"]),
            float(saved["epsilon"]),
            int(saved["releases"]),
        )


def _sizes(numbers: Sequence[str]) -> Quantiles:
    """Quartiles of arsinh: of all numbers alike, whatever their size."""
    ends = (-_WIDEST, _WIDEST)
    return Quantiles([0.25, 0.75], column=tuple(numbers), ranges=ends, resolution=_STEP, cells=4)


def _places(numbers: Sequence[str]) -> Scaling:
    return Scaling(column=tuple(numbers), cut=_CUT, ranges=(0.0, 1.0), resolution=2.0**-8)


def _categories(clients: Federation, name: str) -> Federation:
    """The column alone, as texts or whole numbers; of whole numbers kept as floats the rows that have one."""
    values = clients[name]
    alone = clients.select([name])
    if name in clients.names or values.dtype.kind in "biu":
        return alone
    whole = np.isfinite(values) & (np.abs(values) < 2.0**53)
    whole[whole] = values[whole] == np.floor(values[whole])
    rows = alone.where(whole)
    return rows.with_column(name, rows[name].astype(np.int64))


def _in_order(name: str) -> tuple[bool, float, str]:
    """Numbers by their value, before texts by the alphabet."""
    digits = name.lstrip("-").isdigit()
    return (not digits, float(name) if digits else 0.0, name)


def _apart(low: float, high: float) -> tuple[float, float]:
    """A range that is one: a column that is the same everywhere gets a narrow one around it."""
    return (low, high) if low < high else (low - max(abs(low), 1.0) * 1e-3, low + max(abs(low), 1.0) * 1e-3)

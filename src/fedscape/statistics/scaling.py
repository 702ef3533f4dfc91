"""Centre, scale and cuts of numbers by quantiles: what standardising needs, as one release."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedscape.core.estimator import Estimator, Fit
from fedscape.core.federation import Federation
from fedscape.errors import DataError, PrivacyError
from fedscape.statistics.quantiles import Quantiles
from fedscape.types import Array

if TYPE_CHECKING:
    from fedscape.core.engine import Engine

_FURTHEST = 1e300
_NORMAL = 1.3489795003921634  # between the quartiles of a normal law, in standard deviations


class Scaling(Estimator):
    """Medians, quartiles and far quantiles of columns, to standardise by: few far values do not move them.

    A value becomes (cut value - median) / scale, the scale that of a normal law with these quartiles; it is cut to the
    quantiles `cut` first. After that every feature has a known range, `reach_`, so other private methods have a bound
    that no row was looked at for: `bound()`.

    Parameters
    ----------
    column
        Numbers of any trailing shape, or several such columns.
    cut
        The shares between which values stay.
    ranges, resolution
        As for `Quantiles`. A private fit needs ranges.

    Learns `centre_`, `scale_`, `low_` and `high_` [d], and `reach_`: the furthest a standardised value can be. Under
    privacy its quantiles are the releases.

    >>> fed = Federation({"x": [1.0, 2.0, 3.0, 4.0, 80995.0]}, [0, 2, 5])
    >>> scaling = Scaling(cut=(0.1, 0.8)).fit(fed)
    >>> scaling.transform(fed)["x"].round(2).tolist()
    [-1.35, -0.67, 0.0, 0.67, 0.67]
    """

    name = "scaling"

    def __init__(
        self,
        *,
        column: str | Sequence[str] = "x",
        cut: tuple[float, float] = (0.005, 0.995),
        ranges: Sequence[float] | Sequence[Sequence[float]] | None = None,
        resolution: float | None = None,
    ) -> None:
        self.column = column
        self.cut = cut
        self.ranges = ranges
        self.resolution = resolution

    def _quantiles(self, column: str | Sequence[str]) -> Quantiles:
        low, high = self.cut
        if not 0 <= low < 0.25 or not 0.75 < high <= 1:
            raise DataError(f"cut must be a share below 0.25 and one above 0.75, not {self.cut!r}")
        shares = [low, 0.25, 0.5, 0.75, high]
        return Quantiles(shares, column=column, ranges=self.ranges, resolution=self.resolution)

    def n_releases(self) -> int:
        """How many releases a private fit makes: what `calibrate` needs as `rounds`.

        >>> Scaling(ranges=(0, 100), resolution=1.0).n_releases()
        3
        """
        if self.ranges is None:
            raise PrivacyError("a private fit needs ranges=(least, greatest): where values lie is a secret")
        nearest = self.resolution or float(np.ptp(np.atleast_2d(self.ranges), axis=1).max()) * 2.0**-10
        return self._quantiles(self.column).set_params(cells=4, resolution=nearest).n_rounds()  # type: ignore[attr-defined, no-any-return]

    def _fit(self, engine: Engine, column: str | None, how: Fit) -> None:
        work = self._quantiles(self.column if column is None else column)
        work.history_ = self.history_
        work._fit(engine, None, how)
        quantiles = np.maximum.accumulate(np.reshape(work.quantiles_, (5, -1)), axis=0)
        if how.privacy is None and (np.abs(quantiles) > _FURTHEST).any():
            raise DataError(f"{work.column!r} holds too many infinite or huge values to have a scale: drop such rows")
        self.column_ = work.column
        self.low_, first, self.centre_, third, self.high_ = quantiles
        wide = (self.high_ - self.low_) / (2 * _NORMAL)  # where half of all rows are alike
        self.scale_ = np.where(third > first, (third - first) / _NORMAL, wide)
        unit = np.where(self.scale_ > 0, self.scale_, 1.0)
        self.reach_ = np.maximum(self.high_ - self.centre_, self.centre_ - self.low_) / unit

    def bound(self) -> float:
        """The length that no standardised row exceeds: the `bound` of `Moments` and `FederatedKMeans`."""
        self._check_fitted("reach_")
        return float(np.sqrt((self.reach_**2).sum()))

    def transform(self, clients: Federation) -> Federation:
        """The same clients with standardised columns; a missing value stays one, a constant column becomes 0."""
        self._check_fitted("reach_")
        begin = 0
        for name in (self.column_,) if isinstance(self.column_, str) else self.column_:
            values = np.asarray(clients[name], dtype=np.float64)
            rows = values.reshape(len(values), int(np.prod(values.shape[1:])))
            end = begin + rows.shape[1]
            clients = clients.with_column(name, self._scaled(rows, begin, end).reshape(values.shape))
            begin = end
        if begin != len(self.reach_):
            raise DataError(f"there are {begin} features a row, the scaling has {len(self.reach_)}")
        return clients

    def _scaled(self, rows: Array, begin: int, end: int) -> Array:
        if end > len(self.reach_):
            raise DataError(f"there are at least {end} features a row, the scaling has {len(self.reach_)}")
        low, high, centre, scale = (part[begin:end] for part in (self.low_, self.high_, self.centre_, self.scale_))
        moved = np.clip(rows, low, high) - centre
        return np.asarray(np.where(scale > 0, moved / np.where(scale > 0, scale, 1.0), 0.0 * moved))

    @classmethod
    def examples(cls) -> Sequence[tuple[Scaling, Federation]]:
        return []  # its phase is Quantiles

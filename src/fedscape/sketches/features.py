"""Rows of numbers, prepared tile by tile: embedded, centred, scaled."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from fedscape.core.arrays import offsets_of
from fedscape.core.computation import Computation
from fedscape.core.federation import Federation
from fedscape.core.random import Key
from fedscape.core.validate import check_finite, valid_numbers
from fedscape.errors import DataError
from fedscape.types import Array, Arrays, Kept

_TILE = 4096  # rows per tile


class Features:
    """Rows (x - centre) / scale in float32, computed on demand.

    >>> Features(np.array([[3, 5]]), "x", np.array(1.0), np.array(2.0))[:]
    array([[1., 2.]], dtype=float32)
    """

    def __init__(self, values: Array, column: str, centre: Array, scale: Array) -> None:
        if values.dtype.kind not in "biuf":
            raise DataError(f"column {column!r} must hold numbers, not {values.dtype}: texts need family='minhash'")
        self.values = values.reshape(len(values), int(np.prod(values.shape[1:])))
        self.column, self.centre, self.scale = column, centre.reshape(-1), scale.reshape(-1)
        d = self.values.shape[1]
        if d == 0:
            raise DataError(f"column {column!r} has no features: its rows are empty")
        for name, value in (("centre", self.centre), ("scale", self.scale)):
            if len(value) not in (1, d) or not np.isfinite(value).all() or (name == "scale" and (value <= 0).any()):
                raise DataError(
                    f"{name} must be one finite number{' above 0' if name == 'scale' else ''} or {d}, one for each "
                    f"feature of {column!r}, got {len(value)}: {np.array2string(value, threshold=4)}"
                )
        self.plain = not self.centre.any() and bool((self.scale == 1).all())
        # 8-bit and 16-bit integers are exact in float32; the rest is centred before rounding
        small = self.values.dtype.itemsize <= 2 or self.values.dtype == np.float32
        self.kind = np.float32 if small else np.float64

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.values), self.values.shape[1]

    def valid_rows(self) -> Array:
        """Which rows are finite in float32."""
        parts = [slice(begin, begin + _TILE) for begin in range(0, len(self.values), _TILE)]
        finite = [np.isfinite(self._rows(part)).all(axis=1) for part in parts]
        return np.concatenate([np.empty(0, dtype=bool), *finite])

    def _rows(self, where: slice) -> Array:
        x: Array = self.values[where].astype(self.kind)
        with np.errstate(over="ignore", invalid="ignore"):
            if not self.plain:
                np.subtract(x, self.centre.astype(self.kind), out=x)
                np.divide(x, self.scale.astype(self.kind), out=x)
            return x.astype(np.float32, copy=False)

    def __getitem__(self, where: slice) -> Array:
        out = self._rows(where)
        if not np.isfinite(out).all():
            row = int(np.argwhere(~np.isfinite(out))[0][0]) + (where.start or 0)
            raise DataError(
                f"column {self.column!r} holds NaN, infinity or more than 3e38 in row {row:,}: drop such rows with "
                "where(np.isfinite(...)) or fill them in before"
            )
        return np.asarray(out)


class Spread(Computation):
    """The number of rows, and the mean and deviation of each feature, in one round.

    A feature that never varies has the deviation 1.

    Parameters
    ----------
    column
        The column to read.
    embed
        A function applied to its rows first.
    numbers
        Whether to compute means and deviations; if not, the column may hold anything.

    >>> fed = Federation({"x": [[0.0], [2.0]]}, [0, 1, 2])
    >>> work = Spread(column="x")
    >>> work.update({}, work.total({}, fed, Key(0)), Key(0))["deviation"]
    array([1.])
    """

    name = "sketch-spread"

    block_rows = 2**13  # rows become float64 all at once

    def __init__(
        self, *, column: str = "x", embed: Callable[[Array], Array] | None = None, numbers: bool = True
    ) -> None:
        self.column = column
        self.embed = embed
        self.numbers = numbers

    def start(self, seed: int) -> Arrays:
        return {"n_rows": np.zeros(()), "mean": np.zeros(0), "deviation": np.ones(0)}

    def step(self, state: Arrays, clients: Federation, key: Key) -> tuple[Arrays, Kept]:
        x = self._rows(clients)
        return {
            "n_rows": clients.sizes,
            "first": clients.segment_sum(x),
            "second": clients.segment_sum(x**2),
        }, {}

    def total(self, state: Arrays, clients: Federation, key: Key) -> Arrays | None:
        x = self._rows(clients)
        return {"n_rows": np.asarray(len(x)), "first": x.sum(axis=0), "second": np.einsum("ij,ij->j", x, x)}

    def update(self, state: Arrays, total: Arrays, key: Key) -> Arrays:
        n = max(float(total["n_rows"]), 1.0)
        mean = total["first"] / n
        deviation = np.sqrt(np.maximum(total["second"] / n - mean**2, 0.0))
        varies = deviation > 1e-7 * np.maximum(np.abs(mean), 1e-300)
        return {"n_rows": np.asarray(total["n_rows"]), "mean": mean, "deviation": np.where(varies, deviation, 1.0)}

    def _embedded(self, clients: Federation) -> Array:
        values = clients[self.column]
        return values if self.embed is None else np.asarray(self.embed(values))

    def _rows(self, clients: Federation) -> Array:
        if not self.numbers:
            return np.zeros((clients.n_rows, 1))
        values = check_finite(self._embedded(clients), self.column)
        return np.asarray(values.reshape(len(values), int(np.prod(values.shape[1:]))))

    def valid_rows(self, state: Arrays, clients: Federation) -> Array | None:
        return valid_numbers(self._embedded(clients)) if self.numbers else None

    @classmethod
    def examples(cls) -> Sequence[tuple[Spread, Federation]]:
        rng = np.random.default_rng(4)
        offsets = offsets_of(rng.integers(0, 6, 20))
        fed = Federation({"x": rng.normal(3.0, 2.0, (offsets[-1], 2, 2))}, offsets)
        return [(cls(), fed), (cls(numbers=False), fed)]

"""Quantiles by sums: a search on all of them at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fedscape.core.arrays import offsets_of
from fedscape.core.estimator import Estimator, Fit
from fedscape.core.federation import Federation
from fedscape.core.kernel import kernel
from fedscape.core.random import Key
from fedscape.core.validate import check_whole
from fedscape.errors import DataError, PrivacyError
from fedscape.types import Array, Arrays, Kept

if TYPE_CHECKING:
    from fedscape.core.engine import Engine

_SIZE = np.int64(2**63 - 1)  # the bits of a number without its sign
_CUTS = 1024  # of a round, for all quantiles together, where no noise grows with their number


class Quantiles(Estimator):
    """Quantiles of the rows of all clients: counts between broadcast cuts, which close in on every quantile at once.

    A round counts the rows between cuts; the cuts of the next round lie in the cells where the quantiles are. The
    answer is the least value that at least this share of the rows does not exceed (NumPy's "inverted_cdf"). Missing
    values (NaN) count nowhere; of a column that is all missing the answer is NaN.

    Parameters
    ----------
    probabilities
        Shares between 0 and 1.
    column
        Numbers of any trailing shape, or several such columns; they are flattened to d features.
    ranges
        The least and the greatest value, one pair for all features or one for each; values are cut to them. Without,
        the search is over all floating point numbers. A private fit needs them.
    resolution
        How near the answer is: with ranges in the column's units (by default 2**-20 of the range, private 2**-10);
        without, as a share of the value, by default 0, which is exact.
    cells
        Into how many cells a round cuts where a quantile is; by default as many as 1,024 cuts allow, and 4 under
        privacy, where the noise of all cells below a cut adds up.
    share, seed
        The share of rows that is counted, drawn row by row with this seed: fewer are enough for the bins of many.

    Learns `quantiles_` [q] for a column of numbers, else [q, d]; `n_rows_` without the missing; and `rank_error_`,
    which is 0 without privacy. With probability 0.95 the share of rows below every answer is this near, give or take
    the rows within the resolution. Under a clip for clients, rows of a client whose counts were shrunk weigh less.

    >>> fed = Federation({"x": [1.0, 2.0, 3.0, 40.0, 80995.0]}, [0, 2, 5])
    >>> Quantiles([0.1, 0.5, 0.9]).fit(fed).quantiles_.tolist()
    [1.0, 3.0, 80995.0]
    """

    name = "quantiles"

    block_clients = 128  # a client sends d x (q x cells) numbers
    total_clients = 2**20

    def __init__(
        self,
        probabilities: Sequence[float],
        *,
        column: str | Sequence[str] = "x",
        ranges: Sequence[float] | Sequence[Sequence[float]] | None = None,
        resolution: float | None = None,
        cells: int | None = None,
        share: float = 1.0,
        seed: int = 0,
    ) -> None:
        self.probabilities = probabilities
        self.column = column
        self.ranges = ranges
        self.resolution = resolution
        self.cells = cells
        self.share = share
        self.seed = seed

    def start(self, seed: int) -> Arrays:
        try:
            wanted = np.asarray(self.probabilities, dtype=float)
        except ValueError:
            wanted = np.zeros(0)
        if wanted.ndim != 1 or not wanted.size or not ((wanted >= 0) & (wanted <= 1)).all():
            raise DataError(f"probabilities must be a list of shares from 0 to 1, not {self.probabilities!r}")
        if self.cells is not None:
            check_whole("cells", self.cells, least=2)
        if self.resolution is not None and not 0 <= self.resolution < np.inf:
            raise DataError(f"resolution must be at least 0, not {self.resolution!r}")
        if not 0 < self.share <= 1:
            raise DataError(f"share must be above 0 and at most 1, not {self.share!r}")
        nothing = self._stored(self._ends(0)[:, :1].repeat(len(wanted), axis=1))
        return {"low": nothing, "high": nothing, "n_rows": np.zeros(0)}

    def step(self, state: Arrays, clients: Federation, key: Key) -> tuple[Arrays, Kept]:
        x, owner, cuts = self._drawn_rows(state, clients)
        counts = np.zeros((len(clients), x.shape[1], cuts.shape[1] + 1), dtype=np.int64)
        count_cells(x, owner, cuts, counts)
        return {"counts": counts}, {}

    def total(self, state: Arrays, clients: Federation, key: Key) -> Arrays | None:
        x, _, cuts = self._drawn_rows(state, clients)
        return {"counts": counts_between(x, cuts)}

    def update(self, state: Arrays, total: Arrays, key: Key) -> Arrays:
        counts = np.asarray(total["counts"], dtype=float)  # [d, cuts + 1]
        low, high = (values.copy() for values in self._intervals(state, len(counts)))
        below = np.cumsum(counts, axis=1)
        everyone = below[:, -1]
        for f, edges in enumerate(self._cuts(low, high)):
            wanted = np.asarray(self.probabilities) * everyone[f]
            cell = np.searchsorted(np.maximum.accumulate(below[f]), wanted - 1e-9 * max(everyone[f], 1.0))
            cell = np.where(wanted <= 0, np.argmax(counts[f] > 0), cell)  # the least value is the first with a row
            first = np.searchsorted(edges, low[f], side="right")  # cells of the interval: noise must not leave it
            last = np.maximum(np.searchsorted(edges, high[f]), first)
            cell = np.clip(cell, first, last)
            low[f], high[f] = edges[cell - 1], np.maximum(edges[np.minimum(cell, len(edges) - 1)], edges[cell - 1])
        return {"low": self._stored(low), "high": self._stored(high), "n_rows": np.maximum(everyone, 0.0)}

    def row_bound(self, state: Arrays, norm: int, clients: Federation | None = None) -> float | None:
        """A row is in one cell of each feature; where rows are drawn, one more moves the draws of those after it."""
        if self.share < 1 or (clients is None and not state["low"].size):
            return None
        d = len(state["low"]) if clients is None else sum(_width(clients[name]) for name in self._names())
        return float(np.sqrt(d) if norm == 2 else d)

    def _names(self) -> tuple[str, ...]:
        return (self.column,) if isinstance(self.column, str) else tuple(self.column)

    # -- the search ----------------------------------------------------------------------------------------------------

    def _ends(self, d: int) -> Array:
        """Where the search begins, [d, 2]: numbers, or without ranges the order of all floating point numbers."""
        if self.ranges is None:
            ends = ordered(np.array([-np.inf, np.inf])) + np.array([0, 1])
            return np.broadcast_to(ends, (d, 2))
        pairs = np.atleast_2d(np.asarray(self.ranges, dtype=float))
        if pairs.ndim != 2 or pairs.shape[1] != 2 or not np.isfinite(pairs).all() or (pairs[:, 0] >= pairs[:, 1]).any():
            raise DataError(f"ranges must be pairs of a least and a greatest finite number, not {self.ranges!r}")
        if not (np.abs(pairs) < 1e300).all():
            raise DataError(f"ranges must lie within 1e300, not {self.ranges!r}: leave them out to search all numbers")
        if d and len(pairs) not in (1, d):
            raise DataError(f"there are {len(pairs)} ranges, but {d} features: give one pair, or one for each")
        return np.broadcast_to(pairs if d else pairs[:0], (d, 2))

    def _stored(self, places: Array) -> Array:
        """Places as a state has them: in two halves where they take all of 64 bits, which nodes refuse."""
        return places if self.ranges is not None else np.stack([places >> 32, places & 0xFFFFFFFF], axis=-1)

    def _intervals(self, state: Arrays, d: int) -> tuple[Array, Array]:
        if state["low"].size and self.ranges is not None:
            return state["low"], state["high"]
        if state["low"].size:
            low, high = ((state[name][..., 0] << 32) + state[name][..., 1] for name in ("low", "high"))
            return low, high
        shape, ends = (d, len(self.probabilities)), self._ends(d)
        return np.broadcast_to(ends[:, :1], shape).copy(), np.broadcast_to(ends[:, 1:], shape).copy()

    def _cuts(self, low: Array, high: Array) -> list[Array]:
        """For each feature the cuts in rising order, the ends of every interval among them; always as many."""
        each = (self.cells or max(4, _CUTS // len(self.probabilities))) + 1
        cuts = []
        for ends in np.stack([low, high], axis=-1):
            pairs, shared = np.unique(ends, axis=0, return_counts=True)  # different intervals from left to right
            cuts.append(_between(pairs[:, 0], pairs[:, 1], each * shared))
        return cuts

    def _drawn_rows(self, state: Arrays, clients: Federation) -> tuple[Array, Array, Array]:
        """The values that are counted, [drawn rows, d], whose they are, and the cuts, [d, cuts]."""
        parts = []
        for name in self._names():
            values = clients[name]
            if values.dtype.kind not in "biuf" or (name in clients.names and values.ndim == 1):
                raise DataError(f"column {name!r} must hold numbers, not texts or {values.dtype}")
            parts.append(values.reshape(len(values), _width(values)).astype(np.float64, copy=False))
        x = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
        if not x.shape[1]:
            raise DataError(f"column {', '.join(self._names())} holds no number a row, so it has no quantiles")
        low, high = self._intervals(state, x.shape[1])
        if not len(low) == len(high) == x.shape[1]:
            raise DataError(f"there are {x.shape[1]} features a row, the state has {len(low)}")
        cuts = np.array(self._cuts(low, high))
        if self.ranges is None:
            cuts = floats(cuts)
        else:
            least, most = self._ends(x.shape[1]).T
            x = np.clip(x, least, most)
            cuts[:, -1] = np.inf  # the greatest value belongs to the last cell
        owner = clients.client_of_row
        if self.share < 1:
            drawn = Key(self.seed, purpose="rows for quantiles").uniform_rows(clients) < self.share
            x, owner = x[drawn], owner[drawn]
        return np.ascontiguousarray(x), owner, np.ascontiguousarray(cuts)

    def n_rounds(self) -> int:
        """How many rounds a fit takes, each of them a release under privacy: what `calibrate` needs as `rounds`.

        >>> Quantiles([0.5], ranges=(0, 100), resolution=0.01, cells=4).n_rounds()
        7
        """
        self.start(0)
        cells = self.cells or max(4, _CUTS // len(self.probabilities))
        if self.ranges is None:
            parts = 2.0**64 / max(1.0, (self.resolution or 0.0) * 2.0**52)
        else:
            width = float(np.ptp(np.atleast_2d(self.ranges), axis=1).max())
            parts = width / self.resolution if self.resolution else 2.0**20
        first = len(self.probabilities) * (cells + 1) - 1  # all intervals are one in the first round
        rounds = 1
        while first * float(cells) ** (rounds - 1) < parts * (1 - 1e-12):
            rounds += 1
        return rounds + (self.ranges is None)  # whole numbers do not divide evenly

    def _fit(self, engine: Engine, column: str | None, how: Fit) -> None:
        work = self._settled(column, how)
        self.start(0)
        n = work.n_rounds()
        state = self._run(work, engine, how, n_rounds=n)
        low, high = work._intervals(state, max(len(state["low"]), 1))
        cut = floats(low) if self.ranges is None else (low + high) / 2
        clients = engine.clients
        flat = isinstance(clients, Federation) and isinstance(work.column, str) and clients[work.column].ndim == 1
        if how.privacy is None and len(state["n_rows"]) == len(cut):
            cut = np.where(state["n_rows"][:, None] > 0, cut, np.nan)  # of missing values alone nothing is known
        self.quantiles_ = cut[0] if flat else cut.T
        self.n_rows_ = state["n_rows"]
        self.rank_error_ = work._rank_error(engine, how, n, self.n_rows_)

    def _settled(self, column: str | None, how: Fit) -> Quantiles:
        """The same with the column, and what is left open chosen for a private or a plain fit."""
        params: dict[str, Any] = self.get_params() | ({} if column is None else {"column": column})
        if how.privacy is not None:
            if self.ranges is None:
                raise PrivacyError("private quantiles need ranges=(least, greatest): where values lie is a secret")
            params["cells"] = self.cells or 4
            if self.resolution is None:
                params["resolution"] = float(np.ptp(np.atleast_2d(self.ranges), axis=1).max()) * 2.0**-10
        return type(self)(**params)

    def _rank_error(self, engine: Engine, how: Fit, n_rounds: int, n_rows: Array) -> float:
        """A bound for all cuts of all rounds by the normal law; the total moves by noise as the counts below a cut."""
        if how.privacy is None:
            return 0.0
        from scipy.special import ndtri

        from fedscape.privacy.release import noise_sd

        sd = noise_sd(
            how.privacy,
            "counts",
            sampler=how.sampler,
            clients=len(engine.clients.keys),
            min_clients=engine.min_clients,
            whole=True,
        )
        cells = len(self.probabilities) * ((self.cells or 4) + 1) + 1
        z = ndtri(1 - 0.05 / (2 * n_rounds * cells * max(n_rows.size, 1)))
        return float(z * sd * np.sqrt(cells) / max(float(np.min(n_rows, initial=np.inf)), 1.0))

    @classmethod
    def examples(cls) -> Sequence[tuple[Quantiles, Federation]]:
        rng = np.random.default_rng(6)
        offsets = offsets_of(rng.integers(0, 7, 30))
        x = rng.normal(3.0, 2.0, (offsets[-1], 2)).round(1)
        x[rng.random(x.shape) < 0.1] = np.nan
        fed = Federation({"x": x, "amount": rng.lognormal(2, 2, offsets[-1])}, offsets)
        return [
            (cls([0.1, 0.5, 0.9], ranges=(-5.0, 10.0), cells=4), fed),
            (cls([0.25, 0.75], column="amount", cells=16), fed),
        ]


def ordered(values: Array) -> Array:
    """Whole numbers in the order of floating point numbers: neighbours are neighbours.

    >>> ordered(np.array([-1.0, -0.5, 0.5])).argsort().tolist(), float(floats(ordered(np.array([0.1])))[0])
    ([0, 1, 2], 0.1)
    """
    bits = np.ascontiguousarray(values, dtype=np.float64).view(np.int64)
    return np.where(bits < 0, ~(bits & _SIZE), bits)


def floats(keys: Array) -> Array:
    """The numbers of these places in the order; what lies beyond infinity is infinity."""
    least, most = ordered(np.array([-np.inf, np.inf]))
    keys = np.clip(keys, least, most)
    return np.asarray(np.where(keys < 0, ~keys | ~_SIZE, keys).view(np.float64))


def _between(begin: Array, end: Array, n: Array) -> Array:
    """For each interval n places from `begin` to `end`, both among them, one interval after the other."""
    each, k = np.repeat(np.arange(len(n)), n), np.arange(n.sum()) - np.repeat(np.cumsum(n) - n, n)
    if begin.dtype.kind == "f":
        return np.asarray(begin[each] + (end - begin)[each] * (k / (n - 1)[each]))
    parts, steps = (n - 1).astype(np.uint64), k.astype(np.uint64)
    whole, rest = np.divmod((end - begin).astype(np.uint64), parts)  # modulo 2**64: an interval may be all numbers
    offset = whole[each] * steps + rest[each] * steps // parts[each]
    return np.asarray((begin.astype(np.uint64)[each] + offset).astype(np.int64))


def _width(values: Array) -> int:
    return int(np.prod(values.shape[1:]))


@kernel
def count_cells(x: Array, owner: Array, cuts: Array, counts: Array) -> None:
    """counts[owner, feature, number of cuts at or below the value] += 1, row by row; NaN counts nowhere."""
    for begin in range(0, x.shape[0], 512):  # a feature's cuts stay in the cache for 512 rows
        for f in range(x.shape[1]):
            for row in range(begin, min(begin + 512, x.shape[0])):
                value = x[row, f]
                if value != value:
                    continue
                low, n = 0, cuts.shape[1]
                while n > 1:  # without branches, which no processor foresees here
                    half = n >> 1
                    low += half * (cuts[f, low + half - 1] <= value)
                    n -= half
                counts[owner[row], f, low + (cuts[f, low] <= value)] += 1


def counts_between(x: Array, cuts: Array) -> Array:
    """The same counts of all rows together, [d, cuts + 1]: sorted values are quicker to count than rows one by one."""
    counts = np.empty((x.shape[1], cuts.shape[1] + 1), dtype=np.int64)
    for f in range(x.shape[1]):
        values = np.sort(x[:, f])
        values = values[: np.searchsorted(values, np.inf, side="right")]  # missing values come last
        counts[f] = np.diff(np.searchsorted(values, cuts[f]), prepend=0, append=len(values))
    return counts


def count_cells_twin(x: Array, owner: Array, cuts: Array, counts: Array) -> None:
    """The plain NumPy twin of `count_cells`."""
    for f in range(x.shape[1]):
        present = ~np.isnan(x[:, f])
        np.add.at(counts[:, f], (owner[present], np.searchsorted(cuts[f], x[present, f], side="right")), 1)


def quantiles_of(x: npt.ArrayLike, probabilities: Sequence[float]) -> Array:
    """The same quantiles of rows in one place, [q, d]: what a fit over all clients gives.

    >>> quantiles_of([[1.0], [2.0], [3.0]], [0.5]).tolist()
    [[2.0]]
    """
    return np.asarray(np.nanquantile(np.asarray(x, dtype=float), probabilities, axis=0, method="inverted_cdf"))

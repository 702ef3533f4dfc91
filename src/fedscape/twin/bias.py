"""Who takes part and who is left out, by kind; and inverse-probability weights that mend the bias of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

from fedscape.core.computation import Computation
from fedscape.core.federation import Federation
from fedscape.core.random import Key
from fedscape.errors import DataError
from fedscape.twin.timetable import Timetable
from fedscape.types import Array, Arrays, Kept

RARE = 10  # devices that report, below which little is known of a kind


@dataclass(frozen=True)
class Part:
    """The part that one kind of devices has: 95% intervals over devices.

    `ratio` is its share of reports over its share of devices: 1 is fair. `never` is the share of its devices without a
    single report. `gap` is the mean metric of its devices minus that of all (NaN where no metric was measured).
    `reporting` devices reported at all; a kind is `rare` if they are fewer than ten: little is known of it.

    >>> Part(0, 10, 0.5, 0.4, 0.6, 0.8, 0.6, 1.0, 0.0).ratio
    0.8
    """

    kind: int
    devices: int
    share: float
    share_low: float
    share_high: float
    ratio: float
    ratio_low: float
    ratio_high: float
    never: float
    gap: float = float("nan")
    gap_low: float = float("nan")
    gap_high: float = float("nan")
    reporting: int = 0

    @property
    def rare(self) -> bool:
        """Whether too few of its devices reported for its accuracy and its weight to mean much."""
        return self.reporting < RARE


def participation(
    timetable: Timetable, kinds: npt.ArrayLike, *, metric: npt.ArrayLike | None = None, comparisons: int = 1
) -> list[Part]:
    """How much each kind of devices takes part in a timetable, and how the model does on it.

    Parameters
    ----------
    timetable
        What `schedule` returned.
    kinds
        The kind of each device: of devices, of data, or of both.
    metric
        A number of each device, such as the accuracy of the trained model on its rows; NaN where there is none.
    comparisons
        With several the intervals are simultaneous (Bonferroni).

    >>> from fedscape.twin import Synchronous, always, schedule
    >>> table = schedule(always(4), Synchronous(4), days=1, n_updates=3)
    >>> [round(part.ratio, 2) for part in participation(table, [0, 0, 0, 1])]
    [1.0, 1.0]
    """
    codes, used = _codes(kinds, timetable), timetable.used.astype(float)
    values = np.full(len(used), np.nan) if metric is None else np.asarray(metric, dtype=float)
    known, z = np.isfinite(values), float(ndtri(1 - 0.025 / comparisons))
    rows = []
    for kind in np.unique(codes).tolist():
        inside = codes == kind
        share, low, high = _share(used, inside, z)
        portion = float(inside.mean())
        gap, spread = _gap(values[known], inside[known])
        rows.append(
            Part(
                kind, int(inside.sum()), share, low, high, share / portion, low / portion, high / portion,
                float((used[inside] == 0).mean()), gap, gap - z * spread, gap + z * spread,
                int((used[inside] > 0).sum()),
            )
        )  # fmt: skip
    return rows


def _codes(kinds: npt.ArrayLike, timetable: Timetable) -> Array:
    """The kind of each device of the timetable, as a whole number."""
    codes = np.asarray(kinds)
    if codes.shape != timetable.used.shape or codes.dtype.kind not in "biu":
        raise DataError(
            f"kinds must be whole numbers, one for each of the {len(timetable.used):,} devices, not {codes.dtype} of "
            f"shape {codes.shape}"
        )
    return codes.astype(np.int64)


def _share(used: Array, inside: Array, z: float) -> tuple[float, float, float]:
    """The share of reports that these devices have, with Wilson's interval for as many reports as theirs are worth.

    Reports of one device go together. By the delta method the variance over devices is that of a share of n independent
    reports; where these devices have none, or all, n is Kish's number of devices.
    """
    total = float(used.sum())
    if total == 0:
        return float("nan"), float("nan"), float("nan")
    share = float(used[inside].sum()) / total
    variance = float(((used * inside - share * used) ** 2).sum()) / total**2
    kish = total**2 / float((used**2).sum())
    n = share * (1 - share) / variance if variance > 0 and 0 < share < 1 else kish
    middle, half = share + z**2 / (2 * n), z * float(np.sqrt(share * (1 - share) / n + z**2 / (4 * n**2)))
    return share, max((middle - half) / (1 + z**2 / n), 0.0), min((middle + half) / (1 + z**2 / n), 1.0)


def _gap(values: Array, inside: Array) -> tuple[float, float]:
    """Mean inside minus mean of all, and its standard error."""
    if not inside.any():
        return float("nan"), float("nan")
    gap = float(values[inside].mean() - values.mean())
    influence = inside / inside.mean() * (values - values[inside].mean()) - (values - values.mean())
    return gap, float(influence.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else float("nan")


@dataclass(frozen=True)
class Probabilities:
    """Chances of the kinds to be in an update, and weights that undo their differences.

    `chance` [kinds] is relative: the reports of a device of this kind over those of an average one. `most` caps
    weights: a kind that is hardly ever there cannot be mended, and would only add variance.

    >>> odds = Probabilities(np.array([2.0, 0.5]), most=10.0)
    >>> odds.weights(np.array([[1.0, 0.0], [0.0, 1.0]])).tolist()
    [0.5, 2.0]
    """

    chance: Array
    most: float = 10.0

    def beyond(self) -> list[int]:
        """The kinds that would need a larger weight than `most`: weights mend their absence only in part."""
        return np.flatnonzero(self.chance * self.most < 1).tolist()

    def weights(self, shares: npt.ArrayLike) -> Array:
        """The weight of clients whose kinds have these probabilities [clients, kinds]: each can compute its own."""
        of_kind = np.asarray(shares)
        if of_kind.ndim != 2 or of_kind.shape[1] != len(self.chance):
            raise DataError(f"shares must be [clients, {len(self.chance)} kinds], not of shape {of_kind.shape}")
        return np.asarray(np.minimum(1 / np.maximum(of_kind @ self.chance, 1e-12), self.most))

    def effective(self, shares: npt.ArrayLike, timetable: Timetable) -> float:
        """Kish's effective share of reports: what the weights leave of them, 1 if they are all alike."""
        w, n = self.weights(shares), timetable.used
        return float((n * w).sum() ** 2 / max(n.sum() * (n * w**2).sum(), 1e-300))


def chances(
    timetable: Timetable, kinds: npt.ArrayLike, *, n_kinds: int | None = None, most: float = 10.0
) -> Probabilities:
    """Chances of the kinds of sampled devices, from the timetable of a twin: a simulation, which costs no privacy.

    Parameters
    ----------
    timetable
        Of devices that a twin sampled, with the protocol that will be used.
    kinds
        The kind of each of them.
    n_kinds
        Number of kinds; one that was not drawn has chance 1.
    most
        Cap on weights.

    >>> from fedscape.twin import Synchronous, always, schedule
    >>> chances(schedule(always(4), Synchronous(4), days=1, n_updates=3), [0, 0, 0, 1]).chance.tolist()
    [1.0, 1.0]
    """
    codes, used = _codes(kinds, timetable), timetable.used.astype(float)
    number = int(codes.max(initial=-1)) + 1 if n_kinds is None else n_kinds
    if codes.min(initial=0) < 0 or codes.max(initial=-1) >= number:
        raise DataError(f"kinds must be codes from 0 on, below n_kinds, not {codes.min()} to {codes.max()}")
    if not most >= 1:
        raise DataError(f"most must be at least 1, not {most}")
    devices = np.bincount(codes, minlength=number)
    if not used.any():
        raise DataError("nobody took part in this timetable, so that nothing is known of chances: run more days")
    mean = np.bincount(codes, weights=used, minlength=number) / np.maximum(devices, 1)
    return Probabilities(np.where(devices > 0, mean / used.mean(), 1.0), most)


class InverseProbability(Computation):
    """A computation in which a client counts 1 / (its chance to take part), so that all kinds count alike.

    Each client multiplies what it sends by its own weight (Horvitz-Thompson), and sends the weight too: the sum then
    stands for the population, and `clients` for the sum of weights. It knows its weight from its own log and the twin
    that was broadcast (`Probabilities.weights`), as a column with the same number in all its rows.

    Weights help where who takes part is related to data. Otherwise they only add variance: reports then count as
    `Probabilities.effective` of them.

    Parameters
    ----------
    computation
        Whose sums are weighted; it must not reveal rows.
    column
        The column of weights; a client without rows has weight 1.
    most
        Larger weights count as this.

    >>> from fedscape import Histogram, rounds
    >>> fed = Federation({"y": [0, 1], "weight": [1.0, 3.0]}, [0, 1, 2])
    >>> [r.state["counts"].tolist() for r in rounds(InverseProbability(Histogram(2)), fed, n_rounds=1)]
    [[1.0, 3.0]]
    """

    name = "inverse-probability"

    def __init__(self, computation: Computation, *, column: str = "weight", most: float = 10.0) -> None:
        self.computation = computation
        self.column = column
        self.most = most
        if computation.reveals:
            raise DataError(f"{type(computation).__name__} reveals rows, which cannot be weighted: weights act on sums")
        if not most >= 1:
            raise DataError(f"most must be at least 1, not {most}")

    @property
    def block_clients(self) -> int:  # type: ignore[override]  # it is the other computation's
        """Clients of a block, as the weighted computation has them."""
        return self.computation.block_clients

    @property
    def block_rows(self) -> int:  # type: ignore[override]
        """Rows of a block, as the weighted computation has them."""
        return self.computation.block_rows

    @property
    def local(self) -> object:
        """How clients train, where the weighted computation does."""
        return getattr(self.computation, "local", None)

    def start(self, seed: int) -> Arrays:
        return self.computation.start(seed)

    def prepare(self, state: Arrays) -> Arrays:
        return self.computation.prepare(state)

    def step(self, state: Arrays, clients: Federation, key: Key) -> tuple[Arrays, Kept]:
        sent, kept = self.computation.step(state, clients, key)
        weight = self._weights(clients)
        weighted = {
            name: values
            * weight.astype(values.dtype if values.dtype.kind == "f" else float).reshape(-1, *[1] * (values.ndim - 1))
            for name, values in sent.items()
        }
        return {**weighted, "inverse": weight}, kept

    def _weights(self, clients: Federation) -> Array:
        weights = np.ones(len(clients))
        filled = clients.sizes > 0
        first = clients[self.column][clients.offsets[:-1][filled]].astype(float)
        if not (np.isfinite(first) & (first >= 0)).all():
            raise DataError(f"the column {self.column!r} must hold weights of at least 0, the same in a client's rows")
        weights[filled] = np.minimum(first, self.most)
        return weights

    def measure(self, state: Arrays, clients: Federation) -> Arrays:
        return {n: v for n, v in self.computation.measure(state, clients).items() if n != "log_likelihood"}

    def update(self, state: Arrays, total: Arrays, key: Key) -> Arrays:
        rest = {name: values for name, values in total.items() if name != "inverse"}
        return self.computation.update(state, {**rest, "clients": total["inverse"]}, key)

    def valid_rows(self, state: Arrays, clients: Federation) -> Array | None:
        return self.computation.valid_rows(state, clients)

    def coded_columns(self) -> Sequence[str]:
        return self.computation.coded_columns()

    @classmethod
    def examples(cls) -> Sequence[tuple[InverseProbability, Federation]]:
        from fedscape.statistics.histogram import Histogram
        from fedscape.statistics.moments import Moments

        pairs: list[tuple[InverseProbability, Federation]] = []
        for computation, fed in (Histogram.examples()[0], Moments.examples()[0]):
            weight = np.repeat(np.linspace(0.5, 3.0, len(fed)), fed.sizes)
            pairs.append((cls(computation), fed.with_column("weight", weight)))
        return pairs

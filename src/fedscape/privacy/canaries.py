"""Canaries: clients that send values chosen by an auditor, in a run with real clipping, noise, sampling and booking.

`Canaries` wraps a computation: its clients take the real step, then the rows of a few are replaced, before a release
clips anything. `Watch` wraps an engine and records what clients sent. The auditor knows the data of everyone else.
After subtracting it, a noisy total is only noise, plus the canary if it was in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from fedscape.core.random import Key
from fedscape.errors import DataError
from fedscape.privacy.mechanisms import AdaptiveClip, Privacy
from fedscape.privacy.release import INSIDE, Release
from fedscape.types import Array, Arrays

if TYPE_CHECKING:
    from fedscape.core.blocks import Reply
    from fedscape.core.computation import Computation
    from fedscape.core.engine import Engine
    from fedscape.core.federation import Federation

BEYOND = 1000.0  # length of a canary in clips: reveals a missing clip
_TABLE = 2**24  # largest table of all clients' rows to cache between repeats


@dataclass
class Canaries:
    """A wrapper of a computation in which some clients send values chosen by the auditor.

    Parameters
    ----------
    inner
        The computation.
    keys
        Keys of the canary clients.
    privacy, measure_privacy
        The mechanisms that clip them.
    unit
        "client": a canary's whole row is replaced. "row": `move` is added to it.
    seed
        Chooses the coordinates.
    hold
        Keep the state unchanged, the same for every repeat.
    """

    inner: Computation
    keys: Array
    privacy: Privacy
    measure_privacy: Privacy | None
    unit: str
    seed: int
    hold: bool
    others_alike: bool = False  # everyone else sends the row of a canary that is out
    move: Arrays = field(default_factory=dict)
    amounts: Array = field(default_factory=lambda: np.zeros(0))  # 1: in, -1: the opposite, 0: nothing; else of the clip
    clip: float = 1.0
    units: list[Arrays] = field(default_factory=list)  # unit-norm arrays of each canary
    observed: list[tuple[Arrays, Array]] = field(default_factory=list)
    total_observed: Arrays | None = None
    _table: Arrays = field(default_factory=dict)
    _of_key: dict[int, int] = field(default_factory=dict)

    def __getattr__(self, name: str) -> Any:
        return getattr(object.__getattribute__(self, "inner"), name)

    # -- the computation -----------------------------------------------------------------------------------------------

    def total(self, state: Arrays, clients: Federation, key: Key) -> None:
        """Disable the fast path: canaries need rows."""

    def step(self, state: Arrays, clients: Federation, key: Key) -> tuple[Arrays, Mapping[str, Any]]:
        """Take the real step, then replace the rows of the canaries."""
        sent, kept = self._rows(state, clients, key)
        which = self._canaries_of(clients)
        mask = np.zeros(len(clients), dtype=bool)
        if self.others_alike:
            for name, rows in self.client_row(0, -1.0).items():
                sent[name][:] = rows
        for i, j in which:
            mask[i] = True
            row = self.row_of(j, {name: rows[i] for name, rows in sent.items()})
            for name, values in row.items():
                sent[name][i] = values
        self.observed.append((sent, mask))
        return sent, kept

    def measure(self, state: Arrays, clients: Federation) -> Arrays:
        """Metrics of canaries only: zero for everyone else, which the auditor knows."""
        own = self.measure_privacy
        if own is None:
            return {}
        metrics = {n: np.zeros(np.shape(v)) for n, v in self.inner.measure(state, clients).items()}
        for i, j in self._canaries_of(clients):
            for name, values in self.metric_row(metrics, float(self.amounts[j])).items():
                metrics[name][i] = values
        return metrics

    def update(self, state: Arrays, total: Arrays, key: Key) -> Arrays:
        """Record the release."""
        self.total_observed = total
        return state if self.hold else self.inner.update(state, total, key)

    # -- canaries ------------------------------------------------------------------------------------------------------

    def _canaries_of(self, clients: Federation) -> list[tuple[int, int]]:
        """Positions of canaries among these clients, and their numbers."""
        which = {int(k): j for j, k in enumerate(self.keys)}
        return [(i, j) for i, k in enumerate(clients.keys.tolist()) if (j := which.get(k)) is not None]

    def row_of(self, j: int, own: Arrays) -> Arrays:
        """The row that canary j sends now; `own` is its real row."""
        amount = float(self.amounts[j])
        if self.unit == "row":
            return {n: v + (amount * self.move[n]).astype(v.dtype) for n, v in own.items()}
        return self.client_row(j, amount)

    def client_row(self, j: int, amount: float) -> Arrays:
        """A row along canary j: longer than the clip for an amount of 1 or -1, else that multiple of the clip."""
        size = abs(amount) * self.clip
        if abs(amount) == 1:
            adaptive = isinstance(self.privacy.clip, AdaptiveClip)  # a canary just within the clip also moves the bit
            size *= 1 - 1e-9 if adaptive and amount > 0 else BEYOND
        return {name: np.sign(amount) * size * values for name, values in self.units[j].items()}

    def metric_row(self, like: Mapping[str, Array], amount: float) -> Arrays:
        """The metrics of a canary, in the layout of `like`, which has several clients."""
        own = cast(Privacy, self.measure_privacy)
        size = float(np.sign(amount)) * own.first_clip * (BEYOND if abs(amount) == 1 else abs(amount))
        scales = {n: own.scales.get(n, 1.0) for n in like}
        return {n: _spike(np.shape(v)[1:], size * scales[n] / len(like) ** (1 / own.norm), 0) for n, v in like.items()}

    def choose(self, like: Arrays) -> None:
        """Choose the coordinates: one in each array for a single canary, one per canary for several."""
        shapes = {n: v.shape[1:] for n, v in like.items() if int(np.prod(v.shape[1:]))}
        names = list(shapes)
        generator = Key(self.seed, purpose="audit coordinates").generator()
        zeros = {n: np.zeros(v.shape[1:]) for n, v in like.items()}
        scale = {n: self.privacy.scales.get(n, 1.0) for n in names}
        if len(self.keys) == 1:
            share = len(names) ** (-1 / self.privacy.norm)
            where = {n: int(generator.integers(max(1, int(np.prod(shapes[n]))))) for n in names}
            self.units = [zeros | {n: _spike(shapes[n], share * scale[n], where[n]) for n in names}]
            return
        places = [(n, i) for n in names for i in range(int(np.prod(shapes[n])))]
        if len(places) < len(self.keys):
            raise DataError(
                f"one run needs a number for each canary: {len(self.keys)} canaries, {len(places)} numbers are sent; "
                "use fewer canaries, or method='repeats'"
            )
        chosen = generator.choice(len(places), len(self.keys), replace=False)
        self.units = [zeros | {n: _spike(shapes[n], scale[n], i)} for n, i in (places[c] for c in chosen)]

    # -- real rows -----------------------------------------------------------------------------------------------------

    def learn(self, federation: Federation, state: Arrays) -> None:
        """Take the step once with everyone: every repeat of the first round has the same rows."""
        from fedscape.core.engine import Local
        from fedscape.core.rounds import rounds

        few = federation.take(slice(len(federation) - min(len(federation), 2), None))
        rows = _steps(self.inner, few, state)
        keep = self.hold and sum(v[0].size for v in rows.values()) * len(federation) <= _TABLE
        if keep and not self.others_alike:
            collector = replace(self, keys=np.zeros(0, dtype=np.uint64), hold=True, measure_privacy=None)
            # in the engine's block order, as in a real round
            list(
                rounds(cast(Any, collector), Local(federation, threads=1), n_rounds=1, state=state, allow=self.reveals)
            )
            self._table = {
                n: np.concatenate([sent[n] for sent, _ in collector.observed]) for n in collector.observed[0][0]
            }
            order = federation.order
            keys = federation.keys if order is None else federation.keys[order]
            self._of_key = {int(k): i for i, k in enumerate(keys)}
        self.choose(rows)

    def _rows(self, state: Arrays, clients: Federation, key: Key) -> tuple[Arrays, Mapping[str, Any]]:
        if self.others_alike and self.units:
            return {n: np.zeros((len(clients), *v.shape)) for n, v in self.units[0].items()}, {}
        if self._table and all(int(k) in self._of_key for k in clients.keys):
            where = [self._of_key[int(k)] for k in clients.keys]
            return {n: v[where] for n, v in self._table.items()}, {}
        from fedscape.core.blocks import on_host

        sent, kept = self.inner.step(state, clients, key)
        whole = self.unit == "row"  # there the grid of whole numbers is another
        return {n: np.array(v, dtype=None if whole else float) for n, v in on_host(sent).items()}, kept


def _steps(inner: Computation, clients: Federation, state: Arrays) -> Arrays:
    """The real contributions of these clients."""
    from fedscape.core.blocks import broadcast, on_host, own_row_numbers, own_rows

    ready = inner.prepare(broadcast(state))
    own = own_row_numbers(ready, clients)
    valid = inner.valid_rows(ready, clients)
    rows = clients if valid is None else clients.where(valid)
    return on_host(inner.step(ready if own is None else own_rows(ready, own), rows, Key(0))[0])


def _spike(shape: Sequence[int], size: float, where: int) -> Array:
    values = np.zeros(shape)
    values.flat[where] = size
    return values


def worst_row(inner: Computation, clients: Federation, state: Arrays, norm: int) -> Arrays:
    """The largest move of the sums that one more row of the last client can cause, among candidates.

    Candidates are real rows, and these times -1000, 1000 and 1e6; rows that a computation refuses are skipped.
    """
    from fedscape.core.federation import Federation

    last = clients.take(slice(len(clients) - 1, None))
    before = {n: np.asarray(v[0]) for n, v in _steps(inner, last, state).items()}
    best: Arrays = {n: np.zeros(v.shape) for n, v in before.items()}
    length = 0.0
    picks: Array = np.unique(np.linspace(0, clients.n_rows - 1, min(clients.n_rows, 24)).astype(int))[: clients.n_rows]
    for row in picks.tolist():
        for stretch in (1, -1000, 1000, 10**6):
            try:
                columns = {
                    n: np.concatenate([last[n], np.asarray(v[[row]] * stretch if v.dtype.kind in "iuf" else v[[row]])])
                    for n, v in clients.columns.items()
                }
                more = Federation(columns, [0, last.n_rows + 1], ids=last.ids, names=clients.names)
                after = {n: np.asarray(v[0]) for n, v in _steps(inner, more, state).items()}
            except Exception:  # a refused row moves nothing
                continue
            move = {n: after[n].astype(float) - before[n] for n in before}
            far = float(sum((np.abs(v) ** norm).sum() for v in move.values()) ** (1 / norm))
            if np.isfinite(far) and far > length:
                best, length = move, far
    return best


class Watch:
    """An engine that also records each release and its clients' contributions; it delegates everything else."""

    def __init__(self, engine: Engine, canaries: Canaries) -> None:
        self.engine, self.canaries = engine, canaries
        self.release: Release | None = None
        self.measure_release: Release | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(object.__getattribute__(self, "engine"), name)

    def run(
        self,
        computation: Computation,
        state: Arrays,
        cohort: Array,
        key: Key,
        *,
        measure: bool = False,
        release: Release | None = None,
        measure_release: Release | None = None,
    ) -> Reply:
        """Run the canaries under this round's clip."""
        self.release, self.measure_release = release, measure_release
        self.canaries.observed, self.canaries.total_observed = [], None
        self.canaries.clip = 1.0 if release is None else release.clip
        how: dict[str, Any] = {"measure": measure, "release": release, "measure_release": measure_release}
        return self.engine.run(computation, state, cohort, key, **how)


@dataclass
class Sight:
    """The auditor's view of one round: a number for each part of the release, in units of what the canary adds."""

    canaries: Canaries
    absent_out: bool  # a canary that is out has no client at all
    constant: bool  # everyone takes part in every round
    _known: dict[Any, Any] = field(default_factory=dict)

    def look(self, watch: Watch, done: Any) -> tuple[dict[str, float], bool]:
        """The numbers of a round with one canary, and whether the canary was in the cohort."""
        canaries, release = self.canaries, cast(Release, watch.release)
        present = any(bool(mask.any()) for _, mask in canaries.observed)
        others = sum(int((~mask).sum()) for _, mask in canaries.observed)
        total = canaries.total_observed
        if total is None:
            return {}, present
        pull, background = self.pull(release), self.background(release)
        numbers = {}
        for name, v in pull.items():
            if name != INSIDE and np.any(v):
                rest = np.asarray(total[name], dtype=float).reshape(v.shape) - background[name]
                numbers[name] = float((rest * v).sum() / (v * v).sum())
        if self.absent_out:
            numbers["number of clients"] = float(total["clients"]) - others
        if INSIDE in pull and release.inside is not None:
            numbers["clip bit"] = release.inside * max(float(total["clients"]), 1.0) - float(background[INSIDE])
        for name, mean in done.metrics.items():
            v = self._metric_pull(cast(Release, watch.measure_release), done.metrics)[name]
            if np.any(v):
                numbers[f"metric {name}"] = float((mean * (others + present) * v).sum() / (v * v).sum())
        return numbers, present

    def signals(self, names: Sequence[str], amount: float, release: Release) -> Array:
        """The noise-free value of each number if the canary is in the cohort with this amount."""
        full, this = self.pull(release), self.pull(release, amount)
        out = []
        for name in names:
            if name == "number of clients":
                out.append(0.0 if amount == 0 else 1.0)
            elif name == "clip bit":
                out.append(0.0 if amount == 0 and self.absent_out else float(this[INSIDE]))
            elif name.startswith("metric "):
                out.append(float(np.sign(amount)) * min(1.0, abs(amount)))
            else:
                away = self.pull(release, -1.0)[name] if self.canaries.others_alike else 0.0
                out.append(float(((this[name] - away) * full[name]).sum() / (full[name] ** 2).sum()))
        return np.array(out)

    def steps(self, names: Sequence[str], release: Release) -> Array:
        """The grid step of each number, in its units; counts are integers."""
        pull, out = self.pull(release), []
        grids = self._known["grids"]
        for name in names:
            v = pull.get(name)
            out.append(1.0 if v is None else grids[name] / float(np.sqrt((v * v).sum())))
        return np.array(out)

    def pull(self, release: Release, amount: float = 1.0) -> Arrays:
        """What a canary of this amount adds to the sum, by the release's own clip."""
        key = (release.clip, amount)
        if key not in self._known:
            plain, c = central(release), self.canaries
            was = c.amounts, c.clip
            c.amounts, c.clip = np.full(1, amount), release.clip
            if c.unit == "row":
                base = {n: np.zeros(v.shape, v.dtype) for n, v in c.move.items()}
                row = {n: np.asarray(v)[None] for n, v in c.row_of(0, base).items()}
            else:
                row = {n: v[None] for n, v in c.client_row(0, amount).items()}
            cells = plain.on_clients(row, _Nobody(1))
            self._known[key] = {n: np.asarray(v[0] * plain.grids.get(n, 1.0), dtype=float) for n, v in cells.items()}
            c.amounts, c.clip = was
            self._known["grids"] = plain.grids
        return cast(Arrays, self._known[key])

    def _metric_pull(self, release: Release, like: Mapping[str, Array]) -> Arrays:
        if "metrics" not in self._known:
            plain = central(release)
            row = self.canaries.metric_row({n: np.zeros((1, *np.shape(v))) for n, v in like.items()}, 1.0)
            cells = plain.on_clients({n: v[None] for n, v in row.items()}, _Nobody(1))
            self._known["metrics"] = {n: np.asarray(v[0] * plain.grids[n], dtype=float) for n, v in cells.items()}
        return cast(Arrays, self._known["metrics"])

    def background(self, release: Release) -> Arrays:
        """What all others add to the sum, clipped by the release's own code."""
        canaries = self.canaries
        same = ("background", release.clip, *((int(mask.sum()), len(mask)) for _, mask in canaries.observed))
        if same in self._known:
            return cast(Arrays, self._known[same])
        plain, out = central(release), cast(Arrays, {})
        for sent, mask in canaries.observed:
            rows = dict(sent)
            if canaries.unit == "row" and mask.any():  # the canary's client without the row
                amount = float(canaries.amounts[0])
                rows = {n: v.copy() for n, v in sent.items()}
                for n in rows:
                    rows[n][mask] -= (amount * canaries.move[n]).astype(rows[n].dtype)
                mask = np.zeros_like(mask)
            if canaries.others_alike:
                mask = np.zeros_like(mask)
                rows = {n: np.repeat(v[None], len(mask), axis=0) for n, v in canaries.client_row(0, -1.0).items()}
            cells = plain.on_clients(rows, _Nobody(len(mask)))
            for n, v in cells.items():
                sum_ = v[~mask].sum(axis=0) * plain.grids.get(n, 1.0)
                out[n] = out[n] + sum_ if n in out else sum_
        if self.constant and canaries.hold:
            self._known[same] = out
        return out


class _Nobody:
    """Clients without ids: a central release adds no noise to them."""

    def __init__(self, n: int) -> None:
        self.keys = np.zeros(n, dtype=np.uint64)


def central(release: Release) -> Release:
    """The same clip and grids, without noise on clients."""
    return replace(release, privacy=replace(release.privacy, place="central"), key=b"")

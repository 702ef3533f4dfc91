"""Training in virtual time: any computation along a timetable, synchronous or with stale reports."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedscape.core import codec
from fedscape.core.blocks import Reply, broadcast, bytes_down
from fedscape.core.checkpoint import read, write
from fedscape.core.computation import Computation
from fedscape.core.engine import Engine, as_engine
from fedscape.core.federation import Federation
from fedscape.core.random import Key
from fedscape.core.rounds import check_state, frozen, rounds
from fedscape.errors import CheckpointError, DataError, EngineError
from fedscape.privacy.ledger import Ledger
from fedscape.privacy.mechanisms import Privacy
from fedscape.twin.protocols import FedAsync
from fedscape.twin.timetable import Timetable
from fedscape.types import Array, Arrays


@dataclass(frozen=True)
class Update:
    """One update of the server: when it happened (seconds since the run began), its state, how many reports, how stale.

    >>> Update(0, 60.0, {}, 10, 0.5).staleness
    0.5
    """

    index: int
    seconds: float
    state: Arrays = field(repr=False)
    clients: int
    staleness: float


def train(
    computation: Computation,
    engine: Engine | Federation,
    timetable: Timetable,
    *,
    seed: int = 0,
    state: Mapping[str, Array] | None = None,
    allow: Sequence[str] = (),
    privacy: Privacy | None = None,
    ledger: Ledger | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
) -> Iterator[Update]:
    """Run a computation along a timetable; client i of the engine is device i. Leaving the loop stops the run.

    A synchronous timetable gives the bytes of `rounds` with the same cohorts. With stale reports, each client computes
    from the version that it was sent. Reports of one version are added up, sums of older versions weigh less, and the
    update is applied as far as the protocol's `pace` says. Without staleness that is again the synchronous update.

    Parameters
    ----------
    computation, engine, seed, state, allow
        As for `rounds`.
    timetable
        What `schedule` returned.
    privacy, ledger
        As for `rounds`, and only for a synchronous timetable.
    checkpoint
        A file that is written before each update is handed out. A run whose file is there goes on after that update,
        with the bytes of one that was never killed.

    >>> from fedscape import Histogram
    >>> from fedscape.twin import Synchronous, always, schedule
    >>> fed = Federation({"y": [0, 1, 1]}, [0, 1, 3])
    >>> table = schedule(always(2), Synchronous(2), days=1, n_updates=1)
    >>> [(u.seconds, u.state["counts"].tolist()) for u in train(Histogram(2), fed, table)]
    [(1.0, [1, 2])]
    """
    where = as_engine(engine)
    if len(where.clients.keys) != len(timetable.used):
        raise DataError(
            f"there are {len(where.clients.keys):,} clients, but a timetable of {len(timetable.used):,} devices: "
            "sample one device for each client"
        )
    if not timetable.protocol.stale:
        how: dict[str, Any] = {"state": state, "allow": allow, "privacy": privacy, "ledger": ledger, "measure": 0}
        how["resume"] = checkpoint
        loop = rounds(computation, where, n_rounds=len(timetable), sampler=timetable, seed=seed, **how)
        for r in loop:
            if checkpoint is not None:
                loop.save(r, checkpoint, {})
            yield Update(r.index, float(timetable.times[r.index] - timetable.begin), r.state, r.clients, 0.0)
        return
    if computation.reveals or privacy is not None or where.min_clients > 1:
        raise EngineError(
            f"{type(timetable.protocol).__name__} adds up sums of several versions, also of one client: that goes with "
            "no computation that reveals rows, no privacy and min_clients=1; use Synchronous"
        )
    begin = computation.start(seed) if state is None else state
    yield from _stale(computation, where, timetable, seed, begin, checkpoint)


def _stale(
    computation: Computation, engine: Engine, timetable: Timetable, seed: int, state: Mapping[str, Array],
    checkpoint: str | os.PathLike[str] | None,
) -> Iterator[Update]:  # fmt: skip
    run = _Versions(computation, engine, timetable, seed, checkpoint)
    protocol = timetable.protocol
    last = np.full(len(timetable) + 1, -1)
    update_of_row = np.repeat(np.arange(len(timetable)), np.diff(timetable.stops))
    np.maximum.at(last, timetable.bases, update_of_row)  # the last update that needs each version
    begin, current, versions = run.begin(state)
    for index in range(begin, len(timetable)):
        groups = timetable.groups(index)
        weights = protocol.weights(np.array([index - version for version, _ in groups], dtype=float))
        replies = [engine.run(computation, versions[v], cohort, Key(seed, v)) for v, cohort in groups]
        total = _weighted(replies, weights)
        of_rows = np.repeat(weights, [len(cohort) for _, cohort in groups])
        base, key = current, Key(seed, index)
        if isinstance(protocol, FedAsync):
            base, key = versions[groups[0][0]], Key(seed, groups[0][0])
        new = computation.update(base, total, key)
        current = frozen(_mixed(current, new, protocol.pace(of_rows)))
        check_state(computation, current, index)
        versions = {v: s for v, s in versions.items() if last[v] > index}
        if last[index + 1] > index:
            versions[index + 1] = current
        run.write(index + 1, current, versions)
        stale = float(np.mean([index - v for v, cohort in groups for _ in cohort]))
        yield Update(index, float(timetable.times[index] - timetable.begin), current, len(of_rows), stale)


@dataclass(frozen=True, eq=False)
class _Versions:
    """The states that clients still work on, and the checkpoint of a run that has them."""

    computation: Computation
    engine: Engine
    timetable: Timetable
    seed: int
    path: str | os.PathLike[str] | None

    def begin(self, state: Mapping[str, Array]) -> tuple[int, Arrays, dict[int, Arrays]]:
        """The next update, the state it finds, and the versions that are still at work."""
        if self.path is None or not Path(self.path).exists():
            self.engine.forget()
            return 0, frozen(state), {0: frozen(state)}
        arrays, header = read(self.path)
        if header.get("kind") != "virtual run" or header.get("run") != self._identity():
            raise CheckpointError(
                f"{os.fspath(self.path)} belongs to another run: give the same computation, clients, timetable and "
                "seed, or another file"
            )
        self.engine.restore(codec.ragged_of_plain(arrays, "kept/"))
        versions = {int(v): frozen(codec.prefixed(arrays, f"version {v}/")) for v in header["versions"]}
        return int(header["next"]), frozen(codec.prefixed(arrays, "state/")), versions

    def write(self, upcoming: int, current: Arrays, versions: Mapping[int, Arrays]) -> None:
        """Write what the next update needs, if there is a file to write to."""
        if self.path is None:
            return
        arrays = {f"state/{name}": values for name, values in current.items()}
        for version, state in versions.items():
            arrays |= {f"version {version}/{name}": values for name, values in state.items()}
        arrays |= codec.plain_of_ragged(self.engine.kept(), "kept/")
        header = {"kind": "virtual run", "run": self._identity(), "next": upcoming, "versions": sorted(versions)}
        write(self.path, arrays, header)

    def _identity(self) -> dict[str, Any]:
        return {
            "computation": f"{type(self.computation).__name__} {self.computation.digest()}",
            "clients": self.engine.fingerprint(),
            "timetable": repr(self.timetable),
            "seed": int(self.seed),
        }


def _weighted(replies: Sequence[Reply], weights: Array) -> Arrays:
    """The sum of totals, each times its weight; one total of weight 1 as it is."""
    total: Arrays = {}
    for reply, weight in zip(replies, weights.tolist(), strict=True):
        for name, values in reply.total.items():
            part = values if weight == 1.0 else weight * values
            total[name] = total[name] + part if name in total else part
    return total


def _mixed(old: Arrays, new: Arrays, pace: float) -> Arrays:
    """The old state moved towards the new one; whole numbers and new arrays are taken from the new one."""
    if pace == 1.0:
        return new
    out = {}
    for name, values in new.items():
        moves = name in old and values.dtype.kind == "f" and old[name].shape == values.shape
        out[name] = (old[name] + pace * (values - old[name])).astype(values.dtype) if moves else values
    return out


def payload_of(computation: Computation, federation: Federation, *, seed: int = 0) -> tuple[float, float]:
    """Bytes that a client of this computation is sent, and sends: what `schedule` takes as payload.

    >>> from fedscape import Histogram
    >>> payload_of(Histogram(2), Federation({"y": [0, 1, 1]}, [0, 1, 3]))
    (16.0, 16.0)
    """
    state = frozen(computation.start(seed))
    first = as_engine(federation.take(slice(0, 1)))
    return float(bytes_down(broadcast(state))), float(first.run(computation, state, np.arange(1), Key(seed)).bytes_up)

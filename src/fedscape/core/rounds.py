"""The rounds of a run: who takes part, what was released, the state that comes of it, checkpoints."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedscape.core.computation import Computation, stable_name
from fedscape.core.federation import Federation
from fedscape.core.random import Key
from fedscape.core.sampling import All, Sampler, in_parts
from fedscape.core.validate import Collected, check_whole, not_finite, read_only
from fedscape.errors import CheckpointError, DataError, EngineError, NotFinite, PrivacyError, TooFewClients
from fedscape.types import Array, Arrays

if TYPE_CHECKING:
    from fedscape.core.engine import Engine, Trainer
    from fedscape.privacy.guard import Guard
    from fedscape.privacy.ledger import Ledger
    from fedscape.privacy.mechanisms import Privacy

LOG = logging.getLogger("fedscape.rounds")
logging.getLogger("fedscape").addHandler(logging.NullHandler())  # silent unless somebody listens
FORMAT = 2  # of the checkpoint of a run: since 2 computations are known by names that do not move with their modules


@dataclass(frozen=True)
class Round:
    """What a finished round left behind.

    `index` counts from 0; `state` is the new state; `metrics` are means over the cohort under the state before;
    `abandoned` says that fewer clients reported than `min_clients`: nothing was released and the state is unchanged.
    Where privacy makes the number of clients a secret, `clients` is the noisy number, and it decides: a round abandoned
    by it is in the ledger, because that it was says something of their number.
    `faults` counts what went wrong with clients elsewhere: missing, late, corrupt answers.

    >>> from fedscape import Histogram
    >>> r = next(rounds(Histogram(2), Federation({"y": [0, 1, 1]}, [0, 1, 3]), n_rounds=1))
    >>> r.index, r.clients, r.abandoned, r.bytes_up
    (0, 2, False, 16)
    """

    index: int
    state: Arrays
    metrics: Arrays
    clients: int
    abandoned: bool
    seconds: float
    bytes_down: int
    bytes_up: int
    run: Rounds = field(repr=False)
    faults: Mapping[str, int] = field(default_factory=dict)

    def save(self, path: str | os.PathLike[str], *, notes: Mapping[str, Any] | None = None) -> None:
        """Write a checkpoint from which `rounds(..., resume=path)` goes on to the same bytes.

        Parameters
        ----------
        path
            The file; an older one is replaced once the new one is complete.
        notes
            Anything JSON can say; a resumed run has it as `notes`.
        """
        self.run.save(self, path, notes or {})


class Rounds:
    """The rounds of a run, one after the other: what `rounds` returns.

    `state` is the state the next round starts from, `index` its number, `notes` what the checkpoint carried.

    >>> from fedscape import Histogram
    >>> loop = rounds(Histogram(2), Federation({"y": [0, 1, 1]}, [0, 1, 3]), n_rounds=3)
    >>> next(loop).index, loop.index, loop.state["counts"].tolist()
    (0, 1, [1, 2])
    """

    def __init__(
        self,
        computation: Computation,
        engine: Engine,
        sampler: Sampler,
        *,
        seed: int,
        n_rounds: int,
        measure: int,
        guard: Guard | None,
    ) -> None:
        self.computation, self.engine, self.sampler = computation, engine, sampler
        self.seed, self.n_rounds, self.measure, self.guard = seed, n_rounds, measure, guard
        self.index = 0
        self.state: Arrays = {}
        self.notes: dict[str, Any] = {}
        self._ahead: tuple[Key, Array] | None = None

    def __iter__(self) -> Rounds:
        return self

    def __enter__(self) -> Rounds:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Hand back to the ledger what was reserved and not used."""
        if self.guard is not None:
            self.guard.close()

    def __next__(self) -> Round:
        if self.index >= self.n_rounds:
            self.close()
            raise StopIteration
        wanted = self.measure > 0 and self.index % self.measure == 0
        done = self._one(Key(self.seed, self.index), wanted and (self.guard is None or self.guard.measures))
        self.state, self.index = done.state, done.index + 1
        self._log(done)
        return done

    def _log(self, done: Round) -> None:
        """One JSON line for the round, where somebody listens."""
        level = logging.WARNING if done.abandoned else logging.INFO
        if LOG.isEnabledFor(level):
            numbers = {"clients": done.clients, "seconds": round(done.seconds, 3), "bytes_up": done.bytes_up}
            about = {
                "event": "round",
                "computation": stable_name(type(self.computation)),
                "round": done.index,
                **numbers,
            }
            LOG.log(level, json.dumps({**about, "abandoned": done.abandoned, "faults": dict(done.faults)}))

    def _one(self, key: Key, measure: bool) -> Round:
        started, state, guard = time.perf_counter(), self.state, self.guard
        cohort = self._cohort(key)
        opened = None if guard is None else guard.open(self.computation, state, cohort, key.round, measure)
        releases = {} if opened is None else {"release": opened.sum, "measure_release": opened.metrics}
        try:
            reply = self.engine.run(self.computation, state, cohort, key, measure=measure, **releases)
        except TooFewClients as error:
            return Round(key.round, state, {}, 0, True, time.perf_counter() - started, 0, 0, self, error.faults)
        self._prefetch(key.at(key.round + 1))
        total, clients = reply.total, reply.clients
        if guard is not None and opened is not None:
            released = guard.released(opened, reply)
            if released is None:
                return Round(key.round, state, {}, 0, True, time.perf_counter() - started, 0, 0, self, reply.faults)
            total, metrics, clients = released
        else:
            metrics = {n: v / reply.clients for n, v in reply.metrics.items()}
        new = state_of(self.computation, "update", self.computation.update(state, total, key))
        check_state(self.computation, new, key.round)
        took, size = time.perf_counter() - started, (reply.bytes_down, reply.bytes_up)
        return Round(key.round, new, metrics, clients, False, took, *size, self, reply.faults)

    def _cohort(self, key: Key) -> Array:
        if self._ahead is not None and self._ahead[0] == key:
            return self._ahead[1]
        if self.guard is not None:
            return self.sampler.draw(self.engine.clients, self.guard.cohort_key(key))
        draw = getattr(self.engine, "draw", None)  # of an engine whose clients are in many places
        if draw is not None and in_parts(self.sampler):
            cohort: Array = draw(self.sampler, key.to("cohort"))
            return cohort
        return self.sampler.draw(self.engine.clients, key.to("cohort"))

    def _prefetch(self, key: Key) -> None:
        """Prefetch the next round's cohort and batches while the device is still busy with this one."""
        trainer, prefetch = device_trainer(self.computation), getattr(self.engine, "prefetch", None)
        if trainer is None or not trainer.prefetches or prefetch is None or self.guard is not None:
            return
        if key.round >= self.n_rounds:
            return
        try:
            self._ahead = (key, self._cohort(key))
            prefetch(self.computation, trainer, self._ahead[1], key)
        except Exception:  # the round itself will say it, and this one is not lost
            self._ahead = None

    def identity(self) -> dict[str, Any]:
        """What a checkpoint must agree with to be continued."""
        return {
            "computation": f"{type(self.computation).__name__} {self.computation.digest()}",
            "clients": self.engine.fingerprint(),
            "sampler": repr(self.sampler),
            "seed": int(self.seed),
            "privacy": "none" if self.guard is None else repr(self.guard),
        }

    def save(self, done: Round, path: str | os.PathLike[str], notes: Mapping[str, Any]) -> None:
        """Write the state after this round, which must be the latest, and what clients keep."""
        if done.index + 1 != self.index:
            raise CheckpointError(
                f"round {done.index} can no longer be saved: clients already keep what round {self.index - 1} left; "
                "save inside the loop"
            )
        self.write(path, notes)

    def write(self, path: str | os.PathLike[str], notes: Mapping[str, Any]) -> None:
        """Write the state the next round starts from, and what clients keep."""
        from fedscape.core import checkpoint, codec

        arrays = {f"state/{name}": values for name, values in self.state.items()}
        arrays |= codec.plain_of_ragged(self.engine.kept(), "kept/")
        header = {"kind": "run", "format": FORMAT, "run": self.identity(), "next": self.index, "notes": dict(notes)}
        if self.guard is not None:
            header["guard"] = self.guard.saved()
        checkpoint.write(path, arrays, header, secret=self.guard is not None)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Go on from a checkpoint."""
        from fedscape.core import checkpoint, codec

        arrays, header = checkpoint.read(path)
        if header.get("kind") != "run":
            raise CheckpointError(f"{os.fspath(path)} is a fedscape file, but not the checkpoint of a run")
        if header.get("format") != FORMAT:
            raise CheckpointError(
                f"{os.fspath(path)} is a checkpoint of format {header.get('format', 1)}, this version has format "
                f"{FORMAT}: begin the run anew, or end it with the version that wrote it"
            )
        wanted = {"run", "next", "notes"}
        if not wanted <= set(header):
            raise CheckpointError(f"{os.fspath(path)} lacks {', '.join(sorted(wanted - set(header)))}")
        for name, mine in self.identity().items():
            if header["run"].get(name) != mine:
                raise CheckpointError(
                    f"{os.fspath(path)} belongs to another run: its {name} is {header['run'].get(name)!r}, "
                    f"here it is {mine!r}"
                )
        self.engine.restore(codec.ragged_of_plain(arrays, "kept/"))
        self.state = frozen(codec.prefixed(arrays, "state/"))
        self.index, self.notes = header["next"], header["notes"]
        if self.guard is not None:
            self.guard.restore(header["guard"])


def rounds(
    computation: Computation,
    engine: Engine | Federation,
    *,
    n_rounds: int,
    sampler: Sampler | None = None,
    seed: int = 0,
    state: Mapping[str, Array] | None = None,
    allow: Sequence[str] = (),
    measure: int = 1,
    privacy: Privacy | None = None,
    ledger: Ledger | None = None,
    measure_privacy: Privacy | None = None,
    resume: str | os.PathLike[str] | None = None,
    carry: bool = False,
) -> Rounds:
    """Run a computation round by round; the loop, stopping, printing and saving belong to the caller.

    Parameters
    ----------
    computation
        What clients compute.
    engine
        Where they live; a Federation stands for `Local(federation)`.
    n_rounds
        The last round is number n_rounds - 1, also for a resumed run.
    sampler
        Who takes part; by default all clients.
    seed
        Everything random in the run is a function of it.
    state
        The state to begin with instead of `computation.start(seed)`.
    allow
        The names of `computation.reveals`, to say that the server may see these client by client.
    measure
        Metrics are measured every this many rounds; 0 is never.
    privacy
        How sums are clipped and noised. Metrics are then measured only with a `measure_privacy` of their own.
    ledger
        Where releases are written before they happen; by default one in memory.
    measure_privacy
        How the sums of metrics are clipped and noised; they are then part of the round's release.
    resume
        A checkpoint to go on from; where the file does not exist the run begins at its beginning (and, if private,
        writes it at once, because it holds the secret of the noise).
    carry
        Whether clients begin with what they kept in an earlier run on this engine.

    >>> from fedscape import Federation, Histogram
    >>> fed = Federation({"y": [0, 1, 1]}, [0, 1, 3])
    >>> [r.state["counts"].tolist() for r in rounds(Histogram(2), fed, n_rounds=1)]
    [[1, 2]]
    """
    from fedscape.core.engine import as_engine

    _check_reveals(computation, allow)
    check_whole("n_rounds", n_rounds, least=0)
    if measure < 0:
        raise DataError(f"measure must not be negative, got {measure}")
    sampler = All() if sampler is None else sampler
    where, guard = as_engine(engine), None
    if privacy is not None:
        check_declared(where.clients, computation.coded_columns())
        guard = privacy.guard(sampler, where, ledger=ledger, metrics=measure_privacy)
    elif ledger is not None or measure_privacy is not None:
        raise PrivacyError("a ledger and measure_privacy go with privacy=, which is not given")
    run = Rounds(computation, where, sampler, seed=seed, n_rounds=n_rounds, measure=measure, guard=guard)
    if resume is not None and Path(resume).exists():
        run.load(resume)
    else:
        if not carry:
            run.engine.forget()
        run.state = state_of(computation, "start", computation.start(seed)) if state is None else frozen(state)
        if guard is not None and resume is not None:
            run.write(resume, {})  # the secret must be on disk before anything is released with it
    if guard is not None:
        guard.reserve(run.index, n_rounds, measure)
    return run


def frozen(state: Mapping[str, Any]) -> Arrays:
    """The same arrays as read-only views: no step and no update can change the state it was given."""
    return {name: read_only(np.asarray(values)) for name, values in state.items()}


def state_of(computation: Computation, method: str, reply: Any) -> Arrays:
    """Validate that `start` or `update` returned a dict, and freeze it."""
    if not isinstance(reply, Mapping):
        raise EngineError(
            f"{type(computation).__name__}.{method} must return a dict, the state, not a {type(reply).__name__}"
        )
    return frozen(reply)


def check_state(computation: Computation, state: Arrays, index: int) -> None:
    """Refuse a state that is not finite, naming round and array."""
    trainer = device_trainer(computation)
    if trainer is not None and trainer.known_finite(state):
        return
    name = not_finite(state)
    if name is not None:
        values = state[name]
        raise NotFinite(
            f"round {index} of {type(computation).__name__}: {int((~np.isfinite(values)).sum())} of {values.size} "
            f"numbers of the state {name!r} are NaN or infinite: look for them in the data, or take smaller steps; "
            "the last finished round is unharmed"
        )


def device_trainer(computation: Computation) -> Trainer | None:
    """The trainer of a computation that trains on a device; most have none."""
    trainer: Trainer | None = getattr(computation, "trainer", None)
    return trainer


def _check_reveals(computation: Computation, allow: Sequence[str]) -> None:
    if set(allow) != set(computation.reveals):
        secret = ", ".join(computation.reveals) or "nothing"
        raise EngineError(
            f"{type(computation).__name__} lets the server see, client by client: {secret}; "
            f"allow={tuple(allow)!r} must name exactly that: pass allow={computation.reveals!r}"
        )


def check_declared_classes(clients: Federation, column: str) -> None:
    """Refuse classes that follow from the rows, also by the largest code: a fit would show it."""
    if not clients.is_declared(column):
        raise PrivacyError(
            f"the classes of {column!r} follow from the rows, and which there are is a client's secret: name them with "
            f"federation.declare({column!r}, [...])"
        )


def check_declared(clients: object, columns: Sequence[str]) -> None:
    """Refuse columns whose names were collected from rows: a name that one client alone has would tell of it."""
    for column in columns:
        names = clients.names.get(column) if isinstance(clients, Federation) else None
        if isinstance(names, Collected):
            raise PrivacyError(
                f"the names of {column!r} were collected from rows, and which there are is a client's secret: say "
                f"which count with federation.declare({column!r}, [...])"
            )

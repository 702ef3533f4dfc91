"""The runs of an audit: real rounds with canaries, and their ledger entries."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from fedscape.core.random import Key
from fedscape.core.sampling import All, FixedSize, Poisson, Sampler, marked
from fedscape.errors import DataError, PrivacyError
from fedscape.privacy.attack import Sample
from fedscape.privacy.canaries import Canaries, Sight, Watch, worst_row
from fedscape.privacy.ledger import Group, Ledger
from fedscape.privacy.mechanisms import Privacy
from fedscape.types import Array, Arrays

if TYPE_CHECKING:
    from fedscape.core.computation import Computation
    from fedscape.core.engine import Engine
    from fedscape.core.federation import Federation

DISTRIBUTED = 16  # clients that make up distributed noise in an audit
_HARDLY = 1e-3  # length, in clips, of a canary that is out of a resumed run: its sum must change too


@dataclass
class Scene:
    """The subject of an audit: the run, its canaries, and its ledger entries."""

    computation: Computation
    federation: Federation
    privacy: Privacy
    measure_privacy: Privacy | None
    sampler: Sampler
    rounds: int
    delta: float
    state: Arrays
    seed: int
    stand: Canaries
    group: Group = ("", "", "")
    claim: float = 0.0
    counted: list[tuple[dict[str, Any], int]] = field(default_factory=list)

    @classmethod
    def of(
        cls,
        computation: Computation,
        federation: Federation,
        privacy: Privacy,
        measure_privacy: Privacy | None,
        sampler: Sampler | None,
        rounds: int,
        delta: float,
        state: Arrays | None,
        seed: int,
        method: str,
    ) -> Scene:
        """Set the scene: the ledger entries determine the unit and relation to attack."""
        from fedscape.core.computation import Computation
        from fedscape.core.rounds import frozen

        if not len(federation):
            raise DataError("an audit needs at least one client")
        if type(computation).step is Computation.step:
            computation, first = first_phase(computation, federation, privacy)
            state = first if state is None else state
        state = frozen(computation.start(seed) if state is None else state)
        sampler = All() if sampler is None else sampler
        if privacy.place == "local":  # worst case: the auditor sees a single client
            federation, sampler = federation.take(slice(len(federation) - 1, None)), All()
        if privacy.place == "distributed" and isinstance(sampler, All):  # the noise is the same for any number
            federation = federation.take(slice(max(0, len(federation) - DISTRIBUTED), None))
        none = np.zeros(0, dtype=np.uint64)
        stand = Canaries(computation, none, privacy, measure_privacy, "client", seed, hold=rounds == 1)
        scene = cls(computation, federation, privacy, measure_privacy, sampler, rounds, delta, state, seed, stand)
        scene._probe()
        if method == "resume" and scene.group[0] == "row":
            raise DataError("method='resume' needs unit='client'")
        return scene

    def _probe(self) -> None:
        """Run once without canaries, to see what is booked."""
        ledger = Ledger(delta=self.delta)
        self.stand.hold = True  # a probe, with noise that may be too large to continue from
        for _ in self.loop(self.engine(self.federation), ledger):
            pass
        self.stand.hold = self.rounds == 1
        self._book(ledger)

    def _book(self, ledger: Ledger) -> None:
        lines = ledger.entries()
        entries = {(x["run"], x["mechanism"]): x["entry"] for x in lines if x["kind"] == "reserve"}
        releases = [(x["run"], x["mechanism"]) for x in lines if x["kind"] == "release"]
        if not releases:
            raise PrivacyError("nothing was released, and there is nothing to audit: take more clients")
        first = next(k for k in releases if "sum" in k[1].split(" beside ")[0].split("+"))
        self.group = tuple(entries[first][name] for name in ("unit", "relation", "place"))
        mine = [k for k in dict.fromkeys(releases) if _group_of(entries[k]) == self.group]
        self.counted = [(entries[k], releases.count(k)) for k in mine]
        self.claim = ledger.spent()[self.group]

    def about(self, method: str) -> dict[str, Any]:
        """Describe the audited run, for the result."""
        unit, relation, place = self.group
        names = {"computation": repr(self.computation), "privacy": repr(self.privacy), "sampler": repr(self.sampler)}
        about = {**names, "unit": unit, "relation": relation, "delta": self.delta, "method": method}
        return {**about, "place": self.privacy.place or place, "rounds": self.rounds}

    @property
    def rate(self) -> float:
        """The probability that a client takes part in a round."""
        if isinstance(self.sampler, Poisson):
            return self.sampler.rate
        return self.sampler.size / len(self.federation) if isinstance(self.sampler, FixedSize) else 1.0

    # -- repeats -------------------------------------------------------------------------------------------------------

    def sample(self, repeats: int, *, resume: bool) -> Sample:
        """Observe many runs, each with the canary in or out."""
        unit, relation, _ = self.group
        replaced = relation == "replace-one"
        self.place(1, alike=marked(self.sampler, "exchanges") and unit == "client")
        absent = unit == "client" and not replaced and not resume
        sight = Sight(self.stand, absent, isinstance(self.sampler, All))
        out = -1.0 if replaced else _HARDLY if resume else 0.0
        worlds = {True: Watch(self.engine(self.federation), self.stand)}
        worlds[False] = worlds[True]
        if absent:
            worlds[False] = Watch(self.engine(self.federation.take(slice(0, len(self.federation) - 1))), self.stand)
        coins = Key(self.seed, purpose="audit coins").generator().random(repeats) < 0.5
        runs = self._resumed(coins, worlds[True], sight, out) if resume else self._repeated(coins, worlds, sight, out)
        looks = list(runs)
        names = list(dict.fromkeys(n for look in looks for numbers, _ in look for n in numbers))
        values = np.array([[[numbers.get(n, 0.0) for n in names] for numbers, _ in look] for look in looks])
        present = np.array([[was for _, was in look] for look in looks])
        release = worlds[True].release
        assert release is not None
        amounts = ((1.0, -1.0), (out, -out)) if resume else ((1.0,), (out,))
        high, low = (np.concatenate([sight.signals(names, a, release) for a in each]) for each in amounts)
        if absent:
            low = np.zeros(len(names))
        laplace, steps = self.privacy.norm == 1, sight.steps(names, release)
        sample = Sample(names, values, present, coins, high, low, self.rate, laplace, steps)
        return sample.joined() if resume else sample

    def _repeated(
        self, coins: Array, worlds: dict[bool, Watch], sight: Sight, out: float
    ) -> Iterator[list[tuple[dict[str, float], bool]]]:
        for coin in coins.tolist():
            self.stand.amounts = np.full(1, 1.0 if coin else out)
            watch = worlds[coin]
            yield [sight.look(watch, done) for done in self.loop(watch, Ledger(delta=self.delta))]

    def _resumed(
        self, coins: Array, watch: Watch, sight: Sight, out: float
    ) -> Iterator[list[tuple[dict[str, float], bool]]]:
        """Run from a checkpoint, flip the canary's values, and resume from the same checkpoint."""
        memory = "/dev/shm" if os.path.isdir("/dev/shm") else None  # a checkpoint is synced to its disk
        with tempfile.TemporaryDirectory(dir=memory) as folder:
            first, second = Path(folder) / "first", Path(folder) / "second"
            for coin in coins.tolist():
                ledger = Ledger(delta=self.delta)
                amount = 1.0 if coin else out
                self.stand.amounts = np.full(1, amount)
                loop = self.loop(watch, ledger, resume=first)
                shutil.copy(first, second)
                before = [sight.look(watch, done) for done in loop]
                self.stand.amounts = np.full(1, -amount)
                after = [sight.look(watch, done) for done in self.loop(watch, ledger, resume=second)]
                first.unlink()
                yield [*before, *after]
            self._book(ledger)

    # -- running -------------------------------------------------------------------------------------------------------

    def place(self, number: int, *, alike: bool) -> None:
        """Turn the last clients into canaries."""
        stand, unit = self.stand, self.group[0]
        stand.unit, stand.others_alike = unit, alike
        stand.keys = self.federation.keys[len(self.federation) - number :]
        stand.learn(self.federation, self.state)
        if unit == "row":
            stand.move = self._row_move()

    def _row_move(self) -> Arrays:
        """The largest move that a row can cause, among candidates; or one of the length of the clip."""
        clip, norm = self.privacy.first_clip, self.privacy.norm
        move = worst_row(self.computation, self.federation, self.state, norm)
        length = float(sum((np.abs(v) ** norm).sum() for v in move.values()) ** (1 / norm))
        if length >= clip * (1 - 1e-6):
            return move
        like, units = self.stand._rows(self.state, self.federation.take(slice(0, 1)), Key(0))[0], self.stand.units[0]
        real = [n for n in units if np.any(units[n]) and (like[n].dtype.kind == "f" or clip >= 1)]
        if not real:
            return move
        size = clip if like[real[0]].dtype.kind == "f" else np.floor(clip)
        return {n: (units[n] != 0) * (size if n == real[0] else 0.0) for n in units}

    def engine(self, federation: Federation) -> Engine:
        """An engine for these clients; distributed noise is made up by all of them."""
        from fedscape.core.engine import Local

        least = len(federation) if self.privacy.place == "distributed" and isinstance(self.sampler, All) else 1
        return Local(federation, threads=1, min_clients=least)

    def loop(self, engine: Any, ledger: Ledger, resume: Path | None = None) -> Any:
        """Run the real rounds."""
        from fedscape.core.rounds import rounds

        return rounds(
            cast(Any, self.stand),
            engine,
            n_rounds=self.rounds,
            sampler=self.sampler,
            state=self.state,
            allow=self.computation.reveals,
            privacy=self.privacy,
            ledger=ledger,
            measure_privacy=self.measure_privacy,
            seed=self.seed,
            resume=resume,
        )


def _group_of(entry: Any) -> Group:
    return entry["unit"], entry["relation"], entry["place"]


class _Found(Exception):
    """Raised at the first phase of a fit."""


def first_phase(estimator: Any, federation: Federation, privacy: Privacy) -> tuple[Computation, Arrays]:
    """The first computation of a fit, and its state."""
    from fedscape.core.engine import Local

    calls: list[tuple[Computation, Arrays]] = []

    class First(Local):
        def run(self, computation: Computation, state: Arrays, *_: Any, **__: Any) -> Any:
            calls.append((computation, state))
            raise _Found

    try:
        estimator.fit(First(federation, threads=1), privacy=privacy)
    except _Found:
        return calls[0]
    raise DataError(f"{type(estimator).__name__} released nothing in its fit, and there is nothing to audit")

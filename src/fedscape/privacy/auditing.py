"""An empirical lower bound on epsilon, beside what the ledger claims.

Repeated releases with a canary in or out by a keyed coin, or one run with many canaries, go through the real path: the
engine, the clip, the noise and the ledger of `rounds`. What an attack makes of them bounds epsilon from below.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from fedscape.core.random import Array, Key
from fedscape.core.sampling import All, FixedSize, Poisson, Sampler, marked
from fedscape.core.validate import check_whole
from fedscape.errors import DataError, PrivacyError
from fedscape.privacy.attack import Sample, attacked, power_of
from fedscape.privacy.bounds import Booked, epsilon_of_mu, epsilon_of_rates, epsilon_one_run, mu_one_run
from fedscape.privacy.canaries import Canaries, Sight, Watch, worst_row
from fedscape.privacy.ledger import Group, Ledger
from fedscape.privacy.mechanisms import Arrays, Privacy

if TYPE_CHECKING:
    from fedscape.core.computation import Computation
    from fedscape.core.engine import Engine
    from fedscape.core.federation import Federation

METHODS = ("repeats", "one-run", "resume")
DISTRIBUTED = 16  # clients that make up distributed noise in an audit
WEAKER = (0.9, 0.75, 1 / 1.5, 0.5, 1 / 3)  # factors of the noise for which power is stated


@dataclass(frozen=True)
class Audit:
    """What an audit found.

    `bound` is the lower bound on epsilon at `delta`, `claim` what the ledger booked, `holds` the verdict: False where
    the attack's error rates are below what the booked mechanisms allow. `assumed` says which law the bound is for;
    `bound_any` is the bound that holds for any mechanism. `power` has for each factor of the noise the probability that
    an audit like this one would have noticed it.
    """

    computation: str
    privacy: str
    sampler: str
    method: str
    unit: str
    relation: str
    place: str
    delta: float
    confidence: float
    claim: float
    bound: float
    bound_any: float
    assumed: str
    holds: bool
    repeats: int
    rounds: int
    false_positive: float
    false_negative: float
    power: dict[float, float]
    parts: list[str]
    scores: dict[str, list[float]] = field(repr=False, default_factory=dict)

    @property
    def noticed(self) -> float | None:
        """The largest factor of the noise that this audit notices with a probability of 80%; None where none is."""
        return max((factor for factor, chance in self.power.items() if chance >= 0.8), default=None)

    def about(self) -> dict[str, Any]:
        """All of it for JSON."""
        return {**asdict(self), "power": {f"{f:.3g}": p for f, p in self.power.items()}, "noticed": self.noticed}

    def __str__(self) -> str:
        sign, word = ("<=", "holds") if self.holds else (">", "BROKEN")
        return (
            f"{self.computation}: epsilon at least {self.bound:.3g} {sign} {self.claim:.3g} claimed at delta "
            f"{self.delta:g} ({self.unit}, {self.relation}, {self.place}): {word}"
        )


def audit(
    computation: Computation,
    federation: Federation,
    privacy: Privacy,
    *,
    sampler: Sampler | None = None,
    rounds: int = 1,
    measure_privacy: Privacy | None = None,
    method: str = "repeats",
    repeats: int | None = None,
    canaries: int = 1000,
    confidence: float = 0.95,
    delta: float = 1e-6,
    state: Arrays | None = None,
    simulations: int = 200,
    seed: int = 0,
) -> Audit:
    """Bound epsilon from below by attacking real releases, and compare with what the ledger books for them.

    Parameters
    ----------
    computation
        What clients compute; an Estimator whose `fit` has several phases is audited by the first of them.
    federation
        The clients. The last one (for one run: the last `canaries`) send what the auditor chooses.
    privacy, measure_privacy, sampler, rounds
        As for `fedscape.rounds`.
    method
        "repeats": many runs with one canary, in or out. "one-run": one run with many canaries. "resume": many runs,
        each resumed from its checkpoint after values changed.
    repeats
        How many runs, by default 4,000, and 20,000 where clients are sampled: there a canary is rarely in. A third of
        them choose the attack's filter and threshold, the others bound its error rates.
    canaries
        For "one-run": how many, at most the number of clients and of numbers that a client sends.
    confidence
        Of the bound.
    delta
        At which epsilon is stated.
    state
        The state to release from; by default the computation's first.
    simulations
        How many simulated audits estimate the power.
    seed
        Keys coins and coordinates; noise is the real one, and never the same twice.

    >>> from fedscape import Federation, Gaussian, Histogram
    >>> fed = Federation({"y": [0, 1, 1, 2]}, [0, 1, 4])
    >>> audit(Histogram(3), fed, Gaussian(clip=1.0, multiplier=4.0), repeats=200, simulations=20).claim.__round__(2)
    1.06
    """
    if repeats is None:
        repeats = 20_000 if isinstance(sampler, Poisson | FixedSize) and privacy.place != "local" else 4_000
    _check(method, repeats, confidence, rounds, simulations)
    scene = Scene.of(computation, federation, privacy, measure_privacy, sampler, rounds, delta, state, seed, method)
    if method == "one-run":
        return _one_run(scene, min(canaries, len(federation)), confidence)
    sample = scene.sample(repeats, resume=method == "resume")
    booked = Booked(scene.counted)
    result = attacked(sample, booked, confidence)
    rates = result.false_positive, result.false_negative
    anyway = epsilon_of_rates(*rates, delta)
    power = {f: power_of(sample, booked, confidence, f, simulations, seed) for f in WEAKER} if simulations else {}
    return Audit(
        **scene.about(method),
        claim=scene.claim,
        confidence=confidence,
        bound=max(anyway, booked.bound(*rates, delta)),
        bound_any=anyway,
        assumed=f"the booked mechanism ({_mechanisms(scene.counted)}) with another multiplier",
        holds=anyway <= scene.claim and not bool(booked.broken(*rates)),
        repeats=repeats,
        false_positive=rates[0],
        false_negative=rates[1],
        power=power,
        parts=list(sample.names),
        scores={"in": result.scores[sample.coins].tolist(), "out": result.scores[~sample.coins].tolist()},
    )


def _check(method: str, repeats: int, confidence: float, rounds: int, simulations: int) -> None:
    if method not in METHODS:
        raise DataError(f"method must be one of {', '.join(METHODS)}, not {method!r}")
    check_whole("rounds", rounds, least=1)
    check_whole("simulations", simulations, least=0)
    check_whole("repeats", repeats, least=100)
    if not 0.5 <= confidence < 1:
        raise DataError(f"confidence must be from 0.5 to below 1, not {confidence}")


def _mechanisms(counted: Sequence[tuple[Any, int]]) -> str:
    texts = []
    for entry, number in counted:
        kind = entry["sampling"]["kind"]
        how = {"all": "", "poisson": f" of Poisson {entry['sampling'].get('rate')}"}.get(
            kind, f" of {entry['sampling'].get('size')} from {entry['sampling'].get('of')}"
        )
        times = "" if number == 1 else f"{number} x "
        texts.append(f"{times}{entry['mechanism']} {entry['multiplier']:.4g}{how}")
    return ", ".join(texts)


@dataclass
class Scene:
    """Who is audited: the run, its canaries, and what a ledger books for it."""

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
        """Set the scene: what the ledger books says which unit and relation to attack."""
        from fedscape.core.computation import Computation
        from fedscape.core.rounds import frozen

        if not len(federation):
            raise DataError("an audit needs at least one client")
        if type(computation).step is Computation.step:
            computation, first = first_phase(computation, federation, privacy)
            state = first if state is None else state
        state = frozen(computation.start(seed) if state is None else state)
        sampler = All() if sampler is None else sampler
        if privacy.place == "local":  # worst case: the auditor sees what one client alone sends
            federation, sampler = federation.take(slice(len(federation) - 1, None)), All()
        if privacy.place == "distributed" and isinstance(sampler, All):  # their noise is the same however many
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
        self.stand.hold = True  # a first look, at noise that may be too much to go on from
        for _ in self._loop(self._engine(self.federation), ledger):
            pass
        self.stand.hold = self.rounds == 1
        self._book(ledger)

    def _book(self, ledger: Ledger) -> None:
        lines = ledger.entries()
        entries = {(x["run"], x["mechanism"]): x["entry"] for x in lines if x["kind"] == "reserve"}
        releases = [(x["run"], x["mechanism"]) for x in lines if x["kind"] == "release"]
        if not releases:
            raise PrivacyError("nothing was released, so that there is nothing to audit: take more clients")
        first = next(k for k in releases if "sum" in k[1].split(" beside ")[0].split("+"))
        self.group = tuple(entries[first][name] for name in ("unit", "relation", "place"))
        mine = [k for k in dict.fromkeys(releases) if _group_of(entries[k]) == self.group]
        self.counted = [(entries[k], releases.count(k)) for k in mine]
        self.claim = ledger.spent()[self.group]

    def about(self, method: str) -> dict[str, Any]:
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
        """The numbers of many runs, each with the canary in or out."""
        unit, relation, _ = self.group
        replaced = relation == "replace-one"
        self._place(1, alike=marked(self.sampler, "exchanges") and unit == "client")
        absent = unit == "client" and not replaced and not resume
        sight = Sight(self.stand, absent, isinstance(self.sampler, All))
        out = 1e-3 if resume and not replaced else -1.0 if replaced else 0.0
        worlds = {True: Watch(self._engine(self.federation), self.stand)}
        worlds[False] = worlds[True]
        if absent:
            worlds[False] = Watch(self._engine(self.federation.take(slice(0, len(self.federation) - 1))), self.stand)
        coins = Key(self.seed, purpose="audit coins").generator().random(repeats) < 0.5
        runs = self._resumed(coins, worlds[True], sight, out) if resume else self._repeated(coins, worlds, sight, out)
        looks = list(runs)
        names = list(dict.fromkeys(n for look in looks for numbers, _ in look for n in numbers))
        values = np.array([[[numbers.get(n, 0.0) for n in names] for numbers, _ in look] for look in looks])
        present = np.array([[was for _, was in look] for look in looks])
        release = worlds[True].release
        assert release is not None
        high, low = (sight.signals(names, a, release) for a in (1.0, out))
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
            yield [sight.look(watch, done) for done in self._loop(watch, Ledger(delta=self.delta))]

    def _resumed(
        self, coins: Array, watch: Watch, sight: Sight, out: float
    ) -> Iterator[list[tuple[dict[str, float], bool]]]:
        """Run from a checkpoint, change the canary's values, and go on from the same checkpoint again."""
        with tempfile.TemporaryDirectory() as folder:
            first, second = Path(folder) / "first", Path(folder) / "second"
            for coin in coins.tolist():
                ledger = Ledger(delta=self.delta)
                self.stand.amounts = np.zeros(1)
                loop = self._loop(watch, ledger, resume=first)
                shutil.copy(first, second)
                before = [sight.look(watch, done) for done in loop]
                self.stand.amounts = np.full(1, 1.0 if coin else out)
                after = [sight.look(watch, done) for done in self._loop(watch, ledger, resume=second)]
                first.unlink()
                yield [*before, *after]
            self._book(ledger)

    # -- running -------------------------------------------------------------------------------------------------------

    def _place(self, number: int, *, alike: bool) -> None:
        """Make the last clients canaries."""
        stand, unit = self.stand, self.group[0]
        stand.unit, stand.others_alike = unit, alike
        stand.keys = self.federation.keys[len(self.federation) - number :]
        stand.learn(self.federation, self.state)
        if unit == "row":
            stand.move = self._row_move()

    def _row_move(self) -> Arrays:
        """The furthest move that a row was found to make, or one of the length that the clip allows."""
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

    def _engine(self, federation: Federation) -> Engine:
        from fedscape.core.engine import Local

        least = len(federation) if self.privacy.place == "distributed" and isinstance(self.sampler, All) else 1
        return Local(federation, threads=1, min_clients=least)

    def _loop(self, engine: Any, ledger: Ledger, resume: Path | None = None) -> Any:
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
    """The first phase of a fit."""


def first_phase(estimator: Any, federation: Federation, privacy: Privacy) -> tuple[Computation, Arrays]:
    """The first computation that a fit runs, and its state."""
    from fedscape.core.engine import Local

    found: list[tuple[Computation, Arrays]] = []

    class First(Local):
        def run(self, computation: Computation, state: Arrays, *_: Any, **__: Any) -> Any:
            found.append((computation, state))
            raise _Found

    try:
        estimator.fit(First(federation, threads=1), privacy=privacy)
    except _Found:
        return found[0]
    raise DataError(f"{type(estimator).__name__} released nothing in its fit, so that there is nothing to audit")


def _one_run(scene: Scene, number: int, confidence: float) -> Audit:
    """One run; each canary is in by its own coin; guess those that stand out, abstain from the rest."""
    if scene.group[0] != "client" or scene.privacy.place == "local":
        raise DataError("method='one-run' needs unit='client' and noise on the sum: use method='repeats'")
    scene._place(number, alike=False)
    coins = Key(scene.seed, purpose="audit coins").generator().random(number) < 0.5
    replaced, n = scene.group[1] == "replace-one", len(scene.federation)
    keep = np.concatenate([np.ones(n - number, dtype=bool), coins | replaced])
    scene.stand.amounts = np.where(coins, 1.0, -1.0)
    watch = Watch(scene._engine(scene.federation.take(np.flatnonzero(keep))), scene.stand)
    sight = Sight(scene.stand, False, constant=False)
    scores = np.zeros(number)
    for _ in scene._loop(watch, Ledger(delta=scene.delta)):
        scores += _scores(scene, watch, sight)
    order = np.argsort(scores)
    tries = sorted({max(1, number // part) for part in (64, 16, 8, 4, 2)})
    level = 1 - (1 - confidence) / len(tries)  # the best of several numbers of guesses
    found = []
    for half in tries:
        half = min(half, number // 2)
        correct = int(coins[order[-half:]].sum() + (~coins[order[:half]]).sum())
        found.append((epsilon_one_run(number, 2 * half, correct, scene.delta, level), 2 * half, correct))
    anyway, guesses, correct = max(found)
    mus = [mu_one_run(number, g, c, level) for _, g, c in found]
    gaussian = all(e["mechanism"] == "gaussian" and e["sampling"]["kind"] == "all" for e, _ in scene.counted)
    bound = max(anyway, epsilon_of_mu(max(mus), scene.delta)) if gaussian else anyway
    return Audit(
        **scene.about("one-run"),
        claim=scene.claim,
        confidence=confidence,
        bound=bound,
        bound_any=anyway,
        assumed="a Gaussian mechanism" if gaussian and bound > anyway else "any mechanism",
        holds=bound <= scene.claim,
        repeats=1,
        false_positive=1 - correct / guesses,
        false_negative=1 - correct / guesses,
        power={},
        parts=[f"{number} canaries, {correct} of {guesses} guesses correct"],
        scores={"in": scores[coins].tolist(), "out": scores[~coins].tolist()},
    )


def _scores(scene: Scene, watch: Watch, sight: Sight) -> Array:
    """The noised total along each canary, less what all others sent."""
    total, release = scene.stand.total_seen, watch.release
    if total is None or release is None:
        return np.zeros(len(scene.stand.keys))
    background = sight._background(release)
    out = []
    for unit in scene.stand.units:
        name, v = next((n, v) for n, v in unit.items() if np.any(v))
        rest = np.asarray(total[name], dtype=float).reshape(v.shape) - background[name]
        out.append(float((rest * v).sum() / (v * v).sum() / release.clip))
    return np.array(out)

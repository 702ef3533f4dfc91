"""An empirical lower bound on epsilon, beside the ledger's claim.

Repeated releases with a canary put in at random, or one run with many canaries, go through the real path: engine,
clip, noise and ledger of `rounds`. An attack on them bounds epsilon from below.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from fedscape.core.sampling import FixedSize, Poisson, Sampler
from fedscape.core.validate import check_whole
from fedscape.errors import DataError
from fedscape.privacy.attack import attacked, power_of
from fedscape.privacy.bounds import Booked, epsilon_of_rates
from fedscape.privacy.mechanisms import Privacy
from fedscape.privacy.one_run import power_once, run_once
from fedscape.privacy.scene import Scene
from fedscape.types import Arrays

if TYPE_CHECKING:
    from fedscape.core.computation import Computation
    from fedscape.core.federation import Federation

METHODS = ("repeats", "one-run", "resume")
WEAKER = (0.9, 0.75, 1 / 1.5, 0.5, 1 / 3)  # noise factors for which power is reported


@dataclass(frozen=True)
class Audit:
    """The result of an audit.

    `bound` is the lower bound on epsilon at `delta`, `claim` the ledger's value. `holds` is the verdict: False if the
    attack's error rates are below what the booked mechanisms allow. `assumed` names the law behind the bound;
    `bound_any` holds for any mechanism. `power` is, per noise factor, the probability that an audit like this one
    detects it.
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
        """The largest noise factor that this audit detects with a probability of 80%; None if none."""
        return max((factor for factor, chance in self.power.items() if chance >= 0.8), default=None)

    def about(self) -> dict[str, Any]:
        """All fields, for JSON."""
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
    """Bound epsilon from below by attacking real releases, and compare it with the ledger's claim.

    Parameters
    ----------
    computation
        The computation to audit; of an Estimator with several phases, the first.
    federation
        The clients. The last one (for one run: the last `canaries`) send values chosen by the auditor.
    privacy, measure_privacy, sampler, rounds
        As for `fedscape.rounds`.
    method
        "repeats": many runs with one canary, in or out. "one-run": one run with many canaries. "resume": many runs,
        each resumed from its checkpoint after values changed.
    repeats
        Number of runs; by default 4,000, and 20,000 with sampled clients, where a canary is rarely in. A third of them
        choose the attack's filter and threshold, the others bound its error rates.
    canaries
        For "one-run": their number, at most the number of clients and of numbers that a client sends.
    confidence
        Confidence level of the bound.
    delta
        Delta at which epsilon is reported.
    state
        The state to release from; by default the computation's initial one.
    simulations
        Number of simulated audits for the power.
    seed
        Keys coins and coordinates. The noise is real, and never repeats.

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
        return _one_run(scene, min(canaries, len(federation)), confidence, simulations)
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


def _one_run(scene: Scene, number: int, confidence: float, simulations: int) -> Audit:
    run = run_once(scene, number, confidence)
    power = {f: power_once(scene, run, confidence, f, simulations) for f in WEAKER} if simulations else {}
    return Audit(
        **scene.about("one-run"),
        claim=scene.claim,
        confidence=confidence,
        bound=run.bound,
        bound_any=run.bound_any,
        assumed="a Gaussian mechanism" if run.bound > run.bound_any else "any mechanism",
        holds=run.bound <= scene.claim,
        repeats=1,
        false_positive=run.wrong,
        false_negative=run.wrong,
        power=power,
        parts=[f"{number} canaries, {run.correct} of {run.guesses} guesses correct"],
        scores={"in": run.scores[run.coins].tolist(), "out": run.scores[~run.coins].tolist()},
    )

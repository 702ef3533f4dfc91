"""One run with many canaries: guess the most extreme ones, abstain on the rest, count the correct guesses."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np

from fedscape.core.random import Key
from fedscape.errors import DataError
from fedscape.privacy.bounds import epsilon_of_mu, epsilon_one_run, mu_is_refuted, mu_one_run, one_run_p_value
from fedscape.privacy.canaries import Sight, Watch
from fedscape.privacy.ledger import Ledger
from fedscape.privacy.scene import Scene
from fedscape.types import Array

_PARTS = (64, 16, 8, 4, 2)  # one in this many canaries is guessed in, and one out


@dataclass(frozen=True)
class OneRun:
    """The scores of all canaries, their coins, and the resulting bounds."""

    scores: Array
    coins: Array
    bound: float
    bound_any: float
    correct: int
    guesses: int
    gaussian: bool

    @property
    def wrong(self) -> float:
        """The share of wrong guesses."""
        return 1 - self.correct / self.guesses


def run_once(scene: Scene, number: int, confidence: float) -> OneRun:
    """Run once, with each canary in by its own coin."""
    if scene.group[0] != "client" or scene.privacy.place == "local":
        raise DataError("method='one-run' needs unit='client' and noise on the sum: use method='repeats'")
    scene.place(number, alike=False)
    coins = Key(scene.seed, purpose="audit coins").generator().random(number) < 0.5
    replaced, n = scene.group[1] == "replace-one", len(scene.federation)
    keep = np.concatenate([np.ones(n - number, dtype=bool), coins | replaced])
    scene.stand.amounts = np.where(coins, 1.0, -1.0)
    watch = Watch(scene.engine(scene.federation.take(np.flatnonzero(keep))), scene.stand)
    sight = Sight(scene.stand, False, constant=False)
    scores = np.zeros(number)
    for _ in scene.loop(watch, Ledger(delta=scene.delta)):
        scores += _scores(scene, watch, sight)
    level = _level(confidence)
    guesses = _guesses(scores, coins)
    anyway, total, correct = max((epsilon_one_run(number, g, c, scene.delta, level), g, c) for g, c in guesses)
    gaussian = _mu(scene) is not None
    bound = anyway
    if gaussian:
        bound = max(anyway, epsilon_of_mu(max(mu_one_run(number, g, c, level) for g, c in guesses), scene.delta))
    return OneRun(scores, coins, bound, anyway, correct, total, gaussian)


def power_once(scene: Scene, run: OneRun, confidence: float, factor: float, simulations: int) -> float:
    """The share of simulated runs, with `factor` times the noise of the scores, that refute the booked mechanisms."""
    generator = Key(scene.seed, purpose=f"audit power {factor:.6f}").generator()
    level, mu, number = _level(confidence), _mu(scene), len(run.coins)
    low = -1.0 if scene.group[1] == "replace-one" else 0.0
    expected = scene.rate * scene.rounds
    sd = float(np.std(run.scores - np.where(run.coins, 1.0, low) * expected)) * factor

    @cache
    def refutes(guesses: int, correct: int) -> bool:
        any_ = one_run_p_value(number, guesses, correct, scene.claim, scene.delta) <= 1 - level
        return any_ or (mu is not None and mu_is_refuted(mu, number, guesses, correct, level))

    refuted = 0
    for _ in range(simulations):
        coins = generator.random(number) < 0.5
        times = generator.binomial(scene.rounds, scene.rate, number)
        scores = np.where(coins, 1.0, low) * times + generator.normal(0.0, sd, number)
        refuted += any(refutes(g, c) for g, c in _guesses(scores, coins))
    return refuted / simulations


def _level(confidence: float) -> float:
    """The confidence level of each number of guesses, corrected for choosing the best."""
    return 1 - (1 - confidence) / len(_PARTS)


def _guesses(scores: Array, coins: Array) -> list[tuple[int, int]]:
    """The number of guesses and of correct ones, for each fraction guessed."""
    order, number = np.argsort(scores), len(coins)
    halves = sorted({min(max(1, number // part), number // 2) for part in _PARTS} - {0})
    return [(2 * h, int(coins[order[-h:]].sum() + (~coins[order[:h]]).sum())) for h in halves]


def _mu(scene: Scene) -> float | None:
    """The mu of the booked mechanisms, if all are Gaussian without sampling."""
    if any(e["mechanism"] != "gaussian" or e["sampling"]["kind"] != "all" for e, _ in scene.counted):
        return None
    return math.sqrt(sum(n / e["multiplier"] ** 2 for e, n in scene.counted))


def _scores(scene: Scene, watch: Watch, sight: Sight) -> Array:
    """The noisy total along each canary, minus what all others sent."""
    total, release = scene.stand.total_observed, watch.release
    if total is None or release is None:
        return np.zeros(len(scene.stand.keys))
    background = sight.background(release)
    out = []
    for unit in scene.stand.units:
        name, v = next((n, v) for n, v in unit.items() if np.any(v))
        rest = np.asarray(total[name], dtype=float).reshape(v.shape) - background[name]
        out.append(float((rest * v).sum() / (v * v).sum() / release.clip))
    return np.array(out)

"""Which method is advised: the simplest that is not shown to lose a point against the best, or none at all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fedscape.core.random import Key
from fedscape.studies.intervals import Interval
from fedscape.studies.judged import BASELINES, Judged
from fedscape.studies.tournament import ENTRANTS

WORTH = 0.01  # a point of accuracy: less is not worth a more complicated method
REDRAWS = 100
#: The simplest first: who trains alone needs no federation.
ORDER = tuple(sorted(ENTRANTS, key=lambda name: name != "local"))


@dataclass(frozen=True)
class Choice:
    """What follows from a tournament: the method advised (None: none), the most accurate, and who is tied with it."""

    advised: str | None
    best: str
    tied: tuple[str, ...]
    over: Interval
    baseline: str


def choose(judged: Judged, *, order: tuple[str, ...] = ORDER) -> Choice:
    """Choose among methods, the simplest first in `order`.

    A method is *able* if it is shown to beat the better baseline, by its own paired interval. It is *tied* if its loss
    against the most accurate is not shown to exceed a point. Advised is the simplest that is both; one that is more
    than FedAvg has to be shown to gain over FedAvg, too. Where nobody is able, none is advised.
    """
    means = judged.means
    best = max(order, key=lambda name: means[name])
    baseline = max(BASELINES, key=lambda name: means[name])
    tied = tuple(m for m in order if m == best or not _above(judged.difference(best, m), WORTH))
    able = [m for m in tied if _above(judged.difference(m, baseline), 0.0)]
    plain = ("local", "fedavg")
    sure = [m for m in able if m in plain or _above(judged.difference(m, "fedavg"), 0.0)]
    over = judged.difference(best, baseline)
    return Choice(sure[0] if sure else None, best, tied, over, baseline)


def _above(gain: Interval, least: float) -> bool:
    return gain["low"] is not None and gain["low"] > least


def stability(judged: Judged, choice: Choice, *, order: tuple[str, ...] = ORDER, seed: int) -> dict[str, Any]:
    """How often the same is advised for redrawn clients (of sites: rows), and what else is."""
    rng = Key(seed, purpose="redraws of a tournament").generator()
    drawn = [choose(judged.redrawn(rng), order=order).advised for _ in range(REDRAWS)]
    others = {str(m): drawn.count(m) for m in dict.fromkeys(drawn) if m != choice.advised}
    return {"redraws": REDRAWS, "same": drawn.count(choice.advised), "others": others}

"""Choose the method to advise: the simplest not shown to be a point worse than the best, or none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fedscape.core.random import Key
from fedscape.studies.intervals import Interval
from fedscape.studies.judged import Judged
from fedscape.studies.tournament import ENTRANTS

WORTH = 0.01  # a point of accuracy: less is not worth a more complicated method
REDRAWS = 100
#: The simplest first: training alone needs no federation.
ORDER = tuple(sorted(ENTRANTS, key=lambda name: name != "local"))


@dataclass(frozen=True)
class Choice:
    """The outcome of a tournament: the advised method or None, the most accurate, and those tied with it."""

    advised: str | None
    best: str
    tied: tuple[str, ...]
    over: Interval
    baseline: str


def choose(judged: Judged, *, order: tuple[str, ...] = ORDER, common: str = "fedavg") -> Choice:
    """Choose among methods, the simplest first in `order`; `common` is the plain method that clients train together.

    A method is *able* if its paired interval shows that it beats the better baseline. It is *tied* if it is less
    than a point behind the most accurate, or is not shown to be behind. A gain is worth a more complex method if it is
    a point or more and its interval lies above 0. Advised is the simplest that is able and tied; a method more complex
    than the common one must also be shown to gain over it. If no method is able, none is advised.
    """
    means = judged.means
    best = max(order, key=lambda name: means[name])
    baseline = max(judged.baselines, key=lambda name: means[name])
    others = len(order) - 1  # the best is one of several: intervals are simultaneous, as those of the gains
    tied = tuple(m for m in order if m == best or not _worth(judged.difference(best, m, comparisons=others)))
    able = [m for m in tied if _above(judged.difference(m, baseline), 0.0)]
    sure = [m for m in able if m in ("local", common) or _above(judged.difference(m, common), 0.0)]
    over = judged.difference(best, baseline)
    return Choice(sure[0] if sure else None, best, tied, over, baseline)


def _worth(gain: Interval) -> bool:
    return _above(gain, 0.0) and gain["value"] >= WORTH


def _above(gain: Interval, least: float) -> bool:
    return gain["low"] is not None and gain["low"] > least


def stability(
    judged: Judged, choice: Choice, *, order: tuple[str, ...] = ORDER, common: str = "fedavg", seed: int
) -> dict[str, Any]:
    """Count how often the same method is advised for redrawn clients (for sites: rows), and which others are."""
    rng = Key(seed, purpose="redraws of a tournament").generator()
    drawn = [choose(judged.redrawn(rng), order=order, common=common).advised for _ in range(REDRAWS)]
    others = {str(m): drawn.count(m) for m in dict.fromkeys(drawn) if m != choice.advised}
    return {"redraws": REDRAWS, "same": drawn.count(choice.advised), "others": others}

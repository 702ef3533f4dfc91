"""Choose the method to advise, and say which others are tied with it; or none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fedscape.core.random import Key
from fedscape.studies.intervals import Interval
from fedscape.studies.judged import Judged
from fedscape.studies.tournament import ENTRANTS

WORTH = 0.01  # a point of accuracy: less is not worth a more complicated method
NEAR = WORTH / 2  # an estimate this near to the best is most likely within a point of it
REDRAWS = 100
#: The simplest first: training alone needs no federation.
ORDER = tuple(sorted(ENTRANTS, key=lambda name: name != "local"))


@dataclass(frozen=True)
class Choice:
    """The outcome of a tournament: the advised method or None, the most accurate, those tied with it, the simplest."""

    advised: str | None
    best: str
    tied: tuple[str, ...]
    simplest: str | None  # of the tied that are shown to beat guessing
    over: Interval
    baseline: str


def choose(judged: Judged, *, order: tuple[str, ...] = ORDER, common: str = "fedavg") -> Choice:
    """Choose among methods, the simplest first in `order`; `common` is the plain method that clients train together.

    Methods of the order without hits have left the tournament; the intervals are simultaneous for all of the order.

    A method is *able* if its paired interval shows that it beats the better baseline, and *supported* if it is also
    local, the common one, or shown to gain over the common one. It is *tied* unless it is a point or more behind the
    most accurate of all, and shown to be behind. Advised is the simplest supported method that is less than half a
    point behind the most accurate of them, or is shown to be at most a point behind it; one that is not tied only if
    no supported one is. If no method is able, none is advised. The intervals are simultaneous: the most accurate is one
    of several.
    """
    means, present = judged.means, [name for name in order if name in judged.hits]
    best = max(present, key=lambda name: means[name])
    baseline = max(judged.baselines, key=lambda name: means[name])

    def lead(first: str, second: str) -> Interval:
        return judged.difference(first, second, comparisons=len(order) - 1)

    tied = tuple(m for m in present if m == best or not _worth(lead(best, m)))
    able = [m for m in present if _above(judged.difference(m, baseline), 0.0)]
    supported = [m for m in able if m in ("local", common) or _above(lead(m, common), 0.0)]
    supported = [m for m in supported if m in tied] or supported
    top = max(supported, key=lambda name: means[name], default=None)
    advised = next((m for m in supported if top in (None, m) or _near(lead(str(top), m))), None)
    simplest = next((m for m in tied if m in able), None)
    return Choice(advised, best, tied, simplest, judged.difference(best, baseline), baseline)


def _near(loss: Interval) -> bool:
    return bool(loss["value"] < NEAR or (loss["high"] is not None and loss["high"] <= WORTH))


def rivals(judged: Judged, choice: Choice, *, order: tuple[str, ...] = ORDER) -> tuple[str, ...]:
    """Methods that further clients may still show to be better than the advice by more than a point.

    Without any, the advice is settled: it is shown to lose at most a point against every method (where none is advised:
    guessing is).
    """
    mine = choice.baseline if choice.advised is None else choice.advised
    others = [name for name in choice.tied if name != mine]
    ahead = {name: judged.difference(name, mine, comparisons=len(order) - 1)["high"] for name in others}
    return tuple(name for name, high in ahead.items() if high is None or high > WORTH)


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

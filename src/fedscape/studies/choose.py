"""Choose the method to advise, and say which others are tied with it; or none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fedscape.core.random import Key
from fedscape.studies.intervals import Interval
from fedscape.studies.judged import Judged
from fedscape.studies.tournament import ENTRANTS, Tuned, typical

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
    simplest: str | None  # of those shown to beat guessing, tied ones first
    over: Interval
    baseline: str


def choose(judged: Judged, *, order: tuple[str, ...] = ORDER, common: str = "fedavg") -> Choice:
    """Choose among methods, the simplest first in `order`; `common` is the plain method that clients train together.

    Methods of the order without hits have left the tournament; the intervals are simultaneous for all of the order.

    A method is *able* if its paired interval shows that it beats the better baseline, and *tied* unless it is a point
    or more behind the most accurate of all, and shown to be behind. Of those that are both (of the able, if none is),
    the *supported* are local, the common one, and those shown to gain over the common one; if there is none, all. Then
    the common one is not able itself, and guessing is what has to be beaten. Advised is the simplest supported method
    that is less than half a point behind the most accurate of them, or is shown to be at most a point behind it. If no
    method is able, none is advised. All intervals are simultaneous: the most accurate is one of several, and so is the
    one that beats guessing.
    """
    means, present = judged.means, [name for name in order if name in judged.hits]
    best = max(present, key=lambda name: means[name])
    baseline = max(judged.baselines, key=lambda name: means[name])

    def lead(first: str, second: str) -> Interval:
        return judged.difference(first, second, comparisons=len(order) - 1)

    tied = tuple(m for m in present if m == best or not _worth(lead(best, m)))
    able = [m for m in present if _above(judged.difference(m, baseline, comparisons=len(order)), 0.0)]
    likely = [m for m in able if m in tied] or able
    supported = [m for m in likely if m in ("local", common) or _above(lead(m, common), 0.0)] or likely
    top = max(supported, key=lambda name: means[name], default=None)
    advised = next((m for m in supported if top in (None, m) or _near(lead(str(top), m))), None)
    simplest = next(iter(likely), None)
    over = judged.difference(best, baseline, comparisons=len(order))
    return Choice(advised, best, tied, simplest, over, baseline)


def _near(loss: Interval) -> bool:
    return bool(loss["value"] < NEAR or (loss["high"] is not None and loss["high"] <= WORTH))


def climbing(settings: Sequence[Tuned]) -> float:
    """What as many rounds more may bring: what the second half brought, or 0 if it was less than half a point."""
    climbs = typical(settings).climbs
    return climbs if climbs >= NEAR else 0.0


def may_lead(judged: Judged, name: str, choice: Choice, *, order: tuple[str, ...] = ORDER, climbs: float = 0.0) -> bool:
    """Whether a method may still be more than a point better than the advice (where none is advised: than guessing).

    `climbs` is what the method may gain by as many rounds more as it had.
    """
    mine = choice.baseline if choice.advised is None else choice.advised
    if mine not in judged.hits:
        return True
    high = judged.difference(name, mine, comparisons=len(order) - 1)["high"]
    return name != mine and (high is None or high + climbs > WORTH)


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

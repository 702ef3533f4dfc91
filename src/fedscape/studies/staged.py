"""A tournament in stages: more clients and rows for the methods that may still be advised, until advice is settled."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from fedscape.core.federation import Federation
from fedscape.core.random import Key
from fedscape.studies.budget import LARGEST, ROWS_EACH, Budget, Limits
from fedscape.studies.choose import Choice, choose, may_lead
from fedscape.studies.judged import Judged
from fedscape.types import Array

J = TypeVar("J", bound=Judged)
#: Has methods compete on these rows, all for the same rounds: what they are judged by, and the settings that they had.
Play = Callable[[Federation, Limits, dict[str, int]], tuple[J, dict[str, list[Any]]]]
#: What a method may gain by as many rounds more, of its settings in the repeats.
Climbs = Callable[[list[Any]], float]


@dataclass(frozen=True, eq=False)
class Stage(Generic[J]):
    """A stage that was played: its caps, rounds, clients (positions) and rows, the hits, the rates, the outcome."""

    limits: Limits
    rounds: int
    who: Array
    rows: Federation
    judged: J
    used: dict[str, list[Any]]
    choice: Choice
    rivals: tuple[str, ...]  # methods that may still be a point better than the advice
    climbing: dict[str, float]  # those of them that still climb: what their last doubling of rounds brought

    @property
    def settled(self) -> bool:
        return not self.rivals


def staged(
    rows: Federation,
    budget: Budget,
    play: Play[J],
    *,
    order: tuple[str, ...],
    common: str,
    seed: int,
    climbs: Climbs = lambda _: 0.0,
    apart: Collection[str] = (),
) -> list[Stage[J]]:
    """Play the stages of a budget until the advice is settled or nothing is left to use.

    Every stage has the clients and rows of the one before. A method leaves if it is shown to be a point or more behind
    the most accurate one, or to be at most a point ahead of the one advised; training alone, the common method and the
    advised one stay. So does one that climbs and might catch up by climbing on. A method that was at most a point ahead
    comes back if other advice takes the place of what it was compared with.

    Where one that stays climbs, all that stay have four times the rounds in the next stage, if that allows it: whether
    a method climbs is an estimate, and methods of unlike lengths are not comparable. Those `apart`, whose rounds are of
    another kind, have more only where they climb themselves.

    So a larger budget begins as a smaller one does. If that settled the advice it is the same.
    """
    played: list[Stage[J]] = []
    names, upward, had = order, dict.fromkeys(order, 0.0), dict.fromkeys(order, 0)
    for limits in budget.stages:
        each = max(ROWS_EACH, int(played[-1].rows.sizes.max())) if played else ROWS_EACH
        who = clients_of_stage(rows, limits, each=each, seed=seed)
        mine = fewer_rows(rows.take(who), most=limits.rows, seed=seed)
        if played and not _more(played[-1], mine, limits):
            continue
        had = _lengths(had, limits, [m for m in names if upward[m] > 0], apart)
        judged, used = play(mine, limits, {m: had[m] for m in names})
        choice = choose(judged, order=order, common=common)
        last = {name: (stage.judged, stage.choice) for stage in played for name in stage.used}
        last |= dict.fromkeys(used, (judged, choice))
        upward |= {m: climbs(settings) for m, settings in used.items()}
        left = tuple(
            m
            for m in order
            if (m in last[m][1].tied or upward[m] > 0)
            and may_lead(last[m][0], m, choice, order=order, climbs=upward[m])
        )
        up = {m: upward[m] for m in left if upward[m]}
        n_rounds = max(had[m] for m in order if m not in apart)
        played.append(Stage(limits, n_rounds, who, mine, judged, used, choice, left, up))
        if not left:
            break
        names = tuple(name for name in order if name in ("local", common, choice.advised, *left))
    return played


def _lengths(had: dict[str, int], limits: Limits, up: Sequence[str], apart: Collection[str]) -> dict[str, int]:
    """The rounds of each method in the next stage: all alike, but for those apart."""
    together = any(m not in apart for m in up)
    return {
        m: max(limits.rounds, n, min(4 * n, limits.longest) if (m in up if m in apart else together) else 0)
        for m, n in had.items()
    }


def tied(played: Sequence[Stage[J]], order: tuple[str, ...]) -> list[str]:
    """Methods that were tied with the most accurate in the last stage that they were in."""
    last = {name: stage.choice.tied for stage in played for name in stage.used}
    return [name for name in order if name in last[name]]


def _more(before: Stage[J], rows: Federation, limits: Limits) -> bool:
    """Whether a stage would use more than the one before."""
    then = before.limits
    longer = limits.rounds > then.rounds or (before.climbing and limits.longest > then.longest)
    return bool(rows.n_rows > before.rows.n_rows or longer or limits.repeats > then.repeats)


def clients_of_stage(rows: Federation, limits: Limits, *, each: int, seed: int) -> Array:
    """The clients of a stage: as many as fit its rows with at most `each`, those of an earlier stage among them.

    Clients have two rows or more. The first ones by the seed are taken, at most `limits.clients`.
    """
    able = np.flatnonzero(rows.sizes >= 2)
    drawn = Key(seed, purpose="clients of a tournament").generator().permutation(able)
    fit = int(np.searchsorted(np.cumsum(np.minimum(rows.sizes[drawn], each)), limits.rows, side="right"))
    return np.sort(drawn[: min(fit, limits.clients)])


def fewer_rows(rows: Federation, *, most: int, seed: int) -> Federation:
    """Cap the total number of rows by a cap per client; a larger total keeps the rows of a smaller one."""
    if rows.n_rows <= most:
        return rows
    low = most_per_client(rows.sizes, most)
    owner = rows.client_of_row
    order = np.argsort(owner + Key(seed, purpose="rows of a tournament").uniform_rows(rows), kind="stable")
    kept = np.zeros(rows.n_rows, dtype=bool)
    kept[order[np.arange(rows.n_rows) - rows.offsets[owner] < low]] = True
    return rows.where(kept)


def most_per_client(sizes: Array, most: int) -> int:
    """The largest cap on rows per client with at most `most` rows in all, at least one.

    >>> most_per_client(np.array([2, 9, 9]), 12)
    5
    """
    low, high = 1, int(sizes.max())
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if np.minimum(sizes, middle).sum() <= most else (low, middle - 1)
    return low


def left_out(rows: Federation, stage: Stage[J]) -> str:
    """What a stage did not use of the clients and rows; empty if it used all."""
    able = int((rows.sizes >= 2).sum())
    if len(stage.who) < able:
        return f"The tournament uses {len(stage.who):,} of the {able:,} clients, chosen by the seed"
    if stage.rows.n_rows < rows.take(stage.who).n_rows:
        return f"Clients train and test on at most {int(stage.rows.sizes.max()):,} of their rows each"
    return ""


def notes_of(rows: Federation, played: Sequence[Stage[J]], budget: str) -> list[str]:
    """What the last stage left out, and why."""
    what = left_out(rows, played[-1])
    more = "no budget has more" if budget == LARGEST else "a larger --budget uses more"
    why = "that settled the advice" if played[-1].settled else more
    return [f"{what}; {why}."] if what else []


def about_stage(stage: Stage[J]) -> dict[str, Any]:
    """What took part in a stage, and what it said."""
    numbers = {"clients": len(stage.who), "rows": stage.rows.n_rows}
    numbers |= {"rounds": stage.rounds, "repeats": stage.limits.repeats}
    outcome = {"advised": stage.choice.advised, "settled": stage.settled}
    return {**numbers, "methods": list(stage.used), **outcome}

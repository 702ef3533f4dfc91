"""The size of a tournament: stages of ever more clients, rows, rounds and repeats for a given time."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fedscape.errors import DataError


@dataclass(frozen=True)
class Limits:
    """Caps on one stage of a tournament."""

    clients: int
    rows: int
    rounds: int
    repeats: int
    longest: int = 0  # rounds where a method climbs, at least `rounds`


@dataclass(frozen=True)
class Budget:
    """The stages that a tournament may go through; it stops where its advice is settled.

    The clock is never read: the same budget gives the same result on any machine. The name is about the time that a
    whole study takes on one core if the data reach the caps and nothing is settled before the end.
    """

    name: str
    stages: tuple[Limits, ...]


_LADDER = (  # a larger budget begins with the stages of a smaller one, and never undoes what these have shown
    Limits(clients=60, rows=12_000, rounds=20, repeats=4, longest=20),
    Limits(clients=240, rows=12_000, rounds=20, repeats=4, longest=80),
    Limits(clients=1_000, rows=48_000, rounds=20, repeats=4, longest=160),
    Limits(clients=10_000, rows=240_000, rounds=40, repeats=8, longest=320),
)
BUDGETS = {name: Budget(name, _LADDER[:n]) for name, n in (("30s", 2), ("2min", 3), ("20min", 4))}
DEFAULT, LARGEST = "30s", "20min"
ROWS_EACH = 200  # rows of a client, where more clients wait: rows of other clients say more


def budget_of(name: str, *, rounds: int | None = None, repeats: int | None = None) -> Budget:
    """Look up a budget, with other rounds or repeats in every stage if passed.

    >>> budget_of("30s", rounds=5).stages[0]
    Limits(clients=60, rows=12000, rounds=5, repeats=4, longest=5)
    """
    if name not in BUDGETS:
        raise DataError(f"budget must be one of {', '.join(BUDGETS)}, not {name!r}")
    if min(1 if rounds is None else rounds, 1 if repeats is None else repeats) < 1:
        first = BUDGETS[name].stages[0]
        values = (first.rounds if rounds is None else rounds, first.repeats if repeats is None else repeats)
        raise DataError(f"rounds and seeds must be at least 1, not {values[0]} and {values[1]}")
    return Budget(
        name,
        tuple(
            replace(
                limits,
                rounds=rounds or limits.rounds,
                repeats=repeats or limits.repeats,
                longest=rounds or limits.longest,
            )
            for limits in BUDGETS[name].stages
        ),
    )

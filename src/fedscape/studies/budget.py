"""The size of a tournament: clients, rows, rounds and repeats for a given time."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fedscape.errors import DataError


@dataclass(frozen=True)
class Budget:
    """Caps on a tournament. The clock is never read: the same budget gives the same result on any machine.

    The name is about the time that a whole study takes on one core if the data reach the caps.
    """

    name: str
    clients: int
    rows: int
    rounds: int
    repeats: int


BUDGETS = {
    "30s": Budget("30s", clients=60, rows=12_000, rounds=20, repeats=4),
    "2min": Budget("2min", clients=300, rows=40_000, rounds=30, repeats=8),
    "20min": Budget("20min", clients=3_000, rows=200_000, rounds=40, repeats=12),
}
DEFAULT = "30s"


def budget_of(name: str, *, rounds: int | None = None, repeats: int | None = None) -> Budget:
    """Look up a budget, with other rounds or repeats if passed.

    >>> budget_of("2min", rounds=5)
    Budget(name='2min', clients=300, rows=40000, rounds=5, repeats=8)
    """
    if name not in BUDGETS:
        raise DataError(f"budget must be one of {', '.join(BUDGETS)}, not {name!r}")
    budget = BUDGETS[name]
    budget = replace(budget, rounds=budget.rounds if rounds is None else rounds)
    budget = replace(budget, repeats=budget.repeats if repeats is None else repeats)
    if budget.rounds < 1 or budget.repeats < 1:
        raise DataError(f"rounds and seeds must be at least 1, not {budget.rounds} and {budget.repeats}")
    return budget

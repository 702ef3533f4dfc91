"""How far a tournament goes: clients, rows, rounds and repeats for the time that a person has."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fedscape.errors import DataError


@dataclass(frozen=True)
class Budget:
    """What a tournament may use. The clock is never read: the same budget gives the same result on any machine.

    The names say about how long a whole study takes on one core where the data fill the budget.
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
    """The budget of a name, with other rounds or repeats where they are given.

    >>> budget_of("2min", rounds=5)
    Budget(name='2min', clients=300, rows=40000, rounds=5, repeats=8)
    """
    if name not in BUDGETS:
        raise DataError(f"budget must be one of {', '.join(BUDGETS)}, not {name!r}")
    known = BUDGETS[name]
    made = replace(known, rounds=known.rounds if rounds is None else rounds)
    made = replace(made, repeats=known.repeats if repeats is None else repeats)
    if made.rounds < 1 or made.repeats < 1:
        raise DataError(f"rounds and seeds must be at least 1, not {made.rounds} and {made.repeats}")
    return made

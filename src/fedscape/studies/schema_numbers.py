"""The section numbers of a study's result, key by key."""

from __future__ import annotations

from typing import NotRequired, TypedDict

from fedscape.studies.schema_learn import ByKind, Interval, Joining, Lead, Stability, StageOfTournament


class WorstError(Interval):
    """The mean absolute error of the clients served worst, how many, and what was seen of them."""

    clients: int
    seen: float


class NumberStanding(TypedDict):
    """A model of a number, or a mean: R2, errors in units of the target, gain over the common model."""

    method: str
    called: str
    baseline: bool
    r2: Interval
    together: Interval
    rmse: Interval
    mae: Interval
    worst: WorstError
    gain: Interval | None
    over: Interval | None
    behind: Interval
    better: NotRequired[float]
    setting: float | None
    clients: int  # of the last stage that the model was in


class NumberCost(TypedDict):
    """What the costliest round of a model costs a client, and what the server sees of it."""

    method: str
    called: str
    bytes_up: int
    bytes_down: int
    revealed: list[str]


class Numbers(TypedDict):
    """The section numbers: models of a number, compared by R2 on rows held out."""

    target: str
    clients: int
    sites: bool
    test_rows: int
    train_rows: int
    seeds: int
    budget: str
    capped: bool
    stages: list[StageOfTournament]
    inputs: int
    mean: float
    spread: float
    true: list[NumberStanding]
    advised: str | None
    best: str
    tied: list[str]
    simplest: str | None
    over: Lead
    stability: Stability
    federated: Interval
    federated_method: str
    by_kind: list[ByKind]
    costs: list[NumberCost]
    joining: NotRequired[Joining]

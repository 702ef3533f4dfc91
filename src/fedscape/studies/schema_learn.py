"""Types of the section learn of a result."""

from __future__ import annotations

from typing import NotRequired, TypedDict


class Interval(TypedDict):
    """A number and the ends of its 95% interval; None if there is none."""

    value: float | None
    low: float | None
    high: float | None


class Worst(Interval):
    """Accuracy of the worst-served clients, their number, the observed value, and the one if all were equal."""

    clients: int
    seen: float
    equal: float | None


class Standing(TypedDict):
    """A method in the tournament, or a baseline: guessing without training."""

    method: str
    called: str
    baseline: bool
    accuracy: Interval
    together: Interval
    worst: Worst
    gain: Interval | None
    over: Interval | None
    behind: NotRequired[Interval]
    better: NotRequired[float]
    lr: NotRequired[float | None]
    rounds: NotRequired[int | None]
    seeds: float | None
    clients: NotRequired[int]  # of the last stage that the method was in


class StageOfTournament(TypedDict):
    """Who took part in a stage of a tournament, and what it said."""

    clients: int
    rows: int
    rounds: int
    repeats: int
    methods: list[str]
    advised: str | None
    settled: bool


class Cohort(TypedDict):
    """FedAvg with this number of clients per round."""

    clients: int
    curve: list[list[float]]
    accuracy: Interval
    behind: Interval


class Seconds(TypedDict):
    """The median client's seconds, and the ends of the middle half."""

    value: float
    low: float
    high: float


class Cost(TypedDict):
    """What a round of a method costs a client, and what the server sees of it."""

    method: str
    called: str
    bytes_up: int
    bytes_down: int
    seconds: Seconds
    summed: list[str]
    revealed: list[str]
    kept: list[str]
    rounds: NotRequired[int]


class ByKind(Interval):
    """The accuracy of the clients of one kind, under the advised method and under each."""

    kind: str
    clients: int
    methods: NotRequired[dict[str, Interval]]


class Prediction(TypedDict):
    """Results on simulated clients beside those on the true ones."""

    predicted: str
    realised: str
    same: bool
    method: str
    gain: Interval
    true_gain: Interval
    error: float


class Lead(Interval):
    """Lead of the most accurate method over the better baseline."""

    method: str
    baseline: str


class Stability(TypedDict):
    """Number of redraws of the clients in which the same method is advised, and counts of others."""

    redraws: int
    same: int
    others: dict[str, int]


class Site(TypedDict):
    """Accuracy of a site alone and joined, on its own rows."""

    site: str
    size: str
    alone: Interval
    joined: Interval
    gain: Interval
    verdict: str


class Spread(Interval):
    """A random-effects meta-analysis of the sites' gains (DerSimonian and Laird)."""

    q: float
    tau2: float
    i2: float
    p: float
    sites: int


class Joining(TypedDict):
    """What each of a few sites gains by joining."""

    method: str
    called: str
    rows: list[Site]
    spread: Spread
    pooled: Interval


class Learn(TypedDict):
    """The section learn."""

    clients: int
    sites: bool
    test_rows: int
    train_rows: int
    rounds: int
    seeds: int
    budget: str
    capped: bool
    stages: list[StageOfTournament]
    model: str
    inputs: int
    true: list[Standing]
    simulated: list[Standing]
    advised: str | None
    best: str
    tied: list[str]
    simplest: str | None
    over: Lead
    stability: Stability
    climbing: NotRequired[dict[str, float]]  # methods that may overtake by climbing on: what their last rounds brought
    joining: NotRequired[Joining]
    cohorts: list[Cohort]
    costs: list[Cost]
    by_kind: list[ByKind]
    federated: Interval
    federated_method: str
    settled: int
    prediction: Prediction

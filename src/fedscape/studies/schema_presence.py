"""Types of the section presence: who is there when, and training in virtual time."""

from __future__ import annotations

from typing import NotRequired, TypedDict

from fedscape.studies.schema_learn import Interval


class Hour(Interval):
    """Share of devices that are there in an hour of the day; None where few ever are."""

    hour: int


class TwinTest(TypedDict):
    """A twin of half of the devices, tested against the other half, and the aspect with the lowest p-value."""

    fitted: int
    tested: int
    p: float
    worst: str


class PresenceOfKind(TypedDict):
    """Share of a kind that is there by hour of the day; None where few ever are. P-value of equal hours, Bonferroni."""

    shares: list[float | None]
    rhythm: float | None


class ProtocolRuns(TypedDict):
    """A protocol: mean hours to the target (None if some run did not reach it), and runs that did."""

    name: str
    reached: int
    hours: Interval
    device_hours: float
    wasted_hours: float


class PartOfKind(TypedDict):
    """The part of a kind of clients: share of reports over share of clients, and accuracy less that of all."""

    kind: str
    clients: int
    never: float
    rare: bool
    ratio: Interval
    gap: Interval


class Sooner(TypedDict):
    """Hours by which asynchronous training is sooner, with its simultaneous interval; None is without a bound."""

    answer: str
    hours: float | None
    low: float | None
    high: float | None
    at_least: bool


class VirtualTraining(TypedDict):
    """FedAvg by three protocols in virtual time."""

    of: str
    assumed: bool
    size: int
    deadline: float
    target: float
    runs: int
    days: float
    protocols: list[ProtocolRuns]
    parts: list[PartOfKind]
    asynchronous: Sooner


class Presence(TypedDict):
    """The section presence; `column` is None for a log of its own, `rhythm` the p-value of equal hours."""

    column: str | None
    devices: int
    sessions: int
    days: float
    at_once: float
    length: Interval
    hours: list[Hour]
    kinds: NotRequired[dict[str, PresenceOfKind]]
    rhythm: float | None
    most: int | None
    fewest: int | None
    twin: TwinTest | None
    training: NotRequired[VirtualTraining]

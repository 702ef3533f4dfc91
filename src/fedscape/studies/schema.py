"""Types of the result of a study: what result.json holds, and report, compare and the commands read."""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict

from fedscape.studies.schema_learn import Interval, Learn
from fedscape.studies.schema_media import Images, Sequences
from fedscape.studies.schema_numbers import Numbers
from fedscape.studies.schema_presence import Presence

FORMAT = 2


class Asked(TypedDict):
    """The arguments of the caller, besides the data."""

    features: list[str] | None
    epsilon: float | None
    budget: str | None
    rounds: int | None
    seeds: int | None
    sites: bool | None
    methods: NotRequired[list[str] | None]


class About(TypedDict):
    """What was studied, and where it was computed."""

    source: str
    column: str
    labels: bool
    features: list[str]
    seed: int
    show_clients: bool
    versions: dict[str, str]
    machine: str
    asked: Asked
    command: str | None


class Finding(TypedDict):
    """A finding about the data, as the report shows it."""

    kind: str
    column: str | None
    text: str


class Column(TypedDict):
    """A column of the data, before any change."""

    name: str
    type: str
    shape: list[int] | None
    missing: int
    categories: NotRequired[int]


class Sizes(TypedDict):
    """Histogram of the clients' sizes."""

    edges: list[float]
    clients: list[int]
    log_mean: Interval


class Categories(TypedDict):
    """The categories: rows and clients that have them, the clients' mean shares and the covariance of that mean."""

    names: list[str]
    ordered: bool
    rows: list[int]
    clients: list[int]
    mean_share: list[float]
    clients_with_rows: int
    covariance: list[list[float]]


class Describe(TypedDict):
    """The section describe."""

    clients: int
    rows: int
    clients_without_rows: int
    rows_per_client: dict[str, Any]
    columns: list[Column]
    sizes: Sizes
    categories: Categories


class LabelSkew(TypedDict):
    """Heterogeneity of labels; value, low and high only if two clients have two rows."""

    tvd: float
    tvd_iid: float
    tvd_iid_sd: float
    categories: int
    value: NotRequired[float]
    low: NotRequired[float | None]
    high: NotRequired[float | None]
    clients: NotRequired[int]


class FeatureSkew(TypedDict):
    """Heterogeneity of features; `by_labels` is the part that labels explain."""

    clients: int
    value: NotRequired[float]
    low: NotRequired[float | None]
    high: NotRequired[float | None]
    by_labels: NotRequired[FeatureSkew]


class Quantity(Interval):
    """Gini coefficient of the sizes."""

    effective_clients: float
    clients: int


class Places(TypedDict):
    """Positions of clients on a map; [None, None] for one without.

    `axes` maps shares of categories to it: two rows of weights, the constant last, only where clients are shown.
    `toward` names the categories that clients to the right, and to the top, have most and least of.
    """

    points: list[list[float | None]]
    explained: float
    axes: NotRequired[list[list[float]]]
    toward: NotRequired[list[list[str]]]


class ClientMap(TypedDict):
    """The maps of clients by labels and by features, with name, kind and size of each point."""

    labels: Places
    features: NotRequired[Places]
    client: list[str]
    kind: list[str]
    size: list[str]


class Measured(TypedDict):
    """The section measure."""

    labels: LabelSkew
    quantity: Quantity
    features: NotRequired[FeatureSkew]
    map: ClientMap


class Candidate(TypedDict):
    """A candidate number of kinds, scored on held-out clients."""

    components: int
    score: float
    behind: float
    error: float


class KindOfClient(TypedDict):
    """One kind of clients."""

    kind: str
    share: Interval
    size: float
    scale: float | str
    means: list[float]
    words: str


class Price(TypedDict):
    """Expected error of a private count of the categories."""

    epsilon: float
    delta: float
    clip: float
    multiplier: float
    error: float


class Spent(TypedDict):
    """Privacy spent by a private count."""

    unit: str
    relation: str
    place: str
    epsilon: float
    delta: float


class FoundNames(TypedDict):
    """Categories found with part of the budget, as many clients as each needed, and epsilon of the search."""

    names: list[str]
    clients: float
    epsilon: float


class Census(TypedDict):
    """The private count of the categories."""

    shares: list[float]
    error: float
    clip: float
    multiplier: float
    spent: list[Spent]
    found: NotRequired[FoundNames]


class Model(TypedDict):
    """The section model."""

    candidates: list[Candidate]
    names: list[str]
    pool: list[float]
    components: list[KindOfClient]
    rounds: int
    bytes_up: int
    price: list[Price]
    census: NotRequired[Census]


class Profile(TypedDict):
    """A numeric column: mean and spread of clients' means, and blurred ranges that hold all clients of the study."""

    name: str
    clients: int
    mean: float
    sd: float | None
    missing: float
    missing_most: float
    low: float
    high: float
    median_low: float
    median_high: float
    constant: bool


class Moments(TypedDict):
    """Mean and standard deviation over clients."""

    mean: float | None
    sd: float | None
    clients: int


class Ranks(TypedDict):
    """Fit of clients to the kinds: a histogram of the ranks of their likelihoods among draws from the mixture."""

    ranks: list[int]
    clients: int


class Reference(TypedDict):
    """The reference of a later check."""

    columns: list[Profile]
    sizes: Moments
    kinds: Ranks
    duplicates_most: float
    cuts: NotRequired[list[float]]


class Measure(Interval):
    """One measure of fidelity, its value under equal distributions, and the p-value of that."""

    alike: float
    p: float


class Fidelity(TypedDict):
    """Fidelity of simulated clients to the true ones."""

    misfit: Measure
    auc: Measure
    distance: Measure
    size: Measure
    pool: Measure
    sketch: NotRequired[Measure]
    missing: float
    invented: float
    clients: dict[str, int]


class Simulate(TypedDict):
    """The section simulate."""

    mixture: Fidelity
    iid: Fidelity


class Curve(TypedDict):
    """The share of a category by period; None where it is withheld."""

    name: str
    shares: list[float | None]


class Time(TypedDict):
    """The section time: what there is by period; None where it is about too few clients to be shared."""

    column: str
    period: str
    starts: list[str]
    rows: list[int | None]
    clients: list[int | None]
    kinds: dict[str, list[int | None]]
    categories: list[Curve]
    withheld: int
    undated: int


class Against(TypedDict):
    """A reference for the figures: what an earlier study or a population says of the same numbers."""

    source: str
    form: str
    clients: int
    mean_share: list[float]
    kinds: list[dict[str, Any]]
    closest: dict[str, dict[str, Any]]
    rows: NotRequired[list[float]]
    sizes: NotRequired[dict[str, list[float]]]
    measure: NotRequired[dict[str, Interval | None]]
    candidates: NotRequired[list[Candidate]]
    fidelity: NotRequired[dict[str, Interval | None]]
    learn: NotRequired[dict[str, Any]]
    time: NotRequired[dict[str, Any]]
    drift: NotRequired[dict[str, Any]]


class Item(Interval):
    """A question, its answer in a word and in a sentence, and the number behind it."""

    question: str
    answer: str
    text: str


class InTime(TypedDict):
    """The section clock: a cycle of the labels in time, and what training through it does."""

    column: str
    unit: str
    slots: int
    p: float
    period: float | None
    interval: list[float] | None
    accuracy: NotRequired[dict[str, Any]]


class Result(TypedDict):
    """The result of a study."""

    format: Literal[2]
    findings: list[Finding]
    about: About
    describe: Describe
    images: NotRequired[Images]
    sequences: NotRequired[Sequences]
    measure: Measured
    model: Model
    reference: Reference
    simulate: NotRequired[Simulate]
    learn: NotRequired[Learn]
    time: NotRequired[Time]
    clock: NotRequired[InTime]
    presence: NotRequired[Presence]
    against: NotRequired[Against]
    numbers: NotRequired[Numbers]
    advise: list[Item]
    notes: list[str]
    clients: NotRequired[list[dict[str, Any]]]

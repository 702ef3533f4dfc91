"""The result of a study, key by key: what is written to result.json, and what report, compare and the commands read."""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict

FORMAT = 2


class Interval(TypedDict):
    """A number and the ends of its 95% interval; None where there is none."""

    value: float | None
    low: float | None
    high: float | None


class Asked(TypedDict):
    """What the caller asked for, beside the data."""

    features: list[str] | None
    epsilon: float | None
    budget: str | None
    rounds: int | None
    seeds: int | None
    sites: bool | None


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
    """Something odd in the data, as a reader of the report is told."""

    kind: str
    column: str | None
    text: str


class Column(TypedDict):
    """A column of the data as it was given."""

    name: str
    type: str
    shape: list[int] | None
    missing: int
    categories: NotRequired[int]


class Sizes(TypedDict):
    """How many clients have how many rows."""

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
    """How far clients are apart in labels; value, low and high only where two clients have two rows."""

    tvd: float
    tvd_iid: float
    tvd_iid_sd: float
    categories: int
    value: NotRequired[float]
    low: NotRequired[float | None]
    high: NotRequired[float | None]
    clients: NotRequired[int]


class FeatureSkew(TypedDict):
    """How far clients are apart in features; `by_labels` is what labels alone would explain."""

    clients: int
    value: NotRequired[float]
    low: NotRequired[float | None]
    high: NotRequired[float | None]
    by_labels: NotRequired[FeatureSkew]


class Quantity(Interval):
    """How uneven sizes are (Gini)."""

    effective_clients: float
    clients: int


class Places(TypedDict):
    """The places of clients on a map; [None, None] for one without a place."""

    points: list[list[float | None]]
    explained: float


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
    """A number of kinds that was tried on clients held out."""

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
    """What a private count of the categories would cost."""

    epsilon: float
    delta: float
    clip: float
    multiplier: float
    error: float


class Spent(TypedDict):
    """What a private count has cost."""

    unit: str
    relation: str
    place: str
    epsilon: float
    delta: float


class Census(TypedDict):
    """The private count of the categories."""

    shares: list[float]
    error: float
    clip: float
    multiplier: float
    spent: list[Spent]


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


class Measure(Interval):
    """One number of a fidelity, what equal laws would give, and the p-value of equal laws."""

    alike: float
    p: float


class Fidelity(TypedDict):
    """How alike simulated clients are to the true ones."""

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


class Worst(Interval):
    """The accuracy of the clients served worst, how many, what was seen of them, and would be if all were equal."""

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
    seeds: float | None


class Cohort(TypedDict):
    """FedAvg with so many clients a round."""

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


class ByKind(Interval):
    """The accuracy of the clients of one kind."""

    kind: str
    clients: int


class Prediction(TypedDict):
    """What simulated clients predicted, beside what the true ones have."""

    predicted: str
    realised: str
    same: bool
    method: str
    gain: Interval
    true_gain: Interval
    error: float


class Lead(Interval):
    """By how much the most accurate method leads the better baseline."""

    method: str
    baseline: str


class Stability(TypedDict):
    """In how many redraws of the clients the same method is advised, and how often others are."""

    redraws: int
    same: int
    others: dict[str, int]


class Site(TypedDict):
    """A site alone and joined, over its own rows."""

    site: str
    rows: int
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
    model: str
    inputs: int
    true: list[Standing]
    simulated: list[Standing]
    advised: str | None
    best: str
    tied: list[str]
    over: Lead
    stability: Stability
    joining: NotRequired[Joining]
    cohorts: list[Cohort]
    costs: list[Cost]
    by_kind: list[ByKind]
    federated: Interval
    federated_method: str
    settled: int
    prediction: Prediction


class Item(Interval):
    """A question, its answer in a word and in a sentence, and the number behind it."""

    question: str
    answer: str
    text: str


class Result(TypedDict):
    """The result of a study."""

    format: Literal[2]
    findings: list[Finding]
    about: About
    describe: Describe
    measure: Measured
    model: Model
    simulate: NotRequired[Simulate]
    learn: NotRequired[Learn]
    advise: list[Item]
    notes: list[str]
    clients: NotRequired[list[dict[str, Any]]]

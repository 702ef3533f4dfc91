"""Further numbers of the table of `calibration.py`: features, sites, checks, who is there, devices in virtual time."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from fedscape import Federation, Key, MixtureOfDirichletMultinomials
from fedscape.sketches import heterogeneity
from fedscape.studies.check import _welch, check_population
from fedscape.studies.compare import _row as compared
from fedscape.studies.intervals import mean_interval
from fedscape.studies.judged import Judged
from fedscape.studies.judged_numbers import JudgedNumbers
from fedscape.studies.measure import sketched
from fedscape.studies.media import _of_clients
from fedscape.studies.presence import _rhythm, _who
from fedscape.studies.reference import moments
from fedscape.studies.standing import worst
from fedscape.twin import Twin, fidelity
from fedscape.twin.bias import participation
from fedscape.twin.comparing import ASPECTS, features
from fedscape.twin.events import DAY
from fedscape.twin.planning import interval
from fedscape.twin.tables import LENGTHS

Held = dict[str, list[bool]]


def measured_rows(repeats: int) -> tuple[Held, Held]:
    """How features differ; how far two studies' heterogeneities are apart; brightness of images."""
    held: Held = {}

    def clients(n: int, seed: int, apart: float) -> Federation:
        rng = np.random.default_rng([seed, 11])
        owner = np.repeat(np.arange(n), 30)
        x = rng.normal(size=(len(owner), 3)) + apart * rng.normal(size=(n, 3))[owner]
        return Federation({"x": x}, np.arange(0, len(owner) + 1, 30))

    truth = {0.0: 0.0, 0.6: float(sketched(clients(3_000, 10**6, 0.6), "x")[0]["value"])}
    pairs: dict[float, list[dict]] = {0.0: [], 0.6: []}
    for seed in range(repeats):
        for apart, value in truth.items():
            about = sketched(clients(40, seed, apart), "x")[0]
            pairs[apart].append(about)
            what = "clients that differ" if apart else "IID clients"
            held.setdefault(f"heterogeneity of features, 40 {what}", []).append(_in(about, value))
    for first, second in zip(pairs[0.6][::2], pairs[0.6][1::2], strict=False):
        row = compared("heterogeneity of features", lambda about: about, first, second)
        held.setdefault("difference of two studies' heterogeneity, 40 clients", []).append(_in(row, 0.0))
    rng = np.random.default_rng(5)
    bright = float(np.clip(rng.beta(8, 2, 10**6) + 0.1 * rng.normal(size=10**6), 0, 1).mean())
    for seed in range(repeats):
        rng = np.random.default_rng([seed, 12])
        owner = np.repeat(np.arange(30), rng.integers(20, 60, 30))
        light = np.clip(rng.beta(8, 2, 30)[owner] + 0.1 * rng.normal(size=len(owner)), 0, 1)
        about = mean_interval(_of_clients(light, owner, 30), least=0.0, most=1.0)
        held.setdefault("brightness of images, 30 clients", []).append(_in(about, bright))
    return held, {}


def site_rows(repeats: int) -> tuple[Held, Held]:
    """The site served worst, and a number at sites; a difference from two repeats, as that of smaller cohorts."""
    held: Held = {}
    for seed in range(repeats):
        rng = np.random.default_rng([seed, 13])
        chance = np.array([0.62, 0.66, 0.7, 0.8])
        owner = np.repeat(np.arange(4), 100)
        fold = np.arange(400) % 4 == np.arange(4)[:, None]
        hits = np.where(fold, rng.random(400) < chance[owner], -1).astype(np.int8)
        found = Judged({"local": hits}, owner, 4, 4, sites=True)
        about = worst(found, "local", seed=seed)
        at = int(np.argmin(found.clients["local"]))
        held.setdefault("accuracy of the site served worst, 4 sites", []).append(_in(about, chance[at]))
        scale = np.array([0.8, 1.0, 1.0, 1.2])
        errors = {
            name: np.where(fold, width * scale[owner] * rng.normal(size=400), np.nan)
            for name, width in (("linear", 1.0), ("local", 1.1))
        }
        numbers = JudgedNumbers(errors, owner, 4, 4, sites=True, spread=2.0)
        for about, s in zip(numbers.of_sites("linear"), scale, strict=True):
            held.setdefault("R2 of a site, 4 sites", []).append(_in(about, 1 - s**2 / 2))
        for about, s in zip(numbers.site_differences("linear", "local"), scale, strict=True):
            held.setdefault("R2 gained by a site, 4 sites", []).append(_in(about, 0.21 * s**2 / 2))
        at = int(np.argmax(numbers.of_clients_absolute("linear")))
        error = scale[at] * np.sqrt(2 / np.pi)
        held.setdefault("MAE of the site served worst, 4 sites", []).append(
            _in(numbers.worst("linear", seed=seed), error)
        )
        held.setdefault("difference of cohorts, 30 clients, 2 repeats", []).append(_in(_two_repeats(seed), 0.02))
    return held, {}


def _two_repeats(seed: int) -> dict:
    rng = np.random.default_rng([seed, 14])
    owner, own = np.repeat(np.arange(30), 40), np.clip(rng.normal(0.68, 0.08, 30), 0.05, 0.95)
    luck, hits = rng.random(1200), {}
    for name, above in (("30", 0.02), ("7", 0.0)):
        moved = rng.normal(0, 0.01, 2)
        mixed = np.where(rng.random((2, 1200)) < 0.5, luck, rng.random((2, 1200)))
        right = mixed < (own[owner] + above) + moved[:, None]
        hits[name] = np.where(np.arange(1200) % 4 == np.arange(2)[:, None], right, -1).astype(np.int8)
    return Judged(hits, owner, 30, 4).difference("30", "7")


def checked_rows(repeats: int) -> tuple[Held, Held]:
    """The interval of Welch's test in a check, and each test of a check against a population."""
    held: Held = {}
    rejected: Held = {}
    for seed in range(repeats):
        rng = np.random.default_rng([seed, 15])
        first, second = (moments(rng.lognormal(mean, 0.4, 60)) for mean in (0.0, 0.2))
        apart = float(np.exp(0.08) * (np.exp(0.2) - 1))
        held.setdefault("drift of a column's mean in a check, 60 clients", []).append(
            _in(_welch("x", first, second, ""), apart)
        )
    law = MixtureOfDirichletMultinomials(2, n_init=2, rounds=40, seed=0)
    law.fit(np.random.default_rng(0).multinomial(40, [0.5, 0.3, 0.2], 400), progress=False)
    for seed in range(max(repeats // 4, 2)):
        counts = law.sample(80, seed=seed)
        codes = [np.repeat(np.arange(counts.shape[1]), row) for row in counts]
        fed = Federation({"y": np.concatenate(codes)}, np.concatenate(([0], np.cumsum(counts.sum(axis=1)))))
        for test in check_population(fed, law, column="y", seed=seed)["tests"]:
            rejected.setdefault(f"check against a population: {test['test']}", []).append(test["p"] < 0.05)
    return held, rejected


def presence_rows(repeats: int) -> tuple[Held, Held]:
    """Who is there by the hour, how long, whether hours differ; and what two logs of one law are told apart by."""
    held: Held = {}
    rejected: Held = {}
    law, even = _law(rhythm=1.0), _law(rhythm=0.0)
    many = _who(_log(law, 20_000, 10**6), 1)
    for seed in range(repeats):
        about = _who(_log(law, 60, seed), 1)
        for hour in (3, 13):
            truth = many["hours"][hour]["value"]
            held.setdefault("devices there at an hour, 60 devices", []).append(_in(about["hours"][hour], truth))
        held.setdefault("length of a session, 60 devices", []).append(_in(about["length"], many["length"]["value"]))
        sums = features(_log(even, 60, seed))["presence"]
        p = _rhythm(sums[:, :24], sums[:, 24:])
        rejected.setdefault("rhythm of the day: 60 devices without one", []).append(p is not None and p <= 0.05)
        found = fidelity(_log(law, 40, 2 * seed), _log(law, 40, 2 * seed + 1), draws=99, seed=seed)
        for aspect in ASPECTS:
            what = f"twin, {aspect}: two logs of 40 devices"
            rejected.setdefault(what, []).append(getattr(found, aspect).p <= 0.05)
        rejected.setdefault("twin, all aspects: two logs of 40 devices", []).append(found.p <= 0.05)
    return held, rejected


def _law(*, rhythm: float) -> Twin:
    """Devices of one kind, whose arrivals follow the hour or do not."""
    daily = 0.2 * np.exp(rhythm * np.cos((np.arange(24) - 22) * np.pi / 12))[None]
    arrays = {
        "weights": np.ones((1, 1)), "daily": daily, "weekly": np.ones((1, 7)), "recency": np.ones((1, 3)),
        "shape": np.array([3.0]), "ends": np.full((1, 4, len(LENGTHS) + 1), 0.8), "work": np.array([[4.0, 0.5, 0.2]]),
        "bandwidth": np.array([[13.0, 0.5, 0.2]]), "finished": np.array([0.9]), "data": np.ones((1, 1)),
    }  # fmt: skip
    return Twin(arrays, ages=(1.0, 4.0))


def _log(law: Twin, n: int, seed: int) -> Federation:
    return law.sample(n, Key(seed)).sessions(0.0, 7 * DAY)


def planned_rows(repeats: int) -> tuple[Held, Held]:
    """How much a kind of devices takes part, how the model does on it, and the hours until a target."""
    held: Held = {}
    for seed in range(repeats):
        rng = np.random.default_rng([seed, 16])
        kind = (rng.random(80) < 0.3).astype(int)
        used = rng.poisson(np.where(kind == 1, 3.0, 6.0) * rng.gamma(2.0, 0.5, 80))
        metric = rng.normal(np.where(kind == 1, 0.6, 0.7), 0.1)
        parts = participation(_timetable(used), kind, metric=metric)
        mean = 0.3 * 3 + 0.7 * 6
        ratio = {"low": parts[1].ratio_low, "high": parts[1].ratio_high}
        gap = {"low": parts[1].gap_low, "high": parts[1].gap_high}
        held.setdefault("part a kind takes over its share, 80 devices", []).append(_in(ratio, 3 / mean))
        held.setdefault("accuracy of a kind minus that of all, 80 devices", []).append(_in(gap, -0.07))
        hours = rng.gamma(16.0, 0.5, 4)
        half = interval(hours)
        about = {"low": hours.mean() - half, "high": hours.mean() + half}
        held.setdefault("hours until a target, 4 seeds", []).append(_in(about, 8.0))
    return held, {}


def _timetable(used: np.ndarray) -> SimpleNamespace:
    return SimpleNamespace(used=used)


def labels_rows(repeats: int) -> tuple[Held, Held]:
    """The part of features that labels explain is a heterogeneity, too: of clients whose labels decide their rows."""
    held: Held = {}
    rng = np.random.default_rng(17)
    many = _by_shares(3_000, rng)
    truth = float(heterogeneity(*many).value)
    for seed in range(repeats):
        about = heterogeneity(*_by_shares(40, np.random.default_rng([seed, 17])))
        held.setdefault("heterogeneity that labels explain, 40 clients", []).append(about.low <= truth <= about.high)
    return held, {}


def _by_shares(n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    shares = rng.dirichlet([2.0, 2.0, 1.0], n)
    law = np.array([[0.7, 0.2, 0.1], [0.2, 0.6, 0.2], [0.1, 0.1, 0.8]])  # cells of the features given the label
    counts = np.stack([rng.multinomial(40, p) for p in shares @ law])
    return (counts / 40)[:, None, :], counts.sum(axis=1)


def _in(about: dict, value: float) -> bool:
    return bool(about["low"] <= value <= about["high"])


FURTHER = (measured_rows, labels_rows, site_rows, checked_rows, presence_rows, planned_rows)

"""Do p-values and intervals of a study hold what they say? Each is repeated on draws whose truth is known.

An interval should hold the truth in 95% of the draws, a test at 5% should reject in 5% of those without a difference.
Tournaments are simulated row by row: clients differ, methods share what is hard, trainings move from repeat to repeat.
"""

from __future__ import annotations

import numpy as np
from scipy.special import ndtr

from calibration_more import FURTHER
from fedscape import Federation, MixtureOfDirichletMultinomials
from fedscape.simulate import fidelity
from fedscape.simulate.fidelity import _pools as pools_apart
from fedscape.sketches import heterogeneity
from fedscape.statistics.description import label_skew
from fedscape.studies.between_sites import interval_over_rows, label_parts
from fedscape.studies.budget import budget_of
from fedscape.studies.collaboration import _gain as client_gain
from fedscape.studies.compare import _row as compared
from fedscape.studies.compare import drift
from fedscape.studies.describe import shares_of
from fedscape.studies.intervals import gini_interval, mean_interval
from fedscape.studies.judged import BASELINES, Judged
from fedscape.studies.judged_numbers import JudgedNumbers
from fedscape.studies.sites import pooled
from fedscape.studies.staged import staged
from fedscape.studies.standing import worst_interval, worst_tenth
from fedscape.temporal import read_clock
from table import arguments, report

NAMES = ("fedavg", "fedem", "local", "ifca")
ACCURACY = {"fedavg": 0.70, "fedem": 0.74, "local": 0.65, "ifca": 0.70}
MISFIT = 0.118  # of two draws of 60 clients, mean over 2,000 pairs of draws
SITES = np.array([[0.6, 0.3, 0.1], [0.4, 0.4, 0.2], [0.2, 0.3, 0.5], [0.5, 0.4, 0.1]])
MOVES, SPREAD = 0.01, 0.08  # of a training, of clients


def judged(clients: int, rows: int, seed: int, *, sites: bool) -> tuple[Judged, dict[str, np.ndarray]]:
    """Hits of clients, and the accuracy that each client has under each method in the long run."""
    rng = np.random.default_rng(seed)
    owner = np.repeat(np.arange(clients), rows)
    fold = np.arange(len(owner)) % 4
    fixed = np.random.default_rng(7) if sites else rng  # sites are the same in every draw, clients are drawn anew
    own, gains = fixed.normal(0, SPREAD, clients), fixed.normal(0, SPREAD / 2, (len(NAMES), clients))
    luck, hits, truth = rng.random(len(owner)), {}, {}
    for i, name in enumerate(NAMES):
        truth[name] = np.clip(ACCURACY[name] + own + gains[i], 0.02, 0.98)
        moved = rng.normal(0, MOVES, 4)
        runs = np.full((4, len(owner)), -1, dtype=np.int8)
        for r in range(4):
            mixed = np.where(rng.random(len(owner)) < 0.5, luck, rng.random(len(owner)))
            runs[r] = np.where(fold == r, mixed < truth[name][owner] + moved[r], -1)
        hits[name] = runs
    return Judged(hits, owner, clients, 4, sites), truth


def tournament_rows(repeats: int, quick: bool) -> list[dict]:
    made = []
    for clients, rows, sites in ((4, 100, True), (30, 40, False), (3000, 10, False)):
        held = {"accuracy, mean": [], "gain over FedAvg": []}
        if sites:
            held |= {"accuracy of a site (Wilson)": [], "gain of a site (Bonett and Price)": []}
        for seed in range(repeats if clients < 1000 else max(repeats // 4, 2)):
            found, truth = judged(clients, 8 if quick and clients > 100 else rows, seed, sites=sites)
            mean = {n: float(v.mean()) for n, v in truth.items()} if sites else ACCURACY
            apart = mean["fedem"] - mean["fedavg"]
            held["accuracy, mean"].append(_in(found.accuracy("fedem"), mean["fedem"]))
            held["gain over FedAvg"].append(_in(found.difference("fedem", "fedavg"), apart))
            if sites:
                each = zip(found.of_sites("fedem"), truth["fedem"], strict=True)
                held["accuracy of a site (Wilson)"] += [_in(about, value) for about, value in each]
                gains = zip(found.site_differences("fedem", "local"), truth["fedem"] - truth["local"], strict=True)
                held["gain of a site (Bonett and Price)"] += [_in(about, value) for about, value in gains]
        where = f"{clients:,} {'sites' if sites else 'clients'}"
        made += [_row(f"{what}, {where}", "interval", values) for what, values in held.items()]
    return made


def worst_rows(repeats: int) -> list[dict]:
    made = []
    for rows in (4, 15, 60):
        held = []
        for seed in range(repeats):
            rng = np.random.default_rng(seed)
            accuracy = rng.beta(7, 3, 60)
            right = rng.binomial(rows, accuracy).astype(float)
            held.append(_in(worst_interval(right, np.full(60, rows), seed=seed, draws=200), worst_tenth(accuracy)))
        made.append(_row(f"worst tenth of 60 clients of {rows} rows", "interval", held))
    return made


def drawn(n: int, rng: np.random.Generator) -> np.ndarray:
    alpha = np.array([[6.0, 2.0, 1.0, 1.0], [1.0, 1.0, 3.0, 9.0]])
    shares = np.stack([rng.dirichlet(alpha[k]) for k in rng.integers(0, 2, n)])
    return rng.multinomial(rng.integers(20, 60, n), shares)


def fidelity_rows(repeats: int) -> list[dict]:
    names = ("misfit", "auc", "distance", "size", "pool")
    rejected, held = {n: [] for n in names}, {n: [] for n in names}
    for seed in range(repeats):
        rng = np.random.default_rng(seed)
        found = fidelity(drawn(60, rng), drawn(60, rng), draws=99, seed=seed)
        for name in names:
            about = getattr(found, name)
            rejected[name].append(about.p <= 0.05)
            truth = {"auc": 0.5, "misfit": MISFIT}.get(name, 0.0)
            held[name].append(about.low <= truth <= about.high)
    made = [_row(f"fidelity, {name}: two draws of 60 clients of one law", "p-value", rejected[name]) for name in names]
    return made + [_row(f"fidelity, {name}: the same", "interval", held[name]) for name in names]


def number_rows(repeats: int) -> list[dict]:
    """R2, errors and the worst tenth of models of a number: errors of clients that differ, drawn from one law."""
    made = []
    for clients, rows, sites in ((4, 100, True), (30, 40, False), (3000, 10, False)):
        held = {"R2": [], "R2 over the common model": [], "MAE": []}
        for seed in range(repeats if clients < 1000 else max(repeats // 4, 2)):
            rng = np.random.default_rng(seed)
            fixed = np.random.default_rng(7) if sites else rng
            scale = np.exp(fixed.normal(-(0.05**2), 0.05, (2, clients)) + fixed.normal(-(0.15**2), 0.15, clients))
            owner, fold = np.repeat(np.arange(clients), rows), np.arange(clients * rows) % 4
            errors = {}
            for name, own in zip(("linear+", "linear"), (0.8 * scale[0], scale[1]), strict=True):
                each = own[owner] * rng.normal(size=len(owner))
                errors[name] = np.where(fold == np.arange(4)[:, None], each, np.nan)
            found = JudgedNumbers(errors, owner, clients, 4, sites, spread=2.0)
            square = {"linear+": 0.64, "linear": 1.0}
            absolute = 0.8 * np.exp(-0.5 * (0.05**2 + 0.15**2))
            if sites:
                square = {"linear+": float((0.64 * scale[0] ** 2).mean()), "linear": float((scale[1] ** 2).mean())}
                absolute = float(0.8 * scale[0].mean())
            held["R2"].append(_in(found.accuracy("linear+"), 1 - square["linear+"] / 2))
            gain = (square["linear"] - square["linear+"]) / 2
            held["R2 over the common model"].append(_in(found.difference("linear+", "linear"), gain))
            held["MAE"].append(_in(found.mae("linear+"), absolute * np.sqrt(2 / np.pi)))
        where = f"{clients:,} {'sites' if sites else 'clients'}"
        made += [_row(f"{what}, {where}", "interval", values) for what, values in held.items()]
    return made


def check_rows(repeats: int) -> list[dict]:
    """Each test of a check by itself, every time against a reference of its own."""
    import check as nightly

    rejected: dict[str, list[bool]] = {}
    for run in range(repeats):
        against = nightly.referred(nightly.draw(100, 20_000 + run), run)
        found = nightly.check(nightly.draw(100, 30_000 + run), against, seed=run)
        for test in found["tests"]:
            rejected.setdefault(test["test"], []).append(test["p"] < 0.05)
    return [_row(f"check of {name}, 100 clients twice", "p-value", values) for name, values in rejected.items()]


SIZE_LAWS = {  # laws of sizes and their Gini coefficients
    "log-normal": (lambda rng, n: rng.lognormal(4.0, 0.8, n), 2 * float(ndtr(0.8 / np.sqrt(2))) - 1),
    "exponential": (lambda rng, n: rng.exponential(50.0, n), 0.5),
    "Pareto, heavy tail": (lambda rng, n: 20 * (1 + rng.pareto(3, n)), 0.2),
}


def size_rows(repeats: int) -> list[dict]:
    """How uneven sizes are (Gini), and their mean logarithm."""
    held: dict[str, list[bool]] = {}
    for clients in (20, 60, 300):
        for law, (draw, truth) in SIZE_LAWS.items():
            rngs = (np.random.default_rng([seed, 7]) for seed in range(repeats))
            held[f"Gini of sizes, {clients} clients, {law}"] = [
                _in(gini_interval(draw(rng, clients)), truth) for rng in rngs
            ]
    logs = (np.random.default_rng(seed).normal(4.0, 0.8, 60) for seed in range(repeats))
    held["mean logarithm of sizes, 60 clients"] = [_in(mean_interval(values), 4.0) for values in logs]
    return [_row(what, "interval", values) for what, values in held.items()]


def sites_rows(repeats: int) -> list[dict]:
    """Heterogeneity of four sites, over their rows, and how often alike sites are said to differ."""
    held: dict[str, list[bool]] = {}
    for rows in (40, 200):
        for what, shares in (("apart", SITES), ("alike", np.tile(SITES[0], (4, 1)))):
            between = ((shares.sum(axis=0) ** 2).sum() - (shares**2).sum()) / 12
            truth = float(((shares**2).sum() / 4 - between) / (1 - between))
            for seed in range(repeats):
                counts = np.random.default_rng([seed, 8]).multinomial(rows, shares)
                value = heterogeneity(_shares(counts), counts.sum(axis=1)).value
                low, high = interval_over_rows(counts[:, None, :], label_parts(counts), float(value))
                name = f"heterogeneity of labels, 4 sites of {rows} rows, {what}"
                held.setdefault(name, []).append(low <= truth + 1e-12 and truth <= high + 1e-12)
    return [_row(what, "interval", values) for what, values in held.items()]


def pool_rows(repeats: int) -> list[dict]:
    """All rows together, one part of fidelity, by itself and with more draws."""
    rejected, held = [], []
    for seed in range(repeats):
        rng = np.random.default_rng([seed, 9])
        found = pools_apart(drawn(60, rng), drawn(60, rng), rng, 99)
        rejected.append(found.p <= 0.05)
        held.append(found.low <= 0 <= found.high)
    what = "fidelity, pool alone, other draws"
    return [_row(what, "p-value", rejected), _row(f"{what}: the same", "interval", held)]


def other_rows(repeats: int) -> list[dict]:
    drifted, differ, claimed, spread, joint = [], [], [], [], []
    for seed in range(repeats):
        rng = np.random.default_rng(seed)
        first, second = (shares_of(drawn(60, rng), list("abcd")) for _ in range(2))
        drifted.append(drift(first, second, seed=seed)["p"] < 0.05)
        sizes = rng.integers(10, 60, 40)
        counts = rng.multinomial(sizes, [0.5, 0.3, 0.2])
        about = heterogeneity((counts / sizes[:, None])[:, None, :], sizes)
        differ.append(about.low <= 0 <= about.high)
        claimed.append(about.low > 0)
        v = rng.uniform(0.01, 0.1, 6)
        spread.append(pooled(rng.normal(0.3, np.sqrt(v)), v)["p"] < 0.05)
        joint.append(_in(pooled(rng.normal(0.3, np.sqrt(v)), v), 0.3))
    return [
        _row("drift of labels, 60 clients twice", "p-value", drifted),
        _row("heterogeneity of labels, IID clients", "interval", differ),
        _row("IID clients are said to differ in labels", "p-value", claimed, aim=0.025),
        _row("Q of sites that do not differ", "p-value", spread),
        _row("pooled effect of sites that do not differ", "interval", joint),
    ]


def chosen_rows(repeats: int) -> list[dict]:
    """The method that was chosen for its accuracy, all gains at once, and a lead over guessing."""
    held: dict[str, list[bool]] = {"of the most accurate": [], "all gains at once": [], "lead over guessing": []}
    for seed in range(repeats):
        found, _ = judged(30, 40, seed, sites=False)
        common = {name: np.full(30, 0.4) for name in BASELINES}
        rng = np.random.default_rng([seed, 1])
        guessed = {
            name: np.where(runs >= 0, rng.random(runs.shape) < common[name][0], -1).astype(np.int8)
            for name, runs in zip(BASELINES, [found.hits["fedavg"]] * 2, strict=True)
        }
        found = Judged({**found.hits, **guessed}, found.owner, 30, 4)
        best = max(NAMES, key=lambda name: found.means[name])
        held["of the most accurate"].append(_in(found.accuracy(best, comparisons=len(NAMES)), ACCURACY[best]))
        gains = [name for name in NAMES if name != "fedavg"]
        apart = {name: ACCURACY[name] - ACCURACY["fedavg"] for name in gains}
        intervals = {name: found.difference(name, "fedavg", comparisons=len(gains)) for name in gains}
        held["all gains at once"].append(all(_in(intervals[name], apart[name]) for name in gains))
        held["lead over guessing"].append(_in(found.difference("fedem", "commonest"), ACCURACY["fedem"] - 0.4))
    return [_row(f"{what} (30 clients)", "interval", values) for what, values in held.items()]


def staged_rows(repeats: int) -> list[dict]:
    """Intervals of the last stage of a tournament that stops when its advice is settled, and of the advice itself."""
    held: dict[str, list[bool]] = {"gain over FedAvg": [], "accuracy of the method advised": []}
    order, ends = ("local", "fedavg", "ifca", "fedem"), []
    for seed in range(repeats):
        rng = np.random.default_rng([seed, 2])
        clients, rows = 500, 20
        fed = Federation({"at": np.arange(clients * rows)}, np.arange(0, clients * rows + 1, rows))
        own = rng.normal(0, SPREAD, clients)
        truth = {n: np.clip(ACCURACY[n] + own + rng.normal(0, SPREAD / 2, clients), 0.02, 0.98) for n in NAMES}
        luck = rng.random(clients * rows)

        def play(some, limits, those, rng=rng, truth=truth, luck=luck, rows=rows):
            at, hits = some["at"], {}
            for name in those:
                mixed = np.where(rng.random(len(at)) < 0.5, luck[at], rng.random(len(at)))
                right = mixed < truth[name][at // rows] + rng.normal(0, MOVES / 2, 4)[:, None]
                hits[name] = np.where(at % 4 == np.arange(4)[:, None], right, -1).astype(np.int8)
            for name in BASELINES:
                hits[name] = np.where(at % 4 == np.arange(4)[:, None], luck[at] < 0.4, -1).astype(np.int8)
            return Judged(hits, some.client_of_row, len(some), 4), {name: [0.1] for name in those}

        stages = staged(fed, budget_of("2min"), play, order=order, common="fedavg", seed=seed)
        last, ends = stages[-1], [*ends, len(stages)]
        if "fedem" in last.used:
            held["gain over FedAvg"].append(_in(last.judged.difference("fedem", "fedavg"), 0.04))
        advised = last.choice.advised
        if advised is not None:
            about = last.judged.accuracy(advised, comparisons=len(order))
            held["accuracy of the method advised"].append(_in(about, ACCURACY[advised]))
    where = f"after the stage that settled it (of {min(ends)} to {max(ends)})"
    return [_row(f"{what}, {where}", "interval", values) for what, values in held.items()]


def cycle_rows(repeats: int) -> list[dict]:
    """The cycle of labels by time: noise that is alike from hour to hour, and a day of 24 hours."""
    rejected, held, hours = [], [], np.arange(120)
    for seed in range(repeats):
        rng, noise = np.random.default_rng([seed, 3]), [0.0]
        for step in rng.normal(0, 0.3, len(hours) - 1):
            noise.append(0.5 * noise[-1] + step)
        rejected.append(read_clock(noise, draws=199, significance=0.05, seed=seed).p_value <= 0.05)
        cycle = read_clock(np.cos(2 * np.pi * hours / 24) + noise, draws=199, seed=seed)
        if cycle.interval is not None:
            held.append(cycle.interval[0] <= 24 <= cycle.interval[1])
    return [
        _row("cycle by the clock: 120 hours without one", "p-value", rejected),
        _row("period of a cycle of 24 hours", "interval", held),
    ]


def differing_rows(repeats: int) -> list[dict]:
    """Clients that differ: heterogeneity, kinds, drift, and the numbers of two studies beside each other."""
    names = ("heterogeneity of labels, two kinds", "distance of shares by chance, IID clients", "drift that is there")
    held: dict[str, list[bool]] = {name: [] for name in (*names, "difference of two studies' mean log sizes")}
    many = drawn(20_000, np.random.default_rng(99))
    true = heterogeneity(_shares(many), many.sum(axis=1)).value
    others = [0.4, 0.3, 0.2, 0.1]
    moved = 0.5 * float(np.abs((many / many.sum(axis=1)[:, None]).mean(axis=0) - others).sum())
    for seed in range(repeats):
        rng = np.random.default_rng([seed, 4])
        counts = drawn(60, rng)
        about = heterogeneity(_shares(counts), counts.sum(axis=1))
        held[names[0]].append(about.low <= true <= about.high)
        skew = label_skew(rng.multinomial(rng.integers(20, 60, 60), others), seed=seed)
        held[names[1]].append(abs(skew["distance"] - skew["iid"]) <= 1.96 * skew["iid_sd"])
        shares = rng.dirichlet(20 * np.array(others), 60)
        second = np.stack([rng.multinomial(n, p) for n, p in zip(rng.integers(20, 60, 60), shares, strict=True)])
        found = drift(shares_of(counts, list("abcd")), shares_of(second, list("abcd")), seed=seed)
        held[names[2]].append(_in(found, moved))
        pair = [{"describe": {"sizes": {"log_mean": mean_interval(rng.normal(4, 0.8, 60))}}} for _ in range(2)]
        row = compared("log of a client's rows", lambda result: result["describe"]["sizes"]["log_mean"], *pair)
        held["difference of two studies' mean log sizes"].append(_in(row, 0.0))
    return [_row(f"{what}, 60 clients", "interval", values) for what, values in held.items()]


def kind_rows(repeats: int) -> list[dict]:
    """Shares of kinds of clients, and the sketch of features in fidelity."""
    held, rejected = [], []
    for seed in range(max(repeats // 4, 2)):
        rng = np.random.default_rng([seed, 5])
        mixture = MixtureOfDirichletMultinomials(n_components=2, n_init=2, rounds=40, seed=seed)
        counts = drawn(80, rng)
        shares = mixture.fit(counts, progress=False).predict_proba(counts)
        about = mean_interval(shares[:, 0], least=0.0, most=1.0)
        held.append(_in(about, 0.5))
        pair = [Federation({"y": rng.integers(0, 3, 600), "x": rng.normal(size=(600, 3))}, np.arange(0, 601, 20))
                for _ in range(2)]  # fmt: skip
        rejected.append(fidelity(*pair, features="x", draws=99, seed=seed).sketch.p <= 0.05)
    return [
        _row("share of a kind, 80 clients of two kinds", "interval", held),
        _row("fidelity, sketch of features: two draws of 30 clients", "p-value", rejected),
    ]


def served_rows(repeats: int) -> list[dict]:
    """Kinds' accuracies, the worst tenth of a number, and the gain of a client by joining a group."""
    held: dict[str, list[bool]] = {"accuracy of a kind of 8 clients": [], "worst tenth of errors, 60 clients": []}
    held["gain of a client that joins a group"] = []
    served: list[dict] = []  # what clients chosen by half of their rows have: the truth is the mean of all draws
    for seed in range(repeats):
        rng = np.random.default_rng([seed, 6])
        right = rng.binomial(30, rng.beta(14, 6, 8)) / 30
        held["accuracy of a kind of 8 clients"].append(_in(mean_interval(right, least=0.0, most=1.0), 0.7))
        scale = np.exp(rng.normal(0, 0.3, 60))
        owner = np.repeat(np.arange(60), 40)
        errors = np.where(np.arange(2400) % 4 == np.arange(4)[:, None], scale[owner] * rng.normal(size=2400), np.nan)
        found = JudgedNumbers({"linear": errors}, owner, 60, 4, spread=2.0).worst("linear", seed=seed)
        served.append(found)
        hits = [[{0: rng.random(40) < p} for p in (0.6, 0.7)] for _ in range(3)]
        both = [[{0: group[0].astype(float)} for group in run] for run in hits]
        held["gain of a client that joins a group"].append(_in(client_gain(both, 0, 0, 1), 0.1))
    truth = float(np.mean([about["value"] for about in served]))
    held["worst tenth of errors, 60 clients"] = [_in(about, truth) for about in served]
    return [_row(what, "interval", values) for what, values in held.items()]


def _shares(counts: np.ndarray) -> np.ndarray:
    return (counts / counts.sum(axis=1)[:, None])[:, None, :]


def _in(about: dict, value: float) -> bool:
    return bool(about["low"] <= value <= about["high"])


def _row(what: str, kind: str, values: list[bool], aim: float | None = None) -> dict:
    share, n = float(np.mean(values)), len(values)
    aim = aim or (0.95 if kind == "interval" else 0.05)
    error = np.sqrt(aim * (1 - aim) / n)
    return {
        "number": what,
        "kind": kind,
        "should be": f"{100 * aim:g}%",
        "is": f"{share:.1%}",
        "draws": n,
        "standard errors off": round((share - aim) / error, 1),
    }


def main() -> None:
    given = arguments(__doc__, repeats=200)
    repeats = 8 if given.quick else given.repeats
    rows = (
        tournament_rows(repeats, given.quick)
        + worst_rows(repeats)
        + number_rows(repeats)
        + fidelity_rows(repeats)
        + check_rows(max(repeats // 2, 2))
        + chosen_rows(repeats)
        + staged_rows(max(repeats // 2, 2))
        + cycle_rows(repeats)
        + differing_rows(repeats)
        + kind_rows(repeats)
        + served_rows(repeats)
        + size_rows(5 * repeats)
        + sites_rows(2 * repeats)
        + pool_rows(3 * repeats)
        + other_rows(5 * repeats)
    )
    for further in FURTHER:
        held, rejected = further(repeats)
        rows += [_row(what, "interval", values) for what, values in held.items()]
        rows += [_row(what, "p-value", values) for what, values in rejected.items()]
    off = {row["number"]: row["standard errors off"] * (1 if row["kind"] == "interval" else -1) for row in rows}
    wrong, safe = ([name for name, far in off.items() if sign * far > 3] for sign in (-1, 1))
    note = f"more than three standard errors off, on the wrong side: {', '.join(wrong) or 'none'}"
    report("calibration", rows, note=f"{note}; on the safe side: {', '.join(safe) or 'none'}")


if __name__ == "__main__":
    main()

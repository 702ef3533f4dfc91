"""How far are private quantiles and heavy hitters off, beside theory and beside OpenDP?

OpenDP takes part where it can be imported; its curator sees all rows, and it is told the same ranges and candidates.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from fedscape import GLM, All, Federation, Gaussian, HeavyHitters, Histogram, Laplace, Quantiles, calibrate
from fedscape.privacy import audit
from fedscape.tabular.growing import TreeRounds
from table import arguments, report

DELTA = 1e-6
SHARES = (0.1, 0.25, 0.5, 0.75, 0.9)
ENDS = (0.0, 20.0)
CELLS = 2**12


def amounts(n: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).lognormal(1.0, 1.0, n)


def rank_errors(x: np.ndarray, answers: np.ndarray) -> np.ndarray:
    """How far the share of rows below each answer is from the one asked for, rows within the resolution aside."""
    order, half = np.sort(np.clip(x, *ENDS)), (ENDS[1] - ENDS[0]) / CELLS
    low = np.searchsorted(order, answers - half, side="left") / len(x)
    high = np.searchsorted(order, answers + half, side="right") / len(x)
    return np.maximum(np.maximum(low - SHARES, np.asarray(SHARES) - high), 0.0)


def quantiles(n: int, epsilon: float, repeats: int, seed: int) -> dict[str, Any]:
    """The largest rank error of five quantiles, over fits, and in how many the stated bound holds."""
    x = amounts(n, seed)
    fed = Federation({"x": x}, np.linspace(0, n, n // 20 + 1).astype(int))
    model = Quantiles(SHARES, ranges=ENDS, resolution=(ENDS[1] - ENDS[0]) / CELLS, cells=4)
    multiplier = calibrate(epsilon, DELTA, rounds=model.n_rounds(), sampler=All())
    errors, held = [], 0
    for i in range(repeats):
        model.fit(fed, privacy=Gaussian(clip=1.0, multiplier=multiplier, unit="row", noise_seed=i))
        errors.append(float(rank_errors(x, model.quantiles_).max()))
        held += errors[-1] <= model.rank_error_
    stated = {"stated bound": model.rank_error_, "fits within it": f"{held} of {repeats}"}
    return {"largest rank error, median": float(np.median(errors)), "95%": float(np.quantile(errors, 0.95)), **stated}


def of_opendp(n: int, epsilon: float, repeats: int, seed: int) -> dict[str, Any] | None:
    """The exponential mechanism of OpenDP on the same candidates, the budget shared among the quantiles."""
    try:
        import opendp.prelude as dp
    except ImportError:
        return None
    dp.enable_features("contrib", "honest-but-curious")
    x = amounts(n, seed)
    candidates = np.linspace(*ENDS, CELLS + 1).tolist()
    space = dp.vector_domain(dp.atom_domain(T=float, nan=False)), dp.symmetric_distance()
    rows, errors = np.clip(x, *ENDS).tolist(), []

    def measurement(share: float) -> Any:
        scored = space >> dp.t.then_quantile_score_candidates(candidates, alpha=share)
        unit = (scored >> dp.m.then_noisy_max(dp.max_divergence(), scale=1.0, negate=True)).map(1)
        scale = unit * len(SHARES) / epsilon
        return scored >> dp.m.then_noisy_max(dp.max_divergence(), scale=scale, negate=True)

    made = [measurement(share) for share in SHARES]
    for _ in range(repeats):
        errors.append(float(rank_errors(x, np.array([candidates[m(rows)] for m in made])).max()))
    return {"largest rank error, median": float(np.median(errors)), "95%": float(np.quantile(errors, 0.95))}


def shop(n_clients: int, seed: int) -> tuple[Federation, Counter[str]]:
    """Clients with up to five of a thousand products, few of them common; and how many clients have each."""
    rng = np.random.default_rng(seed)
    weight = 1 / np.arange(1, 1001) ** 1.1
    texts, who = [], []
    for i in range(n_clients):
        own = rng.choice(1000, 5, replace=False, p=weight / weight.sum())
        texts += [f"P{code:04d}" for code in own]
        who += [i] * 5
    fed = Federation.from_arrays({"y": texts}, clients=who)
    return fed, Counter(texts)


def hitters(n_clients: int, epsilon: float, repeats: int, seed: int) -> dict[str, Any]:
    """Of the products that pass the threshold by two standard errors of noise, how many are found; and false ones."""
    fed, have = shop(n_clients, seed)
    most, length = 5, 5
    model = HeavyHitters(1, length=length, most=most, prefixes=64)
    multiplier = calibrate(epsilon, DELTA, rounds=length, sampler=All())
    privacy = {"clip": float(np.sqrt(most)), "multiplier": multiplier}
    found, missed, wrong, off = 0, 0, 0, []
    for i in range(repeats):
        model.fit(fed, privacy=Gaussian(**privacy, noise_seed=i))
        sd = privacy["clip"] * multiplier
        sure = {name for name, n in have.items() if n > model.threshold_ + 3 * sd}
        found += len(sure & set(model.names_))
        missed += len(sure - set(model.names_))
        wrong += len(set(model.names_) - set(have))
        off += [abs(n - have[name]) / sd for name, n in zip(model.names_, model.counts_, strict=True) if name in have]
    return {
        "threshold": model.threshold_,
        "sure ones found": f"{found} of {found + missed}",
        "names nobody has": wrong,
        "count off, noise sd (median)": float(np.median(off)) if off else float("nan"),
    }


def audits(repeats: int) -> list[dict[str, Any]]:
    """Lower bounds on epsilon by attacks, beside the claims."""
    rng = np.random.default_rng(0)
    columns = {"x": rng.uniform(0, 20, 400), "y": rng.integers(0, 40, 400), "z": rng.integers(0, 2, 400)}
    fed = Federation(columns, np.arange(0, 401, 4))
    cases = {
        "Quantiles, rows": (
            Quantiles([0.5], ranges=ENDS, resolution=0.5, cells=4),
            Gaussian(clip=1.0, multiplier=2.0, unit="row"),
        ),
        "HeavyHitters, clients": (HeavyHitters(5, length=2, most=2, prefixes=4), Gaussian(clip=1.5, multiplier=2.0)),
        "GLM, rows": (
            GLM("logistic", features="x", target="z", ranges={"x": ENDS}),
            Gaussian(clip=3.0, multiplier=2.0, unit="row"),
        ),
        "TreeRounds, rows": (
            TreeRounds([[5.0, 10.0, 15.0]], loss="logistic", target="z", n_trees=1, depth=2, subtract=False),
            Gaussian(clip=1.1, multiplier=2.0, unit="row"),
        ),
        "Histogram, rows (for comparison)": (Histogram(40), Laplace(clip=1.0, epsilon=1.0, unit="row")),
    }
    rows = []
    for name, (computation, privacy) in cases.items():
        about = audit(computation, fed, privacy, repeats=repeats, simulations=0)
        held = "holds" if about.holds else "BROKEN"
        rows.append({"what": f"audit: {name}", "claim": about.claim, "attack's bound": about.bound, "verdict": held})
    return rows


def main() -> None:
    args = arguments(__doc__, repeats=100, rows=20_000)
    n, repeats = (4_000, 10) if args.quick else (args.rows, args.repeats)
    rows: list[dict[str, Any]] = []
    for epsilon in (1.0, 2.0, 4.0, 8.0):
        about = {"what": "quantiles", "epsilon": epsilon, "rows or clients": n}
        rows.append({**about, "by": "fedscape", **quantiles(n, epsilon, repeats, args.seed)})
        other = of_opendp(n, epsilon, max(repeats // 5, 2), args.seed)
        rows += [{**about, "by": "OpenDP, pure epsilon", **other}] if other else []
    for epsilon in (1.0, 2.0, 4.0, 8.0):
        about = {"what": "heavy hitters", "epsilon": epsilon, "rows or clients": n // 4}
        rows.append({**about, "by": "fedscape", **hitters(n // 4, epsilon, max(repeats // 10, 2), args.seed)})
    rows += audits(200 if args.quick else 2_000)
    report("private_searches", rows, note=f"delta {DELTA:g}; quantiles by rows, heavy hitters by clients.")


if __name__ == "__main__":
    main()

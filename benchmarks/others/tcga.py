"""FLamby's Fed-TCGA-BRCA: six regions, a linear Cox model, mean concordance over the regions' test rows.

The federated fit by sums beside the fit of the pooled rows (all as one client; with `--oracle 1` also by statsmodels
and lifelines, where they are installed), with FLamby's split. Covariates that others determine among
the rows with an event are left out: their coefficients would be infinite or not unique. Reads
hospitals/tcga_brca_regions.csv in FEDSCAPE_DATA; needs pandas. Rows of the region "Other" are in no published split.
There is nothing random but for the bootstrap of regions' rows, which `--workers` processes share.
"""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from multiprocessing import get_context

import numpy as np
import pandas as pd
from board import data_folder

from fedscape import CoxRegression, Federation
from fedscape.types import Array
from table import arguments, report

REGIONS = ("Northeast", "South", "West", "Midwest", "Europe", "Canada")
PUBLISHED = {
    "FedAvg": (0.732, 0.181), "FedAdam": (0.815, 0.026), "FedYogi": (0.815, 0.026), "SCAFFOLD": (0.687, 0.036),
    "pooled SGD": (0.676, 0.095), "each alone": (0.689, None),
}  # fmt: skip


@cache
def regions() -> tuple[Federation, Federation, tuple[str, ...]]:
    """Training and test rows of the six regions, and the covariates."""
    table = pd.read_csv(data_folder() / "hospitals" / "tcga_brca_regions.csv")
    table = table[table["region"].isin(REGIONS)]
    names = [c for c in table.columns if c not in ("pid", "E", "T", "region", "split")]
    learn = table["split"] == "train"
    names = independent(table.loc[learn & (table["E"] > 0), names])
    made = []
    for part in (table[learn], table[~learn]):
        part = part.sort_values("region", kind="stable")
        columns = {
            "x": part[names].to_numpy(dtype=np.float64),
            "time": part["T"].to_numpy(),
            "event": part["E"].to_numpy(),
        }
        made.append(Federation.from_arrays(columns, clients=part["region"].to_numpy(dtype=str)))
    return made[0], made[1], tuple(names)


def independent(table: pd.DataFrame) -> list[str]:
    """The columns that are no combination of those before them and a constant."""
    kept: list[str] = []
    for name in table.columns:
        x = table[[*kept, name]].to_numpy(dtype=np.float64)
        x = (x - x.mean(axis=0)) / np.maximum(x.std(axis=0), 1e-12)
        if np.linalg.matrix_rank(x, tol=1e-8 * np.sqrt(len(x))) == len(kept) + 1:
            kept.append(name)
    return kept


def spread(seed: int, ridge: float) -> list[float]:
    """Mean concordance on the test rows after fits of rows drawn anew in each region."""
    learners, test, _ = regions()
    rng = np.random.default_rng(seed)
    ends = zip(learners.offsets[:-1], learners.offsets[1:], strict=True)
    rows = np.concatenate([rng.integers(a, b, b - a) for a, b in ends])
    again = Federation({n: learners[n][rows] for n in ("x", "time", "event")}, learners.offsets, learners.ids)
    return [CoxRegression(ridge=ridge).fit(again, progress=False).score(test)]


def oracles(cox: CoxRegression, pooled: Federation) -> list[dict[str, object]]:
    """How far coefficients and standard errors are from those of statsmodels and lifelines on the pooled rows."""
    from lifelines import CoxPHFitter
    from statsmodels.duration.hazard_regression import PHReg

    x, t, e = (pooled[n] for n in ("x", "time", "event"))
    fit = PHReg(t, x, status=e, ties="efron").fit(method="newton", disp=0, maxiter=100, tol=1e-14)
    table = pd.DataFrame(x).assign(t=t, e=e)
    line = CoxPHFitter().fit(table, "t", "e", fit_options={"precision": 1e-12})
    found = {
        "statsmodels, pooled": (fit.params, fit.bse, float(fit.llf)),
        "lifelines, pooled": (line.params_.to_numpy(), line.standard_errors_.to_numpy(), line.log_likelihood_),
    }
    return [
        {
            "fit": name, "log-likelihood": f"{value:.6f}",
            "largest difference": f"{np.abs(cox.coefficients_ - beta).max():.1e}, of standard errors "
            f"{np.abs(cox.standard_errors_ - se).max():.1e}",
        }
        for name, (beta, se, value) in found.items()
    ]  # fmt: skip


def row(name: str, cox: CoxRegression, test: Federation, like: Array | None = None) -> dict[str, object]:
    judged = cox.concordance(test)
    made = {
        "fit": name,
        "C, mean of regions": f"{judged['of_clients']:.4f}",
        "C, pairs pooled": f"{judged['pooled']:.4f}",
    }
    made["log-likelihood"] = f"{cox.log_likelihood_:.6f}"
    return made | {"largest difference": "" if like is None else f"{np.abs(cox.coefficients_ - like).max():.1e}"}


def main() -> None:
    given = arguments(__doc__, workers=1, repeats=100, oracle=0)
    learners, test, names = regions()
    pooled = Federation({n: learners[n] for n in ("x", "time", "event")}, [0, learners.n_rows])
    one = CoxRegression().fit(pooled, progress=False)
    fed = CoxRegression().fit(learners, progress=False)
    rows = [row("pooled rows", one, test), row("federated by sums", fed, test, one.coefficients_)]
    rows += oracles(fed, pooled) if given.oracle else []
    month = CoxRegression(times=np.arange(0, 9000, 30)).fit(learners, progress=False)
    rows.append(row("federated, grid of 30 days", month, test, one.coefficients_))
    ridge = CoxRegression(ridge=3.0).fit(learners, progress=False)
    rows.append(row("federated, ridge 3", ridge, test))
    apart = CoxRegression(strata="clients").fit(learners, progress=False)
    rows.append(row("federated, a baseline for each region", apart, test))
    alone = []
    for i in range(len(learners)):
        own = CoxRegression(ridge=3.0).fit(learners.take([i]), progress=False)
        alone.append(own.score(test.take([i])))
    rows.append({"fit": "each region alone, ridge 3", "C, mean of regions": f"{np.mean(alone):.4f}"})
    repeats = 3 if given.quick else given.repeats
    work = partial(spread, ridge=3.0)
    if given.workers > 1:
        with ProcessPoolExecutor(given.workers, mp_context=get_context("spawn")) as pool:
            drawn = [v for part in pool.map(work, range(repeats)) for v in part]
    else:
        drawn = [v for seed in range(repeats) for v in work(seed)]
    low, high = np.quantile(drawn, [0.025, 0.975])
    other = {f"published, {n}": v for n, v in PUBLISHED.items()}
    rows += [{"fit": n, "C, mean of regions": f"{m:.3f}" + ("" if sd is None else f" (sd {sd:.3f})")}
             for n, (m, sd) in other.items()]  # fmt: skip
    het = apart.heterogeneity_
    note = (
        f"{learners.n_rows} rows to learn, {test.n_rows} to test, {len(names)} of 39 covariates, {fed.n_events_} "
        f"events; ridge 3 over {repeats} bootstraps: 95% of C in {low:.3f} to {high:.3f}. Between regions: Q = "
        f"{het.q:.1f} on {het.freedom} degrees, I^2 = {het.share:.2f}, p = {het.p:.2g}"
    )
    report("others_tcga", rows, note=note)


if __name__ == "__main__":
    main()

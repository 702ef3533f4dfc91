"""Does every private path keep what its ledger books, and would an audit notice half of the noise?

Each row audits one path at epsilon 1 by real releases. Power is the share of simulated audits of the same number of
runs that would refute the booking if the noise were half of what it should be.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from multiprocessing import get_context
from typing import Any

import numpy as np
from torch import nn

import fedscape as fs
from fedscape import All, Computation, Federation, FixedSize, Gaussian, Histogram, Laplace, Poisson, Privacy, Sampler
from fedscape.core.engine import Local
from fedscape.learning.losses import cross_entropy
from fedscape.privacy import AdaptiveClip, audit
from fedscape.privacy.accounting import epsilon_of
from fedscape.temporal import FedClock, MultiBranch
from table import arguments, report

CLIENTS, DELTA, EPSILON = 40, 1e-6, 1.0
RUNS, SAMPLED, FEW = 6000, 20_000, 500  # of an audit; where clients are sampled; of the quick table


class Measured(Histogram):
    """A histogram with a metric."""

    def measure(self, state: Any, clients: Federation) -> dict[str, Any]:
        return {"rows": clients.sizes.astype(float)}


@dataclass
class Case:
    """One row of the table."""

    path: str
    computation: Computation
    federation: Federation
    privacy: Privacy
    sampler: Sampler = field(default_factory=All)
    runs: int = RUNS
    metrics: Privacy | None = None
    state: Any = None
    method: str = "repeats"
    canaries: int = 1000

    def row(self, seed: int, runs: int | None) -> dict[str, Any]:
        begin = time.perf_counter()
        result = audit(
            self.computation,
            self.federation,
            self.privacy,
            sampler=self.sampler,
            measure_privacy=self.metrics,
            method=self.method,
            repeats=runs or self.runs,
            canaries=self.canaries,
            delta=DELTA,
            state=self.state,
            seed=seed,
            simulations=100,
        )
        clip = "adaptive clip" if isinstance(self.privacy.clip, AdaptiveClip) else ""
        how = [type(self.privacy).__name__, clip, "metrics" if self.metrics else ""]
        if self.method == "one-run":
            how.append(f"{self.canaries:,} canaries")
        return {
            "path": self.path + (" (resumed)" if self.method == "resume" else ""),
            "unit": result.unit if result.relation == "add-remove" else f"{result.unit}, exchanged",
            "place": result.place,
            "noise": ", ".join(h for h in how if h),
            "sampler": repr(self.sampler),
            "claim": f"{result.claim:.2f}",
            "bound": f"{result.bound:.2f}",
            "verdict": "holds" if result.holds else "BROKEN",
            "power at half noise": f"{100 * result.power[0.5]:.0f}%",
            "runs": result.repeats,
            "seconds": round(time.perf_counter() - begin, 1),
        }


def calibrated(sampler: Sampler, n: int, metrics: bool = False, epsilon: float = EPSILON, **how: Any) -> Any:
    """Gaussian noise, and that of metrics where they are asked for, that the ledger books as `epsilon`."""
    clip = how.pop("clip", 1.0)

    def made(multiplier: float) -> tuple[Privacy, Privacy | None]:
        bit = AdaptiveClip(1.0, multiplier=2 * multiplier) if clip == "adaptive" else clip
        return Gaussian(clip=bit, multiplier=multiplier, **how), (
            Gaussian(clip=1.0, multiplier=2 * multiplier) if metrics else None
        )

    low, high = 0.1, 100.0
    while high / low > 1.001:
        middle = (low * high) ** 0.5
        privacy, own = made(middle)
        spent = epsilon_of([(e, 1) for e in privacy.entries(sampler, n, metrics=own).values()], DELTA)
        low, high = (middle, high) if spent > epsilon else (low, middle)
    return made(high)


class Phases(Local):
    """An engine that notes each computation of a fit, with the last state that it ran from."""

    def run(self, computation: Computation, state: Any, *args: Any, **how: Any) -> Any:
        self.__dict__.setdefault("phases", {})[type(computation).__name__] = (computation, state)
        return super().run(computation, state, *args, **how)


def clients() -> Federation:
    rng = np.random.default_rng(0)
    columns = {
        "x": rng.normal(0, 0.3, (4 * CLIENTS, 2)),
        "y": rng.integers(0, 5, 4 * CLIENTS),
        "z": rng.normal(0, 0.3, 4 * CLIENTS),
        "entity": np.tile(np.arange(4), CLIENTS),
    }
    return Federation(columns, 4 * np.arange(CLIENTS + 1))


def estimators() -> Iterator[tuple[str, Any]]:
    yield "FederatedKMeans", fs.FederatedKMeans(3, bound=1.0)
    yield "MixtureOfDirichletMultinomials", fs.MixtureOfDirichletMultinomials(2, n_categories=5)
    yield "GaussianMixture", fs.GaussianMixture(2)
    ranges = {"x": (-1.0, 1.0), "z": (-1.0, 1.0)}
    regression = fs.LatentClassRegression(2, alpha=4.0, beta=2.0, ranges=ranges, rounds=3, target="z")
    yield "LatentClassRegression", regression


def single() -> Iterator[tuple[str, Computation]]:
    yield "Histogram", Histogram(5)
    yield "Moments", fs.Moments(bound=1.0)
    yield "DistributionSketch", fs.DistributionSketch(rows=20, bits=2)
    local = fs.LocalSGD(nn.Linear(2, 5), cross_entropy, lr=0.1, epochs=1, batch_size=4)
    yield "FedAvg", fs.FedAvg(local)
    branched = fs.LocalSGD(MultiBranch(nn.Linear(2, 5)), cross_entropy, lr=0.1, epochs=1, batch_size=4)
    yield "FedClock", FedClock(branched, weighting="equal")


def fitted(method: FedClock, fed: Federation) -> tuple[FedClock, Federation, Privacy]:
    method, privacy = method.under(calibrated(All(), len(fed))[0])
    return method, fed, privacy


@cache
def cases() -> list[Case]:
    fed, found = clients(), []
    n = len(fed)
    for name, computation in single():
        found.append(Case(name, computation, fed, calibrated(All(), n)[0]))
        bound = computation.row_bound(computation.start(0), 2, fed)
        if bound is not None:
            found.append(Case(name, computation, fed, calibrated(All(), n, clip=bound, unit="row")[0]))
        if name in ("Histogram", "FedAvg"):
            found += ways(name, computation, fed)
        if isinstance(computation, FedClock):  # as the command line runs it
            found.append(Case("FedClock, with its own scales", *fitted(computation, fed)))
    for name, estimator in estimators():
        engine, privacy = Phases(fed, threads=1), calibrated(All(), n)[0]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # so few clients, so much noise
            estimator.fit(engine, privacy=privacy, progress=False)
        for phase, (computation, state) in engine.__dict__["phases"].items():
            path = name if phase == name else f"{name}: {phase}"
            found.append(Case(path, computation, fed, privacy, state=state))
            bound = computation.row_bound(state, 2, fed)
            if bound is not None:
                rows = calibrated(All(), n, clip=bound, unit="row")[0]
                found.append(Case(path, computation, fed, rows, state=state))
    return found + one_run()


def ways(name: str, computation: Computation, fed: Federation) -> list[Case]:
    """Every way that a path can be run."""
    n, q, s = len(fed), Poisson(0.3), FixedSize(12)
    found = [
        Case(name, computation, fed, calibrated(All(), n, place="local")[0]),
        Case(name, computation, fed, calibrated(All(), n, place="distributed")[0]),
        Case(name, computation, fed, calibrated(All(), n, clip="adaptive")[0]),
        Case(name, computation, fed, calibrated(q, n)[0], q, SAMPLED),
        Case(name, computation, fed, calibrated(s, n)[0], s, SAMPLED),
        Case(name, computation, fed, Laplace(clip=1.0, epsilon=EPSILON)),
    ]
    if name == "Histogram":
        (privacy, metrics), (sampled, seen) = calibrated(All(), n, metrics=True), calibrated(q, n, metrics=True)
        found += [
            Case(name, Measured(5), fed, privacy, metrics=metrics),
            Case(name, Measured(5), fed, sampled, q, SAMPLED, metrics=seen),
            Case(name, computation, fed, Laplace(clip=1.0, epsilon=EPSILON, unit="row")),
            Case(name, computation, fed, Laplace(clip=1.0, epsilon=EPSILON / 2, place="local")),
            Case(name, computation, fed, calibrated(All(), n, unit="row", place="local")[0]),
            Case(name, computation, fed, calibrated(All(), n, unit="row", relation="replace-one")[0]),
            Case(name, computation, fed, calibrated(All(), n, epsilon=0.7 * EPSILON)[0], method="resume"),
        ]
    return found


def one_run() -> list[Case]:
    """Many canaries in the gradients of a network, one round."""
    rng, n = np.random.default_rng(0), 5000
    fed = Federation({"x": rng.normal(size=(n, 30)), "y": rng.integers(0, 5, n)}, np.arange(n + 1))
    model = nn.Sequential(nn.Linear(30, 150), nn.ReLU(), nn.Linear(150, 5))
    computation = fs.FedAvg(fs.LocalSGD(model, cross_entropy, lr=0.1, epochs=1, batch_size=4))
    found = []
    for multiplier, canaries in ((1.4, 2000), (1.4, 5000), (4.22, 5000)):
        privacy = Gaussian(clip=1.0, multiplier=multiplier)
        found.append(Case("FedAvg, one run", computation, fed, privacy, method="one-run", canaries=canaries))
    return found


def row(number: int, seed: int, runs: int | None) -> dict[str, Any]:
    return cases()[number].row(seed, runs)


def main() -> None:
    options = arguments(__doc__)
    if options.quick:
        few = [i for i, case in enumerate(cases()) if case.sampler == All() and case.method == "repeats"]
        rows = [row(i, options.seed, FEW) for i in few if cases()[i].path != "FedAvg"]
    else:
        os.environ["OMP_NUM_THREADS"] = "1"
        with ProcessPoolExecutor(2, get_context("spawn")) as pool:
            jobs = [pool.submit(row, i, options.seed, None) for i in range(len(cases()))]
            rows = [job.result() for job in jobs]
    report(
        "privacy_audit", rows, note=f"epsilon at delta {DELTA:g}, 95% confidence, {CLIENTS} clients (one run: 5,000)"
    )


if __name__ == "__main__":
    main()

"""Does every private path keep what its ledger books, and would an audit notice half of the noise?"""

from __future__ import annotations

import numpy as np
from torch import nn

from fedscape import (
    All,
    Computation,
    DistributionSketch,
    FedAvg,
    FederatedKMeans,
    Federation,
    FixedSize,
    Gaussian,
    GaussianMixture,
    Histogram,
    Laplace,
    LocalSGD,
    MixtureOfDirichletMultinomials,
    Moments,
    Poisson,
    Privacy,
    Sampler,
    calibrate,
)
from fedscape.learning.losses import cross_entropy
from fedscape.privacy import AdaptiveClip, audit
from table import arguments, report

CLIENTS, DELTA, EPSILON = 200, 1e-6, 1.0


def clients() -> Federation:
    rng = np.random.default_rng(0)
    x, y = rng.normal(0, 0.3, (4 * CLIENTS, 2)), rng.integers(0, 5, 4 * CLIENTS)
    return Federation({"x": x, "y": y}, 4 * np.arange(CLIENTS + 1))


def paths() -> list[tuple[str, Computation]]:
    starts = np.random.default_rng(1).normal(0, 0.3, (1, 3, 2))
    local = LocalSGD(nn.Linear(2, 5), cross_entropy, lr=0.1, epochs=1, batch_size=4)
    return [
        ("Histogram", Histogram(5)),
        ("Moments", Moments(bound=1.0)),
        ("FederatedKMeans", FederatedKMeans(3, bound=1.0, init=starts)),
        ("DistributionSketch", DistributionSketch(rows=20, bits=2)),
        ("MixtureOfDirichletMultinomials", MixtureOfDirichletMultinomials(2, n_init=1, n_categories=5)),
        ("GaussianMixture", GaussianMixture(2, n_init=1)),
        ("FedAvg", FedAvg(local)),
    ]


def gaussian(
    sampler: Sampler, clip: float | AdaptiveClip = 1.0, unit: str = "client", place: str = "central"
) -> Privacy:
    """The noise that the ledger books as EPSILON."""
    base = Gaussian(clip=clip, multiplier=1.0, unit=unit, place=place)
    entry = base.parts(sampler, CLIENTS)["sum"]
    amplified = entry["sampling"]["kind"] != "all"
    multiplier = calibrate(EPSILON, DELTA, rounds=1, sampler=sampler if amplified else All(), n_clients=CLIENTS)
    return Gaussian(
        clip=clip, multiplier=multiplier if amplified else multiplier / entry["multiplier"], unit=unit, place=place
    )


def settings(name: str, computation: Computation) -> list[tuple[Privacy, Sampler]]:
    """Every way that a path can be run; all of them for a histogram, the common ones for the others."""
    found: list[tuple[Privacy, Sampler]] = [(gaussian(All()), All())]
    phases = type(computation).step is Computation.step  # audited by its first phase
    bound = None if phases else computation.row_bound(computation.start(0), 2, clients())
    if bound is not None:
        found.append((gaussian(All(), clip=bound, unit="row"), All()))
    if name not in ("Histogram", "FedAvg"):
        return found
    found += [
        (gaussian(All(), place="local"), All()),
        (gaussian(All(), place="distributed"), All()),
        (gaussian(All(), clip=AdaptiveClip(1.0, multiplier=10.0)), All()),
        (gaussian(Poisson(0.1)), Poisson(0.1)),
        (gaussian(FixedSize(50)), FixedSize(50)),
        (Laplace(clip=1.0, epsilon=EPSILON), All()),
    ]
    if name == "Histogram":
        found += [
            (Laplace(clip=1.0, epsilon=EPSILON, unit="row"), All()),
            (Laplace(clip=1.0, epsilon=EPSILON / 2, place="local"), All()),
            (gaussian(All(), unit="row", place="local"), All()),
        ]
    return found


def main() -> None:
    options = arguments(__doc__)
    rows = []
    fed = clients()
    for name, computation in paths():
        for privacy, sampler in settings(name, computation):
            if options.quick and (sampler != All() or name not in ("Histogram", "Moments")):
                continue
            result = audit(
                computation,
                fed,
                privacy,
                sampler=sampler,
                delta=DELTA,
                seed=options.seed,
                simulations=40,
            )
            rows.append(
                {
                    "path": name,
                    "unit": result.unit,
                    "place": result.place,
                    "mechanism": type(privacy).__name__,
                    "clip": "adaptive" if isinstance(privacy.clip, AdaptiveClip) else f"{privacy.clip:.3g}",
                    "sampler": repr(sampler),
                    "relation": result.relation,
                    "claim": f"{result.claim:.3f}",
                    "bound": f"{result.bound:.3f}",
                    "holds": str(result.holds),
                    "power at half noise": f"{100 * result.power[0.5]:.0f}%",
                    "runs": result.repeats,
                }
            )
    report("audit", rows, note=f"epsilon at delta {DELTA:g}, 95% confidence, {CLIENTS} clients")


if __name__ == "__main__":
    main()

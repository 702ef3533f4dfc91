"""A private census of clients: which kinds of regions are there, at epsilon 2?

2,462 census regions keep their counts of nine races. The server learns a mixture of Dirichlet-multinomials from noisy
sums alone, draws regions like the true ones, and asks the true ones, privately again, whether they recognise
themselves. Every release is in one ledger with one budget.
"""

from __future__ import annotations

import fedscape as fs

DELTA = 1e-5


def main() -> None:
    regions, held = fs.datasets.load("acs-race").split_clients(test=0.3, seed=0)
    ledger = fs.Ledger(epsilon=2.0, delta=DELTA)
    model = fs.MixtureOfDirichletMultinomials(3, n_init=1, rounds=4, n_categories=9, seed=0)

    # the fit takes most of the budget, the question at the end the rest: held regions are other clients, but one ledger
    # for all keeps the promise simple
    noise = fs.calibrate(1.6, DELTA, rounds=model.n_releases(), sampler=fs.All())
    model.fit(regions, privacy=fs.Gaussian(clip=1.5, multiplier=noise), ledger=ledger)
    print(f"noise multiplier {noise:.2f} for {model.n_releases()} releases: spent {spent(ledger):.2f}")

    for share, alpha in zip(model.weights_, model.concentrations_, strict=True):
        means = alpha / alpha.sum()
        common = ", ".join(f"race {j + 1}: {means[j]:.0%}" for j in means.argsort()[:-4:-1])
        print(f"{share:.0%} of regions: {common} (concentration {alpha.sum():.1f})")

    drawn = model.sample(1000, seed=1)
    print(f"drawn: 1,000 regions of {drawn.sum(axis=1).mean():.0f} persons on average")

    left = fs.calibrate(2.0 - spent(ledger), DELTA, rounds=1, sampler=fs.All())
    print(fs.simulate.self_score(model, held, privacy=fs.Gaussian(clip=2.45, multiplier=left), ledger=ledger))
    print(f"spent in all: epsilon {spent(ledger):.2f} at delta {DELTA:g}, of {ledger.epsilon:g}")


def spent(ledger: fs.Ledger) -> float:
    return max(ledger.spent().values())


if __name__ == "__main__":
    main()

"""Tune on simulated clients: which learning rate would the true clients choose?

The server has rows of its own and never sees a client's. It learns the population of clients from sums of label counts,
cuts clients like them from its own rows, tunes there, and only then trains on the true clients, once. To check the
choice, the true clients' own ranking of the rates is printed beside the simulated one.
"""

from __future__ import annotations

import numpy as np

import fedscape as fs
from fedscape.learning import cross_entropy, grid, models, sweep

RATES = (0.03, 0.1, 0.3, 1.0, 3.0)


def tuned(clients: fs.Federation, local: fs.LocalSGD) -> dict[float, float]:
    """Each rate's loss on rows that clients held out, the mean of two seeds; all run side by side."""
    train, held = clients.split(test=0.25, seed=0)
    settings = grid(lr=RATES, seeds=(0, 1))
    trials = sweep(local, train, settings, n_rounds=12, validation=held, sampler=fs.FixedSize(5), initial="seed")
    return {rate: float(np.mean([t.loss for t in trials if t.setting.lr == rate])) for rate in RATES}


def main() -> None:
    writers = fs.datasets.load("femnist-mini")
    writers = writers.with_column("x", (1 - writers["x"] / 255).astype(np.float32))  # ink is 1, paper 0
    true, server = writers.take(slice(0, None, 2)), writers.take(slice(1, None, 2))

    population = fs.MixtureOfDirichletMultinomials(2, n_categories=62, seed=0).fit(true, column="y")  # from sums alone
    recipe = fs.simulate.FromMixture(population)
    cut = {"n_clients": len(true), "column": "y", "policy": "replace"}
    print(fs.simulate.feasibility(recipe, server, **cut))
    simulated = fs.simulate.clients(recipe, server, **cut)

    local = fs.LocalSGD(models.linear(784, 62), cross_entropy, lr=0.1, epochs=1, batch_size=10)
    simulated_loss, true_loss = tuned(simulated, local), tuned(true, local)
    print("rate     simulated clients   true clients   (loss on held-out rows)")
    for rate in RATES:
        print(f"{rate:<8g} {simulated_loss[rate]:>17.3f} {true_loss[rate]:>14.3f}")
    chosen, best = min(RATES, key=lambda r: simulated_loss[r]), min(RATES, key=lambda r: true_loss[r])
    print(f"chosen on simulated clients: {chosen:g}; the true clients' own best: {best:g}")
    print(f"what the choice costs the true clients: {true_loss[chosen] - true_loss[best]:.3f} nats")


if __name__ == "__main__":
    main()

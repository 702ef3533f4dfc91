"""What does the engine itself cost? An empty computation, and Histogram, over 1,000 and 1,000,000 clients."""

from __future__ import annotations

import statistics
import time

import numpy as np

from fedscape import Computation, Federation, Gaussian, Histogram, Local, rounds
from fedscape.types import Arrays
from table import arguments, report


class Nothing(Computation):
    """Sends one zero per client."""

    def start(self, seed: int) -> Arrays:
        return {"nothing": np.zeros(())}

    def step(self, state, clients, key):
        return {"nothing": np.zeros(len(clients))}, {}

    def update(self, state, total, key):
        return {"nothing": total["nothing"]}


class Rows(Histogram):
    """Histogram without its short cut: every client's row is made, as it must be for clipping."""

    def total(self, state, clients, key):
        return None


def seconds(computation: Computation, engine: Local, repeats: int, privacy: Gaussian | None) -> float:
    times = [r.seconds for r in rounds(computation, engine, n_rounds=repeats + 1, privacy=privacy)][1:]
    return statistics.median(times)


def population(n_clients: int, rows_each: int, categories: int) -> Federation:
    rng = np.random.default_rng(0)
    offsets = np.concatenate(([0], np.cumsum(rng.poisson(rows_each, n_clients))))
    return Federation({"y": rng.integers(0, categories, offsets[-1], dtype=np.int32)}, offsets)


def main() -> None:
    args = arguments(__doc__)
    rows = []
    private = Gaussian(clip=5.0, multiplier=4.0)
    kinds = (
        ("empty", Nothing(), None),
        ("Histogram, sums", Histogram(62), None),
        ("Histogram, rows", Rows(62), None),
        ("Histogram, clipped and noised", Histogram(62), private),
    )
    for n in (1_000, 20_000) if args.quick else (1_000, 1_000_000):
        fed = population(n, 20, 62)
        for name, computation, privacy in kinds:
            for threads in (1, 2):
                took = seconds(computation, Local(fed, threads=threads), 3 if n > 1_000 else 20, privacy)
                rows.append(
                    {
                        "clients": n,
                        "computation": name,
                        "threads": threads,
                        "ms per round": took * 1e3,
                        "us per client": took / n * 1e6,
                    }
                )
    started = time.perf_counter()
    Histogram(62).fit(fed)
    report("rounds", rows, note=f"last fit as a user calls it: {time.perf_counter() - started:.3f} s")


if __name__ == "__main__":
    main()

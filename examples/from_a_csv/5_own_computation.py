"""A custom federated computation in one file, under differential privacy: the median age, by bisection.

Each clinic sends the share of its patients who are younger than the server's guess; the server halves the interval. A
clinic changes each sum by at most 1 (its clip). Noise hides any one clinic, and the ledger records the epsilon spent.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np

import fedscape as fs

EPSILON, DELTA, N_ROUNDS = 5.0, 1e-5, 6


class Median(fs.Computation):
    """The age that half of a clinic's patients have not reached, mean over clinics."""

    def start(self, seed):
        return {"low": np.array(0.0), "high": np.array(120.0)}

    def step(self, state, clients, key):
        guess = (state["low"] + state["high"]) / 2
        younger = clients.segment_sum((clients["age"] < guess).astype(float))
        return {"share": younger / clients.sizes}, {}  # what is sent and summed, and what stays on the client

    def update(self, state, total, key):
        guess = (state["low"] + state["high"]) / 2
        if total["share"] > total["clients"] / 2:
            return {"low": state["low"], "high": guess}
        return {"low": guess, "high": state["high"]}


def main() -> None:
    subprocess.run([sys.executable, Path(__file__).with_name("make_visits.py")], check=True)
    clinics = fs.Federation.from_csv("visits.csv", client="clinic", columns=["age"])
    ledger = fs.Ledger("ledger.jsonl", epsilon=EPSILON, delta=DELTA)
    noise = fs.calibrate(EPSILON, DELTA, rounds=N_ROUNDS, sampler=fs.All())
    private = fs.Gaussian(clip=1.0, multiplier=noise)
    for r in fs.rounds(Median(), clinics, n_rounds=N_ROUNDS, privacy=private, ledger=ledger):
        print(f"round {r.index}: between {float(r.state['low']):.1f} and {float(r.state['high']):.1f}")
    print(f"median age near {(float(r.state['low']) + float(r.state['high'])) / 2:.1f}; spent {ledger.spent()}")


if __name__ == "__main__":
    main()

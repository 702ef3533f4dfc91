"""A run that another process kills: private or not, with a checkpoint after every round."""

from __future__ import annotations

import hashlib
import sys
import time

import numpy as np

from fedscape import Federation, Gaussian, Histogram, Ledger, Local, Poisson, rounds
from fedscape.core.arrays import Ragged
from fedscape.core.random import Key


class Walk(Histogram):
    """A histogram that adds up over rounds; clients keep a list that grows, and draw a number each round."""

    def start(self, seed):
        return {"counts": np.zeros(self.n_categories), "last": np.zeros(self.n_categories)}

    def total(self, state, clients, key):
        return None

    def step(self, state, clients, key: Key):
        seen = clients.kept.get("seen", Ragged(np.empty(0), np.zeros(len(clients) + 1, dtype=np.int64)))
        draws = key.uniform(clients)
        parts = [
            np.append(seen.flat[a:b], d) for a, b, d in zip(seen.offsets[:-1], seen.offsets[1:], draws, strict=True)
        ]
        ends = np.concatenate(([0], np.cumsum([len(p) for p in parts])))
        time.sleep(0.002)
        past = np.array([p.sum() for p in parts])
        return {"counts": clients.counts("y", self.n_categories) + past[:, None]}, {
            "seen": Ragged(np.concatenate(parts), ends)
        }

    def update(self, state, total, key):
        return {"counts": state["counts"] + total["counts"], "last": total["counts"]}


def main(folder: str, private: bool, n_rounds: int) -> None:
    rng = np.random.default_rng(0)
    offsets = np.concatenate(([0], np.cumsum(rng.integers(0, 6, 300))))
    fed = Federation({"y": rng.integers(0, 4, offsets[-1])}, offsets)
    how = {}
    if private:
        how = {"privacy": Gaussian(clip=5.0, multiplier=3.0), "ledger": Ledger(f"{folder}/ledger.jsonl")}
    loop = rounds(
        Walk(4), Local(fed, threads=2), n_rounds=n_rounds, sampler=Poisson(0.5), resume=f"{folder}/run.ckpt", **how
    )
    with open(f"{folder}/published.txt", "a") as published:
        for r in loop:
            published.write(f"{r.index} {r.state['last'].tobytes().hex()}\n")  # what the world has seen
            published.flush()
            r.save(f"{folder}/run.ckpt")
    print(hashlib.sha256(loop.state["counts"].tobytes()).hexdigest())  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2] == "private", int(sys.argv[3]))

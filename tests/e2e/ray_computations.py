"""Computations that go wrong in the middle of a round, and a run on Ray that another process kills."""

from __future__ import annotations

import hashlib
import itertools
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

from fedscape import Computation, DataError, Federation, FixedSize, Ray, rounds
from fedscape.core.arrays import Ragged
from fedscape.learning import FedAvg, LocalSGD, cross_entropy, models
from fedscape.learning.layers import initialised


class Diary(Computation):
    """Sums that depend on every round before: clients keep a list that grows by a draw in each.

    In round `at`, the client `who` does what `trouble` says; "kill" only while the file `marker` is not there.
    """

    block_clients = 8

    def __init__(self, trouble="none", *, at=2, who=30, marker=""):
        self.trouble, self.at, self.who, self.marker = trouble, at, who, marker

    def start(self, seed):
        return {"sum": np.zeros(3), "calls": np.zeros(())}

    def step(self, state, clients, key):
        if key.round == self.at and self.who in clients.ids:
            self._go_wrong()
        old = clients.kept.get("diary", Ragged(np.empty(0), np.zeros(len(clients) + 1, dtype=np.int64)))
        draws = key.uniform(clients) * clients.sizes
        ends = old.offsets + np.arange(len(clients) + 1)
        flat = np.empty(ends[-1])
        flat[ends[1:] - 1] = draws
        flat[np.setdiff1d(np.arange(ends[-1]), ends[1:] - 1)] = old.flat
        past = np.array([flat[a:b].sum() for a, b in itertools.pairwise(ends)])
        rows = np.stack((draws, past, np.exp(past - state["sum"][0])), axis=1)
        return {"sum": rows}, {"diary": Ragged(flat, ends)}

    def update(self, state, total, key):
        return {"sum": total["sum"] / total["clients"], "calls": state["calls"] + 1}

    def _go_wrong(self):
        if self.trouble == "raise":
            raise ValueError("a bug of the author's")
        if self.trouble == "refuse":
            raise DataError("the column 'y' holds nonsense")
        if self.trouble == "memory":
            np.ones(2**28)
        if self.trouble == "kill" and not Path(self.marker).exists():
            Path(self.marker).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if self.trouble == "always":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.trouble == "gpu":
            Path(self.marker).write_text(os.environ["CUDA_VISIBLE_DEVICES"])
        if self.trouble == "pid":
            Path(self.marker).write_text(str(os.getpid()))
            time.sleep(0.5)


class Training(FedAvg):
    """A network under vmap, in groups; with a marker, the first process that trains in round 1 dies."""

    def __init__(self, *, group_size, marker=""):
        model = initialised(models.mlp(3, 8, 2), 0)
        super().__init__(
            LocalSGD(model, cross_entropy, lr=0.3, epochs=1, batch_size=4, strategy="vmap", group_size=group_size)
        )
        self.group_size, self.marker = group_size, marker

    def total(self, state, clients, key):
        if self.marker and key.round == 1 and not Path(self.marker).exists():
            Path(self.marker).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().total(state, clients, key)


def pupils():
    rng = np.random.default_rng(1)
    offsets = np.concatenate(([0], np.cumsum(rng.integers(1, 9, 30))))
    return Federation({"x": rng.normal(size=(offsets[-1], 3)), "y": rng.integers(0, 2, offsets[-1])}, offsets)


def people(n=100):
    rng = np.random.default_rng(0)
    offsets = np.concatenate(([0], np.cumsum(rng.integers(0, 6, n))))
    return Federation({"y": rng.integers(0, 4, offsets[-1])}, offsets, ids=rng.permutation(n))


def digest(loop) -> str:
    kept = loop.engine.kept()["diary"]
    parts = [*(v.tobytes() for _, v in sorted(loop.state.items())), kept.flat.tobytes(), kept.offsets.tobytes()]
    return hashlib.sha256(b"".join(parts)).hexdigest()


def main(folder: str, n_rounds: int, address: str | None = None) -> None:
    with Ray(people(), workers=2, folder=folder, address=address) as engine:
        loop = rounds(Diary(), engine, n_rounds=n_rounds, sampler=FixedSize(60), resume=f"{folder}/run.ckpt")
        for r in loop:
            r.save(f"{folder}/run.ckpt")
            print(f"round {r.index}", flush=True)  # noqa: T201
        print(digest(loop), flush=True)  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])

"""Nodes in one process for tests of Flower: real messages, real ClientApps."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedscape import Computation, Federation, Flower
from fedscape.core.arrays import Ragged
from fedscape.engines.flower import LocalGrid, Terms, client_app


def federation(n: int = 12, seed: int = 0) -> Federation:
    rng = np.random.default_rng(seed)
    offsets = np.concatenate(([0], np.cumsum(rng.integers(0, 9, n))))
    return Federation({"y": rng.integers(0, 3, offsets[-1])}, offsets, ids=[f"c{i:02d}" for i in range(n)])


def app_of(fed: Federation, folder: Path, *, nodes: int = 3, **how):
    """Node i holds the clients i, i + nodes, ...; its folder is named after it."""
    return client_app(
        lambda context: fed.take(np.arange(context.node_id - 1, len(fed), nodes)),
        folder=lambda context: folder / str(context.node_id),
        **how,
    )


def engine_of(fed: Federation, folder: Path, *, nodes: int = 3, grid=LocalGrid, terms=None, own=(), **how) -> Flower:
    app = app_of(fed, folder, nodes=nodes, terms=terms or Terms(), computations=own)
    settings = {"min_clients": 2, "poll": 0.001, "timeout": 0.05, **how}
    return Flower(grid(app, [{}] * nodes), **settings)


class Remember(Computation):
    """Clients add a keyed number to a list they keep, and send the list's sum: a step lost or taken twice shows."""

    def start(self, seed):
        return {"sum": np.zeros(()), "past": np.zeros(())}

    def step(self, state, clients, key):
        seen = clients.kept.get("seen", Ragged(np.empty(0), np.zeros(len(clients) + 1, dtype=np.int64)))
        draws = key.uniform(clients)
        parts = [
            np.append(seen.flat[a:b], d) for a, b, d in zip(seen.offsets[:-1], seen.offsets[1:], draws, strict=True)
        ]
        ends = np.concatenate(([0], np.cumsum([len(p) for p in parts])))
        return {"sum": np.array([p.sum() for p in parts])}, {"seen": Ragged(np.concatenate(parts), ends)}

    def update(self, state, total, key):
        return {"sum": total["sum"], "past": state["past"] + total["sum"]}

    @classmethod
    def examples(cls):
        return [(cls(), federation())]

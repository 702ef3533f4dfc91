"""What the boards of others share: where data are, images dealt to clients, a table of published beside ours."""

from __future__ import annotations

import gzip
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedscape import Federation
from fedscape.types import Array

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # cells.py and table.py

from table import half_width

Split = tuple[Federation, Federation]


def data_folder() -> Path:
    """The folder that FEDSCAPE_DATA names."""
    folder = os.environ.get("FEDSCAPE_DATA")
    if not folder:
        raise SystemExit("these boards need data: set FEDSCAPE_DATA to the folder that holds them")
    return Path(folder)


def images(name: str, folder: Path) -> tuple[Array, Array]:
    """All images of "mnist" or "fashion_mnist" that the folder holds, [n, 1, 28, 28] bytes, and their labels."""
    x, y = [], []
    for part in ("train", "t10k"):
        path = folder / name / f"{part}-images-idx3-ubyte.gz"
        if path.exists():
            raw = gzip.decompress(path.read_bytes())
            x.append(np.frombuffer(raw, np.uint8, offset=16).reshape(-1, 1, 28, 28))
            raw = gzip.decompress((folder / name / f"{part}-labels-idx1-ubyte.gz").read_bytes())
            y.append(np.frombuffer(raw, np.uint8, offset=8).astype(np.int64))
    return np.concatenate(x), np.concatenate(y)


def by_classes(y: Array, n_clients: int, per_client: int, rng: np.random.Generator) -> list[Array]:
    """Rows of each client: `per_client` classes each, a class dealt in parts of random size to those that have it.

    As PFLlib has it, a class goes to the first clients that have not all of theirs: neighbours share classes.
    """
    n_classes = int(y.max()) + 1
    rows: list[list[Array]] = [[] for _ in range(n_clients)]
    for label in range(n_classes):
        who = [client for client in range(n_clients) if len(rows[client]) < per_client]
        who = who[: -(-n_clients * per_client // n_classes)]
        mine = rng.permutation(np.flatnonzero(y == label))
        shares = 0.5 / len(who) + 0.5 * rng.dirichlet(np.full(len(who), 4.0))
        for client, part in zip(who, np.split(mine, (np.cumsum(shares)[:-1] * len(mine)).astype(int)), strict=True):
            rows[client].append(part)
    return [np.concatenate(parts) for parts in rows]


def by_dirichlet(y: Array, n_clients: int, alpha: float, rng: np.random.Generator, *, least: int = 40) -> list[Array]:
    """Rows of each client: every class dealt by shares from a Dirichlet law, drawn until no client has too few."""
    while True:
        rows: list[list[Array]] = [[] for _ in range(n_clients)]
        for label in range(int(y.max()) + 1):
            mine = rng.permutation(np.flatnonzero(y == label))
            cuts = (np.cumsum(rng.dirichlet(np.full(n_clients, alpha)))[:-1] * len(mine)).astype(int)
            for client, part in enumerate(np.split(mine, cuts)):
                rows[client].append(part)
        if min(sum(map(len, parts)) for parts in rows) >= least:
            return [np.concatenate(parts) for parts in rows]


def dealt(x: Array, y: Array, rows: list[Array], rng: np.random.Generator, *, train: float = 0.75) -> Split:
    """Clients that train on this part of their rows, and the same clients with the rest."""
    parts: tuple[list[Array], list[Array]] = ([], [])
    for mine in rows:
        order = rng.permutation(mine)
        cut = int(train * len(order))
        parts[0].append(order[:cut])
        parts[1].append(order[cut:])
    return tuple(_federation(x, y, part) for part in parts)  # type: ignore[return-value]


def reach(values: Sequence[float], form: str) -> str:
    """Half of the 95% interval of the mean over seeds; nothing for one seed."""
    return format(half_width(values), form) if len(values) > 1 else ""


def _federation(x: Array, y: Array, rows: list[Array]) -> Federation:
    order = np.concatenate(rows)
    return Federation({"x": x[order], "y": y[order]}, np.concatenate([[0], np.cumsum([len(r) for r in rows])]))

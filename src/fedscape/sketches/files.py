"""Sketches of clients as one checksummed file."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedscape import checkpoint
from fedscape.errors import DataError
from fedscape.random import Array
from fedscape.sketches.distances import normalise, sizes
from fedscape.sketches.distribution import DistributionSketch

_PLAIN = ("rows", "bits", "family", "column", "width", "shingle", "seed")


@dataclass(frozen=True)
class Saved:
    """The clients' counts, their ids, and the sketch that made them.

    >>> model = DistributionSketch(rows=2, bits=1)
    >>> Saved(model, np.ones((1, 2, 2)), np.array(["a"])).sizes
    array([2.])
    """

    model: DistributionSketch
    counts: Array
    ids: Array
    noise: float = 0.0

    @property
    def sketches(self) -> Array:
        return normalise(self.counts)

    @property
    def sizes(self) -> Array:
        return sizes(self.counts)


def save(path: str | os.PathLike[str], saved: Saved) -> None:
    """Write counts, ids and the sketch's parameters to one file; an embedding is code and is not saved."""
    work = saved.model._ready()
    if work.embed is not None:
        raise DataError("a sketch with embed= cannot be saved: embed the column before, and leave embed out")
    params = {name: getattr(work, name) for name in _PLAIN}
    arrays = {"counts": saved.counts, "ids": saved.ids, "centre": np.asarray(work.centre, dtype=float)}
    arrays["scale"] = np.asarray(work.scale, dtype=float)
    checkpoint.write(path, arrays, {"kind": "sketches", "params": params, "noise": saved.noise})


def load(path: str | os.PathLike[str]) -> Saved:
    """Read what `save` wrote."""
    arrays, header = checkpoint.read(path)
    if header.get("kind") != "sketches":
        raise DataError(f"{os.fspath(path)} is a fedscape file, but holds no sketches: make one with 'sketch build'")
    try:
        params: dict[str, Any] = {name: header["params"][name] for name in _PLAIN}
        model = DistributionSketch(**params, centre=arrays["centre"], scale=arrays["scale"])
        saved = Saved(model, arrays["counts"], arrays["ids"], float(header["noise"]))
        fits = saved.counts.shape == (len(saved.ids), *model._shape())
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{os.fspath(path)} holds sketches this version cannot read: {error!r}") from None
    if not fits:
        raise DataError(f"{os.fspath(path)} holds counts of shape {saved.counts.shape} for {len(saved.ids)} clients")
    return saved


def check_alike(a: Saved, b: Saved) -> None:
    """Refuse to compare sketches of different hash functions."""
    mine, yours = a.model.get_params(), b.model.get_params()
    for name in mine:
        if name != "column" and not np.array_equal(mine[name], yours[name]):
            raise DataError(
                f"these sketches cannot be compared: {name} is {mine[name]} in one and {yours[name]} in the other; "
                "build both with the same options (and --centre, --scale as numbers)"
            )

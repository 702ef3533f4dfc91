"""Save and load client sketches as one checksummed file."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from fedscape.core import checkpoint
from fedscape.core.engine import Engine, Local
from fedscape.core.federation import Federation
from fedscape.errors import DataError
from fedscape.privacy.ledger import Ledger
from fedscape.privacy.mechanisms import Laplace
from fedscape.privacy.ranges import NOISE, check_positive
from fedscape.sketches.distances import distance, heterogeneity, neighbours, normalise, own_bias, sizes, tvd_lower_bound
from fedscape.sketches.distribution import DistributionSketch
from fedscape.sketches.private import choose_rows, noise_variance
from fedscape.types import Array

_MOST_CELLS = 2**29  # of all clients together, held in memory at once
_PLAIN = ("rows", "bits", "family", "column", "width", "shingle", "seed")


@dataclass(frozen=True)
class Saved:
    """The clients' counts, their ids, and the sketch that counted them.

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
    """Write counts, ids and the sketch's parameters to one file; an embedding is code and is not saved.

    A file of private sketches is readable only by its owner.
    """
    work = saved.model._ready()
    if work.embed is not None:
        raise DataError("a sketch with embed= cannot be saved: embed the column before, and leave embed out")
    params = {name: getattr(work, name) for name in _PLAIN}
    arrays = {"counts": saved.counts, "ids": saved.ids, "centre": np.asarray(work.centre, dtype=float)}
    arrays["scale"] = np.asarray(work.scale, dtype=float)
    header = {"kind": "sketches", "params": params, "noise": saved.noise}
    checkpoint.write(path, arrays, header, secret=saved.noise > 0)


def load(path: str | os.PathLike[str]) -> Saved:
    """Read a file written by `save`."""
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
    """Refuse to compare sketches with different hash functions."""
    mine, yours = a.model.get_params(), b.model.get_params()
    for name in mine:
        if name != "column" and not np.array_equal(mine[name], yours[name]):
            raise DataError(
                f"these sketches cannot be compared: {name} is {mine[name]} in one and {yours[name]} in the other; "
                "build both with the same options (and --centre, --scale as numbers)"
            )


def build(
    federation: Federation,
    path: str | os.PathLike[str],
    options: Mapping[str, Any],
    *,
    epsilon: float | None = None,
    relation: str = "add-remove",
    typical_size: float | None = None,
    engine_for: Callable[[Federation], Engine] = Local,
) -> dict[str, Any]:
    """Sketch every client and save the sketches; with epsilon each client protects its rows first.

    Options are those of DistributionSketch; centre and scale may be texts that hold a number. Under privacy the data
    choose nothing: rows are given, or follow from a public typical size, and "mean" and "deviation" are refused.
    `engine_for` makes the engine that runs the clients.
    Replacing a row moves counts twice as far as adding one. For "replace-one" the noise is therefore doubled, and
    epsilon is the actual cost.
    """
    column, family = options.get("column", "x"), options.get("family", "srp")
    if family != "minhash" and column in federation.names and federation[column].ndim == 1:
        raise DataError(
            f"the column {column!r} holds texts, and family {family!r} compares numbers: take --family minhash, or "
            "make indicator columns of it"
        )
    settings = {**options, **{name: _number(name, options[name]) for name in ("centre", "scale") if name in options}}
    ledger, privacy = Ledger(), None
    if epsilon is not None:
        check_positive("epsilon", epsilon, NOISE, error=DataError)
        if settings["rows"] is None:
            if typical_size is None:
                raise DataError(
                    "with --epsilon, give --rows, or --typical-size, about how many rows a client has as far as is "
                    "public: the data must not choose them"
                )
            settings["rows"] = choose_rows(typical_size, epsilon=epsilon, bits=settings["bits"], relation=relation)
        if any(isinstance(settings.get(name), str) for name in ("centre", "scale")):
            raise DataError("with --epsilon, --centre and --scale must be numbers: the data must not choose them")
        privacy = Laplace(
            clip=float(settings["rows"]),
            epsilon=epsilon / 2 if relation == "replace-one" else epsilon,
            unit="row",
            place="local",
            relation=relation,
        )
    model = DistributionSketch(**settings)
    if settings["rows"] is not None:
        _check_cells(model, len(federation))
    engine = engine_for(federation)
    if privacy is None:
        model.fit(engine, progress=False)
        _check_cells(model._ready(), len(federation))
    book = None if privacy is None else ledger
    counts = model.counts(engine, allow=("counts",), privacy=privacy, ledger=book)
    save(path, Saved(model, counts, federation.ids, noise_variance(privacy)))
    rows, cells = model._ready()._shape()
    done: dict[str, Any] = {"clients": len(federation), "rows": rows, "cells": cells, "bytes": counts[:1].nbytes}
    if privacy is not None:
        done["epsilon"] = {", ".join(group): round(spent, 4) for group, spent in ledger.spent().items()}
    return {**done, "written": os.fspath(path)}


def compare(path: str | os.PathLike[str], other: str | os.PathLike[str] | None = None) -> dict[str, Any]:
    """Describe the clients of one file, or compare the totals of two files."""
    a = load(path)
    if other is None:
        result = heterogeneity(a.sketches, np.round(a.sizes), noise=a.noise)
        return {name: round(value, 6) for name, value in asdict(result).items()}
    b = load(other)
    check_alike(a, b)
    wholes = [np.asarray(each.counts.sum(axis=0)) for each in (a, b)]
    p, q = (normalise(whole) for whole in wholes)
    rows, square = p.shape[0], float(distance(p, q, squared=True))
    fair = square - sum(
        float(own_bias(s, sizes(whole), each.noise * len(each.ids)))
        for s, whole, each in ((p, wholes[0], a), (q, wholes[1], b))
    )
    return {
        "distance": round(float(np.sqrt(square / rows)), 6),
        "debiased": round(float(np.sqrt(max(fair, 0.0) / rows)), 6),
        "tvd_at_least": round(float(tvd_lower_bound(p, q)), 6) if a.noise == b.noise == 0 else None,
    }


def nearest(path: str | os.PathLike[str], client: str, *, k: int = 5) -> dict[str, Any]:
    """The clients with the sketches nearest to this one's."""
    saved = load(path)
    names = [str(each) for each in saved.ids]
    if client not in names:
        first = f"the first of {len(names):,} is {names[0]!r}" if names else "it holds none"
        raise DataError(f"there is no client {client!r} in {os.fspath(path)}: {first}")
    if k < 1:
        raise DataError(f"-k must be at least 1, not {k}")
    k = min(k, len(names))
    i, n, s = names.index(client), saved.sizes, saved.sketches
    neighbour, squares = neighbours(s[i : i + 1], s, k=k + 1, sizes=(n[i : i + 1], n), noise=saved.noise)
    rows = s.shape[1]
    pairs = [(int(j), float(square)) for j, square in zip(neighbour[0], squares[0], strict=True) if j not in (-1, i)][
        :k
    ]
    return {
        "client": client,
        "rows": round(float(n[i])),
        "neighbours": [
            {
                "client": names[j],
                "rows": round(float(n[j])),
                "distance": round(float(distance(s[i], s[j]) / np.sqrt(rows)), 6),
                "square": round(square / rows, 6),
            }
            for j, square in pairs
        ],
    }


def _check_cells(model: DistributionSketch, n_clients: int) -> None:
    each = int(np.prod(model._shape()))
    if each * n_clients > _MOST_CELLS:
        raise DataError(
            f"the sketches of {n_clients:,} clients would have {each:,} cells each, more than {_MOST_CELLS:,} in all: "
            "use fewer --rows or --bits"
        )


def _number(name: str, text: Any) -> Any:
    if not isinstance(text, str) or text in ("mean", "deviation"):
        return text
    try:
        return float(text)
    except ValueError:
        raise DataError(f"{name} must be a number, 'mean' or 'deviation', not {text!r}") from None

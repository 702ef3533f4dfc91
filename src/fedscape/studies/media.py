"""What is inside images and sequences: mean images, brightness, and how well the next character is predicted."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedscape.core.federation import Federation
from fedscape.core.random import Key
from fedscape.studies.intervals import FEW, mean_interval, plain
from fedscape.studies.prepare import Prepared, is_text
from fedscape.types import Array

_SIDE = 14  # of a mean image, in tiles
_SHADES = 10
_MOST_MEANS = 12  # categories whose mean image is made, the commonest
_LEAST_ROWS = 50  # behind a mean image
_MOST_ROWS = 400_000  # that sequences are measured on
_BACK_OFF = 5.0  # rows that a shorter context counts for


def images(data: Prepared) -> dict[str, Any] | None:
    """Sums over images: brightness and contrast of clients, and the mean image of categories; None without images.

    No image of a row is kept. A mean image has the rows of five clients or more, at least 50, and no client has more
    than half of them.
    """
    name = next((n for n in data.features if data.table[n].ndim in (3, 4) and min(data.table[n].shape[1:3]) > 3), None)
    if name is None or data.rows is None or not data.labels or data.rows.n_rows != data.table.n_rows:
        return None
    pixels, owner = data.table[name], data.table.client_of_row
    most = max(float(pixels.max()), 1e-12)
    sums, tiles, spread = _tiled(pixels, most)
    classes, clients = data.rows["y"], len(data.table)
    brightness, contrast = (_of_clients(values, owner, clients) for values in (sums, spread))
    section: dict[str, Any] = {
        "column": name,
        "shape": [int(n) for n in pixels.shape[1:]],
        "brightness": mean_interval(brightness, least=0.0, most=1.0),
        "contrast": mean_interval(contrast, least=0.0),
        "alike": [between_clients(values, owner, clients) for values in (sums, spread)],
        "means": [],
    }
    means: list[tuple[str, int, Array]] = []
    for c in np.argsort(-data.counts.sum(axis=0), kind="stable")[:_MOST_MEANS].tolist():
        mine = np.bincount(owner[classes == c], minlength=clients)
        if (mine > 0).sum() >= FEW and mine.sum() >= _LEAST_ROWS and mine.max() <= mine.sum() / 2:
            means.append((data.names[c], int(mine.sum()), tiles[classes == c].mean(axis=0)))
    low = min((float(mean.min()) for _, _, mean in means), default=0.0)
    high = max((float(mean.max()) for _, _, mean in means), default=1.0)
    for category, number, mean in means:  # one scale for all, from the darkest tile to the brightest
        shades = np.round((_SHADES - 1) * (mean - low) / max(high - low, 1e-12)).astype(int)
        section["means"].append({"category": category, "rows": number, "shades": shades.tolist()})
    return plain(section)  # type: ignore[no-any-return]


def _tiled(pixels: Array, most: float) -> tuple[Array, Array, Array]:
    """Of each image the mean and the standard deviation of its pixels, and its tiles [rows, side, side], 0 to 1."""
    n, height, width = pixels.shape[:3]
    side = min(_SIDE, height, width)
    tops, lefts = (np.linspace(0, size, side + 1).astype(int)[:-1] for size in (height, width))
    means, deviations, tiles = np.zeros(n), np.zeros(n), np.zeros((n, side, side), dtype=np.float32)
    areas = np.outer(np.diff([*tops, height]), np.diff([*lefts, width]))
    for a in range(0, n, 4096):
        block = pixels[a : a + 4096].astype(np.float32) / most
        block = block.mean(axis=3) if block.ndim == 4 else block
        means[a : a + 4096], deviations[a : a + 4096] = block.mean(axis=(1, 2)), block.std(axis=(1, 2))
        tiles[a : a + 4096] = np.add.reduceat(np.add.reduceat(block, tops, axis=1), lefts, axis=2) / areas
    return means, tiles, deviations


def _of_clients(values: Array, owner: Array, clients: int) -> Array:
    number = np.bincount(owner, minlength=clients)
    return np.where(number > 0, np.bincount(owner, values, clients) / np.maximum(number, 1), np.nan)


def between_clients(values: Array, owner: Array, clients: int) -> float:
    """The part of the variance of rows that lies between clients (intraclass correlation), 0 if they are alike.

    >>> between_clients(np.array([1.0, 1.0, 3.0, 3.0]), np.array([0, 0, 1, 1]), 2)
    1.0
    """
    number = np.bincount(owner, minlength=clients)
    total, k = float(number.sum()), int((number > 0).sum())
    middle = _of_clients(values, owner, clients)
    inside = float(((values - middle[owner]) ** 2).sum()) / max(total - k, 1)
    across = float(np.nansum(number * (middle - values.mean()) ** 2)) / max(k - 1, 1)
    size = (total - float((number**2).sum()) / total) / max(k - 1, 1)
    variance = max(across - inside, 0.0) / max(size, 1e-12)
    return variance / (variance + inside) if variance > 0 else 0.0


def sequences(data: Prepared, *, seed: int) -> dict[str, Any] | None:
    """How well the next character is predicted on rows held out, in bits: by sums over clients; None without texts.

    Models: the commonest characters of all, of each client, and what follows the last one and the last two.
    """
    table, column = data.table, data.column
    name = next((n for n in data.features if n in table and is_text(table, n, column)), None)
    if name is None:
        return None
    every = int(np.ceil(table.n_rows / _MOST_ROWS))
    some = table.where(np.arange(table.n_rows) % every == 0) if every > 1 else table
    held = Key(seed, purpose="characters held out").uniform_rows(some) < 0.25
    used = np.unique(table[column][table[column] >= 0])
    came = np.where(some[column] >= 0, np.searchsorted(used, some[column]), -1)
    bits = foretold(some, name, came, len(used), held)
    return plain(  # type: ignore[no-any-return]
        {
            "column": name,
            "context": int(table[name].shape[1]),
            "letters": len(used),
            "rows": some.n_rows,
            "models": [{"called": called, "bits": mean_interval(each, least=0.0)} for called, each in bits.items()],
        }
    )


def foretold(rows: Federation, name: str, came: Array, letters: int, held: Array) -> dict[str, Array]:
    """Bits per character of each model, [clients]: the mean of -log2 of what it gave the character that came.

    `came` are codes below `letters`, -1 where there is none.
    """
    owner = rows.client_of_row
    last, before = (rows[name][:, -k].astype(np.int64) for k in (1, 2))
    training = ~held & (came >= 0)
    test = held & (came >= 0)
    shares = (np.bincount(came[training], minlength=letters) + 1.0) / (training.sum() + letters)
    levels = {"every character as likely": np.full(int(test.sum()), 1 / letters)}
    levels["how common it is"] = shares[came[test]]
    contexts = {
        "the client's own habits": owner,
        "the character before": last,
        "the two before": last + (int(last.max(initial=0)) + 1) * before,
    }
    shorter_of = {"the two before": "the character before"}
    for called, context in contexts.items():
        shorter = levels[shorter_of.get(called, "how common it is")]
        size = int(context.max(initial=0)) + 1
        codes = context * letters + came
        each, pairs = np.unique(codes[training], return_counts=True)
        index = np.searchsorted(each, codes[test])
        met = (index < len(each)) & (each[np.minimum(index, len(each) - 1)] == codes[test])
        hits = np.where(met, pairs[np.minimum(index, len(each) - 1)], 0)
        number = np.bincount(context[training], minlength=size)[context[test]]
        levels[called] = (hits + _BACK_OFF * shorter) / (number + _BACK_OFF)
    return {called: _of_clients(-np.log2(p), owner[test], len(rows)) for called, p in levels.items()}

"""Far values of a column: where they begin, by sums."""

from __future__ import annotations

import numpy as np

from fedscape.core.federation import Federation
from fedscape.statistics.quantiles import Quantiles
from fedscape.types import Array

FAR = 20.0  # deviations from the mean beyond which values set the scale of all others
TAILS = (0.005, 0.995)  # quantiles to which they are cut then


def tails(values: Array, offsets: Array) -> tuple[Array, Array] | None:
    """What columns [rows, width] are cut to before they are scaled, [width] each; None where no value is far.

    Columns without far values keep their ends. The ends of others are quantiles of all clients' rows, which `Quantiles`
    finds by sums.

    Parameters
    ----------
    values, offsets
        The rows, NaN where missing, and where each client's begin.

    >>> low, high = tails(np.append(np.arange(999.0), 1e6)[:, None], np.array([0, 500, 1000]))
    >>> low.tolist(), high.tolist()
    ([4.0], [994.0])
    """
    mean, spread = np.nanmean(values, axis=0), np.nanstd(values, axis=0)
    far = np.flatnonzero(np.nanmax(np.abs(values - mean), axis=0) > FAR * spread)
    if not len(far):
        return None
    low, high = np.nanmin(values, axis=0), np.nanmax(values, axis=0)
    rows = Federation({"x": np.ascontiguousarray(values[:, far])}, offsets)
    low[far], high[far] = Quantiles(TAILS, column="x").fit(rows, progress=False).quantiles_
    return low, high

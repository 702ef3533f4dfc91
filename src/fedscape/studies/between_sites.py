"""Heterogeneity of a few sites, with its interval over the rows inside each: the sites themselves are no sample."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from fedscape.core.federation import Federation
from fedscape.core.random import Key
from fedscape.sketches import DistributionSketch
from fedscape.types import Array

_GROUPS = 20  # of a site's rows, where rows are sketched
_MOST = 400  # groups of all sites

#: What is left out of a site: counts [parts, rows, cells], and how many such parts there are.
Parts = tuple[Array, Array]


def label_parts(counts: Array) -> list[Parts]:
    """For each site of `counts` [sites, C]: its single rows, one for each category, and how many there are.

    >>> parts, number = label_parts(np.array([[2, 0, 1]]))[0]
    >>> parts[:, 0].tolist(), number.tolist()
    ([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]], [2, 1])
    """
    unit = np.eye(counts.shape[1])[:, None, :]
    return [(unit[own > 0], own[own > 0]) for own in counts]


def sketch_parts(rows: Federation, sketch: DistributionSketch, *, seed: int) -> list[Parts]:
    """For each site: its rows in groups drawn by the seed, sketched."""
    number = np.minimum(np.clip(_MOST // len(rows), 2, _GROUPS), rows.sizes)
    owner = rows.client_of_row
    luck = Key(seed, purpose="groups of the rows of sites").generator().random(rows.n_rows)
    order = np.lexsort((luck, owner))
    position = np.arange(rows.n_rows) - rows.offsets[:-1][owner]
    ends = [np.round(np.linspace(0, n, g + 1)).astype(int)[1:] for n, g in zip(rows.sizes, number, strict=True)]
    group = np.concatenate([np.searchsorted(end, position[owner == i], side="right") for i, end in enumerate(ends)])
    first = np.concatenate(([0], np.cumsum(number)))
    sizes = np.bincount(first[:-1][owner] + group, minlength=first[-1])
    column = str(sketch.column)
    groups = Federation({column: rows[column][order]}, np.concatenate(([0], np.cumsum(sizes))))
    counts = sketch.transform(groups) * sizes[:, None, None]
    return [(counts[a:b], np.ones(b - a, dtype=int)) for a, b in pairwise(first)]


def interval_over_rows(counts: Array, parts: list[Parts], value: float) -> tuple[float, float]:
    """95% interval of `sketches.heterogeneity` for other rows of the same sites: a jackknife inside each site.

    `counts` [sites, rows, cells] are sums over rows of data. Variances of sites add up; those of sites of fewer than
    three rows are left out. As `heterogeneity` itself the interval does not end below 0.

    >>> counts = np.array([[[90, 10]], [[10, 90]]])
    >>> interval_over_rows(counts, label_parts(counts[:, 0]), 0.779)[0] > 0.6
    True
    """
    from scipy.special import stdtrit

    n = counts.sum(axis=2).mean(axis=1)
    counts, parts, n = counts[n >= 2], [p for p, size in zip(parts, n, strict=True) if size >= 2], n[n >= 2]
    m, rows = counts.shape[:2]
    shares = counts / n[:, None, None]
    total = shares.sum(axis=0)
    within = (n * (shares**2).sum(axis=(1, 2)) / rows - 1) / (n - 1)
    between = ((total**2).sum() - (shares**2).sum()) / rows / (m * (m - 1))
    variance, freedom = 0.0, 0
    for i, (left_out, number) in enumerate(parts):
        size = n[i] - left_out.sum(axis=2).mean(axis=1)
        groups = int(number.sum())
        if groups < 2 or size.min() < 2:
            continue
        other = (counts[i] - left_out) / size[:, None, None]
        own = (size * (other**2).sum(axis=(1, 2)) / rows - 1) / (size - 1)
        mean = within.mean() + (own - within[i]) / m
        crossed = np.einsum("grb,rb->g", other - shares[i], total - shares[i])
        apart = between + 2 * crossed / rows / (m * (m - 1))
        values = (mean - apart) / np.maximum(1 - apart, 1e-12)
        middle = (number @ values) / groups
        variance += (groups - 1) / groups * float(number @ (values - middle) ** 2)
        freedom += groups - 1
    reach = float(stdtrit(freedom, 0.975)) * np.sqrt(variance) if freedom else np.inf
    return float(value - reach), float(max(value + reach, 0.0))

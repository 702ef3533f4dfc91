"""Sketches: a distribution as a small matrix of counts, built in one pass, added and compared."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedscape.core.lazy import loader

if TYPE_CHECKING:
    from fedscape.sketches.distances import (
        Heterogeneity,
        distance,
        heterogeneity,
        neighbours,
        normalise,
        pairwise,
        sizes,
        tvd_lower_bound,
    )
    from fedscape.sketches.distribution import ClientSketches, DistributionSketch
    from fedscape.sketches.files import Saved, load, save
    from fedscape.sketches.private import choose_rows, noise_variance
    from fedscape.sketches.queries import Tvd, query, tvd
    from fedscape.sketches.selection import KeyedCoin, NearTheWhole, OwnWeights, logits

__all__ = [
    "ClientSketches",
    "DistributionSketch",
    "Heterogeneity",
    "KeyedCoin",
    "NearTheWhole",
    "OwnWeights",
    "Saved",
    "Tvd",
    "choose_rows",
    "distance",
    "heterogeneity",
    "load",
    "logits",
    "neighbours",
    "noise_variance",
    "normalise",
    "pairwise",
    "query",
    "save",
    "sizes",
    "tvd",
    "tvd_lower_bound",
]

__getattr__ = loader(
    __name__,
    {
        "distances": [
            "Heterogeneity",
            "distance",
            "heterogeneity",
            "neighbours",
            "normalise",
            "pairwise",
            "sizes",
            "tvd_lower_bound",
        ],
        "distribution": ["ClientSketches", "DistributionSketch"],
        "files": ["Saved", "load", "save"],
        "private": ["choose_rows", "noise_variance"],
        "queries": ["Tvd", "query", "tvd"],
        "selection": ["KeyedCoin", "NearTheWhole", "OwnWeights", "logits"],
    },
)

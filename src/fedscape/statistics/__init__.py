"""Basic statistics of a federation: counts, moments, clusters and more."""

from typing import TYPE_CHECKING

from fedscape.core.lazy import loader

if TYPE_CHECKING:
    from fedscape.statistics.cox import CoxRegression
    from fedscape.statistics.description import describe
    from fedscape.statistics.heavy_hitters import HeavyHitters
    from fedscape.statistics.histogram import Histogram
    from fedscape.statistics.kmeans import FederatedKMeans
    from fedscape.statistics.moments import Moments
    from fedscape.statistics.quantiles import Quantiles
    from fedscape.statistics.scaling import Scaling

__all__ = [
    "CoxRegression",
    "FederatedKMeans",
    "HeavyHitters",
    "Histogram",
    "Moments",
    "Quantiles",
    "Scaling",
    "describe",
]

__getattr__ = loader(
    __name__,
    {
        "cox": ["CoxRegression"],
        "description": ["describe"],
        "heavy_hitters": ["HeavyHitters"],
        "histogram": ["Histogram"],
        "kmeans": ["FederatedKMeans"],
        "moments": ["Moments"],
        "quantiles": ["Quantiles"],
        "scaling": ["Scaling"],
    },
)

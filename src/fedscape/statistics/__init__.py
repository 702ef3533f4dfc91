"""The first things to know about a federation: how often, how large, how spread, which clusters."""

from fedscape.statistics.description import describe
from fedscape.statistics.histogram import Histogram
from fedscape.statistics.kmeans import FederatedKMeans
from fedscape.statistics.moments import Moments

__all__ = ["FederatedKMeans", "Histogram", "Moments", "describe"]

"""Models for tables, fitted from sums: generalised linear models and boosted trees."""

from typing import TYPE_CHECKING

from fedscape.core.lazy import loader

if TYPE_CHECKING:
    from fedscape.tabular.boosting import BoostedTrees
    from fedscape.tabular.glm import GLM

__all__ = ["GLM", "BoostedTrees"]

__getattr__ = loader(__name__, {"boosting": ["BoostedTrees"], "glm": ["GLM"]})

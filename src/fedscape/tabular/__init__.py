"""Models for tables, fitted from sums: generalised linear models and boosted trees."""

from typing import TYPE_CHECKING

from fedscape.core.lazy import loader

if TYPE_CHECKING:
    from fedscape.tabular.boosting import BoostedTrees
    from fedscape.tabular.glm import GLM
    from fedscape.tabular.multinomial import MultinomialGLM

__all__ = ["GLM", "BoostedTrees", "MultinomialGLM"]

__getattr__ = loader(__name__, {"boosting": ["BoostedTrees"], "glm": ["GLM"], "multinomial": ["MultinomialGLM"]})

"""Models for tables, fitted from sums: generalised linear models and boosted trees."""

from typing import TYPE_CHECKING

from fedscape.core.lazy import loader

if TYPE_CHECKING:
    from fedscape.tabular.boosting import BoostedTrees
    from fedscape.tabular.explaining import KindAttributions, TreeAttributions
    from fedscape.tabular.glm import GLM
    from fedscape.tabular.multinomial import MultinomialGLM
    from fedscape.tabular.personal_trees import PersonalTrees

__all__ = ["GLM", "BoostedTrees", "KindAttributions", "MultinomialGLM", "PersonalTrees", "TreeAttributions"]

__getattr__ = loader(
    __name__,
    {
        "boosting": ["BoostedTrees"],
        "explaining": ["KindAttributions", "TreeAttributions"],
        "glm": ["GLM"],
        "multinomial": ["MultinomialGLM"],
        "personal_trees": ["PersonalTrees"],
    },
)

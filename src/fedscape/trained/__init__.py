"""Models that can be used again: read, predict, adapt, export."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedscape.trained.export import to_sklearn
    from fedscape.trained.model import Trained, load

__all__ = ["Trained", "load", "to_sklearn"]


def __getattr__(name: str) -> Any:
    if name == "to_sklearn":
        from fedscape.trained.export import to_sklearn

        return to_sklearn
    if name in __all__:  # they need torch
        from fedscape.trained import model

        return getattr(model, name)
    raise AttributeError(f"module 'fedscape.trained' has no attribute {name!r}")

"""Trained models in use: load, predict, adapt, export."""

from typing import TYPE_CHECKING

from fedscape.core.lazy import loader

if TYPE_CHECKING:
    from fedscape.trained.export import to_sklearn
    from fedscape.trained.model import Trained, load

__all__ = ["Trained", "load", "to_sklearn"]

__getattr__ = loader(__name__, {"model": ["Trained", "load"], "export": ["to_sklearn"]})

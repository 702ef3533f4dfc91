"""Clients sharded over the workers of a Ray cluster."""

from typing import TYPE_CHECKING

from fedscape.core.lazy import loader

if TYPE_CHECKING:
    from fedscape.engines.ray.engine import Ray

__all__ = ["Ray"]

__getattr__ = loader(__name__, {"engine": ["Ray"]})

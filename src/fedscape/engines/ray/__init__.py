"""Clients sharded over the workers of a Ray cluster."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedscape.engines.ray.engine import Ray

__all__ = ["Ray"]


def __getattr__(name: str) -> Any:
    if name in __all__:  # it needs ray
        from fedscape.engines.ray import engine

        return getattr(engine, name)
    raise AttributeError(f"module 'fedscape.engines.ray' has no attribute {name!r}")

"""Clients on real devices and in silos, reached through Flower: https://flower.ai."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedscape.engines.flower.client import client_app
    from fedscape.engines.flower.local_grid import LocalGrid
    from fedscape.engines.flower.server import Flower
    from fedscape.engines.flower.terms import Terms

__all__ = ["Flower", "LocalGrid", "Terms", "client_app"]


def __getattr__(name: str) -> Any:
    if name in __all__:  # they need flwr, and terms do not
        from fedscape.engines.flower import server

        return getattr(server, name)
    raise AttributeError(f"module 'fedscape.engines.flower' has no attribute {name!r}")

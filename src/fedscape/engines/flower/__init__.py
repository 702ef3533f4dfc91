"""Clients on real devices and in silos, reached through Flower: https://flower.ai."""

from typing import TYPE_CHECKING

from fedscape.core.lazy import loader

if TYPE_CHECKING:
    from fedscape.engines.flower.client import client_app
    from fedscape.engines.flower.local_grid import LocalGrid
    from fedscape.engines.flower.server import Flower
    from fedscape.engines.flower.terms import Terms

__all__ = ["Flower", "LocalGrid", "Terms", "client_app"]

__getattr__ = loader(
    __name__, {"server": ["Flower"], "local_grid": ["LocalGrid"], "terms": ["Terms"], "client": ["client_app"]}
)

"""The parts of Flower in use.

Only the message API (`flwr.app`, `flwr.clientapp`, `flwr.serverapp`). Telemetry is switched off before Flower is
imported: nothing here calls home.
"""

from __future__ import annotations

import os
from typing import Any

from fedscape.errors import EngineError, require

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")


def _imported(module: str, *names: str) -> list[Any]:
    library = require(module, extra="flower")
    missing = [name for name in names if not hasattr(library, name)]
    if missing:
        raise EngineError(f"this Flower has no {module}.{missing[0]}: install flwr 1.41 or later")
    return [getattr(library, name) for name in names]


Array, ArrayRecord, Context, Message, RecordDict = _imported(
    "flwr.app", "Array", "ArrayRecord", "Context", "Message", "RecordDict"
)
(ClientApp,) = _imported("flwr.clientapp", "ClientApp")
(Grid,) = _imported("flwr.serverapp", "Grid")


def pretend_task() -> None:
    """Set task 1 of run 1: Flower creates messages only inside a task, and a rehearsal in one process has none."""
    try:
        from flwr.supercore.task_identity import TaskIdentity
    except ImportError:  # a Flower version without this check
        return
    try:
        _ = TaskIdentity.run_id
    except RuntimeError:
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1

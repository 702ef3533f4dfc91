"""The twin: who is there when, how fast, how long; training in virtual time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedscape.core.lazy import loader

if TYPE_CHECKING:
    from fedscape.twin.bias import InverseProbability, Part, Probabilities, chances, participation
    from fedscape.twin.comparing import Forecast, TwinFidelity, fidelity, foretell, resampled
    from fedscape.twin.devices import Devices, always
    from fedscape.twin.events import events_of, from_check_ins, from_table, sessions
    from fedscape.twin.model import Twin, fit, load
    from fedscape.twin.planning import Course, Plan, candidates, follow, plan
    from fedscape.twin.population import DevicePopulation
    from fedscape.twin.protocols import FedAsync, FedBuff, SemiAsynchronous, Synchronous
    from fedscape.twin.timetable import Cost, Timetable, schedule
    from fedscape.twin.training import Update, payload_of, train

__all__ = [
    "Cost",
    "Course",
    "DevicePopulation",
    "Devices",
    "FedAsync",
    "FedBuff",
    "Forecast",
    "InverseProbability",
    "Part",
    "Plan",
    "Probabilities",
    "SemiAsynchronous",
    "Synchronous",
    "Timetable",
    "Twin",
    "TwinFidelity",
    "Update",
    "always",
    "candidates",
    "chances",
    "events_of",
    "fidelity",
    "fit",
    "follow",
    "foretell",
    "from_check_ins",
    "from_table",
    "load",
    "participation",
    "payload_of",
    "plan",
    "resampled",
    "schedule",
    "sessions",
    "train",
]

__getattr__ = loader(
    __name__,
    {
        "comparing": ["Forecast", "TwinFidelity", "fidelity", "foretell", "resampled"],
        "devices": ["Devices", "always"],
        "events": ["events_of", "from_check_ins", "from_table", "sessions"],
        "model": ["Twin", "fit", "load"],
        "bias": ["InverseProbability", "Part", "Probabilities", "chances", "participation"],
        "planning": ["Course", "Plan", "candidates", "follow", "plan"],
        "population": ["DevicePopulation"],
        "protocols": ["FedAsync", "FedBuff", "SemiAsynchronous", "Synchronous"],
        "timetable": ["Cost", "Timetable", "schedule"],
        "training": ["Update", "payload_of", "train"],
    },
)

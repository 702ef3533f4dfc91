"""The main job, section by section, and what can be done with its result."""

from __future__ import annotations

from fedscape.studies.comparing import compare
from fedscape.studies.explain import explain
from fedscape.studies.model import draw, population
from fedscape.studies.prepare import prepare
from fedscape.studies.result import Study
from fedscape.studies.running import study
from fedscape.studies.simulating import simulated

__all__ = ["Study", "compare", "draw", "explain", "population", "prepare", "simulated", "study"]

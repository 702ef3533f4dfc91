"""A study: its sections, and functions that use its result."""

from __future__ import annotations

from fedscape.studies.check import check, check_population
from fedscape.studies.collaboration import Collaboration, collaboration
from fedscape.studies.compare import compare
from fedscape.studies.explain import explain
from fedscape.studies.fidelity import simulated
from fedscape.studies.kinds import draw, population
from fedscape.studies.prepare import prepare
from fedscape.studies.result import Study
from fedscape.studies.study import study

__all__ = [
    "Collaboration",
    "Study",
    "check",
    "check_population",
    "collaboration",
    "compare",
    "draw",
    "explain",
    "population",
    "prepare",
    "simulated",
    "study",
]

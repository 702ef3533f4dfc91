"""Simulate realistic clients from server data, and test that they are realistic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedscape.errors import require
from fedscape.simulate.columns import Binned, Cells, Labels, SignCodes, with_codes
from fedscape.simulate.fidelity import Fidelity, Measure, fidelity
from fedscape.simulate.partition import Feasibility, Plan, clients, feasibility, plan
from fedscape.simulate.recipes import (
    ConditionallyIID,
    Dirichlet,
    FromMixture,
    FullyIID,
    Pathological,
    Quantity,
    Recipe,
    Shards,
)
from fedscape.simulate.self_score import SelfScore, SelfScores, self_score
from fedscape.simulate.shifted import Shifted
from fedscape.simulate.training import TrainingFidelity, compare_training, training_fidelity

if TYPE_CHECKING:
    from fedscape.simulate.flwr_partitioner import PopulationPartitioner

__all__ = [
    "Binned",
    "Cells",
    "ConditionallyIID",
    "Dirichlet",
    "Feasibility",
    "Fidelity",
    "FromMixture",
    "FullyIID",
    "Labels",
    "Measure",
    "Pathological",
    "Plan",
    "PopulationPartitioner",
    "Quantity",
    "Recipe",
    "SelfScore",
    "SelfScores",
    "Shards",
    "Shifted",
    "SignCodes",
    "TrainingFidelity",
    "clients",
    "compare_training",
    "feasibility",
    "fidelity",
    "plan",
    "self_score",
    "training_fidelity",
    "with_codes",
]


def __getattr__(name: str) -> Any:
    if name == "PopulationPartitioner":  # flwr_datasets is optional and slow to import
        require("flwr_datasets", extra="dev")
        from fedscape.simulate.flwr_partitioner import PopulationPartitioner

        return PopulationPartitioner
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""Learning through day and night: availability of clients, temporal priors, FedClock, FedTEM, FedTKM and baselines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedscape.core.lazy import loader

if TYPE_CHECKING:
    from fedscape.learning.branches import BranchLoss, MeanOfBranches, MultiBranch
    from fedscape.temporal.availability import Clock, Dropping, Shifting, Trace, by_mode
    from fedscape.temporal.baselines import BranchFedEM, LocalCentres, MinLoss, NearestCentre, SemiCyclic, centres_of
    from fedscape.temporal.calibration import Verdict
    from fedscape.temporal.covariates import Context, Harmonics
    from fedscape.temporal.curves import Blocks, Cosine, Curve, Linear, Steady, Zones, parse_curve
    from fedscape.temporal.cycle import Cycle, read_clock
    from fedscape.temporal.fedclock import FedClock
    from fedscape.temporal.fedtem import FedTEM, FedTEMBySums
    from fedscape.temporal.fedtkm import FedTKM
    from fedscape.temporal.methods import collect_centres, evaluate
    from fedscape.temporal.priors import Soft, parse_prior

__all__ = [
    "Blocks",
    "BranchFedEM",
    "BranchLoss",
    "Clock",
    "Context",
    "Cosine",
    "Curve",
    "Cycle",
    "Dropping",
    "FedClock",
    "FedTEM",
    "FedTEMBySums",
    "FedTKM",
    "Harmonics",
    "Linear",
    "LocalCentres",
    "MeanOfBranches",
    "MinLoss",
    "MultiBranch",
    "NearestCentre",
    "SemiCyclic",
    "Shifting",
    "Soft",
    "Steady",
    "Trace",
    "Verdict",
    "Zones",
    "by_mode",
    "centres_of",
    "collect_centres",
    "evaluate",
    "parse_curve",
    "parse_prior",
    "read_clock",
]

__getattr__ = loader(
    __name__,
    {
        "availability": ["Clock", "Dropping", "Shifting", "Trace", "by_mode"],
        "baselines": ["BranchFedEM", "LocalCentres", "MinLoss", "NearestCentre", "SemiCyclic", "centres_of"],
        "fedscape.learning.branches": ["BranchLoss", "MeanOfBranches", "MultiBranch"],
        "calibration": ["Verdict"],
        "covariates": ["Context", "Harmonics"],
        "curves": ["Blocks", "Cosine", "Curve", "Linear", "Steady", "Zones", "parse_curve"],
        "cycle": ["Cycle", "read_clock"],
        "fedclock": ["FedClock"],
        "fedtem": ["FedTEM", "FedTEMBySums"],
        "fedtkm": ["FedTKM"],
        "methods": ["collect_centres", "evaluate"],
        "priors": ["Soft", "parse_prior"],
    },
)

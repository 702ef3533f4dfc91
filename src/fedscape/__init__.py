"""Measure, model, simulate and learn the landscape of client data in federated learning."""

from __future__ import annotations

from importlib import import_module as _import_module
from importlib.metadata import PackageNotFoundError as _PackageNotFoundError
from importlib.metadata import version as _version
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from fedscape import datasets
from fedscape.core.computation import Computation
from fedscape.core.engine import Engine, Local
from fedscape.core.estimator import Estimator
from fedscape.core.federation import Federation
from fedscape.core.random import Key
from fedscape.core.rounds import rounds
from fedscape.core.sampling import All, FixedSize, Poisson, Sampler
from fedscape.errors import DataError, EngineError, FedscapeError, NotFittedError, PrivacyError, require
from fedscape.privacy.accounting import calibrate
from fedscape.privacy.ledger import Ledger
from fedscape.privacy.mechanisms import Gaussian, Laplace, Privacy
from fedscape.statistics.histogram import Histogram
from fedscape.statistics.kmeans import FederatedKMeans
from fedscape.statistics.moments import Moments

if _TYPE_CHECKING:
    from fedscape import learning, mixtures, personal, simulate, sketches, temporal
    from fedscape.engines.flower.server import Flower
    from fedscape.engines.ray.engine import Ray
    from fedscape.learning import FedAvg, LocalSGD
    from fedscape.mixtures import (
        GaussianMixture,
        LatentClassRegression,
        MixtureOfDirichletMultinomials,
        choose_components,
    )
    from fedscape.personal import FedEM, FedGMM
    from fedscape.sketches import DistributionSketch
    from fedscape.studies import study
    from fedscape.temporal import FedTEM, FedTKM

try:
    __version__ = _version("fedscape")
except _PackageNotFoundError:  # run from the source tree
    __version__ = "0.1.0+source"

# loaded when first asked for: they need SciPy, torch or an engine's own package
_LATER: dict[str, tuple[str, ...]] = {
    "engines.flower": ("Flower",),
    "engines.ray": ("Ray",),
    "learning": ("FedAvg", "LocalSGD"),
    "mixtures": (
        "GaussianMixture",
        "LatentClassRegression",
        "MixtureOfDirichletMultinomials",
        "choose_components",
    ),
    "personal": ("FedEM", "FedGMM"),
    "simulate": (),
    "sketches": ("DistributionSketch",),
    "studies": ("study",),
    "temporal": ("FedTEM", "FedTKM"),
}


def __getattr__(name: str) -> _Any:
    for module, names in _LATER.items():
        if name == module or name in names:
            if module in ("learning", "personal", "temporal"):
                require("torch", extra="learn")
            found = _import_module(f"fedscape.{module}")
            return found if name == module else getattr(found, name)
    raise AttributeError(f"module 'fedscape' has no attribute {name!r}")


__all__ = [
    "All",
    "Computation",
    "DataError",
    "DistributionSketch",
    "Engine",
    "EngineError",
    "Estimator",
    "FedAvg",
    "FedEM",
    "FedGMM",
    "FedTEM",
    "FedTKM",
    "FederatedKMeans",
    "Federation",
    "FedscapeError",
    "FixedSize",
    "Flower",
    "Gaussian",
    "GaussianMixture",
    "Histogram",
    "Key",
    "Laplace",
    "LatentClassRegression",
    "Ledger",
    "Local",
    "LocalSGD",
    "MixtureOfDirichletMultinomials",
    "Moments",
    "NotFittedError",
    "Poisson",
    "Privacy",
    "PrivacyError",
    "Ray",
    "Sampler",
    "calibrate",
    "choose_components",
    "datasets",
    "learning",
    "mixtures",
    "personal",
    "rounds",
    "simulate",
    "sketches",
    "study",
    "temporal",
]

"""Measure, model, simulate and learn the landscape of client data in federated learning."""

from __future__ import annotations

from importlib import import_module as _import_module
from importlib.metadata import PackageNotFoundError as _PackageNotFoundError
from importlib.metadata import version as _version
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

if _TYPE_CHECKING:
    from fedscape import datasets, learning, mixtures, personal, privacy, simulate, sketches, temporal, twin
    from fedscape.core.computation import Computation
    from fedscape.core.engine import Engine, Local
    from fedscape.core.estimator import Estimator
    from fedscape.core.federation import Federation
    from fedscape.core.random import Key
    from fedscape.core.rounds import rounds
    from fedscape.core.sampling import All, FixedSize, Poisson, Sampler
    from fedscape.engines.flower.server import Flower
    from fedscape.engines.ray.engine import Ray
    from fedscape.errors import DataError, EngineError, FedscapeError, NotFittedError, PrivacyError
    from fedscape.learning import FedAvg, LocalSGD
    from fedscape.mixtures import (
        GaussianMixture,
        LatentClassRegression,
        MixtureOfDirichletMultinomials,
        choose_components,
    )
    from fedscape.personal import FedEM, FedGMM
    from fedscape.privacy.accounting import calibrate
    from fedscape.privacy.ledger import Ledger
    from fedscape.privacy.mechanisms import Gaussian, Laplace, Privacy
    from fedscape.secure.sums import SecureSum
    from fedscape.secure.two_servers import TwoServers
    from fedscape.sketches import DistributionSketch
    from fedscape.statistics.cox import CoxRegression
    from fedscape.statistics.heavy_hitters import HeavyHitters
    from fedscape.statistics.histogram import Histogram
    from fedscape.statistics.kmeans import FederatedKMeans
    from fedscape.statistics.moments import Moments
    from fedscape.statistics.quantiles import Quantiles
    from fedscape.studies import study
    from fedscape.tabular import GLM, BoostedTrees
    from fedscape.temporal import FedTEM, FedTKM

try:
    __version__ = _version("fedscape")
except _PackageNotFoundError:  # run from the source tree
    __version__ = "0.1.0+source"

#: Modules and their public names, all loaded when first asked for; a module without names is itself public.
_NAMES: dict[str, tuple[str, ...]] = {
    "core.computation": ("Computation",),
    "core.engine": ("Engine", "Local"),
    "core.estimator": ("Estimator",),
    "core.federation": ("Federation",),
    "core.random": ("Key",),
    "core.rounds": ("rounds",),
    "core.sampling": ("All", "FixedSize", "Poisson", "Sampler"),
    "datasets": (),
    "engines.flower.server": ("Flower",),
    "engines.ray.engine": ("Ray",),
    "errors": ("DataError", "EngineError", "FedscapeError", "NotFittedError", "PrivacyError"),
    "learning": ("FedAvg", "LocalSGD"),
    "mixtures": ("GaussianMixture", "LatentClassRegression", "MixtureOfDirichletMultinomials", "choose_components"),
    "personal": ("FedEM", "FedGMM"),
    "privacy": (),
    "privacy.accounting": ("calibrate",),
    "privacy.ledger": ("Ledger",),
    "privacy.mechanisms": ("Gaussian", "Laplace", "Privacy"),
    "secure.sums": ("SecureSum",),
    "secure.two_servers": ("TwoServers",),
    "simulate": (),
    "sketches": ("DistributionSketch",),
    "statistics.cox": ("CoxRegression",),
    "statistics.heavy_hitters": ("HeavyHitters",),
    "statistics.histogram": ("Histogram",),
    "statistics.kmeans": ("FederatedKMeans",),
    "statistics.moments": ("Moments",),
    "statistics.quantiles": ("Quantiles",),
    "studies": ("study",),
    "tabular": ("GLM", "BoostedTrees"),
    "temporal": ("FedTEM", "FedTKM"),
    "twin": (),
}
_MODULE_OF = {name: module for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> _Any:
    module = _MODULE_OF.get(name, name)
    if module not in _NAMES:
        raise AttributeError(f"module 'fedscape' has no attribute {name!r}")
    if module in ("learning", "personal", "temporal"):
        from fedscape.errors import require

        require("torch", extra="learn")
    found = _import_module(f"fedscape.{module}")
    return found if module == name else getattr(found, name)


__all__ = [
    "GLM",
    "All",
    "BoostedTrees",
    "Computation",
    "CoxRegression",
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
    "HeavyHitters",
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
    "Quantiles",
    "Ray",
    "Sampler",
    "SecureSum",
    "TwoServers",
    "calibrate",
    "choose_components",
    "datasets",
    "learning",
    "mixtures",
    "personal",
    "privacy",
    "rounds",
    "simulate",
    "sketches",
    "study",
    "temporal",
    "twin",
]

"""Measure, model, simulate and learn the landscape of client data in federated learning."""

from __future__ import annotations

from importlib.metadata import version as _version

from fedscape import datasets
from fedscape.clustering import FederatedKMeans
from fedscape.computation import Computation, Round, Rounds, rounds
from fedscape.engine import Engine, Local, Reply
from fedscape.errors import (
    CheckpointError,
    DataError,
    EngineError,
    FedscapeError,
    MissingExtraError,
    NotFittedError,
    PrivacyError,
    TooFewClients,
)
from fedscape.estimator import Estimator
from fedscape.federation import Federation
from fedscape.history import History
from fedscape.ledger import Ledger
from fedscape.mixtures import MixtureOfDirichletMultinomials, choose_components
from fedscape.privacy import AdaptiveClip, Gaussian, Laplace, Privacy, calibrate
from fedscape.ragged import Ragged
from fedscape.random import Key
from fedscape.sampling import All, FixedSize, Poisson, Sampler
from fedscape.statistics import Histogram, Moments

__version__ = _version("fedscape")

__all__ = [
    "AdaptiveClip",
    "All",
    "CheckpointError",
    "Computation",
    "DataError",
    "Engine",
    "EngineError",
    "Estimator",
    "FederatedKMeans",
    "Federation",
    "FedscapeError",
    "FixedSize",
    "Gaussian",
    "Histogram",
    "History",
    "Key",
    "Laplace",
    "Ledger",
    "Local",
    "MissingExtraError",
    "MixtureOfDirichletMultinomials",
    "Moments",
    "NotFittedError",
    "Poisson",
    "Privacy",
    "PrivacyError",
    "Ragged",
    "Reply",
    "Round",
    "Rounds",
    "Sampler",
    "TooFewClients",
    "calibrate",
    "choose_components",
    "datasets",
    "rounds",
]

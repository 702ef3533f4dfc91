"""Mixtures: which kinds of clients there are."""

from __future__ import annotations

from fedscape.mixtures._gm_covariances import Diagonal, Full, Spherical, Tied
from fedscape.mixtures.choose import Choice, choose_components
from fedscape.mixtures.dirichlet_multinomial import MixtureOfDirichletMultinomials
from fedscape.mixtures.gaussian import GaussianMixture
from fedscape.mixtures.latent_class_regression import LatentClassRegression
from fedscape.mixtures.size_laws import SizeLaws

__all__ = [
    "Choice",
    "Diagonal",
    "Full",
    "GaussianMixture",
    "LatentClassRegression",
    "MixtureOfDirichletMultinomials",
    "SizeLaws",
    "Spherical",
    "Tied",
    "choose_components",
]

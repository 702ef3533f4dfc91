"""Mixture models: the kinds of clients in a federation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedscape.core.lazy import loader

if TYPE_CHECKING:
    from fedscape.mixtures.dirichlet_multinomial.choose import Choice, choose_components
    from fedscape.mixtures.dirichlet_multinomial.model import MixtureOfDirichletMultinomials
    from fedscape.mixtures.gaussian.covariances import Diagonal, Full, Spherical, Tied
    from fedscape.mixtures.gaussian.model import GaussianMixture
    from fedscape.mixtures.latent_class.model import LatentClassRegression
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

__getattr__ = loader(
    __name__,
    {
        "dirichlet_multinomial.choose": ["Choice", "choose_components"],
        "dirichlet_multinomial.model": ["MixtureOfDirichletMultinomials"],
        "gaussian.covariances": ["Diagonal", "Full", "Spherical", "Tied"],
        "gaussian.model": ["GaussianMixture"],
        "latent_class.model": ["LatentClassRegression"],
        "size_laws": ["SizeLaws"],
    },
)

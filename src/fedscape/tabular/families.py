"""The families of a generalised linear model, each with its link."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from fedscape.errors import DataError, nearest
from fedscape.types import Array

_FAR = 30.0  # predictors are clipped here: exp(30) is about 1e13


@dataclass(frozen=True)
class Family:
    """A distribution of the target: its mean from the linear predictor, its variance, its deviance.

    `slope` is the derivative of the mean by the predictor; `first` the starting mean, as in R's glm; `least` and `most`
    bound the target; `scaled` says whether the dispersion is estimated, otherwise it is 1.
    """

    name: str
    mean: Callable[[Array], Array]
    slope: Callable[[Array], Array]
    link: Callable[[Array], Array]
    variance: Callable[[Array], Array]
    deviance: Callable[[Array, Array], Array]
    first: Callable[[Array], Array]
    least: float
    most: float
    scaled: bool

    def valid(self, y: Array) -> Array:
        """Whether each target is in the support of the family."""
        above = y > 0 if self.name == "gamma" else y >= self.least
        return np.asarray(above & (y <= self.most))

    def within(self, eta: Array) -> Array:
        """Clip a logistic predictor, so that `row_bound` holds for any coefficients.

        >>> FAMILIES["logistic"].within(np.array([1.0, 1e300, np.nan])).tolist()
        [1.0, 30.0, 0.0]
        """
        return np.clip(np.nan_to_num(eta), -_FAR, _FAR) if self.name == "logistic" else eta


def _logistic(eta: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-np.clip(eta, -_FAR, _FAR))))


def _exponential(eta: Array) -> Array:
    return np.asarray(np.exp(np.clip(eta, -_FAR, _FAR)))


def _entropy(y: Array, mu: Array) -> Array:
    """y log(y / mu), 0 at y = 0."""
    return np.asarray(np.where(y > 0, y * np.log(np.where(y > 0, y, 1.0) / mu), 0.0))


FAMILIES: Mapping[str, Family] = {
    "gaussian": Family(
        "gaussian",
        mean=lambda eta: eta,
        slope=np.ones_like,
        link=lambda mu: mu,
        variance=np.ones_like,
        deviance=lambda y, mu: (y - mu) ** 2,
        first=lambda y: y,
        least=-np.inf,
        most=np.inf,
        scaled=True,
    ),
    "logistic": Family(
        "logistic",
        mean=_logistic,
        slope=lambda eta: _logistic(eta) * _logistic(-eta),
        link=lambda mu: np.log(mu / (1 - mu)),
        variance=lambda mu: mu * (1 - mu),
        deviance=lambda y, mu: 2 * (_entropy(y, mu) + _entropy(1 - y, 1 - mu)),
        first=lambda y: (y + 0.5) / 2,
        least=0.0,
        most=1.0,
        scaled=False,
    ),
    "poisson": Family(
        "poisson",
        mean=_exponential,
        slope=_exponential,
        link=np.log,
        variance=lambda mu: mu,
        deviance=lambda y, mu: 2 * (_entropy(y, mu) - (y - mu)),
        first=lambda y: y + 0.1,
        least=0.0,
        most=np.inf,
        scaled=False,
    ),
    "gamma": Family(
        "gamma",
        mean=_exponential,
        slope=_exponential,
        link=np.log,
        variance=lambda mu: mu**2,
        deviance=lambda y, mu: 2 * ((y - mu) / mu - np.log(y / mu)),
        first=lambda y: y,
        least=0.0,
        most=np.inf,
        scaled=True,
    ),
}


def family_of(name: str) -> Family:
    """Look up a family by name.

    >>> family_of("poisson").mean(np.zeros(1))
    array([1.])
    """
    if name not in FAMILIES:
        raise DataError(f"family must be one of {', '.join(FAMILIES)}, not {name!r}{nearest(str(name), FAMILIES)}")
    return FAMILIES[name]

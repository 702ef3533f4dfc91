"""A private fit says the same whatever is in one client's rows: it fits, or it refuses for reasons of its own."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import fedscape as fs
from fedscape import Federation, Gaussian, Laplace
from fedscape.tabular import PersonalTrees, TreeAttributions

N = 60  # clients


def numbers(poison: float | None) -> Federation:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3 * N, 2))
    y = rng.normal(size=3 * N)
    if poison is not None:
        x[7, 1] = poison
        y[100] = poison
    entity = np.tile(np.arange(3), N)
    return Federation({"x": x, "y": y, "entity": entity}, np.arange(0, 3 * N + 1, 3))


def entities(poison: float | None) -> Federation:
    fed = numbers(None)
    whole = fed["entity"].copy()
    if poison is not None:
        whole[11] = int(np.clip(np.nan_to_num(poison), -(2.0**62), 2.0**62))
    return fed.with_column("entity", whole)


def categories(poison: float | None) -> Federation:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 4, 5 * N).astype(float)
    if poison is not None:
        y[3] = poison
    return Federation({"y": y}, np.arange(0, 5 * N + 1, 5))


RANGES = {"x": (-3.0, 3.0), "y": (0.01, 3.0)}
WIDE = Gaussian(clip=20.0, multiplier=4.0)
BY_ROW = Gaussian(clip=50.0, multiplier=4.0, unit="row")


def trees(fed: Federation, privacy: Gaussian) -> fs.BoostedTrees:
    model = fs.BoostedTrees(2, depth=2, bins=4, loss="squared", ranges={"x": (-3, 3), "y": (-3, 3)})
    return model.fit(fed, privacy=privacy)


def common_trees() -> fs.BoostedTrees:
    return fs.BoostedTrees(2, depth=2, loss="squared").fit(numbers(None))


def outcome(fit, fed) -> tuple[str, ...]:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            fit(fed)
        except Exception as error:
            return (type(error).__name__, str(error))
    return tuple(str(w.message) for w in said)


CLIENT = Gaussian(clip=1.0, multiplier=4.0)
ROW = Laplace(clip=4.0, epsilon=0.5, unit="row")
FITS = {
    "histogram": (categories, lambda fed: fs.Histogram(4).fit(fed, privacy=CLIENT)),
    "histogram of rows": (categories, lambda fed: fs.Histogram(4).fit(fed, privacy=ROW)),
    "moments": (numbers, lambda fed: fs.Moments(bound=3.0).fit(fed, privacy=CLIENT)),
    "k-means": (numbers, lambda fed: fs.FederatedKMeans(2, bound=3.0, rounds=2).fit(fed, privacy=CLIENT)),
    "mixture of Dirichlet-multinomials": (
        categories,
        lambda fed: fs.MixtureOfDirichletMultinomials(2, n_categories=4, rounds=2).fit(fed, privacy=CLIENT),
    ),
    "Gaussian mixture": (
        numbers,
        lambda fed: fs.GaussianMixture(2, rounds=2).fit(fed, privacy=Gaussian(clip=1.0, multiplier=4.0)),
    ),
    "sketch": (numbers, lambda fed: fs.DistributionSketch(rows=8).fit(fed, privacy=Gaussian(clip=8.0, multiplier=4.0))),
    "regression": (
        numbers,
        lambda fed: fs.LatentClassRegression(2, rounds=2, ranges={"x": (-3.0, 3.0), "y": (-3.0, 3.0)}).fit(
            fed, features="x", target="y", entity="entity", privacy=CLIENT
        ),
    ),
    "quantiles": (numbers, lambda fed: fs.Quantiles([0.2, 0.8], ranges=(-3, 3), resolution=0.5).fit(fed, privacy=WIDE)),
    "heavy hitters": (
        entities,
        lambda fed: fs.HeavyHitters(5, column="entity", length=2, prefixes=4).fit(fed, privacy=WIDE),
    ),
    **{
        f"{family} GLM": (
            numbers,
            lambda fed, family=family: fs.GLM(family, ranges=RANGES, rounds=2).fit(
                fed, privacy=WIDE if family == "gaussian" else BY_ROW if family == "poisson" else CLIENT
            ),
        )
        for family in ("gaussian", "logistic", "poisson", "gamma")
    },
    "boosted trees": (numbers, lambda fed: trees(fed, WIDE)),
    "attributions": (numbers, lambda fed: TreeAttributions(common_trees()).fit(fed, privacy=BY_ROW)),
    "trees of each client's own": (numbers, lambda fed: PersonalTrees(common_trees()).fit(fed, privacy=WIDE)),
}


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf, 1e300, -1.0, 10.0**9, 0.5])
@pytest.mark.parametrize("name", FITS)
def test_one_value_changes_nothing_that_is_said(name, poison):
    make, fit = FITS[name]
    assert outcome(fit, make(poison)) == outcome(fit, make(None))


@pytest.mark.parametrize("name", FITS)
def test_one_client_without_rows_changes_nothing_that_is_said(name):
    make, fit = FITS[name]
    fed = make(None)
    emptied = fed.where(fed.client_of_row != 5)
    assert outcome(fit, emptied) == outcome(fit, fed)

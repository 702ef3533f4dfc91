"""GLMs by sums, against statsmodels on pooled rows, scikit-learn, and brute force."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.stats import multivariate_normal

from fedscape import DataError, EngineError, Federation, Gaussian, Ledger, PrivacyError
from fedscape.statistics.heterogeneity import heterogeneity
from fedscape.tabular import GLM

#: statsmodels 0.15.0 on the rows of `sites`, which are made by NumPy alone: sm.GLM(y, X, family, offset=o,
#: var_weights=w).fit(tol=1e-14), X = [x, 1], Gamma with links.Log(), and again with cov_type="cluster",
#: cov_kwds={"groups": site}: coefficients, errors, clustered errors, deviance, Pearson's chi squared.
STATSMODELS = {
    "gaussian": (
        [0.353772844313, -0.304203730946, 0.203815762078],
        [0.0593980263523, 0.0400318523495, 0.116481855683],
        [0.0542436602701, 0.0497253263294, 0.149250601025],
        1176.10324893,
        1176.10324893,
    ),
    "logistic": (
        [0.408349874776, -0.407784458078, 0.268684378868],
        [0.0792012384458, 0.0538167911852, 0.143600633922],
        [0.126723694343, 0.0980784335357, 0.172759313301],
        1029.81896819,
        895.32360089,
    ),
    "poisson": (
        [0.338540305294, -0.327020572008, 0.228986073662],
        [0.041946203245, 0.0294308700773, 0.0696082287498],
        [0.0610346051755, 0.0410594607266, 0.165380929104],
        1025.91690387,
        1166.29562508,
    ),
    "gamma": (
        [0.366966637831, -0.349041276358, 0.332944128839],
        [0.0439835210153, 0.0296431030999, 0.0862534070906],
        [0.0470587755651, 0.0338681754146, 0.105087755106],
        672.045357339,
        644.883709529,
    ),
}


def sites() -> Federation:
    rng = np.random.default_rng(12)
    n = 400
    site = np.sort(rng.integers(0, 12, n))
    x = np.column_stack([rng.normal(0, 1, n), rng.uniform(0, 5, n)])
    eta = 0.4 * x[:, 0] - 0.3 * x[:, 1] + 0.2 + rng.normal(0, 0.3, 12)[site]
    columns = {
        "x": x,
        "gaussian": eta + rng.normal(0, 1, n),
        "logistic": (rng.random(n) < 1 / (1 + np.exp(-eta))).astype(float),
        "poisson": rng.poisson(np.exp(eta)).astype(float),
        "gamma": rng.gamma(2.0, np.exp(eta) / 2),
        "o": rng.uniform(-0.5, 0.5, n),
        "w": rng.integers(1, 4, n).astype(float),
    }
    return Federation.from_arrays(columns, clients=site)


def herds() -> Federation:
    """Cases among the animals of fifteen herds in up to four periods; herds differ by a random intercept."""
    rng = np.random.default_rng(3)
    sizes = rng.integers(1, 5, 15)
    period = np.concatenate([np.arange(n) for n in sizes])
    animals = rng.integers(4, 30, len(period)).astype(float)
    eta = -1.2 - 0.5 * period + np.repeat(rng.normal(0, 0.8, 15), sizes)
    cases = rng.binomial(animals.astype(int), 1 / (1 + np.exp(-eta)))
    x = (period[:, None] == [1, 2, 3]).astype(float)
    return Federation({"x": x, "y": cases / animals, "n": animals}, np.cumsum([0, *sizes]))


@pytest.mark.parametrize("family", STATSMODELS)
def test_coefficients_errors_and_deviance_are_those_of_pooled_statsmodels(family):
    glm = GLM(family, target=family, offset="o", weights="w").fit(sites())
    coefficients, errors, robust, deviance, pearson = STATSMODELS[family]
    np.testing.assert_allclose([*glm.coefficients_, glm.intercept_], coefficients, rtol=1e-6)
    np.testing.assert_allclose(glm.standard_errors_, errors, rtol=1e-6)
    np.testing.assert_allclose(glm.robust_errors_, robust, rtol=1e-6)
    np.testing.assert_allclose([glm.deviance_, glm.pearson_], [deviance, pearson], rtol=1e-6)
    assert glm.converged_


#: Contagious bovine pleuropneumonia in fifteen herds (Lesnoff et al. 2004): the data `cbpp` of lme4.
CASES = (
    "2 3 4 0 3 1 1 8 2 0 2 2 0 2 0 5 0 0 1 3 0 0 1 8 1 3 0 12 2 0 0 0 1 1 0 2 0 5 3 1 2 1 0 0 1 2 0 0 11 0 0 0 1 1 1 0"
)
ANIMALS = (
    "14 12 9 5 22 18 21 22 16 16 20 10 10 9 6 18 25 24 4 17 17 18 20 16 10 9 5 34 "
    "9 6 8 6 22 22 18 22 25 27 22 22 10 8 6 5 21 24 19 23 19 2 3 2 19 15 15 15"
)
PERIODS = "1234123" + "1234" * 5 + "1" + "1234" * 7

#: lme4 1.1-31 (R 4.2.2): glmer(cbind(incidence, size - incidence) ~ period + (1 | herd), cbpp, binomial, control =
#: glmerControl("bobyqa", optCtrl = list(rhoend = 1e-12), tolPwrss = 1e-13)): period2 to 4 and intercept, errors by the
#: Hessian, standard deviation, logLik, and ranef of the first three herds. lme4's pages print its default optimiser's
#: -0.992, -1.128, -1.580, -1.398, 0.642 and -92.0.
CBPP = (
    [-0.992332654491, -1.128672011323, -1.580313926439, -1.398532147980],
    [0.306642106519, 0.326637471585, 0.427435861649, 0.232471816481],
    0.642261439625,
    -92.0262818715,
    [0.5900200114034, -0.2988972284561, 0.4062555584501],
)
CHOICES = 185.475659684  # sum(lchoose(size, incidence)), which lme4 adds to the log-likelihood


def test_random_intercepts_are_those_of_lme4():
    cases, animals = (np.array(text.split(), dtype=float) for text in (CASES, ANIMALS))
    period = np.array(list(PERIODS), dtype=int)
    columns = {"x": (period[:, None] == [2, 3, 4]).astype(float), "y": cases / animals, "n": animals}
    fed = Federation(columns, [*np.flatnonzero(period == 1), len(period)])
    glm = GLM("logistic", weights="n", random_intercept=True).fit(fed)
    coefficients, errors, sd, log_likelihood, modes = CBPP
    np.testing.assert_allclose([*glm.coefficients_, glm.intercept_], coefficients, rtol=1e-6)
    np.testing.assert_allclose(glm.standard_errors_, errors, rtol=1e-5)  # both by differences
    np.testing.assert_allclose(glm.intercept_sd_, sd, rtol=1e-6)
    np.testing.assert_allclose(glm.log_likelihood_ + CHOICES, log_likelihood, rtol=1e-9)
    np.testing.assert_allclose(glm.client_intercepts(fed)[:3], modes, rtol=1e-6)
    np.testing.assert_allclose(glm.client_intercepts(fed.take([2])), glm.client_intercepts(fed)[2:3], rtol=1e-12)


#: lme4 1.1-31 on the public files Chem97, Exam and radon (mlmRev, HLMdiag), by the same control, or REML=FALSE:
#: glmer(score ~ gcse + girl + (1 | lea), poisson) and with score == 10 for binomial, gcse = gcsescore less its mean;
#: lmer(normexam ~ standLRT + (1 | school)): coefficients, intercept, errors, standard deviation, logLik.
LME4 = {
    "poisson": (
        [0.502738231025, -0.120124948004, 1.726199763576],
        [0.00313915201426, 0.00481502165219, 0.00859737654653],
        0.0871505908478,
        -75073.2415968,
    ),
    "logistic": (
        [2.667728179324, -0.691644782405, -1.972692438321],
        [0.0358527327508, 0.0355604355804, 0.0420096312652],
        0.311393905494,
        -10709.4229369,
    ),
    "gaussian": (
        [0.56336977522058, 0.00238652156105],
        [0.0124653700508, 0.0400225546612],
        0.303526942132,
        -4678.60648886,
    ),
}
NESTED = Path(os.environ.get("FEDSCAPE_DATA", "../shared/data")) / "hierarchical"


@pytest.mark.skipif(not NESTED.exists(), reason="the nested data sets are not here")
@pytest.mark.parametrize("family", LME4)
def test_random_intercepts_of_public_data_are_those_of_lme4(family):
    import pandas as pd

    if family == "gaussian":
        exam = pd.read_csv(NESTED / "Exam.csv.gz")
        columns = {"x": exam.standLRT.to_numpy(), "y": exam.normexam.to_numpy()}
        fed = Federation.from_arrays(columns, clients=exam.school.to_numpy())
    else:
        chem = pd.read_csv(NESTED / "Chem97.csv.gz")
        x = np.column_stack([chem.gcsescore - chem.gcsescore.mean(), chem.gender == "F"]).astype(float)
        y = chem.score.to_numpy().astype(float)
        fed = Federation.from_arrays(
            {"x": x, "y": y if family == "poisson" else (y == 10).astype(float)}, clients=chem.lea.to_numpy()
        )
    glm = GLM(family, random_intercept=True).fit(fed)
    coefficients, errors, sd, log_likelihood = LME4[family]
    np.testing.assert_allclose([*glm.coefficients_, glm.intercept_], coefficients, rtol=2e-6)
    np.testing.assert_allclose(glm.standard_errors_, errors, rtol=2e-4)  # lme4's differences have four digits here
    np.testing.assert_allclose(glm.intercept_sd_, sd, rtol=2e-6)
    np.testing.assert_allclose(glm.log_likelihood_, log_likelihood, rtol=1e-9)


def test_any_split_into_clients_gives_the_same_coefficients():
    fed = sites()
    whole = Federation(fed.columns, [0, fed.n_rows])
    one, many = (GLM("poisson", target="poisson").fit(each) for each in (whole, fed))
    np.testing.assert_allclose(one.coefficients_, many.coefficients_, rtol=1e-9)
    np.testing.assert_allclose(one.standard_errors_, many.standard_errors_, rtol=1e-9)


def test_ridge_is_that_of_scikit_learn():
    from sklearn.linear_model import LogisticRegression, Ridge

    fed = sites()
    ridge = Ridge(alpha=7.0).fit(fed["x"], fed["gaussian"])
    logistic = LogisticRegression(C=1 / 7.0, tol=1e-10, max_iter=1_000).fit(fed["x"], fed["logistic"])
    mine = GLM("gaussian", target="gaussian", l2=7.0).fit(fed)
    np.testing.assert_allclose([*mine.coefficients_, mine.intercept_], [*ridge.coef_, ridge.intercept_], rtol=1e-9)
    mine = GLM("logistic", target="logistic", l2=7.0).fit(fed)
    np.testing.assert_allclose(mine.coefficients_, logistic.coef_[0], rtol=1e-5)


@pytest.mark.parametrize("family", ["gaussian", "poisson", "gamma"])
def test_ranges_change_units_and_nothing_else(family):
    fed = sites()
    ends = {"gaussian": (-20.0, 20.0), "poisson": (0.0, 400.0), "gamma": (1e-3, 900.0)}[family]
    how = {"target": family, "offset": "o", "weights": "w"}
    plain, ranged = (GLM(family, ranges=r, **how).fit(fed) for r in (None, {"x": (-8.0, 8.0), family: ends}))
    np.testing.assert_allclose(ranged.coefficients_, plain.coefficients_, rtol=1e-8)
    np.testing.assert_allclose(ranged.intercept_, plain.intercept_, rtol=1e-8)
    np.testing.assert_allclose(ranged.standard_errors_, plain.standard_errors_, rtol=1e-8)
    np.testing.assert_allclose(ranged.robust_errors_, plain.robust_errors_, rtol=1e-8)
    np.testing.assert_allclose([ranged.deviance_, ranged.pearson_], [plain.deviance_, plain.pearson_], rtol=1e-8)


def test_laplace_approximation_is_that_of_brute_force():
    fed = herds()
    glm = GLM("logistic", weights="n", random_intercept=True).fit(fed)

    def log_likelihood(intercept: float, sd: float) -> float:
        value = 0.0
        for i in range(len(fed)):
            herd = fed.take([i])

            def joint(u: float, herd: Federation = herd) -> float:
                eta = intercept + herd["x"] @ glm.coefficients_ + u
                each = herd["n"] * (herd["y"] * eta - np.log1p(np.exp(eta)))
                return float(each.sum() - u**2 / sd**2 / 2 - np.log(sd))

            u = minimize_scalar(lambda u: -joint(u), bracket=(-1, 1), tol=1e-12).x
            h = 1e-3
            bend = (2 * joint(u) - joint(u + h) - joint(u - h)) / h**2
            value += joint(u) - np.log(bend) / 2
        return value

    best = log_likelihood(glm.intercept_, glm.intercept_sd_)
    np.testing.assert_allclose(glm.log_likelihood_, best, atol=1e-4)
    for move in (-0.02, 0.02):
        assert log_likelihood(glm.intercept_ + move, glm.intercept_sd_) < best
        assert log_likelihood(glm.intercept_, glm.intercept_sd_ + move) < best


def test_gaussian_intercepts_have_the_exact_likelihood():
    fed = sites()
    glm = GLM("gaussian", target="gaussian", random_intercept=True).fit(fed)

    def log_likelihood(sd: float, residual: float) -> float:
        mean = fed["x"] @ glm.coefficients_ + glm.intercept_
        value = 0.0
        for a, b in zip(fed.offsets[:-1], fed.offsets[1:], strict=True):
            covariance = sd**2 + residual**2 * np.eye(b - a)
            value += multivariate_normal(mean[a:b], covariance).logpdf(fed["gaussian"][a:b])
        return float(value)

    best = log_likelihood(glm.intercept_sd_, glm.residual_sd_)
    np.testing.assert_allclose(glm.log_likelihood_, best, rtol=1e-9)
    for move in (0.99, 1.01):
        assert log_likelihood(glm.intercept_sd_ * move, glm.residual_sd_) < best
        assert log_likelihood(glm.intercept_sd_, glm.residual_sd_ * move) < best


def test_heterogeneity_is_that_of_the_sites_own_fits():
    fed = sites()
    found = GLM("poisson", target="poisson").heterogeneity(fed)
    own = [GLM("poisson", target="poisson").fit(fed.take([i])) for i in range(len(fed))]
    estimates = np.array([[*each.coefficients_, each.intercept_] for each in own])
    by_hand = heterogeneity(estimates, np.array([each.standard_errors_**2 for each in own]))
    for name in ("q", "i2", "tau2", "fixed", "fixed_error"):
        np.testing.assert_allclose(getattr(found, name), getattr(by_hand, name), rtol=1e-6)
    np.testing.assert_allclose(found.random, by_hand.random, rtol=1e-6)
    np.testing.assert_allclose(found.random_error, by_hand.random_error, rtol=1e-6)
    weight = 1 / np.array([each.standard_errors_**2 for each in own])[:, 0]
    mean = (weight * estimates[:, 0]).sum() / weight.sum()
    np.testing.assert_allclose(found.q[0], (weight * (estimates[:, 0] - mean) ** 2).sum(), rtol=1e-6)


def test_a_private_fit_nears_the_plain_one_and_is_in_the_ledger():
    rng = np.random.default_rng(3)
    x = rng.uniform(-1, 1, (20_000, 2))
    y = (rng.random(20_000) < 1 / (1 + np.exp(-(x @ [1.0, -2.0])))).astype(float)
    fed, ledger = Federation({"x": x, "y": y}, np.arange(0, 20_001, 10)), Ledger()
    glm = GLM("logistic", ranges={"x": (-1, 1)}, rounds=6)
    glm.fit(fed, privacy=Gaussian(clip=3.0, multiplier=4.0, unit="row", noise_seed=1), ledger=ledger)
    np.testing.assert_allclose(glm.coefficients_, [1.0, -2.0], atol=0.2)
    assert sum(line["kind"] == "release" for line in ledger.entries()) == 6
    assert not hasattr(glm, "standard_errors_")


@pytest.mark.parametrize("family", ["gaussian", "logistic", "poisson", "gamma"])
def test_no_row_moves_the_sums_by_more_than_its_bound(family):
    rng = np.random.default_rng(5)
    x = rng.choice([-1.0, 1.0], (900, 3))
    y = rng.integers(0, 2, 900) if family == "logistic" else rng.choice([0.0, 0.05, 3.0, 20.0, 1e9], 900)
    y = y + 1e-9 if family == "gamma" else y
    columns = {"x": x * 99, "y": y, "o": rng.choice([-9.0, 0.3, 9.0], 900), "w": rng.choice([0.0, 7.0], 900)}
    fed = Federation(columns, np.arange(901))
    ranges = {"x": (-1, 1), "y": {"gaussian": (-3, 20), "logistic": (0, 1)}.get(family, (0.05, 20)), "o": (-1, 1)}
    for extra in ({}, {"offset": "o"}, {"weights": "w"}):
        glm, nearest = GLM(family, ranges={**ranges, "w": (0, 2)}, **extra), 0.0
        for beta in (np.zeros(0), *rng.normal(0, [[0.1], [1.0], [9.0]], (3, 4))):
            state = {"coefficients": beta}
            sent, _ = glm.step(state, fed, None)
            rows = np.concatenate([values.reshape(900, -1) for values in sent.values()], axis=1)
            for norm in (1, 2):
                used = np.linalg.norm(rows, ord=norm, axis=1).max() / glm.row_bound(state, norm, fed)
                assert used <= 1 + 1e-12
                nearest = max(nearest, used)
        assert nearest > (0.7 if extra else 0.95) or family == "logistic"  # and a bound is not idle


def test_counts_by_rows_are_private_with_a_range_and_refused_without():
    rng = np.random.default_rng(3)
    x = rng.uniform(-1, 1, (40_000, 2))
    y = rng.poisson(np.exp(x @ [0.8, -0.5] + 0.5)).astype(float)
    fed, ledger = Federation({"x": x, "y": y}, np.arange(0, 40_001, 10)), Ledger()
    privacy = Gaussian(clip=4.0, multiplier=4.0, unit="row", noise_seed=1)
    glm = GLM("poisson", ranges={"x": (-1, 1), "y": (0, 12)}, rounds=5).fit(fed, privacy=privacy, ledger=ledger)
    np.testing.assert_allclose([*glm.coefficients_, glm.intercept_], [0.8, -0.5, 0.5], atol=0.1)
    assert sum(line["kind"] == "release" for line in ledger.entries()) == 5
    with pytest.raises(PrivacyError, match="ranges must name the target"):
        GLM("poisson", ranges={"x": (-1, 1)}).fit(fed, privacy=privacy)
    with pytest.raises(PrivacyError, match="a poisson model needs an intercept"):
        GLM("poisson", ranges={"x": (-1, 1), "y": (0, 12)}, intercept=False).fit(fed, privacy=privacy)
    with pytest.raises(PrivacyError, match="ranges must name the column 'o', too"):
        GLM("poisson", ranges={"x": (-1, 1), "y": (0, 12)}, offset="o").fit(fed, privacy=privacy)
    with pytest.raises(DataError, match="must begin above 0 for a gamma law"):
        GLM("gamma", ranges={"x": (-1, 1), "y": (0, 12)}).fit(fed, privacy=privacy)


def test_a_forest_plot_shows_each_site_and_asks_first():
    from fedscape.report import plot_forest

    fed, glm = sites(), GLM("poisson", target="poisson")
    with pytest.raises(EngineError, match="estimates, variances"):
        glm.by_site(fed, "x.0")
    allow = ("estimates", "variances")
    about = glm.by_site(fed, "x.0", allow=allow)
    own = [GLM("poisson", target="poisson").fit(fed.take([i])) for i in range(len(fed))]
    np.testing.assert_allclose([row["value"] for row in about["rows"]], [each.coefficients_[0] for each in own])
    high = [each.coefficients_[0] + 1.959964 * each.standard_errors_[0] for each in own]
    np.testing.assert_allclose([row["high"] for row in about["rows"]], high, rtol=1e-6)
    sums = glm.heterogeneity(fed)
    np.testing.assert_allclose([about["i2"], about["tau2"]], [sums.i2[0], sums.tau2[0]], rtol=1e-6)
    figure, rows = plot_forest(about)
    assert len(rows) == len(fed) + 2
    assert f"I2 {about['i2']:.0%}" in figure.axes[0].get_title()
    with pytest.raises(DataError, match="there is no coefficient 'age'"):
        glm.by_site(fed, "age", allow=allow)


def test_what_is_refused():
    fed = sites()
    twice = fed.with_column("x", np.column_stack([fed["x"], fed["x"][:, 0]]))
    with pytest.raises(DataError, match="go together"):
        GLM("gaussian", target="gaussian").fit(twice)
    with pytest.raises(DataError, match="which no poisson law has"):
        GLM("poisson", target="gaussian").fit(fed)
    with pytest.raises(DataError, match="family must be one of"):
        GLM("poison").fit(fed)
    with pytest.raises(PrivacyError, match="needs ranges"):
        GLM("logistic", target="logistic").fit(fed, privacy=Gaussian(clip=1.0, multiplier=1.0))
    with pytest.raises(DataError, match="need family gaussian, logistic or poisson"):
        GLM("gamma", target="gamma", random_intercept=True).fit(fed)


def test_numbers_too_large_to_be_squared_and_weights_of_nothing_are_refused():
    fed = Federation(
        {"x": [0.0, 1.0, 2e200, 3.0], "z": np.arange(4.0), "y": [0.0, 1, 1, 0], "w": np.zeros(4)}, [0, 2, 4]
    )
    with pytest.raises(DataError, match="'x' holds 2e\\+200 in row 2, too large to be squared"):
        GLM().fit(fed, features="x")
    with pytest.raises(DataError, match="all weights are 0"):
        GLM(weights="w").fit(fed, features="z")
    with pytest.raises(DataError, match="ranges must be a dictionary"):
        GLM(ranges=(0, 1)).fit(fed, features="z")
    exact = GLM().fit(fed.with_column("y", fed["z"]), features="z")  # no error is left, and no warning is given
    assert exact.coefficients_ == pytest.approx(1.0)

"""Generalised linear models from sums: Fisher scoring, standard errors, and heterogeneity of clients."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from fedscape.core.arrays import offsets_of
from fedscape.core.estimator import Fit
from fedscape.core.federation import Federation
from fedscape.core.random import Key
from fedscape.core.validate import check_whole, column_names
from fedscape.errors import DataError, PrivacyError
from fedscape.tabular.design import Columns, Ranges, Rows, solve
from fedscape.tabular.estimator import TableEstimator
from fedscape.tabular.families import family_of
from fedscape.tabular.units import TargetUnit, target_unit
from fedscape.types import Array, Arrays, Kept

if TYPE_CHECKING:
    import numpy.typing as npt

    from fedscape.core.engine import Engine
    from fedscape.statistics.heterogeneity import Heterogeneity

_SINGULAR = 1e12  # condition of the information, all coefficients in units of their own error


class GLM(TableEstimator):
    """A generalised linear model of all clients' rows: Fisher scoring, whose sums are those of pooled rows.

    A client sends X'WX and X'Wz at the broadcast coefficients (McCullagh and Nelder 1989, section 2.5); one more round
    sends deviance and scores, from which the errors follow.

    Parameters
    ----------
    family
        "gaussian" (identity link), "logistic", "poisson" or "gamma" (both with a logarithmic link).
    features, target
        Columns; features are one column of any trailing shape or several.
    offset
        A column added to the linear predictor with coefficient 1, such as the logarithm of an exposure.
    weights
        A column of prior weights, as R's glm has them: the variance of a row is divided by its weight.
    intercept
        Whether there is one.
    l2
        Half of it times the squared coefficients (not the intercept's) is taken from the log-likelihood, with a
        dispersion of one: scikit-learn's alpha of Ridge, 1 / C of LogisticRegression.
    random_intercept
        Whether each client has an intercept of its own, normal about the common one: the marginal likelihood by
        Laplace's approximation, as lme4's glmer; exact for "gaussian" (maximum likelihood, not REML). Not for "gamma".
    ranges
        The least and greatest value of each feature column, and of target, offset and weights where named, to which
        values are cut; for Poisson and gamma the means too. Features are then in units of half their range, and `l2`
        too. A private fit needs them; for `unit="row"` of all columns, but for classes.
    rounds, tol
        At most this many rounds; stop when the step is shorter than this in units of the errors. A private fit takes
        all of them, "gaussian" one.

    Learns `coefficients_`, `intercept_`, `standard_errors_`, `covariance_` (the intercept last), `robust_errors_`,
    `z_values_`, `p_values_`, `deviance_`, `pearson_`, `dispersion_`, `n_rows_`, `feature_names_` and `converged_`. With
    random intercepts also `intercept_sd_`, `residual_sd_` (Gaussian) and `log_likelihood_`. Robust errors are the
    sandwich of the observed information, clustered by client, times G / (G - 1) x (n - 1) / (n - p) for G clients. A
    private fit has coefficients alone: its noise is in no error.

    >>> fed = Federation({"x": [0.0, 1.0, 2.0, 3.0], "y": [1.0, 3.0, 5.0, 7.5]}, [0, 2, 4])
    >>> glm = GLM("gaussian").fit(fed, features="x", target="y")
    >>> glm.coefficients_.round(6).tolist(), round(glm.intercept_, 6), glm.standard_errors_.round(4).tolist()
    ([2.15], 0.9, [0.0866, 0.162])
    """

    name = "glm"

    intercept_sd_: float
    residual_sd_: float
    log_likelihood_: float

    block_clients = 128  # a client sends p x p numbers

    def __init__(
        self,
        family: str = "gaussian",
        *,
        features: str | Sequence[str] = "x",
        target: str = "y",
        offset: str | None = None,
        weights: str | None = None,
        intercept: bool = True,
        l2: float = 0.0,
        random_intercept: bool = False,
        ranges: Ranges | None = None,
        rounds: int = 25,
        tol: float = 1e-8,
    ) -> None:
        self.family = family
        self.features = features
        self.target = target
        self.offset = offset
        self.weights = weights
        self.intercept = intercept
        self.l2 = l2
        self.random_intercept = random_intercept
        self.ranges = ranges
        self.rounds = rounds
        self.tol = tol

    def columns(self) -> Columns:
        """Roles of the columns."""
        names = column_names(self.features, target=self.target)
        return Columns(names, self.target, self.offset, self.weights, self.intercept, self.ranges)

    # -- a round -------------------------------------------------------------------------------------------------------

    def start(self, seed: int) -> Arrays:
        family_of(self.family)
        check_whole("rounds", self.rounds, least=1)
        if not self.l2 >= 0:
            raise DataError(f"l2 must not be negative, got {self.l2!r}")
        return {"coefficients": np.zeros(0), "server.information": np.zeros((0, 0)), "server.move": np.full((), 1e300)}

    def step(self, state: Arrays, clients: Federation, key: Key) -> tuple[Arrays, Kept]:
        rows = self.columns().rows(clients, family_of(self.family))
        weight, response = self._working(rows, state["coefficients"])
        wx = rows.x * weight[:, None]
        cuts = list(pairwise(clients.offsets))
        information = np.array([wx[a:b].T @ rows.x[a:b] for a, b in cuts])
        return {"information": information, "score": clients.segment_sum(rows.x * response[:, None])}, {}

    def total(self, state: Arrays, clients: Federation, key: Key) -> Arrays | None:
        rows = self.columns().rows(clients, family_of(self.family))
        weight, response = self._working(rows, state["coefficients"])
        return {"information": (rows.x * weight[:, None]).T @ rows.x, "score": rows.x.T @ response}

    def update(self, state: Arrays, total: Arrays, key: Key) -> Arrays:
        information = (total["information"] + total["information"].T) / 2
        penalty = self._penalty(len(information))
        new = solve(information + penalty, total["score"])
        old = state["coefficients"] if state["coefficients"].size else np.zeros_like(new)
        step = new - old
        move = np.sqrt(max(float(step @ (information + penalty) @ step), 0.0))
        return {"coefficients": new, "server.information": information, "server.move": np.asarray(move)}

    def _working(self, rows: Rows, coefficients: Array) -> tuple[Array, Array]:
        """W and W (z - offset) of each row, z the working response."""
        family, unit = family_of(self.family), self._target_unit()
        y, offset = unit.of(rows.y), rows.offset / unit.slope
        if coefficients.size and len(coefficients) != rows.x.shape[1]:
            raise DataError(f"the features have {rows.x.shape[1]} numbers a row, the model {len(coefficients)}")
        if coefficients.size and family.name != "gaussian":  # whose z is y; eta + (y - eta) would be only nearly
            eta = unit.within(family.within(rows.x @ coefficients + offset))
            mu = family.mean(eta)
        else:
            mu = family.first(y)
            eta = unit.within(family.link(mu))
            mu = mu if np.isinf(unit.high) else family.mean(eta)
        slope = family.slope(eta)
        variance = family.variance(mu)
        weight = rows.weight * slope**2 / variance
        return weight, weight * (eta - offset) + rows.weight * slope / variance * (y - mu)

    def _target_unit(self) -> TargetUnit:
        ends = self.columns().ends(self.target) if self.ranges is not None and self.target in self.ranges else None
        return target_unit(family_of(self.family), ends, intercept=self.intercept, target=self.target)

    def _penalty(self, p: int) -> Array:
        penalty = np.full(p, float(self.l2) / self._target_unit().curvature)
        if self.intercept:
            penalty[-1] = 0.0
        return np.diag(penalty)

    def valid_rows(self, state: Arrays, clients: Federation) -> Array | None:
        return self.columns().valid_rows(clients, family_of(self.family))

    def coded_columns(self) -> Sequence[str]:
        return (self.target,) if self.family == "logistic" else ()

    def row_bound(self, state: Arrays, norm: int, clients: Federation | None = None) -> float | None:
        """With ranges every |x| is at most one: W and W z bound a row; offset and weights need ranges too."""
        p = len(state["coefficients"]) if clients is None else len(self.columns().names(clients))
        unit, ranges = self._target_unit(), self.ranges or {}
        extra = [name for name in (self.offset, self.weights) if name is not None]
        if unit.weight is None or unit.response is None or not ranges or not p or any(n not in ranges for n in extra):
            return None
        most = 1.0 if self.weights is None else self.columns().ends(self.weights)[1]
        weight, response = most * unit.weight, most * unit.response
        if self.offset is not None:
            response += weight * max(map(abs, self.columns().ends(self.offset))) / unit.slope
        return weight * p**2 + response * p if norm == 1 else float(np.hypot(weight * p, response * np.sqrt(p)))

    # -- learning ------------------------------------------------------------------------------------------------------

    def _fit(self, engine: Engine, column: str | None, how: Fit) -> None:
        if how.privacy is not None:
            self._check_private(how.privacy.unit)
        state = self._run(
            self,
            engine,
            how.phase(".scoring"),
            n_rounds=1 if self.family == "gaussian" and how.privacy is not None else self.rounds,  # the first is exact
            done=lambda old, new: how.privacy is None and self.is_done(new),
        )
        for learned in ("standard_errors_", "intercept_sd_", "residual_sd_", "log_likelihood_"):
            self.__dict__.pop(learned, None)  # of an earlier fit
        self._take_state(state, engine.clients)
        if how.privacy is None:
            self._conclude(engine, how, state)

    def is_done(self, state: Arrays) -> bool:
        """Whether the last step was short enough to stop."""
        return bool(state["server.move"] <= self.tol)

    def of_state(self, state: Arrays, clients: Federation) -> GLM:
        """A model with the coefficients of a state of the rounds, and no errors."""
        model = type(self)(**self.get_params())
        model._take_state(state, clients)
        return model

    def with_errors(self, engine: Engine, state: Arrays) -> GLM:
        """The model of a state with its errors, for which one more round is run."""
        model = type(self)(**self.get_params())
        how = model._begin(Fit(progress=False))
        model._take_state(state, engine.clients)
        model._conclude(engine, how, state)
        return model

    def _take_state(self, state: Arrays, clients: Any) -> None:
        columns, p = self.columns(), len(state["coefficients"])
        names = columns.names(clients) if isinstance(clients, Federation) else tuple(map(str, range(p)))
        self.feature_names_, self.converged_ = names, self.is_done(state)
        self._take(columns, state["coefficients"], clients)

    def _conclude(self, engine: Engine, how: Fit, state: Arrays) -> None:
        """Refuse features that go together, and learn errors and random intercepts."""
        penalty = self._penalty(len(state["coefficients"]))
        self._check_singular(state["server.information"] + penalty, self.feature_names_)
        self._learn_errors(engine, how, state)
        if self.random_intercept:
            from fedscape.tabular.intercepts import learn_intercepts

            learn_intercepts(self, engine, how, state["coefficients"], self.covariance_)

    def _check_private(self, unit: str) -> None:
        if self.ranges is None:
            raise PrivacyError("a private GLM needs ranges={column: (least, greatest)}: where values lie is a secret")
        if self.random_intercept:
            raise PrivacyError("random intercepts have no private form: use random_intercept=False")
        if unit == "row" and self._target_unit().weight is None:
            what = f"ranges must name the target {self.target!r}, too"
            if self.family in ("poisson", "gamma") and not self.intercept:
                what = f"a {self.family} model needs an intercept"
            raise PrivacyError(f"for unit='row' {what}: else no row's influence is bounded; or use unit='client'")
        for name in (self.offset, self.weights):
            if unit == "row" and name is not None and name not in self.ranges:
                raise PrivacyError(f"for unit='row' ranges must name the column {name!r}, too, or use unit='client'")

    def _take(self, columns: Columns, coefficients: Array, clients: Any) -> None:
        """Coefficients in the columns' own units, from those of half ranges."""
        n = len(coefficients) - self.intercept
        widths = [n] if len(columns.features) == 1 else [1] * len(columns.features)
        if isinstance(clients, Federation):
            widths = [int(np.prod(clients[name].shape[1:])) for name in columns.features]
        centre, half = columns.units(widths)
        target = self._target_unit()
        shift, unit = target.level, target.slope
        self.coefficients_ = coefficients[:n] / half * unit
        first = float(coefficients[-1]) * unit if self.intercept else 0.0
        self.intercept_ = first + shift - float(self.coefficients_ @ centre)
        change = np.diag(np.append(unit / half, [unit] * self.intercept))  # from half ranges to own units
        if self.intercept:
            change[-1, :-1] = -unit * centre / half
        self._change = change

    def _check_singular(self, information: Array, names: Sequence[str]) -> None:
        size = np.sqrt(np.maximum(np.diag(information), 1e-300))
        values, vectors = np.linalg.eigh(information / np.outer(size, size))
        if values[0] * _SINGULAR < values[-1]:
            worst = [names[i] for i in np.argsort(-np.abs(vectors[:, 0]))[:2]]
            raise DataError(
                f"the features do not determine the coefficients: {' and '.join(map(repr, worst))} go together in all "
                "rows; leave one out, or use l2 above 0"
            )

    def _learn_errors(self, engine: Engine, how: Fit, state: Arrays) -> None:
        from fedscape.tabular.errors import GLMErrors

        work = GLMErrors(**{name: value for name, value in self.get_params().items() if name in _SHARED})
        about = self._run(
            work, engine, how.phase(".errors"), n_rounds=1, state={"coefficients": state["coefficients"]}, measure=0
        )
        p, n, groups = len(state["coefficients"]), float(about["rows"]), float(about["groups"])
        if not np.trace(about["information"]) > 0:
            raise DataError("all weights are 0, so that no row says anything of the coefficients")
        self.n_rows_ = int(n)
        spread = self._target_unit().spread
        self.deviance_, self.pearson_ = float(about["deviance"]) * spread, float(about["pearson"]) * spread
        spare = max(n - p, 1.0)
        self.dispersion_ = self.pearson_ / spare if family_of(self.family).scaled else 1.0
        bread = np.linalg.inv(about["information"] + self._penalty(p))
        model = bread @ about["information"] @ bread * (self.dispersion_ / spread)
        bread = np.linalg.inv(about["observed"] + self._penalty(p))
        robust = bread @ about["outer"] @ bread * (groups / max(groups - 1, 1) * (n - 1) / spare)
        self.covariance_ = self._change @ model @ self._change.T
        self.standard_errors_ = np.sqrt(np.diag(self.covariance_))
        self.robust_errors_ = np.sqrt(np.diag(self._change @ robust @ self._change.T))
        self._test()

    def _test(self) -> None:
        from scipy.special import ndtr

        own = np.append(self.coefficients_, [self.intercept_] * self.intercept)
        with np.errstate(divide="ignore", invalid="ignore"):  # a target that the features give has no error
            self.z_values_ = own / self.standard_errors_
        self.p_values_ = 2 * ndtr(-np.abs(self.z_values_))

    def predict(self, x: npt.ArrayLike, *, offset: npt.ArrayLike = 0.0) -> Array:
        """The mean of each row of features [rows, f], in the order of `feature_names_`.

        >>> fed = Federation({"x": [0.0, 1.0, 2.0], "y": [1.0, 3.0, 5.0]}, [0, 2, 3])
        >>> GLM().fit(fed).predict([[4.0]]).round(6).tolist()
        [9.0]
        """
        self._check_fitted("coefficients_")
        rows = np.asarray(x, dtype=float)
        rows = rows.reshape(len(rows), int(np.prod(rows.shape[1:])))
        if rows.shape[1] != len(self.coefficients_):
            raise DataError(f"x has {rows.shape[1]} features a row, the model {len(self.coefficients_)}")
        return family_of(self.family).mean(rows @ self.coefficients_ + self.intercept_ + np.asarray(offset))

    def heterogeneity(self, data: Engine | Federation) -> Heterogeneity:
        """Measure how much the clients' own coefficients differ beyond chance: Q, I2 and tau2 of each, from sums.

        Each client fits the model to its own rows. One without enough of them, or whose own fit has no answer, counts
        as none. Coefficients are in the columns' own units, the intercept last.
        """
        from fedscape.tabular.sites import learn_heterogeneity

        self._asking("a test of heterogeneity", None, None)
        return learn_heterogeneity(self, data)

    def by_site(self, data: Engine | Federation, coefficient: str, *, allow: Sequence[str] = ()) -> dict[str, Any]:
        """The numbers of a forest plot: one coefficient of every site with its interval, the pooled ones, I2 and tau2.

        The server sees each site's own fit: `allow` must name "estimates" and "variances".
        """
        from fedscape.tabular.sites import site_rows

        self._asking("estimates of sites", None, None)
        return site_rows(self, data, coefficient, allow)

    def client_intercepts(self, clients: Federation) -> Array:
        """What the random intercept of each of these clients most likely is, new ones too; no rows leave them.

        It is 0 without rows; `predict` takes it, one for each row, as `offset`.
        """
        from fedscape.tabular.intercepts import own_intercepts

        self._check_fitted("intercept_sd_")
        return own_intercepts(self, clients)

    @classmethod
    def examples(cls) -> Sequence[tuple[GLM, Federation]]:
        rng = np.random.default_rng(8)
        offsets = offsets_of(rng.integers(0, 7, 30))
        n = int(offsets[-1])
        x = rng.uniform(-1, 1, (n, 2))
        eta = x @ [0.5, -1.0] + 0.3
        columns = {
            "x": x,
            "y": eta + rng.normal(0, 1, n),
            "sick": (rng.random(n) < 1 / (1 + np.exp(-eta))).astype(int),
            "visits": rng.poisson(np.exp(eta)),
            "cost": rng.gamma(2.0, np.exp(eta) / 2),
            "exposure": rng.uniform(-0.1, 0.1, n),
            "weight": rng.integers(1, 4, n),
        }
        fed = Federation(columns, offsets)
        ranges = {"x": (-1.0, 1.0), "exposure": (-0.2, 0.2), "weight": (0.0, 3.0)}
        return [
            (cls("gaussian", l2=0.1, weights="weight"), fed),
            (cls("logistic", target="sick", ranges={"x": (-1.0, 1.0)}), fed),
            (cls("poisson", target="visits", offset="exposure"), fed),
            (cls("gamma", target="cost"), fed),
            (cls("poisson", target="visits", offset="exposure", ranges=ranges | {"visits": (0.0, 9.0)}), fed),
            (cls("gamma", target="cost", weights="weight", ranges=ranges | {"cost": (0.1, 9.0)}), fed),
        ]


_SHARED = ("family", "features", "target", "offset", "weights", "intercept", "ranges")

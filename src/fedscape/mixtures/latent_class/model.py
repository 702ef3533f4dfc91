"""Regression on nested data: the kinds of entities, and a line for each kind.

Yang, Carette, Jimbo and Maruyama, "Federated Latent Class Regression for Hierarchical Data"; equation, theorem and
algorithm numbers are theirs. Agents are clients, entities their groups, events their rows.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, Self

import numpy as np

from fedscape.core.codec import plain
from fedscape.core.computation import Computation
from fedscape.core.engine import Engine, as_engine
from fedscape.core.estimator import Estimator, Fit
from fedscape.core.federation import Federation
from fedscape.core.history import History
from fedscape.core.sampling import Sampler
from fedscape.core.validate import column_names
from fedscape.errors import NotFittedError
from fedscape.mixtures.latent_class.chains import Chains, traced
from fedscape.mixtures.latent_class.classes import classes_of, opened
from fedscape.mixtures.latent_class.em import Share
from fedscape.mixtures.latent_class.files import ARRAYS, NUMBERS, Draw, Saved, read_regression, write_regression
from fedscape.mixtures.latent_class.fit import assignment, candidates_of, check, choose, learn, with_basis
from fedscape.mixtures.latent_class.links import Logistic, Probit
from fedscape.mixtures.latent_class.networks import Networks
from fedscape.mixtures.latent_class.predict import (
    HeldOutLikelihood,
    forecast_of,
    log_density,
    mixed,
    place,
    placing,
    shares_of_events,
)
from fedscape.mixtures.latent_class.prior import prior_shares
from fedscape.mixtures.latent_class.private import check_private, ranges_of
from fedscape.mixtures.latent_class.rounds import ClassAssignment, Survey
from fedscape.mixtures.latent_class.table import Table
from fedscape.privacy.ledger import Ledger, summary_of
from fedscape.privacy.mechanisms import Privacy
from fedscape.types import Array, Arrays

Method = Literal["federated", "central", "central-exact", "em"]
Link = Literal["identity", "logistic", "probit"]
HELD_OUT = 0.2  # of the events, where the number of components is chosen
_UNCERTAIN = ("errors_", "intervals_")


class LatentClassRegression(Estimator):
    """Entities in K classes, each with a linear regression; class frequencies differ between agents.

    w_k ~ N(0, delta^2 I), psi ~ Dir(alpha / K), theta_i ~ Dir(beta psi) for agent i, z_ij ~ theta_i for its entity j,
    y_ijn ~ N(w_{z_ij} . x_ijn, sigma^2) for each event. Labels z are drawn with all else integrated out: eq. (1), the
    block form of Theorem 1 and eq. (2). Agents keep their labels and send sums by class.

    Parameters
    ----------
    n_components
        K; 1 is ridge regression with penalty sigma^2 / delta^2. Of several numbers, a fifth of the events is held out,
        and the smallest K within one standard error of the best held-out likelihood is fitted to all events.
    alpha, beta
        How even the classes are over all agents, and how close agents are to that. None learns them from the sums of
        expected table counts, which agents then send too.
    delta, sigma
        Standard deviations of coefficients (of standardised features, in units of the target) and of noise. None learns
        them from the sums (intercepts then have their own variance). A given sigma holds from the third round on;
        before, noise is learned with sigma as its minimum, which keeps labels from freezing early.
    intercept
        Whether each class has an intercept. Features and target are then centred, by sums.
    standardise
        Whether features are divided by their standard deviation, by sums.
    method
        "federated": Algorithm 3. "central": Algorithm 2, collapsed Gibbs sampling with all data in one place.
        "central-exact": the same with psi drawn by table counts, which eq. (2) only approximates. "em": the classical
        mixture without agents' own laws (infinite beta), by EM.
    link
        "identity": targets are numbers (the paper regresses 0 and 1 so as well). "logistic", "probit": targets are 0 or
        1, predictions probabilities, by method "federated"; sigma has no meaning then.
    gamma
        Weight of a round's sums against those before (line 16), with sums of cohorts scaled up to all agents. "latest"
        keeps the sum of every agent's latest contribution, which equals gamma = 1 if everyone takes part. None is 0.5,
        but "latest" for a single component and 1 for EM over all agents.
    basis
        Nonlinear classes: "hinges", "hinges:-1,0,1" (knots in standard deviations), "polynomials:3" or "layer:16" (a
        layer of random hidden units) make each class linear in these functions of the features. Agents send the same
        sums, of more columns, after two rounds of survey. "network:16": a network in each class, whose 16 hidden units
        are learned by a gradient that agents send too, in some 100 rounds; `coefficients_` are its straight part.
    rounds
        Number of rounds, or sweeps.
    chains
        Number of parallel chains of labels in the same rounds. Their predictions are averaged, and `r_hat_` measures
        whether they agree.
    ranges
        The smallest and largest value of each feature column and of the target; values are clipped to them. Centres and
        scales follow from them, without a survey. A private fit needs them; an agent's sums, with a norm of about twice
        its number of events, are then clipped and noised in every round.
    features, target, entity
        Columns; features are one column of any trailing shape or several. Without an entity (None) every event is one.

    Learns `coefficients_` [K, f] and `intercepts_` [K] in the columns' own units, `errors_` [K, f] (their posterior
    standard deviations), and `weights_` [K] (psi). Also `entities_` and `events_` [K], `sigma_`, `delta_`, `alpha_`,
    `beta_`, `feature_names_`, `history_`, `labels_` if agents are in this process, and `candidates_` if K was chosen.
    `intervals_` [K, F, 2] are 95% intervals of the coefficients (the intercept last): given the labels of one chain, or
    over the later half of the rounds of several. Several chains also give `r_hat_` [K, F]; classes are matched to the
    most likely chain (with a link to the one nearest the others), and all other numbers are that chain's. A private fit
    has neither errors nor intervals: the law of the coefficients, and the deviations of `predict`, ignore privacy's
    noise.

    >>> from fedscape import datasets
    >>> fed, truth = datasets.generators.hlcr_synthetic(20, entities=4, events=12, features=2, components=2, seed=1)
    >>> reg = LatentClassRegression(2, seed=0).fit(fed, features="x", target="y", entity="entity")
    >>> reg.coefficients_.shape, bool(abs(reg.sigma_ - 1) < 0.1)
    ((2, 2), True)
    """

    name = "latent-class-regression"

    def __init__(
        self,
        n_components: int | Sequence[int] = 4,
        *,
        alpha: float | None = 1.0,
        beta: float | None = 1.0,
        delta: float | None = None,
        sigma: float | None = None,
        intercept: bool = True,
        standardise: bool = True,
        method: Method = "federated",
        link: Link = "identity",
        gamma: float | Literal["latest"] | None = None,
        basis: str | None = None,
        rounds: int = 20,
        chains: int = 1,
        ranges: Mapping[str, tuple[float, float]] | None = None,
        features: str | Sequence[str] = "x",
        target: str = "y",
        entity: str | None = "entity",
        seed: int = 0,
    ) -> None:
        self.n_components = n_components
        self.alpha = alpha
        self.beta = beta
        self.delta = delta
        self.sigma = sigma
        self.intercept = intercept
        self.standardise = standardise
        self.method = method
        self.link = link
        self.gamma = gamma
        self.basis = basis
        self.rounds = rounds
        self.chains = chains
        self.ranges = ranges
        self.features = features
        self.target = target
        self.entity = entity
        self.seed = seed

    fills_: dict[str, list[float]]  # fill values of missing features, if a table was filled
    _private = False  # whether the fit added noise
    _spent: dict[str, Any] | None = None  # of a loaded private fit

    # -- learning ------------------------------------------------------------------------------------------------------

    def fit(
        self,
        data: Engine | Federation,
        *,
        features: str | Sequence[str] | None = None,
        target: str | None = None,
        entity: str | None = None,
        column: str | None = None,
        sampler: Sampler | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        every: int = 1,
        allow: Sequence[str] = (),
        progress: bool | None = None,
        privacy: Privacy | None = None,
        ledger: Ledger | None = None,
        measure_privacy: Privacy | None = None,
    ) -> Self:
        """Fit the classes; `features`, `target` and `entity` override the constructor's.

        The other parameters are those of every `fit`; `column` is an alias of `target`.

        >>> fed = Federation({"a": [0.0, 1.0, 2.0], "b": [1.0, 3.0, 5.0]}, [0, 2, 3])
        >>> ridge = LatentClassRegression(1, sigma=0.01, delta=100.0, entity=None)
        >>> ridge.fit(fed, features=["a"], target="b").coefficients_.round(3)
        array([[2.]])
        """
        answer = target or column or self.target
        names = column_names(self.features if features is None else features, target=answer)
        table = Table(names, answer, entity or self.entity, self.intercept, ranges_of(self.ranges, (*names, answer)))
        how = self._begin(Fit(sampler, checkpoint, every, allow, progress, privacy, ledger, measure_privacy))
        self._fit_table(as_engine(data), table, how)
        self.ledger_ = how.ledger
        return self

    def _check(self) -> None:
        check(self)

    def _work(self, table: Table, k: int, n_features: int, n_agents: int, how: Fit) -> ClassAssignment:
        return assignment(self, table, k, n_features, n_agents, how)

    def _fit_table(self, engine: Engine, table: Table, how: Fit) -> None:
        self._check()
        self._private, self._spent = how.privacy is not None, None
        candidates = candidates_of(self)
        if how.privacy is not None:
            check_private(self.get_params(), len(candidates), how.privacy)
        table = with_basis(self, engine, how, table)
        k = candidates[0]
        if len(candidates) > 1:
            train = replace(table, held_out=HELD_OUT, split_seed=self.seed, part="train")
            self.candidates_ = choose(self, engine, how, train)
            near = [c["behind"] <= c["error"] for c in self.candidates_]  # within one standard error of the best
            k = int(self.candidates_[int(np.argmax(near))]["components"])
        work, chains, agreement = learn(self, engine, how, table, k, chains=self.chains)
        self.labels_ = chains[0].labels
        self._take(work, chains[0].state)
        vars(self).pop("r_hat_", None)  # of an earlier fit
        if agreement is not None:
            self.r_hat_, self.intervals_ = agreement.r_hat, agreement.intervals
        self._draws = [Draw(chain.state, None) for chain in chains]
        clients = engine.clients
        if isinstance(clients, Federation):
            valid = work.valid_rows(chains[0].state, clients) if self._private else None
            clients = clients if valid is None else clients.where(valid)  # the others were left out of the rounds too
            held = [clients if one.labels is None else clients.with_kept({"labels": one.labels}) for one in chains]
            self._draws = [
                Draw(one.state, place(self._placing, one.state, h)) for one, h in zip(chains, held, strict=True)
            ]
            self.feature_names_ = table.names(clients)

    def n_releases(self) -> int:
        """The number of releases of a private fit: `rounds` of `calibrate`.

        >>> LatentClassRegression(2, rounds=10).n_releases()
        10
        """
        return self.rounds

    def _take(self, work: ClassAssignment, state: Arrays) -> None:
        """Keep the learned parameters, in the columns' own units."""
        self._placing = placing(work)
        sums = opened(state["sums"], work.n_features)
        classes = classes_of(sums, float(state["noise"]), state["spread"])
        f, scale, centre = len(state["scale"]), state["scale"], state["centre"]
        self.coefficients_ = classes.mean[:, :f] / scale
        own = classes.mean[:, -1] if self.intercept else np.zeros(len(classes.mean))
        self.intercepts_ = own + centre[-1] - self.coefficients_ @ centre[:-1]
        self.weights_ = prior_shares(state)
        self.alpha_, self.beta_ = float(state["alpha"]), float(state["beta"])
        self.entities_, self.events_ = sums.entities, sums.events
        self.sigma_ = float(np.sqrt(state["noise"]))
        self.delta_ = float(np.sqrt(state["spread"][0]))
        self.feature_names_ = tuple(f"{i}" for i in range(f))
        for name in _UNCERTAIN:
            vars(self).pop(name, None)  # of an earlier fit
        if not self._private:
            law = traced(work, [state])
            reach = 1.96 * np.sqrt(law.variance[0])
            self.errors_ = np.sqrt(np.diagonal(classes.covariance, axis1=1, axis2=2)[:, :f]) / scale
            self.intervals_ = np.stack([law.mean[0] - reach, law.mean[0] + reach], axis=-1)

    def __getattr__(self, name: str) -> Any:
        if name in _UNCERTAIN and self._private:
            raise NotFittedError(
                f"a private fit has no {name}: the law of the coefficients knows nothing of privacy's noise, which is "
                "often the larger part; repeat the fit with simulated data to see how far coefficients scatter"
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    # -- asking --------------------------------------------------------------------------------------------------------

    def predict(
        self,
        data: Federation,
        *,
        history: Federation | None = None,
        classes: Literal["shares", "drawn"] = "shares",
        return_std: bool = False,
    ) -> Any:
        """Predict the target of each event (Theorem 2), and with `return_std` its standard deviation, both [events].

        With a link it is the probability that the target is 1.

        Parameters
        ----------
        data
            Events with features; targets are ignored. Entities of the fit keep their classes; a new entity of a known
            agent has the agent's classes, and one of a new agent has psi.
        history
            Events with targets that determine the classes of entities, instead of those of the fit: new agents, later
            events.
        classes
            "shares": all classes by their probability. "drawn": the class last drawn, as in the paper, or one now.

        >>> fed = Federation({"x": [0.0, 1.0, 2.0], "y": [1.0, 3.0, 5.0]}, [0, 2, 3])
        >>> ridge = LatentClassRegression(1, sigma=0.01, delta=100.0, entity=None).fit(fed)
        >>> ridge.predict(Federation({"x": [4.0]}, [0, 1])).round(2)
        array([9.])
        """
        mean, variance = mixed(*forecast_of(self, data, history, classes))
        return (mean, np.sqrt(variance)) if return_std else mean

    def predict_proba(self, data: Federation, *, history: Federation | None = None) -> Array:
        """The probability of each class for each event's entity: [events, K].

        >>> fed = Federation({"x": [0.0, 1.0, 2.0], "y": [1.0, 3.0, 5.0]}, [0, 2, 3])
        >>> LatentClassRegression(1, entity=None).fit(fed).predict_proba(fed)
        array([[1.], [1.], [1.]])
        """
        self._check_fitted("coefficients_")
        return shares_of_events(self, self._draws[0], data, history, "shares")

    def score_events(self, data: Federation, *, history: Federation | None = None) -> Array:
        """The log predictive density of each event's target.

        >>> fed = Federation({"x": [0.0, 1.0, 2.0], "y": [1.0, 3.0, 5.1]}, [0, 2, 3])
        >>> LatentClassRegression(1, entity=None).fit(fed).score_events(fed).shape
        (3,)
        """
        law, shares = forecast_of(self, data, history, "shares")
        return log_density(law, shares, self._placing.table.y(data))

    def score(self, data: Federation, *, history: Federation | None = None) -> float:
        """The mean log predictive density of the events' targets.

        >>> fed = Federation({"x": [0.0, 1.0, 2.0], "y": [1.0, 3.0, 5.1]}, [0, 2, 3])
        >>> LatentClassRegression(1, entity=None).fit(fed).score(fed) > -1
        True
        """
        return float(self.score_events(data, history=history).mean())

    @property
    def spent_(self) -> dict[str, Any] | None:
        """The ledger summary of a private fit, also after `save` and `load`; None if no noise was added.

        >>> fed = Federation({"x": [0.0, 1.0], "y": [1.0, 3.0]}, [0, 1, 2])
        >>> LatentClassRegression(1, entity=None).fit(fed).spent_ is None
        True
        """
        ledger = vars(self).get("ledger_")
        return self._spent if ledger is None or not self._private else summary_of(ledger)

    def save(self, path: str | os.PathLike[str], *, entities: bool | None = None) -> None:
        """Write the fitted regression: a readable JSON file, and its arrays in an .npz file beside it.

        Parameters
        ----------
        path
            The .json file.
        entities
            Whether to write the classes of agents' entities too, with the agents' names; without them every entity is
            new. They depend on agents' own events, without noise. None writes them unless the fit was private, and then
            also drops the number of agents from the history.

        >>> import tempfile
        >>> ridge = LatentClassRegression(1, entity=None).fit(Federation({"x": [0.0, 1.0], "y": [1.0, 3.0]}, [0, 1, 2]))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     ridge.save(folder + "/ridge.json")
        ...     LatentClassRegression.load(folder + "/ridge.json").n_components
        1
        """
        self._check_fitted("coefficients_")
        entities = not self._private if entities is None else entities
        draws = self._draws if entities else [Draw(draw.state, None) for draw in self._draws]
        secret = ("clients",) if self._private and not entities else ()
        history = [{name: v for name, v in row.items() if name not in secret} for row in self.history_]
        learned = {name: getattr(self, name) for name in NUMBERS if hasattr(self, name)}
        arrays = {name: getattr(self, name) for name in ARRAYS if hasattr(self, name)}
        params = {name: plain(value) for name, value in self.get_params().items()}
        write_regression(path, Saved(params, learned, arrays, self._placing, draws, history, self.spent_))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> LatentClassRegression:
        """Read files written by `save`; refuse others, and pairs that do not match."""
        saved = read_regression(path, cls().get_params())
        model = cls(**saved.parameters)
        for name, value in {**saved.learned, **saved.arrays}.items():
            setattr(model, name, tuple(value) if name == "feature_names_" else value)
        model._placing, model._draws, model.ledger_ = saved.work, saved.draws, None
        model._private, model._spent = saved.spent is not None, saved.spent
        model.history_ = History()
        model.history_.private = model._private
        model.history_.extend(saved.history)
        return model

    @classmethod
    def examples(cls) -> Sequence[tuple[Computation, Federation]]:
        phases = (Survey, ClassAssignment, Share, Logistic, Probit, HeldOutLikelihood, Chains, Networks)
        return [pair for phase in phases for pair in phase.examples()]

"""Regression on nested data: which kinds of entities there are, and a line for each kind.

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
from fedscape.core.engine import Engine
from fedscape.core.estimator import Estimator, Fit
from fedscape.core.federation import Federation
from fedscape.core.history import History
from fedscape.core.sampling import All, Sampler
from fedscape.core.validate import column_names
from fedscape.errors import DataError, NotFittedError
from fedscape.mixtures.latent_class.chains import Agreement, Chains, Learned, Trace, agreement, sample, traced
from fedscape.mixtures.latent_class.classes import classes_of, opened
from fedscape.mixtures.latent_class.em import Share
from fedscape.mixtures.latent_class.files import (
    ARRAYS,
    KINDS,
    NUMBERS,
    Draw,
    Saved,
    read_regression,
    write_regression,
)
from fedscape.mixtures.latent_class.links import Logistic, Probit
from fedscape.mixtures.latent_class.predict import (
    Forecast,
    HeldOutLikelihood,
    compared,
    forecast,
    log_density,
    mixed,
    place,
    shares_of,
)
from fedscape.mixtures.latent_class.prior import prior_shares
from fedscape.mixtures.latent_class.private import check_private, ranges_of, share_of
from fedscape.mixtures.latent_class.rounds import NO_HIERARCHY, ClassAssignment, Survey, check_parameters
from fedscape.mixtures.latent_class.table import Table, groups_of
from fedscape.privacy.ledger import Ledger, summary_of
from fedscape.privacy.mechanisms import Privacy
from fedscape.privacy.release import noise_sd
from fedscape.types import Array, Arrays

Method = Literal["federated", "central", "central-exact", "em"]
Link = Literal["identity", "logistic", "probit"]
GAMMA = 0.5  # chosen on cohorts of 15% and of all agents: with 1 some fits leave two kinds of entities in one class
WARM = 2  # rounds in which a given sigma is approached; more than a few let rare classes merge
HELD_OUT = 0.2  # of the events, where the number of components is chosen
METHODS = ("federated", "central", "central-exact", "em")
_UNCERTAIN = ("errors_", "intervals_")
LINKS = ("identity", "logistic", "probit")


class LatentClassRegression(Estimator):
    """Entities fall into K classes, each with a linear regression; agents differ in how common classes are with them.

    w_k ~ N(0, delta^2 I), psi ~ Dir(alpha / K), theta_i ~ Dir(beta psi) for agent i, z_ij ~ theta_i for its entity j,
    y_ijn ~ N(w_{z_ij} . x_ijn, sigma^2) for each event. Labels z are drawn with all else integrated out: eq. (1), the
    block form of Theorem 1 and eq. (2). Agents keep their labels and send sums by class.

    Parameters
    ----------
    n_components
        K; 1 is ridge regression with penalty sigma^2 / delta^2. Of several numbers the smallest within one standard
        error of the best is taken, by the likelihood of a fifth of the events held out, and fitted to all.
    alpha, beta
        How even the classes are over all agents, and how close agents are to that; None learns them from the sums of
        expected table counts, which agents then send too.
    delta, sigma
        Standard deviations of coefficients (of standardised features, in units of the target) and of noise; None learns
        them from the sums (intercepts then have a variance of their own). A given sigma holds from the third round on;
        before, noise is learned and sigma its least, so that labels do not freeze early.
    intercept
        Whether each class has one. Features and target are centred then, by sums.
    standardise
        Whether features are divided by their standard deviation, by sums.
    method
        "federated": Algorithm 3. "central": Algorithm 2, collapsed Gibbs sampling of all data in one place.
        "central-exact": the same with psi drawn by table counts, where eq. (2) only approximates. "em": the classical
        mixture without agents' own laws, beta infinite, by EM.
    link
        "identity": targets are numbers (the paper regresses 0 and 1 so as well). "logistic", "probit": targets are 0 or
        1, predictions probabilities, by method "federated"; sigma has no meaning then.
    gamma
        Weight of a round's sums against those before (line 16), sums of cohorts scaled up to all agents. "latest" keeps
        the sum of every agent's latest contribution, which is gamma = 1 where everyone takes part. None is 0.5, but
        "latest" for a single component and 1 for EM over all agents.
    rounds
        How many rounds, or sweeps.
    chains
        How many chains of labels, side by side in the same rounds. Their predictions are averaged, and `r_hat_` tells
        whether they agree.
    ranges
        The least and greatest value of each feature column and of the target, to which values are cut. Centres and
        scales follow from them and no survey is made. A private fit needs them; an agent's sums, whose norm is about
        twice the number of its events, are then clipped and noised in every round.
    features, target, entity
        Columns; features are one column of any trailing shape or several. Without an entity (None) every event is one.

    Learns `coefficients_` [K, f] and `intercepts_` [K] in the columns' own units, `errors_` [K, f] (their posterior
    standard deviations), `weights_` [K] (psi), `entities_` and `events_` [K], `sigma_`, `delta_`, `alpha_`, `beta_`,
    `feature_names_`, `history_`, `labels_` where agents are in this process, and `candidates_` where K was chosen.
    `intervals_` [K, F, 2] hold coefficients (the intercept last) with probability 0.95: given the labels of one chain,
    or over the later half of the rounds of several, which also give `r_hat_` [K, F] (classes matched to the likeliest
    chain, with a link to the one nearest the others; all other numbers are that chain's). A private fit has neither
    errors nor intervals: the law of the coefficients, and with it the deviations of `predict`, knows nothing of
    privacy's noise.

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
        self.rounds = rounds
        self.chains = chains
        self.ranges = ranges
        self.features = features
        self.target = target
        self.entity = entity
        self.seed = seed

    fills_: dict[str, list[float]]  # what stands in for missing features, where a table was filled
    _agreement: Agreement
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
        """Learn the classes; `features`, `target` and `entity` stand in for the constructor's.

        The other parameters are those of every `fit`; `column` is another word for `target`.

        >>> fed = Federation({"a": [0.0, 1.0, 2.0], "b": [1.0, 3.0, 5.0]}, [0, 2, 3])
        >>> ridge = LatentClassRegression(1, sigma=0.01, delta=100.0, entity=None)
        >>> ridge.fit(fed, features=["a"], target="b").coefficients_.round(3)
        array([[2.]])
        """
        answer = target or column or self.target
        names = column_names(self.features if features is None else features, target=answer)
        self._table = Table(
            names, answer, entity or self.entity, self.intercept, ranges_of(self.ranges, (*names, answer))
        )
        return super().fit(
            data,
            sampler=sampler,
            checkpoint=checkpoint,
            every=every,
            allow=allow,
            progress=progress,
            privacy=privacy,
            ledger=ledger,
            measure_privacy=measure_privacy,
        )

    def n_releases(self) -> int:
        """How many releases a private fit makes: what `calibrate` needs as `rounds`.

        >>> LatentClassRegression(2, rounds=10).n_releases()
        10
        """
        return self.rounds

    def _fit(self, engine: Engine, column: str | None, how: Fit) -> None:
        table: Table = self.__dict__.pop("_table")
        self._check()
        self._private, self._spent = how.privacy is not None, None
        if how.privacy is not None:
            check_private(self.get_params(), len(self._candidates), how.privacy)
        k = self._candidates[0]
        if len(self._candidates) > 1:
            k = self._choose(engine, how, replace(table, held_out=HELD_OUT, split_seed=self.seed, part="train"))
        work, found = self._learn(engine, how, table, k, chains=self.chains)
        self.labels_ = found[0].labels
        self._take(work, found[0].state)
        self.__dict__.pop("r_hat_", None)  # of an earlier fit
        if self.chains > 1:
            self.r_hat_, self.intervals_ = self._agreement.r_hat, self._agreement.intervals
        self._draws = [Draw(one.state, None) for one in found]
        clients = engine.clients
        if isinstance(clients, Federation):
            valid = (
                work.valid_rows(found[0].state, clients) if self._private else None
            )  # others were left out of the rounds as well
            clients = clients if valid is None else clients.where(valid)
            held = [clients if one.labels is None else clients.with_kept({"labels": one.labels}) for one in found]
            self._draws = [
                Draw(one.state, place(self._placing, one.state, h)) for one, h in zip(found, held, strict=True)
            ]
            self.feature_names_ = table.names(clients)

    @property
    def _candidates(self) -> tuple[int, ...]:
        given = self.n_components
        return (int(given),) if isinstance(given, int | np.integer) else tuple(sorted({int(k) for k in given}))

    def _learn(
        self, engine: Engine, how: Fit, table: Table, k: int, *, chains: int = 1
    ) -> tuple[ClassAssignment, list[Learned]]:
        """The computation, and its last state with the labels that agents keep for each chain, the likeliest first."""
        centre, scale, deviation = self._columns(engine, how, table)
        work = self._work(table, k, len(scale) + table.intercept, len(engine.clients.keys), how)
        state = work.begin(np.append(centre[:-1], 0.0) if work.binary else centre, scale, deviation=deviation)
        if self.method.startswith("central"):
            if not isinstance(engine.clients, Federation):
                raise DataError(f"method={self.method!r} needs all data in this process: pass a Federation")
            exact = self.method == "central-exact"
            each, trace = sample(work, state, engine.clients, exact=exact, seed=self.seed, chains=chains, n=self.rounds)
            return work, self._agreed(work, each, trace)
        runs: ClassAssignment | Chains = work
        if chains > 1:
            runs = Chains(work, chains, self.rounds)
            state = runs.begin(state)
        state = self._run(runs, engine, how, n_rounds=self.rounds, seed=self.seed, state=state, measure=0)
        kept = engine.kept()
        if isinstance(runs, ClassAssignment):
            return work, [Learned(state, kept.get("labels"))]
        trace = Trace(*(state[f"server.{name}"] for name in Trace._fields))
        each = [Learned(one, kept.get(f"{i}.labels")) for i, one in enumerate(runs.each(state))]
        return work, self._agreed(work, each, trace)

    def _agreed(self, work: ClassAssignment, each: list[Learned], trace: Trace) -> list[Learned]:
        """The chains, the likeliest first; with a link, the one nearest the others."""
        if len(each) == 1:
            return each
        self._agreement = agreement(work, each[0].state, trace, self.seed)
        best = self._agreement.best
        return [each[best], *each[:best], *each[best + 1 :]]

    def _choose(self, engine: Engine, how: Fit, table: Table) -> int:
        """The smallest number of components within one standard error of the best, by agents' held-out events."""
        fitted = [self._learn(engine, how.phase(f".{k}"), table, k) for k in self._candidates]
        judge = HeldOutLikelihood([placing(work) for work, _ in fitted])
        state = judge.begin([found.state for _, (found, *_) in fitted])
        done = self._run(judge, engine, how.phase(".judge"), n_rounds=1, seed=self.seed, state=state, measure=0)
        if done["events"] < 1:
            raise DataError(f"no events were held out to choose among {self._candidates}: give one n_components")
        self.candidates_ = compared(self._candidates, done)
        return int(
            self.candidates_[int(np.argmax([c["behind"] <= c["error"] for c in self.candidates_]))]["components"]
        )

    def _check(self) -> None:
        if not self._candidates:
            raise DataError("n_components must be a number, or several to choose among; got none")
        check_parameters(self._candidates[0], alpha=self.alpha, beta=self.beta, delta=self.delta, sigma=self.sigma)
        if self.rounds < 1 or self.chains < 1:
            raise DataError(f"rounds and chains must be at least 1, not {self.rounds} and {self.chains}")
        if self.method not in METHODS:
            raise DataError(f"method must be one of {', '.join(METHODS)}, not {self.method!r}")
        if self.link not in LINKS:
            raise DataError(f"link must be one of {', '.join(LINKS)}, not {self.link!r}")
        if self.link != "identity" and (self.method != "federated" or self.gamma == "latest"):
            raise DataError(
                f"link={self.link!r} goes with method='federated' and gamma a number or None, "
                f"not method={self.method!r}, gamma={self.gamma!r}"
            )
        if self.gamma not in (None, "latest"):
            check_share("gamma", self.gamma)

    def _smoothing(self, k: int, how: Fit) -> float | None:
        """The gamma of the rounds, None for the latest contributions."""
        if self.gamma == "latest":
            return None
        if self.gamma is not None:
            return self.gamma
        if self.method == "em" or (self.link != "identity" and k == 1):
            return 1.0 if how.privacy is None and (how.sampler is None or isinstance(how.sampler, All)) else GAMMA
        return None if k == 1 and how.privacy is None else GAMMA

    def _work(self, table: Table, k: int, n_features: int, n_agents: int, how: Fit) -> ClassAssignment:
        em, linked = self.method == "em", self.link != "identity"
        kind = Share if em else KINDS[self.link]
        private, share = how.privacy is not None, share_of(how.sampler, n_agents)
        return kind(
            table,
            n_features,
            k,
            alpha=1.0 if em and self.alpha is None else self.alpha,
            beta=NO_HIERARCHY if em else self.beta,
            sigma=1.0 if linked else self.sigma,
            delta=self.delta,
            gamma=self._smoothing(k, how),
            n_agents=None if private else n_agents,
            share=share if private else None,
            warm=0 if k == 1 or linked else min(WARM, self.rounds // 2),
            early=0 if em or private else self.rounds // 2,
            noise=noise_sd(how.privacy, "sums", sampler=how.sampler, clients=max(share * n_agents, 1.0)),
        )

    def _columns(self, engine: Engine, how: Fit, table: Table) -> tuple[Array, Array, float]:
        """Centre of features and target, scale of the features, and the target's deviation: by sums, or the ranges."""
        if table.ranges:
            clients = engine.clients
            centre, half = table.units(clients if isinstance(clients, Federation) else None)
            return centre, half[:-1], 1.0 if self.link != "identity" else float(half[-1]) / 2
        found = self._run(Survey(table), engine, how.phase(".survey"), n_rounds=2, seed=self.seed, measure=0)
        if found["events"] < 1:
            raise DataError("there are no events to learn from: every agent that took part is empty")
        centre, deviation = found["centre"], found["deviation"]
        if not self.intercept:
            deviation, centre = np.sqrt(deviation**2 + centre**2), np.zeros_like(centre)
        scale = np.ones(len(centre) - 1)
        if self.standardise:
            scale = np.where(deviation[:-1] > 0, deviation[:-1], 1.0)
        return centre, scale, 1.0 if self.link != "identity" else float(deviation[-1]) or 1.0

    def _take(self, work: ClassAssignment, state: Arrays) -> None:
        """Keep what was learned, in the columns' own units."""
        self._placing = placing(work)
        sums = opened(state["sums"], work.n_features)
        found = classes_of(sums, float(state["noise"]), state["spread"])
        f, scale, centre = len(state["scale"]), state["scale"], state["centre"]
        self.coefficients_ = found.mean[:, :f] / scale
        own = found.mean[:, f] if self.intercept else np.zeros(len(found.mean))
        self.intercepts_ = own + centre[-1] - self.coefficients_ @ centre[:-1]
        self.weights_ = prior_shares(state)
        self.alpha_, self.beta_ = float(state["alpha"]), float(state["beta"])
        self.entities_, self.events_ = sums.entities, sums.events
        self.sigma_ = float(np.sqrt(state["noise"]))
        self.delta_ = float(np.sqrt(state["spread"][0]))
        self.feature_names_ = tuple(f"{i}" for i in range(f))
        for name in _UNCERTAIN:
            self.__dict__.pop(name, None)  # of an earlier fit
        if not self._private:
            law = traced(work, [state])
            reach = 1.96 * np.sqrt(law.variance[0])
            self.errors_ = np.sqrt(np.diagonal(found.covariance, axis1=1, axis2=2)[:, :f]) / scale
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
        """The target of each event (Theorem 2), and with `return_std` its standard deviation, [events] both.

        With a link it is the probability that the target is 1.

        Parameters
        ----------
        data
            Events with features; targets are not looked at. Entities that the fit saw are in the classes found there; a
            new entity of a known agent has the agent's classes, a new agent's has psi.
        history
            Events with targets by which entities are placed, instead of those of the fit: new agents, later events.
        classes
            "shares": all classes, each with its probability. "drawn": the class last drawn in the fit, as in the paper.

        >>> fed = Federation({"x": [0.0, 1.0, 2.0], "y": [1.0, 3.0, 5.0]}, [0, 2, 3])
        >>> ridge = LatentClassRegression(1, sigma=0.01, delta=100.0, entity=None).fit(fed)
        >>> ridge.predict(Federation({"x": [4.0]}, [0, 1])).round(2)
        array([9.])
        """
        mean, variance = mixed(*self._forecast(data, history, classes))
        return (mean, np.sqrt(variance)) if return_std else mean

    def predict_proba(self, data: Federation, *, history: Federation | None = None) -> Array:
        """The probability of each class for each event's entity: [events, K].

        >>> fed = Federation({"x": [0.0, 1.0, 2.0], "y": [1.0, 3.0, 5.0]}, [0, 2, 3])
        >>> LatentClassRegression(1, entity=None).fit(fed).predict_proba(fed)
        array([[1.], [1.], [1.]])
        """
        self._check_fitted("coefficients_")
        return self._shares_of_events(self._draws[0], data, history, "shares")

    def score_events(self, data: Federation, *, history: Federation | None = None) -> Array:
        """The log predictive density of each event's target.

        >>> fed = Federation({"x": [0.0, 1.0, 2.0], "y": [1.0, 3.0, 5.1]}, [0, 2, 3])
        >>> LatentClassRegression(1, entity=None).fit(fed).score_events(fed).shape
        (3,)
        """
        law, shares = self._forecast(data, history, "shares")
        return log_density(law, shares, self._placing.table.y(data))

    def score(self, data: Federation, *, history: Federation | None = None) -> float:
        """The mean log predictive density of the events' targets.

        >>> fed = Federation({"x": [0.0, 1.0, 2.0], "y": [1.0, 3.0, 5.1]}, [0, 2, 3])
        >>> LatentClassRegression(1, entity=None).fit(fed).score(fed) > -1
        True
        """
        return float(self.score_events(data, history=history).mean())

    def _forecast(self, data: Federation, history: Federation | None, classes: str) -> tuple[Forecast, Array]:
        """The law of each event under the classes of all chains side by side, and the classes' probabilities."""
        self._check_fitted("coefficients_")
        draws = self._draws[:1] if classes == "drawn" else self._draws
        shares = [self._shares_of_events(draw, data, history, classes) / len(draws) for draw in draws]
        laws = [forecast(self._placing, draw.state, data) for draw in draws]
        mean = np.concatenate([law.mean for law in laws], axis=1)
        variance = np.concatenate([law.variance for law in laws], axis=1)
        return Forecast(mean, variance, self._placing.binary), np.concatenate(shares, axis=1)

    def _shares_of_events(self, draw: Draw, data: Federation, history: Federation | None, classes: str) -> Array:
        if classes not in ("shares", "drawn"):
            raise DataError(f"classes must be 'shares' or 'drawn', not {classes!r}")
        work, (state, places) = self._placing, draw
        if history is not None:
            places = place(_all(work), {**state, "held": np.zeros(())}, history)
        drawn = classes == "drawn"
        if drawn and (places is None or (places.labels < 0).any()):
            raise DataError("classes='drawn' needs the labels of a fit in this process in which every agent took part")
        entity = work.table.entity
        if entity is not None and entity not in data:
            raise DataError(
                f"there is no entity column {entity!r} in the data: the columns are {', '.join(data.columns)}"
            )
        groups = groups_of(data, entity)
        prior, beta = prior_shares(state), float(state["beta"])
        return shares_of(places, data, groups, entity, prior, beta, drawn=drawn)[groups.of_event]

    @property
    def spent_(self) -> dict[str, Any] | None:
        """What the ledger of a private fit says, also after `save` and `load`; None where no noise was added.

        >>> fed = Federation({"x": [0.0, 1.0], "y": [1.0, 3.0]}, [0, 1, 2])
        >>> LatentClassRegression(1, entity=None).fit(fed).spent_ is None
        True
        """
        ledger = self.__dict__.get("ledger_")
        return self._spent if ledger is None or not self._private else summary_of(ledger)

    def save(self, path: str | os.PathLike[str], *, entities: bool | None = None) -> None:
        """Write what was learned: a JSON file that can be read by eye, and its arrays in an .npz file beside it.

        Parameters
        ----------
        path
            The .json file.
        entities
            Whether the classes of agents' entities are written too, with the agents' names: without them every
            entity is a new one. They follow from agents' own events, to which no noise is added: None writes them
            unless the fit was private, and then leaves how many agents took part out of the history too.

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
        """Read what `save` wrote; anything else, or files that do not belong together, are refused."""
        saved = read_regression(path, cls().get_params())
        made = cls(**saved.parameters)
        for name, value in {**saved.learned, **saved.arrays}.items():
            setattr(made, name, tuple(value) if name == "feature_names_" else value)
        made._placing, made._draws, made.ledger_ = saved.work, saved.draws, None
        made._private, made._spent = saved.spent is not None, saved.spent
        made.history_ = History()
        made.history_.private = made._private
        made.history_.extend(saved.history)
        return made

    @classmethod
    def examples(cls) -> Sequence[tuple[Computation, Federation]]:
        return [
            pair
            for phase in (Survey, ClassAssignment, Share, Logistic, Probit, HeldOutLikelihood, Chains)
            for pair in phase.examples()
        ]


def placing(work: ClassAssignment) -> ClassAssignment:
    """The rounds by whose densities entities are placed: those of EM have the same classes, integrated over."""
    return ClassAssignment(**work.get_params()) if isinstance(work, Share) else work


def _all(work: ClassAssignment) -> ClassAssignment:
    """The same reading all events, whatever part the fit read."""
    return type(work)(**{**work.get_params(), "table": replace(work.table, part="all")})


def check_share(name: str, value: Any) -> None:
    """Refuse what is no number above 0 and at most 1."""
    if not isinstance(value, int | float) or not 0 < value <= 1:
        raise DataError(f"{name} must be above 0 and at most 1, 'latest', or None, not {value!r}")

"""The population as a mixture of Dirichlet-multinomials: the kinds of clients, and new clients like them.

Scott and Cahill, "Improved Modelling of Federated Datasets using Mixtures-of-Dirichlet-Multinomials"; equation and
algorithm numbers are theirs.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt

from fedscape.core.computation import Computation
from fedscape.core.engine import Engine
from fedscape.core.estimator import Estimator, Fit, check_n_init
from fedscape.core.federation import Federation
from fedscape.core.history import History
from fedscape.core.random import Key
from fedscape.core.rounds import rounds
from fedscape.core.sampling import Sampler
from fedscape.errors import DataError
from fedscape.mixtures.dirichlet_multinomial.compare import Information, ModelComparison, PrivateComparison
from fedscape.mixtures.dirichlet_multinomial.em import Solver, TailCountEM, check_solver
from fedscape.mixtures.dirichlet_multinomial.files import read_population, write_population
from fedscape.mixtures.dirichlet_multinomial.fit import Models, first_state, fit_models
from fedscape.mixtures.dirichlet_multinomial.posterior import posterior_of, state_of
from fedscape.mixtures.dirichlet_multinomial.private import DifferenceMoments, Outline, ScoreAscent
from fedscape.mixtures.dirichlet_multinomial.private_fit import releases
from fedscape.mixtures.dirichlet_multinomial.source import Source
from fedscape.mixtures.dirichlet_multinomial.start import StartingPoints, Survey
from fedscape.mixtures.size_laws import Kind, SizeLaws
from fedscape.privacy.ledger import Ledger
from fedscape.privacy.mechanisms import Privacy
from fedscape.types import Array, Arrays

Data = Engine | Federation | npt.ArrayLike


class MixtureOfDirichletMultinomials(Estimator):
    """A law of clients' counts c and sizes n: q(c, n) = sum_k tau_k pi_k(n) p(c | n, alpha_k), eq. (3).

    Clients compute the responsibilities of the components, eq. (12), and send sums weighted by them. With
    `solver="exact"` these are tail counts, sum_i w_ik 1[c_ij > u]. Since log Gamma(c + a) - log Gamma(a) = sum_{u < c}
    log(a + u), Q, eq. (27), depends only on them: the server maximises it fully, and a few rounds suffice. Counts above
    64 are sent in cells an eighth wide, totals above 512 in cells of one in 32.

    All starts run in the same rounds and the most likely is kept. A fit has one round that surveys the clients, one
    that starts the components (Algorithm 1), the rounds of EM, and one that measures the result.

    With `privacy` a fit has other rounds, `n_releases` in all: the positions of clients, their differences, then
    `rounds` rounds of scores whitened by the model's own expectation. clip=1.5 thus suits any data. There is one start
    unless `n_init` is set; several are compared with `measure_privacy`, with a clip in nats.

    Parameters
    ----------
    n_components
        K, the number of kinds of clients; `choose_components` selects it.
    solver
        "exact" (default), "newton" (derivatives: fewer bytes for very large counts) or "fixed_point" (the paper's). A
        private fit has its own solver.
    n_init
        Number of parallel starts; by default 4, and 1 under privacy (recorded in `history_.notes`).
    rounds
        Maximum number of EM rounds; in a private fit the exact number of rounds of scores, where 5 are plenty.
    tol
        Stop when no start gains more than this in a round, in nats per client (not with a sampler).
    init
        "spread": clients join the nearest of K anchors, drawn along the directions in which clients differ. "random":
        clients join any component, as in the paper.
    sizes
        The size law: "bins", "histogram" (one bin per size, as in the paper) or None to ignore sizes.
    warm_start
        A fitted mixture to start from, such as last month's. There is then one start, and components keep their order.
    average
        With a sampler: from the sixth round on, round t after it has the weight (t + 2)^-average in the running
        averages of the sums. None uses the sums of each round alone, as in the paper's Algorithm 2.
    column
        One category per row, or (two-dimensional) count vectors.
    count
        A column with the number of occurrences of each row's category; by default one.
    n_categories
        C, if it cannot be inferred from the data.

    Learns `weights_` [K] (tau, in descending order), `concentrations_` [K, C] (alpha), `size_laws_`, `log_likelihood_`
    (mean over clients; NaN if not measured), `n_rounds_` (of EM), `history_`. The scale alpha_0 of a component is at
    most 10**10, the multinomial law; an unseen category has a hundred-millionth of it.

    >>> counts = np.array([[9, 1], [8, 2], [1, 9], [2, 8], [9, 1], [1, 9]])
    >>> mdm = MixtureOfDirichletMultinomials(2).fit(counts)
    >>> mdm.predict([[10, 0], [0, 10]]).tolist() in ([0, 1], [1, 0])
    True
    """

    name = "mixture-of-dirichlet-multinomials"

    def __init__(
        self,
        n_components: int = 1,
        *,
        solver: Solver | None = None,
        n_init: int | None = None,
        rounds: int = 30,
        tol: float = 1e-4,
        init: Literal["spread", "random"] = "spread",
        sizes: Kind | None = "bins",
        warm_start: MixtureOfDirichletMultinomials | None = None,
        average: float | None = 0.7,
        column: str = "y",
        count: str | None = None,
        n_categories: int | None = None,
        seed: int = 0,
    ) -> None:
        self.n_components = n_components
        self.solver = solver
        self.n_init = n_init
        self.rounds = rounds
        self.tol = tol
        self.init = init
        self.sizes = sizes
        self.warm_start = warm_start
        self.average = average
        self.column = column
        self.count = count
        self.n_categories = n_categories
        self.seed = seed

    # -- learning ------------------------------------------------------------------------------------------------------

    def fit(
        self,
        data: Data,
        *,
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
        """Fit the population to a Federation, an Engine, or counts [clients, C], dense or SciPy-sparse.

        The parameters are those of every `fit`; each phase has its own checkpoint file.

        >>> fed = Federation({"y": [0, 0, 1, 1, 1, 0]}, [0, 2, 4, 6])
        >>> MixtureOfDirichletMultinomials(1).fit(fed, column="y").weights_
        array([1.])
        """
        source = self._source(data, column)
        how = self._begin(Fit(sampler, checkpoint, every, allow, progress, privacy, ledger, measure_privacy))
        models = (self.n_components,) * self._starts(self.n_components, how)
        fitted = fit_models(self, models, source, how)
        self._take(fitted, int(np.argmax(np.nan_to_num(fitted.log_likelihood))), source)
        self.ledger_ = how.ledger
        return self

    def _source(self, data: Data, column: str | None = None) -> Source:
        return Source.of(data, column or self.column, self.count, self.n_categories)

    def _asked(self, data: Data, column: str | None = None) -> Source:
        """The clients to score with a fitted mixture; categories are matched by the names of the fit."""
        return Source.of(
            data, column or self.column, self.count, self.n_categories, classes=getattr(self, "category_names_", None)
        )

    def _starts(self, n_components: int, how: Fit) -> int:
        alone = n_components == 1 or self.warm_start is not None
        return 1 if alone else self._n_starts(self.n_init, how)

    def n_releases(self, n_components: int | None = None) -> int:
        """The number of releases of a private fit, without comparisons: `rounds` of `calibrate`.

        Parameters
        ----------
        n_components
            Instead of the constructor's; the largest candidate if there are several.

        >>> MixtureOfDirichletMultinomials(3, rounds=5).n_releases()
        7
        """
        return releases(self, (self.n_components if n_components is None else n_components,))

    def _first_state(self, work: TailCountEM, survey: Arrays, source: Source, how: Fit) -> Arrays:
        return first_state(self, work, survey, source, how)

    def _check(self) -> None:
        check_solver(self.solver or "exact")
        check_n_init(self.n_init)
        if self.n_components < 1 or self.rounds < 1:
            raise DataError(f"n_components and rounds must be at least 1, got {self.n_components} and {self.rounds}")
        if self.init not in ("spread", "random"):
            raise DataError(f"init must be 'spread' or 'random', not {self.init!r}")
        if self.average is not None and not 0.5 < self.average <= 1:
            raise DataError(f"average must be above 0.5 and at most 1, so that sums settle, or None: {self.average}")

    def _take(self, fitted: Models, model: int, source: Source) -> None:
        """Keep the parameters of one model."""
        first, last = list(pairwise(np.cumsum((0, *fitted.computation.models))))[model]
        state = {name: fitted.state[name][first:last] for name in ("weights", "mean", "dispersion", "sizes")}
        order = np.arange(last - first) if self.warm_start is not None else np.argsort(-state["weights"], kind="stable")
        self.weights_ = state["weights"][order]
        self.concentrations_ = (state["mean"] / state["dispersion"][:, None])[order]
        edges = fitted.computation.size_edges
        self.size_laws_ = None if edges is None else SizeLaws(edges, state["sizes"][order])
        self.reach_ = fitted.computation.reach
        absolute = isinstance(fitted.computation, TailCountEM) or len(fitted.computation.models) == 1
        self.log_likelihood_ = float(fitted.log_likelihood[model]) if absolute else float("nan")
        self.n_clients_, self.n_rounds_, self.category_names_ = fitted.clients, fitted.rounds, source.names

    # -- asking --------------------------------------------------------------------------------------------------------

    def score(self, data: Data, *, column: str | None = None, sizes: bool = True) -> float:
        """The mean over clients of log q(c, n), with the multinomial coefficient; `sizes=False` ignores the size law.

        >>> mdm = MixtureOfDirichletMultinomials().fit([[1, 1], [2, 0], [0, 2]])
        >>> round(mdm.score([[1, 1]], sizes=False), 3)
        -1.099
        """
        self._check_fitted("weights_")
        source = self._asked(data, column)
        if isinstance(source.engine.clients, Federation):
            return float(self._score_clients(source, sizes).mean())
        kind = self.sizes if sizes and self.size_laws_ is not None else None
        work = ModelComparison((len(self.weights_),), self.reach_, sizes=kind, column=source.column, count=source.times)
        done = next(rounds(work, source.engine, n_rounds=1, state=state_of(self), seed=self.seed))
        return float(done.state["log_likelihood"][0])

    def score_clients(self, data: Data, *, column: str | None = None, sizes: bool = True) -> Array:
        """log q(c, n) of each client.

        >>> mdm = MixtureOfDirichletMultinomials().fit([[1, 1], [2, 0], [0, 2]])
        >>> mdm.score_clients([[1, 1], [0, 0]], sizes=False).round(3).tolist()
        [-1.099, 0.0]
        """
        self._check_fitted("weights_")
        return self._score_clients(self._asked(data, column), sizes)

    def _score_clients(self, source: Source, sizes: bool) -> Array:
        return np.concatenate([like for _, like in posterior_of(self, source, sizes)])

    def predict_proba(self, data: Data, *, column: str | None = None, sizes: bool = True) -> Array:
        """The responsibilities of the components for each client, eq. (12): [clients, K].

        >>> mdm = MixtureOfDirichletMultinomials().fit([[1, 1], [2, 0], [0, 2]])
        >>> mdm.predict_proba([[1, 1]])
        array([[1.]])
        """
        self._check_fitted("weights_")
        return np.concatenate([shares for shares, _ in posterior_of(self, self._asked(data, column), sizes)])

    def predict(self, data: Data, *, column: str | None = None, sizes: bool = True) -> Array:
        """The component with the largest responsibility for each client.

        >>> mdm = MixtureOfDirichletMultinomials().fit([[1, 1], [2, 0], [0, 2]])
        >>> mdm.predict([[1, 1], [3, 0]])
        array([0, 0])
        """
        return np.asarray(self.predict_proba(data, column=column, sizes=sizes).argmax(axis=1))

    def sample(self, n: int, *, seed: int = 0, sizes: npt.ArrayLike | None = None) -> Array:
        """Draw counts [n, C] of new clients: a component, a size, shares from its Dirichlet law, rows from the shares.

        Parameters
        ----------
        n
            Number of clients.
        seed
            The same seed gives the same clients.
        sizes
            Rows of each client (one number, or n of them), instead of the size law.

        >>> mdm = MixtureOfDirichletMultinomials().fit([[1, 1], [2, 0], [0, 2]])
        >>> mdm.sample(2, sizes=5).sum(axis=1)
        array([5, 5])
        """
        self._check_fitted("weights_")
        rng = Key(seed, purpose="mixture sample").generator()
        component = rng.choice(len(self.weights_), n, p=self.weights_ / self.weights_.sum())
        if sizes is not None:
            size = np.broadcast_to(np.asarray(sizes, dtype=np.int64), (n,))
        elif self.size_laws_ is not None:
            size = self.size_laws_.sample(component, rng)
        else:
            raise DataError("this mixture has no law of sizes (sizes=None): pass sizes= to sample()")
        counts = np.zeros((n, self.concentrations_.shape[1]), dtype=np.int64)
        for k, alpha in enumerate(self.concentrations_):
            mine = np.flatnonzero(component == k)
            counts[mine] = rng.multinomial(size[mine], rng.dirichlet(alpha, len(mine)))
        return counts

    @property
    def n_parameters_(self) -> int:
        """The number of free parameters without the size law: K C + K - 1."""
        self._check_fitted("weights_")
        return int(self.concentrations_.size + len(self.weights_) - 1)

    def aic(self, data: Data, *, column: str | None = None) -> float:
        """Akaike's criterion, without sizes: smaller is better.

        >>> mdm = MixtureOfDirichletMultinomials().fit([[1, 1], [2, 0], [0, 2]])
        >>> mdm.aic([[1, 1]]) > 2 * mdm.n_parameters_
        True
        """
        scores = self.score_clients(data, column=column, sizes=False)
        return float(2 * self.n_parameters_ - 2 * scores.sum())

    def bic(self, data: Data, *, column: str | None = None) -> float:
        """The Bayesian information criterion, without sizes: smaller is better.

        >>> mdm = MixtureOfDirichletMultinomials().fit([[1, 1], [2, 0], [0, 2]])
        >>> mdm.bic([[1, 1]]) < mdm.aic([[1, 1]])
        True
        """
        scores = self.score_clients(data, column=column, sizes=False)
        return float(self.n_parameters_ * np.log(len(scores)) - 2 * scores.sum())

    def standard_errors(self, data: Data, *, column: str | None = None) -> dict[str, Array]:
        """Standard errors of `weights` [K] and `concentrations` [K, C], from one round's sum of squared scores.

        A client's score is the gradient of its log-likelihood. The inverse of the sum of its squares estimates the
        covariance of the maximum likelihood estimate. Parameters that the data do not determine (a scale at the
        multinomial limit, an unseen category) have an infinite error.

        >>> mdm = MixtureOfDirichletMultinomials().fit(np.random.default_rng(0).multinomial(9, [0.5, 0.5], 99))
        >>> sorted(mdm.standard_errors(np.random.default_rng(0).multinomial(9, [0.5, 0.5], 99)))
        ['concentrations', 'weights']
        """
        self._check_fitted("weights_")
        source = self._asked(data, column)
        sizes = self.sizes if self.size_laws_ is not None else None
        work = Information(len(self.weights_), self.reach_, sizes=sizes, column=source.column, count=source.times)
        done = next(rounds(work, source.engine, n_rounds=1, state=state_of(self), seed=self.seed, measure=0))
        k, c = self.concentrations_.shape
        log_alpha = done.state["errors"][: k * c].reshape(k, c)
        return {"weights": done.state["errors"][k * c :], "concentrations": log_alpha * self.concentrations_}

    # -- keeping -------------------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted mixture: a readable JSON file, and its arrays in an .npz file beside it.

        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     MixtureOfDirichletMultinomials().fit([[1, 1], [2, 0]]).save(folder + "/population.json")
        ...     MixtureOfDirichletMultinomials.load(folder + "/population.json").weights_
        array([1.])
        """
        self._check_fitted("weights_")
        params = {n: v for n, v in self.get_params().items() if n != "warm_start"}
        learned = {n: getattr(self, n) for n in ("log_likelihood_", "n_clients_", "n_rounds_", "category_names_")}
        if np.isnan(self.log_likelihood_):
            learned["log_likelihood_"] = None  # JSON has no NaN
        arrays = {"weights": self.weights_, "concentrations": self.concentrations_, "reach": self.reach_}
        if self.size_laws_ is not None:
            arrays["size_edges"], arrays["size_probabilities"] = self.size_laws_.edges, self.size_laws_.probabilities
        header = {"parameters": params, "learned": learned, "history": list(self.history_)}
        write_population(path, header, arrays, private=self.history_.private)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> MixtureOfDirichletMultinomials:
        """Read files written by `save`; refuse others, and pairs that do not match."""
        header, arrays = read_population(path)
        mixture = cls(**header["parameters"])
        mixture.weights_, mixture.concentrations_ = arrays["weights"], arrays["concentrations"]
        mixture.reach_ = arrays["reach"]
        mixture.size_laws_ = None
        if "size_edges" in arrays:
            mixture.size_laws_ = SizeLaws(arrays["size_edges"], arrays["size_probabilities"])
        for name, value in header["learned"].items():
            setattr(mixture, name, value)
        if header["learned"]["log_likelihood_"] is None:
            mixture.log_likelihood_ = float("nan")
        names: Any = header["learned"]["category_names_"]
        mixture.category_names_ = None if names is None else tuple(names)
        mixture.history_ = History()
        mixture.history_.extend(header["history"])
        mixture.history_.private = bool(header.get("private"))
        return mixture

    @classmethod
    def examples(cls) -> Sequence[tuple[Computation, Federation]]:
        phases = (
            Survey,
            StartingPoints,
            TailCountEM,
            ModelComparison,
            Information,
            Outline,
            DifferenceMoments,
            ScoreAscent,
            PrivateComparison,
        )
        return [pair for phase in phases for pair in phase.examples()]

"""Choose the number of components of a mixture by held-out clients."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from fedscape.core.computation import Computation
from fedscape.core.estimator import Fit
from fedscape.core.history import History
from fedscape.core.rounds import rounds
from fedscape.core.sampling import All, Sampler, Side
from fedscape.errors import DataError, TooFewClients
from fedscape.mixtures.dirichlet_multinomial.compare import ModelComparison
from fedscape.mixtures.dirichlet_multinomial.fit import Models, fit_models, parameters_of
from fedscape.mixtures.dirichlet_multinomial.model import Data, MixtureOfDirichletMultinomials
from fedscape.mixtures.dirichlet_multinomial.private import ScoreAscent
from fedscape.mixtures.dirichlet_multinomial.private_fit import contrast_of
from fedscape.privacy.ledger import Ledger
from fedscape.privacy.mechanisms import Privacy
from fedscape.types import Array


@dataclass(frozen=True)
class Choice:
    """The result of `choose_components`, one entry per candidate.

    `scores` are mean log-likelihoods of the validation clients. `behind` is the gap of each to the best, and `errors`
    the standard error of that paired difference over clients. `n_components` is the smallest candidate within one
    standard error of the best. `model` is the mixture fitted with it, `models` are all of them.
    """

    n_components: int
    candidates: tuple[int, ...]
    scores: Array
    behind: Array
    errors: Array
    models: tuple[MixtureOfDirichletMultinomials, ...]
    history: History

    @property
    def model(self) -> MixtureOfDirichletMultinomials:
        """The mixture with the chosen number of components."""
        return self.models[self.candidates.index(self.n_components)]


def choose_components(
    mixture: MixtureOfDirichletMultinomials,
    data: Data,
    *,
    candidates: Iterable[int] = range(1, 7),
    validation: Data | None = None,
    test: float = 0.2,
    column: str | None = None,
    sampler: Sampler | None = None,
    progress: bool | None = None,
    privacy: Privacy | None = None,
    ledger: Ledger | None = None,
    measure_privacy: Privacy | None = None,
) -> Choice:
    """Choose the number of components by the log-likelihood of held-out clients (Appendix A.1).

    All candidates and their starts run in the same rounds; one more round compares them on the validation clients. The
    choice is the smallest candidate within one standard error of the best. The error is that of the paired difference:
    clients differ far more from each other than two models do on one client.

    Parameters
    ----------
    mixture
        Its parameters are used for all candidates; it is not changed.
    data
        A Federation, an Engine, or counts [clients, C].
    candidates
        Numbers of components.
    validation
        Clients to compare on; by default a share `test` of the clients in `data`, which are then held out of the fit.
    privacy, ledger
        How sums are clipped and noised, and where releases are booked, as for `fit`.
    measure_privacy
        The same for comparisons, with a clip in nats; required for a private choice. Scores are then relative to the
        mean of all candidates, and their standard errors are an upper estimate that includes the noise.

    >>> counts = np.random.default_rng(0).multinomial(20, [0.5, 0.3, 0.2], 200)
    >>> choose_components(MixtureOfDirichletMultinomials(), counts, candidates=(1, 2)).n_components
    1
    """
    tried = tuple(sorted(set(candidates)))
    if not tried or tried[0] < 1:
        raise DataError(f"candidates must be numbers of components from 1 on, got {tried}")
    if mixture.warm_start is not None:
        raise DataError("choose_components starts anew: use a mixture without warm_start")
    work = _copy(mixture, tried[-1])
    source = work._source(data, column)
    train = sampler
    if validation is None:
        if not 0 < test < 1:
            raise DataError(f"test must be a share between 0 and 1, not {test}")
        train = Side(All() if sampler is None else sampler, test, mixture.seed, inside=False)
    full = sampler is None or isinstance(sampler, All)
    if privacy is not None and ledger is None:
        ledger = Ledger()
    how = Fit(train, progress=progress, privacy=privacy, ledger=ledger, measure_privacy=measure_privacy)
    models = tuple(k for k in tried for _ in range(work._starts(k, how)))
    fitted = fit_models(work, models, source, how, full=full, judged=1)
    scored = np.nan_to_num(fitted.log_likelihood)
    best = [max((r for r, m in enumerate(models) if m == k), key=lambda r: scored[r]) for k in tried]
    held_out = source if validation is None else work._source(validation, column)
    judge = Side(All(), test, mixture.seed, inside=True) if validation is None else All()
    compare: Computation
    if isinstance(fitted.computation, ScoreAscent):
        compare, how = contrast_of(fitted.computation, tried, held_out, how)
    else:
        compare = ModelComparison(
            tried, fitted.computation.reach, sizes=mixture.sizes, column=held_out.column, count=held_out.times
        )
    final = next(
        rounds(
            compare,
            held_out.engine,
            n_rounds=1,
            sampler=judge,
            seed=mixture.seed,
            state=_only(fitted, best),
            privacy=how.privacy,
            ledger=how.ledger,
        )
    )
    work.history_.add(final)
    if final.abandoned:
        raise TooFewClients(
            f"too few clients to compare {len(tried)} candidates on (min_clients is {held_out.engine.min_clients}): "
            + (f"raise test={test:g}, or have more clients" if validation is None else "give more clients to validate")
        )
    scores = final.state["log_likelihood"]
    leader = int(np.argmax(scores))
    behind, errors = scores[leader] - scores, final.state["errors"][leader]
    chosen = tried[int(np.argmax(behind <= errors))]
    kept = []
    for k, model in zip(tried, best, strict=True):
        one = _copy(mixture, k)
        one.history_ = work.history_
        one._take(fitted, model, source)
        one.ledger_ = ledger
        kept.append(one)
    return Choice(chosen, tried, scores, behind, errors, tuple(kept), work.history_)


def _copy(mixture: MixtureOfDirichletMultinomials, n_components: int) -> MixtureOfDirichletMultinomials:
    copy = MixtureOfDirichletMultinomials(**{**mixture.get_params(), "n_components": n_components})
    copy.history_ = History()
    return copy


def _only(fitted: Models, chosen: Sequence[int]) -> dict[str, Array]:
    ends = np.cumsum((0, *fitted.computation.models))
    rows = np.concatenate([np.arange(ends[r], ends[r + 1]) for r in chosen])
    return {name: values[rows] for name, values in parameters_of(fitted.state).items()}

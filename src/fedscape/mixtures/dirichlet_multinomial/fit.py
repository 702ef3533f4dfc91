"""The phases of a fit: survey, start, EM, final measurement; several models in the same rounds."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fedscape.core.estimator import Fit
from fedscape.core.sampling import All
from fedscape.mixtures.dirichlet_multinomial.compare import ModelComparison
from fedscape.mixtures.dirichlet_multinomial.em import TailCountEM
from fedscape.mixtures.dirichlet_multinomial.private import ScoreAscent
from fedscape.mixtures.dirichlet_multinomial.private_fit import ascend_privately, contrast_of, plan, warm_components
from fedscape.mixtures.dirichlet_multinomial.source import Source
from fedscape.mixtures.dirichlet_multinomial.start import StartingPoints, Survey, matched, with_broad
from fedscape.types import Array, Arrays

if TYPE_CHECKING:
    from fedscape.mixtures.dirichlet_multinomial.model import MixtureOfDirichletMultinomials


class Models(NamedTuple):
    """Models fitted in parallel."""

    computation: TailCountEM | ScoreAscent
    state: Arrays
    log_likelihood: Array  # [models]
    clients: int
    rounds: int


def fit_models(
    mixture: MixtureOfDirichletMultinomials,
    models: tuple[int, ...],
    source: Source,
    how: Fit,
    *,
    full: bool | None = None,
    judged: int = 0,
) -> Models:
    """Fit models with these numbers of components in the same rounds.

    `full`: all cohorts are the same. `judged`: the number of comparisons that follow.
    """
    mixture._check()
    if how.privacy is not None:
        return _fit_privately(mixture, models, source, how, judged)
    if full is None:
        full = how.sampler is None or isinstance(how.sampler, All)
    where, column, count = source.engine, source.column, source.times
    look = Survey(models, source.n_categories, column=column, count=count)
    survey = mixture._run(look, where, how.phase(".survey"), n_rounds=1, seed=mixture.seed)
    work = TailCountEM(
        models,
        np.array(survey["reach"]),
        sizes=mixture.sizes,
        solver=mixture.solver or "exact",
        average=None if full else mixture.average,
        column=column,
        count=count,
    )
    state = mixture._first_state(work, survey, source, how)
    state = mixture._run(
        work,
        where,
        how,
        n_rounds=mixture.rounds,
        seed=mixture.seed,
        state=state,
        done=(lambda old, new: bool(new["gain"].max() <= mixture.tol)) if full else None,
    )
    compare = ModelComparison(models, work.reach, sizes=mixture.sizes, column=column, count=count)
    final = mixture._run(compare, where, how.phase(".final"), n_rounds=1, seed=mixture.seed, state=state)
    return Models(work, state, final["log_likelihood"], int(final["clients"]), int(state["rounds"]))


def _fit_privately(
    mixture: MixtureOfDirichletMultinomials, models: tuple[int, ...], source: Source, how: Fit, judged: int
) -> Models:
    several = len(set(models)) < len(models)  # starts of the same number of components
    measured = several or (how.measure_privacy is not None and not judged)
    plan(mixture, models, source, how, during=int(measured), after=judged)
    work, state, clients = ascend_privately(mixture, models, source, how)
    likelihood = np.full(len(models), np.nan)
    if measured:
        contrast, judging = contrast_of(work, models, source, how.phase(".final"))
        final = mixture._run(
            contrast, source.engine, judging, n_rounds=1, seed=mixture.seed, state=parameters_of(state)
        )
        likelihood = final["log_likelihood"]
    return Models(work, state, likelihood, clients, int(state["rounds"]))


def first_state(
    mixture: MixtureOfDirichletMultinomials, work: TailCountEM, survey: Arrays, source: Source, how: Fit
) -> Arrays:
    """The initial state of EM: from an older mixture, or from starting points that clients joined."""
    if mixture.warm_start is not None:
        return _warm_state(mixture, mixture.warm_start, work, source)
    start = StartingPoints(
        work.models,
        source.n_categories,
        random=mixture.init == "random",
        column=source.column,
        count=source.times,
    )
    state = {"anchors": survey["anchors"]}
    joined = mixture._run(start, source.engine, how.phase(".start"), n_rounds=1, seed=mixture.seed, state=state)
    mean, dispersion = matched(joined, survey["mean"])
    if mixture.init == "spread":
        with_broad(mean, dispersion, joined, survey["mean"], work.models)
    return work.begin(mean, dispersion)


def _warm_state(
    mixture: MixtureOfDirichletMultinomials, old: MixtureOfDirichletMultinomials, work: TailCountEM, source: Source
) -> Arrays:
    mean, dispersion, weights = warm_components(mixture, old, source)
    laws, edges = old.size_laws_, work.size_edges
    same = laws is not None and edges is not None and np.array_equal(laws.edges, edges)
    sizes = laws.probabilities if laws is not None and same else None
    return work.begin(mean, dispersion, weights=weights, sizes=sizes)


def parameters_of(state: Arrays) -> Arrays:
    """The model parameters in a state, without sums and running averages."""
    return {name: state[name] for name in ("weights", "mean", "dispersion", "sizes")}

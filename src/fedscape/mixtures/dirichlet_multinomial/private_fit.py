"""A private fit of mixtures: its rounds, the budget of each, and the comparison of models."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedscape.core.estimator import Fit
from fedscape.core.rounds import check_declared
from fedscape.core.sampling import All
from fedscape.errors import DataError, PrivacyError
from fedscape.mixtures.dirichlet_multinomial.compare import PrivateComparison
from fedscape.mixtures.dirichlet_multinomial.private import (
    MOST_CATEGORIES,
    DifferenceMoments,
    Outline,
    ScoreAscent,
    public_reach,
    starts,
)
from fedscape.mixtures.dirichlet_multinomial.source import Source
from fedscape.privacy.mechanisms import Privacy
from fedscape.privacy.release import noise_sd
from fedscape.types import Array, Arrays

if TYPE_CHECKING:
    from fedscape.mixtures.dirichlet_multinomial.model import MixtureOfDirichletMultinomials

SENT = ("position", "size", "second", "score", "shares", "sizes")
ROW_LONGEST = 1.0  # with unit "row" all noise is proportional to it


def ascend_privately(
    mixture: MixtureOfDirichletMultinomials, models: tuple[int, ...], source: Source, how: Fit
) -> tuple[ScoreAscent, Arrays, int]:
    """Fit models with these numbers of components in the same rounds, each a release; also return the client count."""
    privacy = how.privacy
    if privacy is None:
        raise PrivacyError("a private fit needs privacy=")
    _check(mixture, source, privacy)
    where, seed = source.engine, mixture.seed
    first = Outline(source.n_categories, sizes=mixture.sizes or "bins", column=source.column, count=source.times)
    how_first = _bounded(how.phase(".outline"), "position", "size")
    outline = mixture._run(first, where, how_first, n_rounds=1, seed=seed, measure=0)
    apart = (4.0 if privacy.norm == 2 else 6.0) * np.sqrt(2)  # one bin in ten thousand exceeds this by chance
    noise = _noise(how_first, "size", 1, float(outline["clients"]))
    law = first.in_sight(outline["law"], apart * noise)
    second = None
    if mixture.warm_start is None and max(models) > 1:
        state = {"centre": outline["centre"]}
        differ = DifferenceMoments(source.n_categories, column=source.column, count=source.times)
        how_differ = _bounded(how.phase(".differ"), "second")
        moments = mixture._run(differ, where, how_differ, n_rounds=1, seed=seed, state=state, measure=0)
        second = moments["second"]
    work = ScoreAscent(
        models,
        public_reach(source.n_categories),
        sizes=mixture.sizes,
        rounds=mixture.rounds,
        noise=_noise(how, "score", sum(models) * source.n_categories, float(outline["clients"])),
        longest=ROW_LONGEST if privacy.unit == "row" else 3.0,
        column=source.column,
        count=source.times,
    )
    if mixture.warm_start is None:
        state = work.begin(*starts(models, outline["centre"], second, first.inverse(law), seed), law)
    else:
        mean, dispersion, weights = warm_components(mixture, mixture.warm_start, source)
        state = work.begin(mean, dispersion, law, weights=weights)
    how = how.sending("score", "shares", "sizes")
    state = mixture._run(work, where, how, n_rounds=mixture.rounds, seed=seed, state=state, measure=0)
    return work, state, int(outline["clients"])


def _check(mixture: MixtureOfDirichletMultinomials, source: Source, privacy: Privacy) -> None:
    unknown = set(privacy.scales) - set(SENT)
    if unknown:
        raise PrivacyError(f"scales name {sorted(unknown)}, but what is sent is {sorted(SENT)}")
    if mixture.solver is not None:
        raise PrivacyError(f"a private fit has a solver of its own: leave out solver={mixture.solver!r}")
    if mixture.init != "spread":
        raise PrivacyError(f"a private fit starts where clients differ: use init='spread', not {mixture.init!r}")
    check_declared(source.engine.clients, (source.column,))
    if not source.declared:
        raise PrivacyError(f"the largest category of {source.column!r} is a client's secret: pass n_categories=")
    if source.n_categories > MOST_CATEGORIES:
        raise PrivacyError(
            f"a private fit sends sums for each pair of categories, so it needs at most {MOST_CATEGORIES}, not "
            f"{source.n_categories}: merge rare ones"
        )


def _bounded(how: Fit, *names: str) -> Fit:
    """For arrays of norm at most one: noise for a clip of one, which loses nothing."""
    how = how.sending(*names)
    if how.privacy is None or how.privacy.unit == "row":  # no row is clipped; the clip is the sensitivity
        return how
    scales = {**dict.fromkeys(names, 1 / how.privacy.first_clip), **how.privacy.scales}
    return replace(how, privacy=replace(how.privacy, clip=how.privacy.first_clip, scales=scales))


def _noise(how: Fit, name: str, dimension: int, clients: float) -> float:
    """Standard deviation of the noise on a mean over clients of this array, over all its dimensions."""
    return noise_sd(how.privacy, name, sampler=how.sampler, clients=clients) * float(np.sqrt(dimension)) / clients


def contrast_of(work: ScoreAscent, models: tuple[int, ...], source: Source, how: Fit) -> tuple[PrivateComparison, Fit]:
    """The computation that compares these models through `measure_privacy`, and how to run it."""
    privacy = how.measure_privacy
    if privacy is None:
        raise PrivacyError("models are compared by measuring them: give measure_privacy, with a clip in nats")
    clip = privacy.first_clip
    contrast = PrivateComparison(
        models,
        work.reach,
        bound=clip / np.sqrt(2),
        noise=noise_sd(privacy),
        sizes=work.sizes,
        column=source.column,
        count=source.times,
    )
    return contrast, replace(how, privacy=privacy, measure_privacy=None)


def plan(
    mixture: MixtureOfDirichletMultinomials,
    models: tuple[int, ...],
    source: Source,
    how: Fit,
    *,
    during: int,
    after: int,
) -> None:
    """Refuse a fit that exceeds the budget before anything is released; a resumed fit has passed already.

    Models are compared `during` times on the clients of the fit, and `after` times on others once it is done.
    """
    if how.privacy is None or how.ledger is None:
        return
    if (during or after) and how.measure_privacy is None:
        raise PrivacyError(
            "starts and candidates are compared by measuring them: give measure_privacy, with a clip in nats, or use "
            "n_init=1 and one number of components"
        )
    if how.checkpoint is not None and Path(f"{os.fspath(how.checkpoint)}.outline").exists():
        return
    n, sampler = len(source.engine.clients.keys), All() if how.sampler is None else how.sampler
    run = f"plan {os.urandom(8).hex()}"
    try:
        how.ledger.reserve(run, how.privacy.entries(sampler, n), releases(mixture, models))
        if how.measure_privacy is not None:
            how.ledger.reserve(run, {"metrics": how.measure_privacy.entries(sampler, n)["sum"]}, during)
            how.ledger.reserve(run, {"choice": how.measure_privacy.entries(All(), n)["sum"]}, after)
    finally:
        how.ledger.hand_back(run)


def releases(mixture: MixtureOfDirichletMultinomials, models: tuple[int, ...]) -> int:
    """The number of rounds of a private fit of these models, without comparisons."""
    return mixture.rounds + (1 if mixture.warm_start is not None or max(models) == 1 else 2)


def warm_components(
    mixture: MixtureOfDirichletMultinomials, old: MixtureOfDirichletMultinomials, source: Source
) -> tuple[Array, Array, Array]:
    """Mean, dispersion and weights of the components of an earlier fit."""
    old._check_fitted("weights_")
    shape = (mixture.n_components, source.n_categories)
    if old.concentrations_.shape != shape:
        raise DataError(f"warm_start has components {old.concentrations_.shape}, this fit needs {shape}")
    scale = old.concentrations_.sum(axis=1)
    return old.concentrations_ / scale[:, None], 1 / scale, old.weights_

"""The kinds of clients: a mixture of Dirichlet-multinomials, its number of components, and each in words."""

from __future__ import annotations

import copy
import os
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, cast

import numpy as np

from fedscape.core.engine import Engine, Local
from fedscape.core.federation import Federation
from fedscape.core.sampling import All
from fedscape.core.validate import valid_categories
from fedscape.errors import DataError, PrivacyError, TooFewClients
from fedscape.formats.kinds import LABELS
from fedscape.formats.modelled import declare_classes
from fedscape.mixtures import MixtureOfDirichletMultinomials, choose_components
from fedscape.mixtures.dirichlet_multinomial.em import Solver
from fedscape.privacy.accounting import calibrate
from fedscape.privacy.ledger import Ledger
from fedscape.privacy.mechanisms import Gaussian
from fedscape.statistics.histogram import Histogram
from fedscape.statistics.quantiles import Quantiles
from fedscape.statistics.undeclared import Undeclared
from fedscape.studies.intervals import mean_interval, plain
from fedscape.studies.prepare import Prepared, single_rows
from fedscape.types import Array

CENSUS_DELTA = 1e-5
_CLIP_SHARE = 0.1  # of a count's budget, to find its clip
_CLIPPED = 0.75  # the share of clients that it leaves as they are: nearer to 1, noise would move it far
_LONGEST, _NEAR = 24.0, 0.25  # doublings of a client's norm: the most, and how near
_GUESS = 16.0  # a clip where there are too few clients to find one
_EPSILONS = (0.5, 1.0, 2.0, 8.0)


def model(
    data: Prepared,
    *,
    seed: int = 0,
    progress: bool | None = None,
    engine_for: Callable[[Federation], Engine] = Local,
) -> tuple[dict[str, Any], Any, Array]:
    """Fit the kinds of clients: the section of the result, the mixture, and responsibilities [clients, K]."""
    clients = _modelled(data)
    candidates = candidates_for(clients, "y")
    mixture, about = population(
        clients, "y", candidates=candidates, seed=seed, progress=progress, engine_for=engine_for
    )
    shares = mixture.predict_proba(clients)
    if data.apart is not None:
        mixture = joined(mixture, data.apart.place, data.names)
    order = np.argsort(-mixture.weights_, kind="stable")  # the most frequent kind first
    pool = data.counts.sum(axis=0) / max(data.counts.sum(), 1)
    components = []
    for number, k in enumerate(order.tolist()):
        alpha = mixture.concentrations_[k]
        component = about["components"][k]
        components.append(
            {
                "kind": chr(ord("A") + number),
                "share": mean_interval(shares[:, k], least=0.0, most=1.0),
                "size": component["mean_size"],
                "scale": component["scale"],
                "means": alpha / alpha.sum(),
            }
        )
        components[-1]["words"] = _words(components[-1], pool, data.names, len(order))
    if (undecided := single_rows(data.counts)) and len(components) == 1:
        components[0]["words"] = _single_words(components[0], data.names)
    section = {
        "candidates": about["candidates"],
        "names": list(data.names),
        "pool": pool,
        "components": components,
        "rounds": about["rounds"],
        "bytes_up": about["bytes_up"],
        "price": price(data.counts),
    }
    if not about["candidates"] and len(candidates) > 1:
        undecided = "There are too few clients to hold some of them out: one kind is taken, not chosen."
    if undecided:
        section["undecided"] = undecided
    return plain(section), mixture, shares[:, order]


def _modelled(data: Prepared) -> Federation:
    """The clients with all categories in the column y, as `fedscape fit` models them; reports merge rare ones."""
    if data.apart is not None:
        return data.apart.clients
    ends = np.arange(len(data.counts) + 1)
    return Federation({"y": data.counts}, ends, data.table.ids, names={"y": data.names})


def candidates_for(federation: Federation, column: str, most: int = 6) -> list[int]:
    """Candidate numbers of kinds: 1 to 6, with at least five clients of two rows or more for each.

    A client with one row says nothing about its kind: for single rows every mixture has the same distribution as some
    single kind.

    >>> candidates_for(Federation({"y": np.zeros(36, dtype=int)}, np.arange(0, 38, 2)), "y")
    [1, 2, 3]
    """
    sizes = federation.sizes if federation[column].ndim == 1 else federation.counts(column).sum(axis=1)
    return list(range(1, min(most, int((sizes >= 2).sum()) // 5) + 1)) or [1]


def joined(
    mixture: MixtureOfDirichletMultinomials, place: Array, names: Sequence[str]
) -> MixtureOfDirichletMultinomials:
    """The mixture over merged categories: concentrations of a Dirichlet-multinomial add up exactly."""
    into = np.zeros((len(place), len(names)))
    into[np.arange(len(place)), place] = 1
    merged = copy.copy(mixture)
    merged.concentrations_ = mixture.concentrations_ @ into
    reach = np.asarray(mixture.reach_)
    merged.reach_ = np.append(reach[:-1] @ into, reach[-1]).astype(reach.dtype)
    merged.category_names_ = tuple(names)
    return merged


def _single_words(component: dict[str, Any], names: Sequence[str]) -> str:
    """Describe clients of one row each: only their pooled shares are known."""
    top = np.argsort(-component["means"])[:4]
    listed = ", ".join(f"{names[j]} ({component['means'][j]:.1%})" for j in top)
    return f"All clients, one row each: their kinds cannot be told apart. Most frequent: {listed}."


def _words(component: dict[str, Any], pool: Array, names: Sequence[str], number: int) -> str:
    """Describe a kind of clients: share, size, categories above and below average, concentration."""
    means = component["means"]
    share = component["share"]["value"]
    scale = component["scale"]
    alike = "as one multinomial" if scale == "multinomial" else f"concentration {scale:,.4g}"
    text = f"Kind {component['kind']}: {share:.0%} of the clients, about {component['size']:,.0f} rows each"
    if number == 1:
        top = np.argsort(-means)[:4]
        listed = ", ".join(f"{names[j]} ({means[j]:.1%})" for j in top)
        return f"{text}. Most frequent: {listed}. Inside the kind: {alike}."
    gain = means - pool
    more = [j for j in np.argsort(-gain)[:3].tolist() if gain[j] > 0.005]
    less = [j for j in np.argsort(gain)[:3].tolist() if gain[j] < -0.005]
    for what, chosen in (("more", more), ("less", less)):
        if chosen:
            listed = ", ".join(f"{names[j]} ({means[j]:.1%} against {pool[j]:.1%})" for j in chosen)
            text += f"; {what} {listed}" if what == "less" and more else f", with {what} {listed}"
    return f"{text}. Inside the kind: {alike}."


def price(counts: Array, *, delta: float = 1e-5) -> list[dict[str, float]]:
    """Expected error of a private count of the categories for some epsilons, without making a release.

    The clip is about the 90th percentile of the clients' lengths: the nearest power of the root of two, as no report
    has the length of a single client. The error is half the L1 distance of noisy to exact
    shares. It has a part from clipping (exact) and one from noise (its mean over Gaussian noise).
    """
    lengths = np.linalg.norm(counts, axis=1)
    clip = float(2 ** (round(2 * np.log2(max(np.quantile(lengths, 0.9), 1.0))) / 2))
    exact = counts.sum(axis=0)
    kept = (counts * np.minimum(1, clip / np.maximum(lengths, 1e-300))[:, None]).sum(axis=0)
    total = max(float(kept.sum()), 1.0)
    bias = np.abs(kept / total - exact / max(exact.sum(), 1)).sum() / 2
    rows = []
    for epsilon in _EPSILONS:
        multiplier = calibrate(epsilon, delta, rounds=1, sampler=All())
        noise = counts.shape[1] * multiplier * clip * np.sqrt(2 / np.pi) / total / 2
        error = min(float(bias + noise), 1.0)
        rows.append({"epsilon": epsilon, "delta": delta, "clip": clip, "multiplier": multiplier, "error": error})
    return rows


def found_names(
    federation: Federation, column: str | None, *, epsilon: float, delta: float, ledger: Ledger
) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Categories that enough clients have, and what the search for them cost: releases instead of a leak."""
    target = _target(federation, column)
    if target is None:
        raise DataError("there is no column of labels, of which categories could be found: name one with --column")
    discovery = Undeclared(names=(target,)).find(federation, epsilon=epsilon, delta=delta, ledger=ledger)
    about = {"names": list(discovery.classes(target)), "clients": discovery.threshold, "epsilon": epsilon}
    return discovery.classes(target), about


def _target(federation: Federation, column: str | None) -> str | None:
    return column or next((name for name in LABELS if name in federation), None)


def declared_counts(federation: Federation, column: str | None, names: Sequence[str] | None) -> Array:
    """Counts [clients, C] of declared categories; rows of others are left out.

    Categories, bins or cells inferred from the rows would leak which rows there are.
    """
    target = _target(federation, column)
    if target is not None and names is not None and federation[target].ndim == 1:
        federation = declare_classes(federation, target, names)
    if target is None or not federation.is_declared(target):
        what = (
            "there is no column of labels" if target is None else f"the categories of {target!r} follow from the rows"
        )
        raise PrivacyError(
            f"{what}, and a private count needs declared ones: name them with --names a,b,c (names=), or find them "
            "with part of the budget, as with --find 0.5 (find=)"
        )
    number = federation.categories(target)
    valid = valid_categories(federation[target], number)
    return (federation if valid is None else federation.where(valid)).counts(target, number)


def census(
    counts: Array,
    *,
    epsilon: float,
    delta: float = CENSUS_DELTA,
    ledger: Ledger | None = None,
    engine_for: Callable[[Federation], Engine] = Local,
) -> dict[str, Any]:
    """Count the categories of all clients with client-level privacy: releases, recorded in a ledger.

    A tenth of the budget finds the clip, the third quartile of the clients' norms; with too few clients it is a guess.
    """
    clients = Federation({"y": counts, "length": _doublings(counts)}, np.arange(len(counts) + 1))
    ledger = Ledger(epsilon=epsilon, delta=delta) if ledger is None else ledger
    ends = (0.0, _LONGEST)
    far = Quantiles([_CLIPPED], column="length", ranges=ends, resolution=_NEAR, cells=4)
    part = calibrate(_CLIP_SHARE * epsilon, _CLIP_SHARE * delta, rounds=far.n_rounds(), sampler=All())
    multiplier = calibrate((1 - _CLIP_SHARE) * epsilon, (1 - _CLIP_SHARE) * delta, rounds=1, sampler=All())
    _check_budget(ledger, {part: far.n_rounds(), multiplier: 1}, len(counts))
    far.fit(
        engine_for(clients.select(["length"])),
        privacy=Gaussian(clip=1.0, multiplier=part),
        ledger=ledger,
        progress=False,
    )
    clip = float(2 ** far.quantiles_[0]) if far.rank_error_ < 0.5 else _GUESS
    privacy = Gaussian(clip=clip, multiplier=multiplier)
    engine = engine_for(clients.select(["y"]))
    histogram = Histogram(counts.shape[1], column="y").fit(engine, privacy=privacy, ledger=ledger, progress=False)
    exact = counts.sum(axis=0) / max(counts.sum(), 1)
    spent = [
        {"unit": unit, "relation": relation, "place": where, "epsilon": value, "delta": ledger.delta}
        for (unit, relation, where), value in ledger.spent().items()
    ]
    error = float(np.abs(exact - histogram.shares_).sum() / 2)
    about = {"shares": histogram.shares_, "error": error, "clip": clip, "multiplier": multiplier, "spent": spent}
    return cast("dict[str, Any]", plain(about))


def _check_budget(ledger: Ledger, releases: dict[float, int], n_clients: int) -> None:
    """Refuse, before anything is released, what does not fit into the ledger: numbers of releases by multiplier."""
    run = f"census {secrets.token_hex(8)}"
    entries = {f"noise {m:g}": Gaussian(clip=1.0, multiplier=m).entries(All(), n_clients)["sum"] for m in releases}
    try:
        ledger.reserve(run, entries, dict(zip(entries, releases.values(), strict=True)))
    finally:
        ledger.hand_back(run)


def _doublings(counts: Array) -> Array:
    """How often 1 is doubled to reach each client's norm; a client without rows has 1."""
    return np.asarray(np.log2(np.maximum(np.linalg.norm(counts, axis=1), 1.0)))


def population(
    federation: Federation,
    column: str,
    *,
    candidates: Sequence[int],
    solver: str = "exact",
    n_init: int = 4,
    rounds: int = 30,
    seed: int = 0,
    progress: bool | None = None,
    engine_for: Callable[[Federation], Engine] = Local,
) -> tuple[MixtureOfDirichletMultinomials, dict[str, Any]]:
    """Fit the kinds of clients, their number chosen on held-out clients; return the mixture and its description.

    `place` builds the engine from the Federation.

    >>> from fedscape import datasets
    >>> mixture, about = population(datasets.load("acs-race"), "y", candidates=[2])
    >>> len(about["components"])
    2
    """
    mixture = MixtureOfDirichletMultinomials(
        candidates[0], solver=cast(Solver, solver), n_init=n_init, rounds=rounds, column=column, seed=seed
    )
    tried, engine = [], engine_for(federation)
    choice = None
    if len(candidates) > 1:
        with suppress(TooFewClients):  # of a dozen clients it may be that none is held out
            choice = choose_components(mixture, engine, candidates=candidates, progress=progress)
    if choice is not None:
        mixture = MixtureOfDirichletMultinomials(**{**mixture.get_params(), "n_components": choice.n_components})
        tried = [
            {"components": k, "score": round(float(s), 4), "behind": round(float(b), 4), "error": round(float(e), 4)}
            for k, s, b, e in zip(choice.candidates, choice.scores, choice.behind, choice.errors, strict=True)
        ]
    mixture.fit(engine, progress=progress)
    names = federation.names.get(column) or [str(i) for i in range(mixture.concentrations_.shape[1])]
    sizes = federation.sizes if federation[column].ndim == 1 else federation.counts(column).sum(axis=1)
    shares = mixture.predict_proba(federation)
    about = {
        "candidates": tried,
        "components": [
            _component(mixture, k, names, float(shares[:, k] @ sizes / max(shares[:, k].sum(), 1e-9)))
            for k in range(mixture.n_components)
        ],
        "log_likelihood": round(float(mixture.log_likelihood_), 4),
        "rounds": len(mixture.history_),
        "bytes_up": int(max(mixture.history_["bytes_up"])),
    }
    return mixture, about


def _component(mixture: MixtureOfDirichletMultinomials, k: int, names: Sequence[str], size: float) -> dict[str, Any]:
    alpha = mixture.concentrations_[k]
    mean = alpha / alpha.sum()
    top = np.argsort(-mean)[:5]
    return {
        "weight": round(float(mixture.weights_[k]), 4),
        "scale": "multinomial" if alpha.sum() > 1e9 else float(f"{alpha.sum():.4g}"),
        "mean_size": round(size, 1),
        "most": ", ".join(f"{names[j]} {mean[j]:.1%}" for j in top),
    }


def in_columns(drawn: Federation) -> Federation:
    """Drawn clients with one column per category, for a CSV file."""
    counts = drawn["y"]
    names = drawn.names.get("y") or [str(c) for c in range(counts.shape[1])]
    columns = {str(name): counts[:, c] for c, name in enumerate(names)}
    return Federation(columns, drawn.offsets, drawn.ids)


def draw(path: str | os.PathLike[str], n_clients: int, *, seed: int = 0) -> Federation:
    """Draw new clients from a saved population: one row of counts each, in the column y."""
    if n_clients < 1:
        raise DataError(f"at least one client must be drawn, not {n_clients}")
    mixture = MixtureOfDirichletMultinomials.load(path)
    names = None if mixture.category_names_ is None else {"y": mixture.category_names_}
    return Federation({"y": mixture.sample(n_clients, seed=seed)}, np.arange(n_clients + 1), names=names)

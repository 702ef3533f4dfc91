"""The phases of a fit: survey the columns, draw classes in rounds or sweeps, choose their number."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedscape.core.engine import Engine
from fedscape.core.estimator import Fit
from fedscape.core.federation import Federation
from fedscape.core.sampling import All
from fedscape.errors import DataError
from fedscape.mixtures.latent_class.basis import parse_basis
from fedscape.mixtures.latent_class.chains import Agreement, Chains, Learned, Trace, agreement, sample
from fedscape.mixtures.latent_class.em import Share
from fedscape.mixtures.latent_class.files import KINDS
from fedscape.mixtures.latent_class.networks import Networks
from fedscape.mixtures.latent_class.predict import HeldOutLikelihood, compared, placing
from fedscape.mixtures.latent_class.private import share_of
from fedscape.mixtures.latent_class.rounds import NO_HIERARCHY, ClassAssignment, Survey, check_parameters
from fedscape.mixtures.latent_class.table import Table
from fedscape.privacy.release import noise_sd
from fedscape.types import Array

if TYPE_CHECKING:
    from fedscape.mixtures.latent_class.model import LatentClassRegression

GAMMA = 0.5  # tuned on cohorts of 15% and of all agents: 1 sometimes leaves two kinds of entities in one class
WARM = 2  # rounds that approach a given sigma; more than a few let rare classes merge
METHODS = ("federated", "central", "central-exact", "em")
LINKS = ("identity", "logistic", "probit")


class Fitted(NamedTuple):
    """The computation, and each chain's last state with the labels that agents keep, the most likely first."""

    work: ClassAssignment
    chains: list[Learned]
    agreement: Agreement | None


def candidates_of(model: LatentClassRegression) -> tuple[int, ...]:
    """The numbers of components to choose from, ascending."""
    number = model.n_components
    return (int(number),) if isinstance(number, int | np.integer) else tuple(sorted({int(k) for k in number}))


def check(model: LatentClassRegression) -> None:
    """Refuse inconsistent settings."""
    if not candidates_of(model):
        raise DataError("n_components must be a number, or several to choose among; got none")
    check_parameters(candidates_of(model)[0], alpha=model.alpha, beta=model.beta, delta=model.delta, sigma=model.sigma)
    if model.rounds < 1 or model.chains < 1:
        raise DataError(f"rounds and chains must be at least 1, not {model.rounds} and {model.chains}")
    if model.method not in METHODS:
        raise DataError(f"method must be one of {', '.join(METHODS)}, not {model.method!r}")
    if model.link not in LINKS:
        raise DataError(f"link must be one of {', '.join(LINKS)}, not {model.link!r}")
    if model.link != "identity" and (model.method != "federated" or model.gamma == "latest"):
        raise DataError(
            f"link={model.link!r} goes with method='federated' and gamma a number or None, "
            f"not method={model.method!r}, gamma={model.gamma!r}"
        )
    if model.gamma not in (None, "latest"):
        _check_share("gamma", model.gamma)
    plain = (model.link, model.method, model.chains) == ("identity", "federated", 1)
    if units_of(model) and not (plain and model.gamma != "latest"):
        raise DataError(
            f"basis={model.basis!r} goes with link='identity', method='federated', one chain and gamma a number or "
            f"None, not {model.link!r}, {model.method!r}, {model.chains}, {model.gamma!r}"
        )


def units_of(model: LatentClassRegression) -> int:
    """The number of learned hidden units of a class; 0 unless classes are networks."""
    basis = None if model.basis is None else parse_basis(model.basis)
    return basis.number if basis is not None and basis.kind == "network" else 0


def with_basis(model: LatentClassRegression, engine: Engine, how: Fit, table: Table) -> Table:
    """Add the basis functions to the table, after the survey for standardisation."""
    if model.basis is None:
        return table
    if table.ranges:
        raise DataError(
            f"basis={model.basis!r} goes without ranges, and so without privacy: what bounds its functions is not "
            "known; leave basis out, or make the functions columns of their own"
        )
    if units_of(model):
        return table
    survey = model._run(Survey(table), engine, how.phase(".basis"), n_rounds=2, seed=model.seed, measure=0)
    centre, scale = survey["centre"][:-1], np.where(survey["deviation"] > 0, survey["deviation"], 1.0)[:-1]
    return replace(table, basis=model.basis, basis_centre=tuple(centre.tolist()), basis_scale=tuple(scale.tolist()))


def learn(model: LatentClassRegression, engine: Engine, how: Fit, table: Table, k: int, *, chains: int = 1) -> Fitted:
    """Fit k components to a table."""
    centre, scale, deviation = _columns(model, engine, how, table)
    work = model._work(table, k, len(scale) + table.intercept, len(engine.clients.keys), how)
    state = work.begin(np.append(centre[:-1], 0.0) if work.binary else centre, scale, deviation=deviation)
    if model.method.startswith("central"):
        if not isinstance(engine.clients, Federation):
            raise DataError(f"method={model.method!r} needs all data in this process: pass a Federation")
        exact = model.method == "central-exact"
        each, trace = sample(work, state, engine.clients, exact=exact, seed=model.seed, chains=chains, n=model.rounds)
        return _agreed(model, work, each, trace)
    runs: ClassAssignment | Chains = work
    if chains > 1:
        runs = Chains(work, chains, model.rounds)
        state = runs.begin(state)
    state = model._run(runs, engine, how, n_rounds=model.rounds, seed=model.seed, state=state, measure=0)
    kept = engine.kept()
    if isinstance(runs, ClassAssignment):
        return Fitted(work, [Learned(state, kept.get("labels"))], None)
    trace = Trace(*(state[f"server.{name}"] for name in Trace._fields))
    each = [Learned(one, kept.get(f"{i}.labels")) for i, one in enumerate(runs.each(state))]
    return _agreed(model, work, each, trace)


def _agreed(model: LatentClassRegression, work: ClassAssignment, each: list[Learned], trace: Trace) -> Fitted:
    """The chains, the most likely first; with a link, the one nearest the others first."""
    if len(each) == 1:
        return Fitted(work, each, None)
    matched = agreement(work, each[0].state, trace, model.seed)
    best = matched.best
    return Fitted(work, [each[best], *each[:best], *each[best + 1 :]], matched)


def choose(model: LatentClassRegression, engine: Engine, how: Fit, table: Table) -> list[dict[str, Any]]:
    """Compare all candidates by the likelihood of agents' held-out events."""
    candidates = candidates_of(model)
    fitted = [learn(model, engine, how.phase(f".{k}"), table, k) for k in candidates]
    judge = HeldOutLikelihood([placing(one.work) for one in fitted])
    state = judge.begin([one.chains[0].state for one in fitted])
    done = model._run(judge, engine, how.phase(".judge"), n_rounds=1, seed=model.seed, state=state, measure=0)
    if done["events"] < 1:
        raise DataError(f"no events were held out to choose among {candidates}: give one n_components")
    return compared(candidates, done)


def _smoothing(model: LatentClassRegression, k: int, how: Fit) -> float | None:
    """The gamma of the rounds; None for the latest contributions."""
    if model.gamma == "latest":
        return None
    if model.gamma is not None:
        return model.gamma
    if model.method == "em" or ((model.link != "identity" or units_of(model)) and k == 1):
        return 1.0 if how.privacy is None and (how.sampler is None or isinstance(how.sampler, All)) else GAMMA
    return None if k == 1 and how.privacy is None else GAMMA


def assignment(
    model: LatentClassRegression, table: Table, k: int, n_features: int, n_agents: int, how: Fit
) -> ClassAssignment:
    em, linked = model.method == "em", model.link != "identity"
    units = units_of(model)
    kind: type[ClassAssignment] = Networks if units else Share if em else KINDS[model.link]
    private, share = how.privacy is not None, share_of(how.sampler, n_agents)
    more = {"hidden": units, "seed": parse_basis(str(model.basis)).seed, "rounds": model.rounds} if units else {}
    return kind(
        table,
        n_features + units,
        k,
        **more,
        alpha=1.0 if em and model.alpha is None else model.alpha,
        beta=NO_HIERARCHY if em else model.beta,
        sigma=1.0 if linked else model.sigma,
        delta=model.delta,
        gamma=_smoothing(model, k, how),
        n_agents=None if private else n_agents,
        share=share if private else None,
        warm=0 if k == 1 or linked else min(WARM, model.rounds // 2),
        early=0 if em or private else model.rounds // 2,
        noise=noise_sd(how.privacy, "sums", sampler=how.sampler, clients=max(share * n_agents, 1.0)),
    )


def _columns(model: LatentClassRegression, engine: Engine, how: Fit, table: Table) -> tuple[Array, Array, float]:
    """Centre of features and target, scale of the features, and the target's deviation: by sums, or from the ranges."""
    if table.ranges:
        clients = engine.clients
        centre, half = table.units(clients if isinstance(clients, Federation) else None)
        return centre, half[:-1], 1.0 if model.link != "identity" else float(half[-1]) / 2
    survey = model._run(Survey(table), engine, how.phase(".survey"), n_rounds=2, seed=model.seed, measure=0)
    if survey["events"] < 1:
        raise DataError("there are no events to learn from: every agent that took part is empty")
    centre, deviation = survey["centre"], survey["deviation"]
    if not model.intercept:
        deviation, centre = np.sqrt(deviation**2 + centre**2), np.zeros_like(centre)
    scale = np.ones(len(centre) - 1)
    if model.standardise:
        scale = np.where(deviation[:-1] > 0, deviation[:-1], 1.0)
    return centre, scale, 1.0 if model.link != "identity" else float(deviation[-1]) or 1.0


def _check_share(name: str, value: Any) -> None:
    """Refuse a value that is not a number above 0 and at most 1."""
    if not isinstance(value, int | float) or not 0 < value <= 1:
        raise DataError(f"{name} must be above 0 and at most 1, 'latest', or None, not {value!r}")

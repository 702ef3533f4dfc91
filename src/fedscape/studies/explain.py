"""Explain what the server sees of a method: each array a client sends, summed or revealed, and its bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fedscape.core.arrays import offsets_of
from fedscape.core.computation import Computation
from fedscape.core.engine import Engine, Local
from fedscape.core.federation import Federation
from fedscape.core.random import Key
from fedscape.errors import DataError, require
from fedscape.methods import METHODS, Options, train
from fedscape.statistics.histogram import Histogram
from fedscape.statistics.kmeans import FederatedKMeans
from fedscape.statistics.moments import Moments
from fedscape.types import Array, Arrays

_CLASSES, _FEATURES, _HIDDEN = 10, 16, 8
_UNITS = (
    "Sums can be protected with the client as the unit: each client's whole message is clipped, noise is added to the "
    "sum (place central, relation add-remove). Without secure= sums are not masked, and without noise they are exact."
)
_MASKED = (
    "With secure=fs.SecureSum() or fs.TwoServers() the server sees the total of a cohort and no client's own sum; "
    "distributed noise is then whole in the smallest sum that can be opened."
)
_NOT_MASKED = "With secure= it is refused, unless SecureSum(allow={names!r}) lets the server see these arrays."

_REVEALED = "What is revealed can only be protected on the client itself (place local), before it is sent."

#: One sentence for each statistic and tabular model; those of methods are in the table of methods.
STATISTICS = {
    "histogram": "Number of rows of each category over all clients.",
    "moments": "Mean and covariance of all rows, from sums.",
    "kmeans": "Centres of all rows: each client sends, for each centre, the sum and number of its nearest rows.",
    "mdm": "A mixture of Dirichlet-multinomials over clients' label histograms, by EM over tail counts.",
    "gmm": "A mixture of Gaussians over all rows, by EM over sums about the broadcast means.",
    "sketch": "Histograms of locality-sensitive codes of all rows together.",
    "regress": "Classes of entities with a regression each: labels stay with agents, products of features are summed.",
}


class _Watch(Local):
    """An engine that records what the first client sends in each phase."""

    def __init__(self, clients: Federation) -> None:
        super().__init__(clients, threads=1)
        self.seen: dict[str, dict[str, Any]] = {}

    def run(self, computation: Computation, state: Arrays, cohort: Array, key: Key, **how: Any) -> Any:
        phase = phase_of(computation, state, self.clients.take(cohort[:1]), key)
        arrays = ", ".join(array["name"] for array in phase["sent"])  # a first round may send others
        self.seen[f"{phase['phase']}: {arrays}"] = phase  # the last round of each phase
        return super().run(computation, state, cohort, key, **how)


def phase_of(computation: Computation, state: Arrays, client: Federation, key: Key) -> dict[str, Any]:
    """What one client receives, sends and keeps in a round of this computation."""
    ready = computation.prepare(dict(state))
    sent, kept = computation.step(ready, client, key)
    down = {n: np.asarray(v) for n, v in state.items() if not n.startswith("server.")}
    arrays = [
        {
            "name": name,
            "shape": list(np.shape(values)[1:]),
            "bytes": int(np.asarray(values).nbytes),
            "seen": "client by client" if name in computation.reveals else "as a sum",
        }
        for name, values in sent.items()
    ]
    return {
        "phase": type(computation).__name__,
        "sent": arrays,
        "kept": sorted(kept),
        "reveals": list(computation.reveals),
        "bytes_up": sum(a["bytes"] for a in arrays),
        "bytes_down": int(sum(v.nbytes for v in down.values())),
    }


def names() -> list[str]:
    """The methods and statistics that `explain` knows."""
    return [*METHODS, *STATISTICS]


def explain(method: str) -> dict[str, Any]:
    """Run a method for two rounds on a few synthetic clients; report what the server sees and what a new client gets.

    Parameters
    ----------
    method
        A training method such as "fedgmm", or one of histogram, moments, kmeans, mdm, gmm, sketch, regress, trees, glm.

    >>> about = explain("histogram")
    >>> [(array["name"], array["seen"]) for array in about["phases"][0]["sent"]]
    [('counts', 'as a sum')]
    """
    if method not in names():
        raise DataError(f"method must be one of {', '.join(names())}, not {method!r}")
    run, fitted = _RUNS.get(method, _training(method)), []
    phases = watched(lambda engine: fitted.append(run(engine)), _clients())
    revealed = sorted({name for phase in phases for name in phase["reveals"]})
    privacy = f"{_UNITS} {_REVEALED}" if revealed else _UNITS
    return {
        "method": method,
        "words": STATISTICS[method] if method in STATISTICS else METHODS[method].sentence,
        "phases": phases,
        "new_client": None if method in STATISTICS else _new_client(fitted[0]),
        "reveals": revealed,
        "cannot_be_private": "" if method in STATISTICS else METHODS[method].exact,
        "privacy": privacy,
        "secure": _NOT_MASKED.format(names=tuple(revealed)) if revealed else _MASKED,
        "reference": f"synthetic clients, {_FEATURES} features, {_CLASSES} classes, one hidden layer of {_HIDDEN}",
    }


def _new_client(fitted: object) -> str:
    """What a client gets that no round has seen; methods that say nothing about it have one model for all."""
    served = getattr(getattr(fitted, "method", None), "newcomers", "the common model")
    return "no prediction before it has trained its own part" if served is None else str(served)


def watched(run: Callable[[Engine], object], clients: Federation) -> list[dict[str, Any]]:
    """Call `run` with an engine of these clients, and return the phases it went through."""
    watch = _Watch(clients)
    run(watch)
    return list(watch.seen.values())


def _clients() -> Federation:
    rng = Key(0, purpose="made-up clients").generator()
    sizes = np.array([12, 9, 15, 8, 11, 10])
    y = rng.integers(0, _CLASSES, sizes.sum())
    x = rng.normal(size=(len(y), _FEATURES)).astype(np.float32)
    return Federation({"x": x, "y": y, "entity": np.arange(len(y)) // 3}, offsets_of(sizes))


def _training(method: str) -> Callable[[Engine], object]:
    def run(engine: Engine) -> object:
        require("torch", extra="learn")
        from fedscape.learning import LocalSGD, cross_entropy, models
        from fedscape.temporal import parse_prior

        model, needed = models.mlp(_FEATURES, _HIDDEN, _CLASSES), 0.1 if method == "fedprox" else 0.0
        if method == "fedbn":
            from fedscape.personal.fedbn import with_norm

            model = with_norm(model)
        local = LocalSGD(model, cross_entropy, lr=0.1, epochs=1, batch_size=8, proximal=needed)
        options = Options(prior=parse_prior("linear", 2.0), period=2.0)
        return train(method, local, engine, n_rounds=2, options=options)

    return run


def _mdm(engine: Engine) -> object:
    from fedscape.mixtures import MixtureOfDirichletMultinomials

    return MixtureOfDirichletMultinomials(2, n_init=1, rounds=2).fit(engine, progress=False)


def _gmm(engine: Engine) -> object:
    from fedscape.mixtures import GaussianMixture

    return GaussianMixture(2, column="x", rounds=2).fit(engine, progress=False)


def _sketch(engine: Engine) -> object:
    from fedscape.sketches import DistributionSketch

    return DistributionSketch(16, bits=4).fit(engine, progress=False)


def _regress(engine: Engine) -> object:
    from fedscape.mixtures import LatentClassRegression

    return LatentClassRegression(2, rounds=2).fit(engine, features="x", target="y", entity="entity", progress=False)


_RUNS: dict[str, Callable[[Engine], object]] = {
    "histogram": lambda engine: Histogram(_CLASSES).fit(engine, progress=False),
    "moments": lambda engine: Moments().fit(engine, progress=False),
    "kmeans": lambda engine: FederatedKMeans(4).fit(engine, progress=False),
    "mdm": _mdm,
    "gmm": _gmm,
    "sketch": _sketch,
    "regress": _regress,
}

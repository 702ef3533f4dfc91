"""Computations on the wire between a server and its nodes.

A computation is sent as its name, its version and its constructor's arguments. Names are looked up in a list in this
file. Arguments are numbers, texts, arrays, and parts named in that list. Code - a network, a loss, an embedding - is
never sent: the node's owner supplies it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from importlib import import_module
from typing import Any

import numpy as np

from fedscape.core import codec
from fedscape.core.computation import Computation, stable_name
from fedscape.core.estimator import Estimator
from fedscape.engines.flower.wire import Unreadable, one_line
from fedscape.errors import EngineError

#: Computations that a node runs by name; the owner must supply any other.
KNOWN: Mapping[str, str] = {
    "histogram": "fedscape.statistics.histogram:Histogram",
    "moments": "fedscape.statistics.moments:Moments",
    "k-means": "fedscape.statistics.kmeans:FederatedKMeans",
    "heavy-hitters": "fedscape.statistics.heavy_hitters:HeavyHitters",
    "quantiles": "fedscape.statistics.quantiles:Quantiles",
    "cox": "fedscape.statistics.cox:CoxRegression",
    "cox-time-scale": "fedscape.statistics.survival:TimeScale",
    "cox-event-times": "fedscape.statistics.survival:EventTimes",
    "cox-concordance": "fedscape.statistics.survival:Concordance",
    "glm": "fedscape.tabular.glm:GLM",
    "multinomial-glm": "fedscape.tabular.multinomial:MultinomialGLM",
    "glm-errors": "fedscape.tabular.errors:GLMErrors",
    "glm-own-fits": "fedscape.tabular.sites:OwnFits",
    "glm-site-fits": "fedscape.tabular.sites:SiteFits",
    "glm-random-intercepts": "fedscape.tabular.intercepts:RandomIntercepts",
    "personal-trees": "fedscape.tabular.personal_trees:PersonalLosses",
    "tree-attributions": "fedscape.tabular.attributions:AttributionSums",
    "tree-leaf-counts": "fedscape.tabular.attributions:LeafCounts",
    "tree-rounds": "fedscape.tabular.growing:TreeRounds",
    "tree-survey": "fedscape.tabular.survey:TargetSurvey",
    "dm-start": "fedscape.mixtures.dirichlet_multinomial.start:StartingPoints",
    "dm-start-printed": "fedscape.papers.mdm:PrintedStart",
    "dm-survey": "fedscape.mixtures.dirichlet_multinomial.start:Survey",
    "dm-em": "fedscape.mixtures.dirichlet_multinomial.em:TailCountEM",
    "dm-compare": "fedscape.mixtures.dirichlet_multinomial.compare:ModelComparison",
    "dm-contrast": "fedscape.mixtures.dirichlet_multinomial.compare:PrivateComparison",
    "dm-information": "fedscape.mixtures.dirichlet_multinomial.compare:Information",
    "dm-score-ascent": "fedscape.mixtures.dirichlet_multinomial.private:ScoreAscent",
    "dm-differences": "fedscape.mixtures.dirichlet_multinomial.private:DifferenceMoments",
    "dm-outline": "fedscape.mixtures.dirichlet_multinomial.private:Outline",
    "gm-em": "fedscape.mixtures.gaussian.em:GaussianRounds",
    "gm-score": "fedscape.mixtures.gaussian.em:GaussianScore",
    "lcr-chains": "fedscape.mixtures.latent_class.chains:Chains",
    "lcr-em": "fedscape.mixtures.latent_class.em:Share",
    "lcr-logistic": "fedscape.mixtures.latent_class.links:Logistic",
    "lcr-networks": "fedscape.mixtures.latent_class.networks:Networks",
    "lcr-probit": "fedscape.mixtures.latent_class.links:Probit",
    "lcr-judge": "fedscape.mixtures.latent_class.predict:HeldOutLikelihood",
    "lcr-assign": "fedscape.mixtures.latent_class.rounds:ClassAssignment",
    "lcr-assign-printed": "fedscape.papers.hlcr:PrintedAssignment",
    "lcr-survey": "fedscape.mixtures.latent_class.rounds:Survey",
    "mixture-of-dirichlet-multinomials": "fedscape.mixtures.dirichlet_multinomial.model:MixtureOfDirichletMultinomials",
    "self-scores": "fedscape.simulate.self_score:SelfScores",
    "client-sketches": "fedscape.sketches.distribution:ClientSketches",
    "distribution-sketch": "fedscape.sketches.distribution:DistributionSketch",
    "sketch-spread": "fedscape.sketches.features:Spread",
    "sketch-own-weights": "fedscape.sketches.selection:OwnWeights",
    "device-population": "fedscape.twin.population:DevicePopulation",
    "inverse-probability": "fedscape.twin.bias:InverseProbability",
}
#: Parts allowed in their arguments, beside numbers, texts and arrays.
_PARTS: Mapping[str, str] = {
    "diagonal": "fedscape.mixtures.gaussian.covariances:Diagonal",
    "full": "fedscape.mixtures.gaussian.covariances:Full",
    "spherical": "fedscape.mixtures.gaussian.covariances:Spherical",
    "tied": "fedscape.mixtures.gaussian.covariances:Tied",
    "table": "fedscape.mixtures.latent_class.table:Table",
}
#: Arguments of a model inside a method that only decide how it was fitted: a node need not have fitted it.
_OF_FITTING = ("means_init", "weights_init", "covariances_init", "n_init", "rounds", "tol", "n_features", "seed")
_DEEPEST = 8


def described(computation: Computation) -> dict[str, Any]:
    """A computation as JSON; for its code parts, `theirs` has the settings on which both sides must agree."""
    parameters, theirs = {}, {}
    for name, value in computation.get_params().items():
        try:
            parameters[name] = codec.encode(value, _encode_other)
        except TypeError:
            theirs[name] = _settings(value)
    return {"name": name_of(computation), "version": computation.version, "parameters": parameters, "theirs": theirs}


def _settings(value: Any) -> dict[str, str] | str:
    """The data inside an argument that cannot be sent, as text: by name if the argument has one."""
    if callable(getattr(value, "settings", None)):
        return {str(name): str(text) for name, text in value.settings().items()}
    if isinstance(value, list | tuple):
        return str([_settings(v) for v in value])
    if isinstance(value, Mapping):
        return str({str(name): _settings(v) for name, v in value.items()})
    if isinstance(value, Estimator):  # what a client computes with it, fitted or not
        return {n: _setting(v) for n, v in value.get_params().items() if n not in _OF_FITTING}
    if isinstance(value, Computation):
        return value.digest()
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {value.shape} {hashlib.sha256(value.tobytes()).hexdigest()[:16]}"
    if hasattr(value, "__qualname__"):
        return f"{value.__module__}.{value.__qualname__}"
    return repr(value) if is_dataclass(value) else f"{type(value).__module__}.{type(value).__qualname__}"


def _setting(value: Any) -> str:
    return repr(value) if value is None or isinstance(value, bool | int | float | str) else str(_settings(value))


def asked_for(about: Any) -> str:
    """A request on one line: the computation and its arguments, safe for any text that the server sent.

    >>> from fedscape.statistics.histogram import Histogram
    >>> asked_for(described(Histogram(3)))
    "histogram(n_categories=3, column='y')"
    """
    return one_line(_brief(about), longest=500)


def _brief(value: Any, depth: int = 0) -> str:
    if depth > _DEEPEST or not isinstance(value, Mapping):
        return repr(value)[:200]
    if "computation" in value:
        return _brief(value["computation"], depth + 1)
    if "array" in value:
        return "array"
    for kind in ("tuple", "list"):
        if isinstance(value.get(kind), list):
            return f"[{', '.join(_brief(v, depth + 1) for v in value[kind][:20])}]"
    name = value.get("name", value.get("part", ""))
    arguments = value.get("parameters", value.get("fields", value if not name else {}))
    theirs = value.get("theirs", {}) if isinstance(value.get("theirs"), Mapping) else {}
    shown = {**arguments, **theirs} if isinstance(arguments, Mapping) else {}
    return f"{name}({', '.join(f'{n}={_brief(v, depth + 1)}' for n, v in list(shown.items())[:40])})"


def check_sendable(computation: Computation) -> None:
    """Refuse, on the server, an unknown computation: every node would refuse it with a less helpful message."""
    if name_of(computation).startswith("?"):
        raise EngineError(
            f"{type(computation).__name__} is made inside a function: nodes could not know it; define it in a module"
        )


def name_of(computation: Computation) -> str:
    """The name that both sides use; a computation defined inside a function has none."""
    name = stable_name(type(computation))
    return f"?{name}" if "<locals>" in name else name


def rebuilt(about: Mapping[str, Any], own: Sequence[Computation]) -> Computation:
    """The requested computation: one that the owner supplied, or one from the list."""
    try:
        name, version, wanted, theirs = about["name"], about["version"], about["parameters"], about["theirs"]
        differing = ""
        for mine in own:
            if name_of(mine) == name and mine.version == version:
                differing = differences(described(mine), about)
                if not differing:
                    return mine
        if theirs and differing:
            raise Unreadable(f"a computation with other settings than the owner's: {differing}")
        if theirs:
            raise Unreadable("a computation whose owner has not supplied it")
        built = _looked_up(KNOWN, str(name))(**{key: _decode(value) for key, value in wanted.items()})
    except (KeyError, TypeError, AttributeError):
        raise Unreadable("not a computation") from None
    if not isinstance(built, Computation) or built.version != version:
        raise Unreadable("a computation of another version")
    return built


def differences(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> str:
    """The first few differences between the owner's computation and the requested one; "" if they agree."""
    own, requested = ({**about["parameters"], **about["theirs"]} for about in (mine, theirs))
    sides = [_leaves(own), _leaves(requested)]
    names = [name for name in dict.fromkeys([*sides[0], *sides[1]]) if sides[0].get(name) != sides[1].get(name)]
    lines = [
        f"{name} is {_shown(sides[0], name)} on the node, {_shown(sides[1], name)} at the server" for name in names
    ]
    return "; ".join(lines[:3]) + (f"; and {len(lines) - 3} more" if len(lines) > 3 else "")


def _leaves(settings: Mapping[str, Any]) -> dict[str, str]:
    """Settings by their own names: lr, not local.lr, unless two arguments share a name."""
    flat: dict[str, str] = {}
    for argument, value in settings.items():
        if isinstance(value, Mapping) and all(isinstance(text, str) for text in value.values()):
            flat |= {f"{argument}.{n}" if n in flat or n in settings else str(n): text for n, text in value.items()}
        elif isinstance(value, int | float) and not isinstance(value, bool):
            flat[argument] = f"{value:.17g}"  # 1 and 1.0 are the same setting
        else:
            flat[argument] = _brief(value) + _digest_of(value)
    return flat


def _digest_of(value: Any) -> str:
    """A digest that separates values with the same short form."""
    return f" {hashlib.sha256(repr(value).encode()).hexdigest()[:8]}" if isinstance(value, Mapping) else ""


def _shown(side: Mapping[str, str], name: str) -> str:
    return side.get(name, "not there")[:60]


def _looked_up(listed: Mapping[str, str], name: str) -> Any:
    if name not in listed:
        raise Unreadable("a computation that is not on the list")
    module, _, kind = listed[name].partition(":")
    return getattr(import_module(module), kind)


def _part_name(value: Any) -> str | None:
    """The name of a part that may be sent, None for others."""
    path = f"{type(value).__module__}:{type(value).__qualname__}"
    return next((name for name, listed in _PARTS.items() if listed == path), None)


def _encode_other(value: Any) -> Any:
    """Parts and computations of the lists above; a TypeError for anything else."""
    part = _part_name(value)
    if part is not None and is_dataclass(value):
        return {
            "part": part,
            "fields": {f.name: codec.encode(getattr(value, f.name), _encode_other) for f in fields(value)},
        }
    if isinstance(value, Computation) and stable_name(type(value)) in KNOWN:
        about = described(value)
        if not about["theirs"]:
            return {"computation": about}
    raise TypeError


def _decode(value: Any, depth: int = 0) -> Any:
    try:
        return codec.decode(value, _decode_other, depth)
    except ValueError as error:
        raise Unreadable(str(error)) from None


def _decode_other(value: Mapping[str, Any], depth: int) -> Any:
    if "part" in value:
        return _looked_up(_PARTS, str(value["part"]))(**{n: _decode(v, depth + 1) for n, v in value["fields"].items()})
    if "computation" in value and not value["computation"]["theirs"]:
        return rebuilt(value["computation"], ())
    raise Unreadable("an argument that is neither a number nor a text nor an array")

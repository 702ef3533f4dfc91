"""What crosses between a server and its nodes: one checksummed container of arrays and JSON, never code.

A computation crosses as its name, its version and its constructor's arguments. Names are looked up in a list that is
part of this file; arguments are numbers, texts, arrays, and parts named in that list. What is code on one side - a
network, a loss, an embedding - cannot cross: the node's owner supplies it.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

from fedscape.core import checkpoint
from fedscape.core.computation import Arrays, Computation
from fedscape.core.federation import Federation
from fedscape.engines.flower.library import Array as FlowerArray
from fedscape.engines.flower.library import ArrayRecord, RecordDict
from fedscape.errors import CheckpointError, EngineError
from fedscape.privacy.mechanisms import AdaptiveClip, Gaussian, Laplace, Privacy
from fedscape.privacy.release import Release

ACTION = "fedscape"  # messages are of the type query.fedscape
FORMAT = 2

#: The computations that a node carries out when it is asked by name; others its owner must supply.
KNOWN: Mapping[str, str] = {
    "histogram": "fedscape.statistics.histogram:Histogram",
    "moments": "fedscape.statistics.moments:Moments",
    "k-means": "fedscape.statistics.kmeans:FederatedKMeans",
    "dm-start": "fedscape.mixtures.dirichlet_multinomial.start:StartingPoints",
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
    "lcr-probit": "fedscape.mixtures.latent_class.links:Probit",
    "lcr-judge": "fedscape.mixtures.latent_class.predict:HeldOutLikelihood",
    "lcr-assign": "fedscape.mixtures.latent_class.rounds:ClassAssignment",
    "lcr-survey": "fedscape.mixtures.latent_class.rounds:Survey",
    "mixture-of-dirichlet-multinomials": "fedscape.mixtures.dirichlet_multinomial.model:MixtureOfDirichletMultinomials",
    "self-scores": "fedscape.simulate.self_score:SelfScores",
    "client-sketches": "fedscape.sketches.distribution:ClientSketches",
    "distribution-sketch": "fedscape.sketches.distribution:DistributionSketch",
    "sketch-spread": "fedscape.sketches.features:Spread",
    "sketch-own-weights": "fedscape.sketches.selection:OwnWeights",
}
#: What arguments of theirs are made of, besides numbers, texts and arrays.
_PARTS: Mapping[str, str] = {
    "diagonal": "fedscape.mixtures.gaussian.covariances:Diagonal",
    "full": "fedscape.mixtures.gaussian.covariances:Full",
    "spherical": "fedscape.mixtures.gaussian.covariances:Spherical",
    "tied": "fedscape.mixtures.gaussian.covariances:Tied",
    "table": "fedscape.mixtures.latent_class.table:Table",
}
_DEEPEST = 8
_ORDER = re.compile(r"(\d{1,18}) ([0-9a-f]{16}) (\d{1,18})")
_HEADER = 2**22  # bytes: read as JSON, a header takes many times its size
_MECHANISMS: dict[str, type[Privacy]] = {"Gaussian": Gaussian, "Laplace": Laplace}


class Unreadable(Exception):
    """What was received is not what it must be; the text is made here and carries nothing of it."""


class Away(Exception):
    """Something failed on a node after it had read data. To the server it is away; the text stays in its log."""


# -- envelopes ---------------------------------------------------------------------------------------------------------


class Order(NamedTuple):
    """Which of two requests of a run is the newer one, whatever clocks say.

    `life` counts how often the run was taken up from a checkpoint; a checkpoint can be taken up twice, so each time has
    a `name` of its own; `number` counts the requests since then.
    """

    life: int
    name: str
    number: int

    def overtaken(self, last: Order, gone: Sequence[str]) -> bool:
        """Whether the request is older than the last one that was answered, where these names are known to be gone."""
        if self.life != last.life:
            return self.life < last.life
        return self.number < last.number if self.name == last.name else self.name in gone


def enclose(blob: bytes, order: Order | None = None) -> Any:
    """The content of a message; the order of a request is beside it, so that asked again it is the same request."""
    parts = {"blob": blob} if order is None else {"blob": blob, "order": " ".join(map(str, order)).encode()}
    arrays = {n: FlowerArray(dtype="uint8", shape=(len(v),), stype="fedscape", data=v) for n, v in parts.items()}
    return RecordDict({ACTION: ArrayRecord(arrays)})


def order_of(content: Any) -> Order:
    """The order of a request."""
    try:
        found = _ORDER.fullmatch(content[ACTION]["order"].data.decode())
    except (KeyError, TypeError, AttributeError, ValueError):
        found = None
    if found is None:
        raise Unreadable("a request that does not say when it was made")
    return Order(int(found[1]), found[2], int(found[3]))


def disclose(content: Any, largest: float = np.inf) -> bytes:
    """The bytes in the content of a message, if it is one of ours and no larger than that."""
    try:
        array = content[ACTION]["blob"]
        blob = array.data
        if array.stype != "fedscape" or not isinstance(blob, bytes):
            raise Unreadable("not a message of fedscape")
    except (KeyError, TypeError, AttributeError):
        raise Unreadable("not a message of fedscape") from None
    if len(blob) > largest:
        raise Unreadable("larger than allowed")
    return blob


def read(blob: bytes) -> tuple[Arrays, dict[str, Any]]:
    """The arrays and the header."""
    try:
        arrays, header = checkpoint.unpack(blob, largest_header=_HEADER)
    except CheckpointError:
        raise Unreadable("torn, damaged or foreign") from None
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise Unreadable("of another format")
    return arrays, header


def digest(blob: bytes) -> str:
    """What a reply names to say which request it answers."""
    return hashlib.sha256(blob).hexdigest()


def narrow(values: Any) -> Any:
    """The same numbers in fewer bytes where nothing is lost by it: whole numbers that fit, floats that are float32.

    >>> narrow(np.array([3, 200])).dtype.name, narrow(np.array([0.5])).dtype.name, narrow(np.array([0.1])).dtype.name
    ('uint8', 'float32', 'float64')
    """
    if values.dtype == np.int64 and values.size:
        kind = np.promote_types(np.min_scalar_type(values.min()), np.min_scalar_type(values.max()))
        return values.astype(kind) if kind.kind in "iu" and kind.itemsize < 8 else values
    if values.dtype == np.float64:
        with np.errstate(over="ignore"):
            half = values.astype(np.float32)
        return half if np.array_equal(half, values) else values
    return values


def prefixed(arrays: Mapping[str, Any], prefix: str) -> Arrays:
    """The arrays under this prefix, without it."""
    return {name[len(prefix) :]: values for name, values in arrays.items() if name.startswith(prefix)}


# -- computations ------------------------------------------------------------------------------------------------------


def described(computation: Computation) -> dict[str, Any]:
    """A computation as JSON: what of it is code is under `theirs`, as the settings that both sides must agree on."""
    found, theirs = {}, {}
    for name, value in computation.get_params().items():
        try:
            found[name] = _written(value)
        except TypeError:
            theirs[name] = _settings(value)
    return {"name": name_of(computation), "version": computation.version, "parameters": found, "theirs": theirs}


def _settings(value: Any) -> dict[str, str] | str:
    """What of an argument that cannot cross is data, as text: by name where it says so itself."""
    if callable(getattr(value, "settings", None)):
        return {str(name): str(text) for name, text in value.settings().items()}
    if isinstance(value, list | tuple):
        return str([_settings(v) for v in value])
    if isinstance(value, Mapping):
        return str({str(name): _settings(v) for name, v in value.items()})
    if isinstance(value, Computation):
        return value.digest()
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {value.shape} {hashlib.sha256(value.tobytes()).hexdigest()[:16]}"
    if hasattr(value, "__qualname__"):
        return f"{value.__module__}.{value.__qualname__}"
    return repr(value) if is_dataclass(value) else f"{type(value).__module__}.{type(value).__qualname__}"


def one_line(said: object, *, longest: int = 200) -> str:
    r"""What the other side says, on one line and no longer: it must not look like other lines of a log.

    >>> one_line("no\nround 9, node 3: forged")
    'no\\nround 9, node 3: forged'
    """
    shown = (c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(said)[:longest])
    return "".join(shown)


def asked_for(about: Any) -> str:
    """What a request asks for, on one line: the computation and its arguments, whatever the server wrote there.

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
    """Refuse, on the server, an unknown computation that would only fail on every node with a poorer message."""
    if name_of(computation).startswith("?"):
        raise EngineError(
            f"{type(computation).__name__} is made inside a function: nodes could not know it; define it in a module"
        )


def name_of(computation: Computation) -> str:
    """The name by which both sides know it; one made inside a function has none."""
    known = computation.known_as()
    return f"?{known}" if "<locals>" in known else known


def rebuilt(about: Mapping[str, Any], own: Sequence[Computation]) -> Computation:
    """The computation that was asked for: one that the owner supplied, or one from the list."""
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
        made = _known(KNOWN, str(name))(**{key: _read(value, 0) for key, value in wanted.items()})
    except (KeyError, TypeError, AttributeError):
        raise Unreadable("not a computation") from None
    if not isinstance(made, Computation) or made.version != version:
        raise Unreadable("a computation of another version")
    return made


def differences(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> str:
    """What the owner's computation and the one asked for differ in, the first few; "" where they agree."""
    here, there = ({**about["parameters"], **about["theirs"]} for about in (mine, theirs))
    sides = [_leaves(here), _leaves(there)]
    names = [name for name in dict.fromkeys([*sides[0], *sides[1]]) if sides[0].get(name) != sides[1].get(name)]
    said = [f"{name} is {_shown(sides[0], name)} on the node, {_shown(sides[1], name)} at the server" for name in names]
    return "; ".join(said[:3]) + (f"; and {len(said) - 3} more" if len(said) > 3 else "")


def _leaves(settings: Mapping[str, Any]) -> dict[str, str]:
    """Settings by their own names: lr, not local.lr, unless two arguments have one."""
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
    """Told apart by it, where their short forms are alike."""
    return f" {hashlib.sha256(repr(value).encode()).hexdigest()[:8]}" if isinstance(value, Mapping) else ""


def _shown(side: Mapping[str, str], name: str) -> str:
    return side.get(name, "not there")[:60]


def _known(listed: Mapping[str, str], name: str) -> Any:
    if name not in listed:
        raise Unreadable("a computation that is not on the list")
    module, _, kind = listed[name].partition(":")
    return getattr(import_module(module), kind)


def _part_name(value: Any) -> str | None:
    """How a part is called that may cross, None for others."""
    path = f"{type(value).__module__}:{type(value).__qualname__}"
    return next((name for name, listed in _PARTS.items() if listed == path), None)


def _written(value: Any) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return {"tuple" if isinstance(value, tuple) else "list": [_written(v) for v in value]}
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufU":
        return {"array": [value.dtype.str, list(value.shape), base64.b64encode(value.tobytes()).decode()]}
    part = _part_name(value)
    if part is not None and is_dataclass(value):
        return {"part": part, "fields": {f.name: _written(getattr(value, f.name)) for f in fields(value)}}
    if isinstance(value, Computation) and value.known_as() in KNOWN:
        about = described(value)
        if not about["theirs"]:
            return {"computation": about}
    raise TypeError


def _read(value: Any, depth: int) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if depth > _DEEPEST or not isinstance(value, dict):
        raise Unreadable("an argument that is neither a number nor a text nor an array")
    if "array" in value:
        return _read_array(value["array"])
    if "tuple" in value or "list" in value:
        items = [_read(v, depth + 1) for v in value["tuple" if "tuple" in value else "list"]]
        return tuple(items) if "tuple" in value else items
    if "part" in value:
        return _known(_PARTS, str(value["part"]))(**{k: _read(v, depth + 1) for k, v in value["fields"].items()})
    if "computation" in value and not value["computation"]["theirs"]:
        return rebuilt(value["computation"], ())
    raise Unreadable("an argument that is neither a number nor a text nor an array")


def _read_array(value: Any) -> Any:
    try:
        dtype, shape, text = value
        numbers = base64.b64decode(text, validate=True)
        if np.dtype(dtype).kind not in "biufU" or any(not isinstance(n, int) or n < 0 for n in shape):
            raise ValueError
        return np.frombuffer(numbers, dtype).reshape(shape).copy()
    except (ValueError, TypeError, binascii.Error):
        raise Unreadable("an array whose size and shape disagree") from None


# -- releases ----------------------------------------------------------------------------------------------------------


def release_written(release: Release | None) -> dict[str, Any] | None:
    """A release as JSON. Its key is never part of it: the key of central noise is the server's secret."""
    if release is None:
        return None
    mechanism = release.privacy
    about = {f.name: getattr(mechanism, f.name) for f in fields(mechanism) if f.name != "noise_seed"}
    if isinstance(mechanism.clip, AdaptiveClip):
        about["clip"] = {f.name: getattr(mechanism.clip, f.name) for f in fields(AdaptiveClip)}
    about["scales"] = dict(mechanism.scales)
    return {
        "mechanism": type(mechanism).__name__,
        "privacy": about,
        "clip": float(release.clip),
        "counted": release.counted,
        "min_clients": release.min_clients,
    }


def release_read(
    about: Mapping[str, Any] | None, key: bytes, computation: Computation, state: Arrays, clients: Federation
) -> Release | None:
    """The release, with the node's own key and, from the types of its columns, its own bound on what a row changes."""
    if about is None:
        return None
    try:
        given = dict(about["privacy"])
        if isinstance(given["clip"], dict):
            given["clip"] = AdaptiveClip(**given["clip"])
        privacy = _MECHANISMS[about["mechanism"]](**given)
        bound = computation.row_bound(state, privacy.norm, clients) if privacy.unit == "row" else None
        clip, counted, number = about["clip"], about["counted"], about["min_clients"]
        if not (isinstance(clip, float) and 0 < clip < np.inf and isinstance(counted, bool) and int(number) >= 1):
            raise Unreadable("a clip or a number of clients that cannot be")
        return Release(privacy, clip, key, counted, int(number), bound)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise Unreadable("not a mechanism of privacy") from None


def flat(kept: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    """Ragged arrays as plain ones."""
    for name, ragged in kept.items():
        yield f"{prefix}{name}/flat", ragged.flat
        yield f"{prefix}{name}/offsets", ragged.offsets

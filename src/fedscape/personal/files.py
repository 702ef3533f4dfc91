"""A trained model in one file, complete enough to rebuild it: method, network, inputs, and the clients' kept arrays."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from typing import Any

import torch

from fedscape.core import checkpoint, codec
from fedscape.errors import CheckpointError, DataError, FedscapeError
from fedscape.learning import losses, models
from fedscape.learning.adapters import Adapted, adapters_of, frozen_arrays
from fedscape.learning.evaluation import model_arrays
from fedscape.learning.inputs import Inputs, as_it_is
from fedscape.learning.layers import Module
from fedscape.learning.local import LocalSGD
from fedscape.learning.run import MODELS
from fedscape.mixtures.gaussian import covariances as forms
from fedscape.mixtures.gaussian.model import GaussianMixture
from fedscape.personal.clustered import ClusteredFL
from fedscape.personal.fedala import FedALA
from fedscape.personal.fedbabu import FedBABU
from fedscape.personal.fedbn import FedBN
from fedscape.personal.feddbe import FedDBE, with_shift
from fedscape.personal.fedem import IFCA, FedEM
from fedscape.personal.fedgmm import FedGMM
from fedscape.personal.fedper import FedPer
from fedscape.personal.fedrep import FedRep
from fedscape.personal.gpfl import GPFL, with_valve
from fedscape.personal.methods import Common
from fedscape.personal.own_models import Ditto, LocalOnly, PFedMe
from fedscape.personal.personalised import Personalised
from fedscape.personal.pfedfda import PFedFDA
from fedscape.types import Array

#: Rebuilds a method from its local training, its settings as stored in a file, and the arrays of its state.
Maker = Callable[[LocalSGD, Mapping[str, Any], Mapping[str, Array]], Any]

LOSSES = ("cross_entropy", "logistic")
TRAINING = ("lr", "epochs", "steps", "batch_size", "momentum", "weight_decay", "proximal", "optimiser")
#: Arguments of a method, beside local training, that matter once it is trained.
SETTINGS: dict[str, tuple[str, ...]] = {
    "Common": (),
    "LocalOnly": ("initial",),
    "ClusteredFL": ("n_clusters", "projection", "small", "large", "wait"),
    "IFCA": ("n_learners",),
    "PFedMe": ("strength", "pull", "repeats"),
    "FedEM": ("n_learners", "weighting"),
    "FedGMM": ("n_learners", "coupling", "warm"),
    "Ditto": ("strength",),
    "FedRep": ("head",),
    "FedPer": ("head",),
    "FedBN": (),
    "FedBABU": ("head",),
    "FedALA": ("layers", "rate", "sample", "warm_up"),
    "FedDBE": ("kappa", "momentum"),
    "PFedFDA": ("ridge",),
    "GPFL": ("magnitude", "decay"),
}
_STACKED = ("ClusteredFL", "IFCA", "FedEM", "FedGMM")  # several models, stacked
#: How a method wraps the network that its file names.
_WRAPS: dict[str, Callable[[Module], Module]] = {"FedDBE": with_shift, "GPFL": with_valve}
_WRITTEN = {"arguments", "features", "target", "training", "settings"}


def save_personal(
    path: str | os.PathLike[str],
    model: Personalised,
    *,
    architecture: str,
    arguments: Mapping[str, Any],
    inputs: Inputs | None = None,
    name: str | None = None,
) -> None:
    """Write a model with the clients' kept arrays; `load_personal` needs only this file.

    Parameters
    ----------
    path
        The file; readable by its owner alone.
    model
        The trained model.
    architecture, arguments
        A name in `fedscape.learning.models` and its arguments, by name; they must give the parameters of the model.
    inputs
        Turns a table into the model's inputs; by default the column of features is used unchanged.
    name
        The name of the method, such as "fedavg+", if the class does not determine it.

    >>> import tempfile
    >>> import numpy as np
    >>> from fedscape.core.federation import Federation
    >>> from fedscape.learning import cross_entropy
    >>> from fedscape.methods import train
    >>> fed = Federation({"x": np.eye(4), "y": [0, 1, 1, 0]}, [0, 2, 4])
    >>> step = LocalSGD(models.linear(4, 2), cross_entropy, lr=1.0, epochs=1, batch_size=2)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     model = train("fedem", step, fed, n_rounds=1)
    ...     save_personal(folder + "/m", model, architecture="linear", arguments={"n_features": 4, "n_classes": 2})
    ...     type(load_personal(folder + "/m").method).__name__
    'FedEM'
    """
    write_model(path, model, about_model(model, architecture, arguments, inputs, name))


def about_model(
    model: Personalised,
    architecture: str,
    arguments: Mapping[str, Any],
    inputs: Inputs | None,
    name: str | None,
    *,
    settings: Mapping[str, tuple[str, ...]] = SETTINGS,
    wrap: Callable[[Module], Module] | None = None,
) -> dict[str, Any]:
    """The header of a model file; refuse a model that could not be rebuilt from it.

    `wrap` is how the method wraps the network, for instance with branches.
    """
    method, local = model.method, model.method.local
    kind = type(method).__name__
    if kind not in settings or architecture not in MODELS:
        raise DataError(
            f"only {', '.join(settings)} of {', '.join(MODELS)} can be made again from a file, not {kind} of "
            f"{architecture!r}"
        )
    if local.loss not in [getattr(losses, loss) for loss in LOSSES]:
        loss = getattr(local.loss, "__name__", type(local.loss).__name__)
        raise DataError(
            f"loss must be {' or '.join(LOSSES)} of fedscape.learning to be made again from a file, not {loss!r}: "
            "Personalised.save writes the arrays alone"
        )
    plain, adapters = _json_arguments(arguments), adapters_of(local.model)
    wrap = _with_adapters(adapters, wrap or _WRAPS.get(kind))
    _rebuilt(architecture, plain, model.state, frozen_arrays(local.model), wrap, stacked=kind in _STACKED)
    reader = inputs or as_it_is(local.features, local.target, model.names or ())
    about: dict[str, Any] = {"architecture": architecture, "arguments": plain, "loss": local.loss.__name__}
    about |= {"features": local.features, "target": local.target, "inputs": reader.to_json(), "name": name}
    about["training"] = {setting: getattr(local, setting) for setting in TRAINING}
    about["settings"] = {setting: codec.plain(getattr(method, setting)) for setting in settings[kind]}
    about |= {} if adapters is None else {"adapters": adapters}
    if isinstance(method, FedGMM):
        about["settings"]["gaussian"] = {
            "column": method.mixture.column,
            "covariance": type(method.mixture.covariance).__name__,
            "bound": method.mixture.bound,
            "regularisation": method.mixture.regularisation,
        }
    return about


def write_model(path: str | os.PathLike[str], model: Personalised, about: Mapping[str, Any]) -> None:
    """Write the file."""
    model.save(path, about=about)


def load_personal(path: str | os.PathLike[str]) -> Personalised:
    """Read a file of `save_personal`; refuse any other."""
    return read_model(path)[0]


def read_model(
    path: str | os.PathLike[str],
    *,
    makers: Mapping[str, Maker] | None = None,
    wraps: Callable[[Mapping[str, Any]], Callable[[Module], Module] | None] | None = None,
) -> tuple[Personalised, dict[str, Any]]:
    """The model of a file and its header; refuse torn, damaged and foreign files in one line."""
    try:
        return _loaded(path, MAKERS if makers is None else makers, wraps)
    except FedscapeError:
        raise
    except (KeyError, TypeError, AttributeError, ValueError, IndexError) as error:
        why = f"{type(error).__name__}: {error}".split("\n", 1)[0]
        raise CheckpointError(f"{os.fspath(path)} is damaged: it says what no file of this kind says ({why})") from None


def _loaded(path: str | os.PathLike[str], makers: Mapping[str, Maker], wraps: Any) -> tuple[Personalised, Any]:
    arrays, header = checkpoint.read(path)
    about = header.get("about", {})
    complete = about.get("architecture") in MODELS and about.get("loss") in LOSSES and set(about) >= _WRITTEN
    if header.get("kind") != "personal" or not complete or header["method"] not in makers:
        raise CheckpointError(f"{os.fspath(path)} is no personalised model that can be made again from its file alone")
    state, fixed = codec.prefixed(arrays, "state/"), codec.prefixed(arrays, "fixed/")
    wrap = (None if wraps is None else wraps(about)) or _WRAPS.get(header["method"])
    wrap = _with_adapters(about.get("adapters"), wrap)
    try:
        stacked = header["method"] in _STACKED
        network = _rebuilt(about["architecture"], about["arguments"], state, fixed, wrap, stacked=stacked)
    except DataError as error:
        raise CheckpointError(f"{os.fspath(path)} cannot be made again: {error}") from None
    training = {name: about["training"][name] for name in TRAINING}
    columns = {"features": about["features"], "target": about["target"]}
    try:
        local = LocalSGD(network, getattr(losses, about["loss"]), **training, **columns)
        method = makers[header["method"]](local, about["settings"], state)
    except DataError as error:
        raise CheckpointError(f"{os.fspath(path)} cannot be made again: {error}") from None
    model = Personalised.load(path, method)
    for name, ragged in model.kept.items():
        if len(ragged.offsets) != len(model.ids) + 1 or ragged.offsets[-1] != len(ragged.flat):
            raise CheckpointError(f"{os.fspath(path)} is damaged: {name!r} is not for its {len(model.ids):,} clients")
    return model, about


def with_settings(kind: Callable[..., Any]) -> Maker:
    """A maker that needs only the settings."""

    def make(local: LocalSGD, settings: Mapping[str, Any], state: Mapping[str, Array]) -> Any:
        return kind(local, **{n: tuple(v) if isinstance(v, list) else v for n, v in settings.items()})

    return make


def _make_fedgmm(local: LocalSGD, settings: Mapping[str, Any], state: Mapping[str, Array]) -> FedGMM:
    own = dict(settings)
    gaussian = own.pop("gaussian")
    form = gaussian["covariance"]
    if form not in ("Full", "Diagonal", "Spherical", "Tied"):
        raise DataError(f"it names the covariance {form!r}, which is unknown")
    means = state["means"]
    mixture = GaussianMixture(
        len(means),
        covariance=getattr(forms, form)(),
        regularisation=gaussian["regularisation"],
        bound=gaussian["bound"],
        column=gaussian["column"],
        n_features=means.shape[1],
    )
    mixture.weights_, mixture.means_ = state["weights"].sum(axis=1), means
    mixture.covariances_ = state["covariances"]
    return FedGMM(local, mixture, **own)


def _make_local(local: LocalSGD, settings: Mapping[str, Any], state: Mapping[str, Array]) -> LocalOnly:
    return LocalOnly(local, **{"initial": "seed", **settings})  # older files lack it: then newcomers get no model


_KINDS = (
    Common, ClusteredFL, IFCA, PFedMe, FedEM, Ditto, FedRep, FedPer, FedBN, FedBABU, FedALA, FedDBE, PFedFDA, GPFL,
)  # fmt: skip
MAKERS: dict[str, Maker] = {
    **{kind.__name__: with_settings(kind) for kind in _KINDS},
    "FedGMM": _make_fedgmm,
    "LocalOnly": _make_local,
}


def _with_adapters(
    adapters: Mapping[str, Any] | None, wrap: Callable[[Module], Module] | None
) -> Callable[[Module], Module] | None:
    """Wrap a network by adapters, if there are any, and then as its method does."""
    if adapters is None:
        return wrap

    def both(network: Module) -> Module:
        adapted = Adapted(network, **adapters)
        return adapted if wrap is None else wrap(adapted)

    return both


def _json_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments after a round trip through JSON."""
    if not isinstance(arguments, Mapping):
        raise DataError(f"arguments must be a mapping of names to values, not a {type(arguments).__name__}")
    try:
        plain: dict[str, Any] = json.loads(json.dumps(dict(arguments)))
    except (TypeError, ValueError) as error:
        raise DataError(f"arguments must be what JSON can say: {error}; make it plain numbers") from None
    return plain


def _rebuilt(
    architecture: str,
    arguments: Mapping[str, Any],
    state: Mapping[str, Array],
    fixed: Mapping[str, Array],
    wrap: Callable[[Module], Module] | None,
    *,
    stacked: bool,
) -> Module:
    """Build the network of this name with these arguments; its parameters must match the state and the frozen ones."""
    plain = {n: tuple(v) if isinstance(v, list) else v for n, v in arguments.items()}
    try:
        network = getattr(models, architecture)(**plain)
        network = network if wrap is None else wrap(network)
    except (TypeError, ValueError, RuntimeError, LookupError, ArithmeticError, DataError) as error:
        why = str(error).split("\n", 1)[0]
        raise DataError(f"arguments must make a {architecture}, but {dict(arguments)} does not: {why}") from None
    built = {n: (tuple(p.shape), str(p.dtype).removeprefix("torch.")) for n, p in network.named_parameters()}
    have = {n: (v.shape[1:] if stacked else v.shape, v.dtype.name) for n, v in model_arrays(state).items()}
    have |= {n: (v.shape, v.dtype.name) for n, v in fixed.items()}
    for name in [*have, *built]:
        if built.get(name) != have.get(name):
            one, other = (_described(side.get(name)) for side in (built, have))
            raise DataError(
                f"arguments must make the model that was trained: {architecture} of {dict(arguments)} has {one} as "
                f"parameter {name!r}, the model has {other}"
            )
    with torch.no_grad():
        for name, values in fixed.items():
            network.get_parameter(name).copy_(torch.tensor(values)).requires_grad_(False)
    return network


def _described(parameter: tuple[tuple[int, ...], str] | None) -> str:
    return "nothing" if parameter is None else f"{parameter[1]}{list(parameter[0])}"

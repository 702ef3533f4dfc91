"""A personalised model in one file that says how it is made again, and what the commands do with it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from fedscape import checkpoint
from fedscape.errors import CheckpointError, DataError, FedscapeError
from fedscape.federation import Federation
from fedscape.learning import losses, models
from fedscape.learning.evaluation import model_arrays
from fedscape.learning.layers import Module
from fedscape.learning.local import LocalSGD
from fedscape.learning.running import MODELS, with_features, with_labels
from fedscape.mixtures import _gm_covariances as forms
from fedscape.mixtures.gaussian import GaussianMixture
from fedscape.personal.fedem import IFCA, FedEM
from fedscape.personal.fedgmm import FedGMM
from fedscape.personal.novelty import Alarm, Novelty
from fedscape.personal.personalised import Personalised
from fedscape.random import Array

_LOSSES = ("cross_entropy", "logistic")
_WRITTEN = {"arguments", "features", "target", "learners"}


def save_personal(
    path: str | os.PathLike[str], model: Personalised, *, architecture: str, arguments: Mapping[str, Any]
) -> None:
    """Write a FedGMM, FedEM or IFCA with what clients keep, so that `load_personal` needs nothing but the file.

    Parameters
    ----------
    path
        The file; readable by its owner alone.
    model
        What was trained.
    architecture, arguments
        A name in `fedscape.learning.models` and its arguments, by name; they must give the parameters that the model
        has.

    >>> import tempfile
    >>> from fedscape.learning import cross_entropy
    >>> from fedscape.personal import train
    >>> fed = Federation({"x": np.eye(4), "y": [0, 1, 1, 0]}, [0, 2, 4])
    >>> step = LocalSGD(models.linear(4, 2), cross_entropy, lr=1.0, epochs=1, batch_size=2)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     model = train("fedem", step, fed, n_rounds=1)
    ...     save_personal(folder + "/m", model, architecture="linear", arguments={"n_features": 4, "n_classes": 2})
    ...     type(load_personal(folder + "/m").method).__name__
    'FedEM'
    """
    method, local = model.method, model.method.local
    if type(method) not in (FedGMM, FedEM, IFCA) or architecture not in MODELS:
        raise DataError(
            f"only FedGMM, FedEM and IFCA of {', '.join(MODELS)} can be made again from a file, "
            f"not {type(method).__name__} of {architecture!r}"
        )
    if local.loss not in [getattr(losses, name) for name in _LOSSES]:
        loss = getattr(local.loss, "__name__", type(local.loss).__name__)
        raise DataError(
            f"loss must be {' or '.join(_LOSSES)} of fedscape.learning to be made again from a file, not {loss!r}: "
            "Personalised.save writes the arrays alone"
        )
    given = _json_arguments(arguments)
    _rebuilt(architecture, given, model.state)
    about: dict[str, Any] = {"architecture": architecture, "arguments": given, "loss": local.loss.__name__}
    about |= {"features": local.features, "target": local.target, "learners": method.n_learners}
    if isinstance(method, FedGMM):
        about["gaussian"] = {
            "column": method.mixture.column,
            "covariance": type(method.mixture.covariance).__name__,
            "bound": method.mixture.bound,
            "regularisation": method.mixture.regularisation,
        }
    model.save(path, about=about)


def load_personal(path: str | os.PathLike[str]) -> Personalised:
    """Read what `save_personal` wrote; anything else is refused."""
    try:
        return _loaded(path)
    except FedscapeError:
        raise
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        why = f"{type(error).__name__}: {error}".split("\n", 1)[0]
        raise CheckpointError(f"{os.fspath(path)} is damaged: it says what no file of this kind says ({why})") from None


def _loaded(path: str | os.PathLike[str]) -> Personalised:
    arrays, header = checkpoint.read(path)
    about = header.get("about", {})
    known = about.get("architecture") in MODELS and about.get("loss") in _LOSSES and set(about) >= _WRITTEN
    if header.get("kind") != "personal" or not known:
        raise CheckpointError(f"{os.fspath(path)} is no personalised model that can be made again from its file alone")
    state = {n.removeprefix("state/"): v for n, v in arrays.items() if n.startswith("state/")}
    try:
        network = _rebuilt(about["architecture"], about["arguments"], state)
    except DataError as error:
        raise CheckpointError(f"{os.fspath(path)} cannot be made again: {error}") from None
    local = LocalSGD(
        network,
        getattr(losses, about["loss"]),
        lr=0.0,
        epochs=1,
        batch_size=1,
        features=about["features"],
        target=about["target"],
    )
    kinds = {"FedEM": FedEM, "IFCA": IFCA}
    if header["method"] in kinds:
        return Personalised.load(path, kinds[header["method"]](local, about["learners"]))
    weights, means = arrays["state/weights"], arrays["state/means"]
    gaussian = about["gaussian"]
    form = gaussian["covariance"]
    if form not in ("Full", "Diagonal", "Spherical", "Tied"):
        raise CheckpointError(f"{os.fspath(path)} names the covariance {form!r}, which there is not")
    mixture = GaussianMixture(
        len(means),
        covariance=getattr(forms, form)(),
        regularisation=gaussian["regularisation"],
        bound=gaussian["bound"],
        column=gaussian["column"],
        n_features=means.shape[1],
    )
    mixture.weights_, mixture.means_, mixture.covariances_ = weights.sum(axis=1), means, arrays["state/covariances"]
    return Personalised.load(path, FedGMM(local, mixture, about["learners"]))


def _json_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments as a file gives them back."""
    if not isinstance(arguments, Mapping):
        raise DataError(f"arguments must be a mapping of names to values, not a {type(arguments).__name__}")
    try:
        made: dict[str, Any] = json.loads(json.dumps(dict(arguments)))
    except (TypeError, ValueError) as error:
        raise DataError(f"arguments must be what JSON can say: {error}; make it plain numbers") from None
    return made


def _rebuilt(architecture: str, arguments: Mapping[str, Any], state: Mapping[str, Array]) -> Module:
    """The network of this name and these arguments, whose parameters must be those that the state holds of learners."""
    given = {n: tuple(v) if isinstance(v, list) else v for n, v in arguments.items()}
    try:
        network = getattr(models, architecture)(**given)
    except (TypeError, ValueError, RuntimeError, LookupError, ArithmeticError, DataError) as error:
        why = str(error).split("\n", 1)[0]
        raise DataError(f"arguments must make a {architecture}, but {dict(arguments)} does not: {why}") from None
    made = {n: (tuple(p.shape), str(p.dtype).removeprefix("torch.")) for n, p in network.named_parameters()}
    have = {n: (v.shape[1:], v.dtype.name) for n, v in model_arrays(state).items()}
    for name in [*have, *made]:
        if made.get(name) != have.get(name):
            one, other = (_said(found.get(name)) for found in (made, have))
            raise DataError(
                f"arguments must make the model that was trained: {architecture} of {dict(arguments)} has {one} as "
                f"parameter {name!r}, the model has {other}"
            )
    return network


def _said(found: tuple[tuple[int, ...], str] | None) -> str:
    return "nothing" if found is None else f"{found[1]}{list(found[0])}"


def _readable(data: Federation, local: LocalSGD) -> Federation:
    """The rows as `fedscape train` reads them: a single number a row is a column of one, rows without a label go."""
    if local.features in data and data[local.features].ndim == 1:
        data = with_features(data, [local.features])
    return with_labels(data, local.target)[0] if local.target in data else data


def adapt_file(path: str | os.PathLike[str], data: Federation, *, out: str | os.PathLike[str] | None = None) -> Any:
    """Learn new clients' shares, and say what it cost and brought; with `out`, write the model that knows them."""
    model = load_personal(path)
    local = model.method.local
    data = _readable(data, local)
    adapted = model.adapt(data)
    about: dict[str, Any] = {
        "method": type(model.method).__name__,
        "clients": len(data),
        "labelled": local.target in data,
        "numbers_per_client": int(adapted.cost["numbers_per_client"]),
        "seconds": float(adapted.cost["seconds"]),
    }
    if local.target in data:
        for name, made in (("before", model), ("after", adapted)):
            about[f"accuracy_{name}"] = made.evaluate(data).summary().get("accuracy_of_clients")
    if out is not None:
        adapted.save(out, about=checkpoint.read(path)[1]["about"])
    return about


def novelty_of_file(
    path: str | os.PathLike[str], known: Federation, data: Federation, *, score: str = "log_prob_x", rate: float = 0.05
) -> dict[str, Any]:
    """Which rows and clients of `data` are new, at a rate of false alarms calibrated on `known` rows.

    The known rows should not be those the model was trained on; they set the threshold. For typicality half of each
    client's rows find the median and only the others set the threshold: a row that moved the median is no row like a
    new one.
    """
    model = load_personal(path)
    known, data = (_readable(part, model.method.local) for part in (known, data))
    middle, rest = known.split(test=0.5) if score == "typicality" else (known, known)
    novelty = Novelty(model, score).fitted(middle)
    alarm = Alarm.calibrated(novelty.rows(rest), rate=rate)
    rows, clients = novelty.rows(data), novelty.clients(data)
    raised = alarm.raised(rows)
    order = np.argsort(-np.nan_to_num(clients, nan=-np.inf), kind="stable")[:10]
    return {
        "score": score,
        "rate": rate,
        "calibrated_on_rows": alarm.n,
        "threshold": alarm.threshold,
        "rows": len(rows),
        "new_rows": int(raised.sum()),
        "share_new": float(raised.mean()) if len(rows) else 0.0,
        "clients": [_client(data, raised, clients, int(i)) for i in order],
    }


def _client(data: Federation, raised: Array, clients: Array, i: int) -> dict[str, Any]:
    mine = raised[data.offsets[i] : data.offsets[i + 1]]
    some = len(mine) > 0
    return {
        "client": str(data.ids[i]),
        "rows": len(mine),
        "score": float(clients[i]) if some else None,
        "share_new": float(mine.mean()) if some else None,
    }

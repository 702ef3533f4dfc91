"""A trained model for other programs: a torch program (.pt2), ONNX, or a scikit-learn pipeline, preprocessing included.

A program takes one number per column of the table: NaN for a missing value, and for a category its index in
`categories` (-1 for any other). If the features are one column of arrays, it takes those arrays. It returns the
probability of each class. Columns, categories and classes are stored in the file as JSON.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import nn

from fedscape.core.checkpoint import replace_file
from fedscape.core.federation import Federation
from fedscape.core.kept import kept_rows
from fedscape.errors import DataError, require
from fedscape.learning.adapters import merged
from fedscape.learning.evaluation import model_arrays
from fedscape.learning.export import module_of
from fedscape.learning.inputs import Feature, Inputs
from fedscape.learning.layers import Module, ShiftedLinear
from fedscape.personal.clustered import ClusteredFL
from fedscape.personal.fedala import FedALA
from fedscape.personal.fedem import IFCA, FedEM
from fedscape.personal.fedper import FedPer
from fedscape.personal.methods import Common
from fedscape.personal.own_models import Ditto, LocalOnly, PFedMe
from fedscape.trained.model import Trained, load_network
from fedscape.types import Array

FORMS = ("onnx", "torch", "sklearn")
_LAYERS = "fedscape layers 1"


def networks_of(trained: Trained, *, client: str | None = None) -> list[tuple[float, Module]]:
    """The networks that predict for a client, each with its share; without a client, those of a new client.

    A method that chooses its network row by row is refused: use `predict`.
    """
    model, method = trained.model, trained.model.method
    whose = _chosen(trained, client)
    state, local = model.ready(), method.local
    if type(method) in (FedEM, IFCA):
        shares = kept_rows(whose, "shares", state["weights"])[0]
        parts = {n: np.asarray(p) for n, p in model_arrays(state).items()}
        return [(float(w), _network(local.model, {n: p[m] for n, p in parts.items()})) for m, w in enumerate(shares)]
    if isinstance(method, ClusteredFL):
        cluster = int(method._cluster(state, whose)[0])
        return [(1.0, _network(local.model, {n: np.asarray(p)[cluster] for n, p in model_arrays(state).items()}))]
    if isinstance(method, LocalOnly | Ditto | PFedMe | FedPer | FedALA):
        own = {n: kept_rows(whose, f"model.{n}", np.asarray(p))[0] for n, p in model_arrays(state).items()}
        return [(1.0, _network(local.model, own))]
    if isinstance(method, Common):
        return [(1.0, _network(local.model, model_arrays(state)))]
    raise DataError(f"{trained.method} chooses its network row by row, which no export has: use 'fedscape predict'")


def _chosen(trained: Trained, client: str | None) -> Federation:
    """The client without its rows, with the arrays it keeps."""
    ids = trained.model.ids
    if client is None:
        if trained.newcomers is None:
            raise DataError(f"{trained.method} has a model for each client alone: name one with --for (client=)")
        return Federation({}, [0, 0], ids=["a new client"])
    matches = [i for i, name in enumerate(ids.tolist()) if str(name) == str(client)]
    if not matches:
        raise DataError(f"the model knows no client {client!r}; it knows {len(ids):,}, such as {ids[:3].tolist()}")
    return trained.model.with_kept(Federation({}, [0, 0], ids=ids[matches]))


def _network(model: Module, params: Mapping[str, Array]) -> Module:
    """The network with these parameters; adapters are merged into their layers."""
    return merged(module_of(model, {f"model.{n}": p for n, p in params.items()})).eval()


class Program(nn.Module):  # type: ignore[misc]
    """Columns in, probabilities out: fills, scales and indicators, then the networks mixed by their shares.

    >>> inputs = Inputs((Feature("a", "number", shape=(1,), fill=(3.0,)),), "y", ("no", "yes"))
    >>> Program(inputs, [(1.0, nn.Linear(1, 2))])(torch.tensor([[float("nan")]])).shape
    torch.Size([1, 2])
    """

    def __init__(self, inputs: Inputs, networks: list[tuple[float, Module]]) -> None:
        super().__init__()
        self.networks = nn.ModuleList([network for _, network in networks])
        self.register_buffer("shares", torch.tensor([share for share, _ in networks], dtype=torch.float32))
        self.as_stored, self.shape = inputs.as_stored, inputs.shape
        self.cuts = any(each.low is not None for each in inputs.features)
        self.unit = 255.0 if inputs.as_stored and inputs.features[0].dtype == "uint8" else 1.0
        if not self.as_stored:
            for name, values in _tables(inputs).items():
                self.register_buffer(name, torch.tensor(values))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Probabilities [rows, classes] for rows of columns, or for arrays."""
        if not self.as_stored:
            x = torch.where(torch.isnan(x), self.fill, x).index_select(1, self.source)
            number = torch.minimum(torch.maximum(x, self.low), self.high) if self.cuts else x
            x = torch.where(self.codes >= 0, (x == self.codes).to(x.dtype), (number - self.mean) * self.factor)
        elif self.unit != 1.0:
            x = x / self.unit
        if self.shape is not None:
            x = x.reshape(x.shape[0], *self.shape)
        each = torch.stack([torch.softmax(network(x), dim=1) for network in self.networks])
        return torch.einsum("m,mrc->rc", self.shares, each)


def _tables(inputs: Inputs) -> dict[str, Array]:
    """The fill of each column; for each input its column, code (-1: a number), mean, 1 / scale and cuts."""
    fill: list[float] = []
    source: list[int] = []
    code: list[float] = []
    mean: list[float] = []
    factor: list[float] = []
    low: list[float] = []
    high: list[float] = []
    for each in inputs.features:
        width = 1 if each.kind == "category" else each.width
        fill += [-1.0] if each.kind == "category" else list(each.fill or [math.nan] * width)
        first = len(fill) - width
        source += [first] * each.width if each.kind == "category" else range(first, first + width)
        code += range(each.width) if each.kind == "category" else [-1.0] * width
        mean += list(each.mean or [0.0] * each.width)
        factor += [0.0 if s == 0 else 1 / s for s in each.scale] if each.scale else [1.0] * each.width
        low += list(each.low or [-math.inf] * each.width)
        high += list(each.high or [math.inf] * each.width)
    tables = {"fill": fill, "codes": code, "mean": mean, "factor": factor}
    if any(each.low is not None for each in inputs.features):
        tables |= {"low": low, "high": high}
    return {**{n: np.array(v, dtype=np.float32) for n, v in tables.items()}, "source": np.array(source, dtype=np.int64)}


def columns_for(inputs: Inputs, table: Federation) -> Array:
    """Rows of a table as input of a `Program`, float32 [rows, columns]; arrays are unchanged.

    >>> inputs = Inputs((Feature("job", "category", ("cook", "pilot")),), "y")
    >>> columns_for(inputs, Federation({"job": ["pilot", "baker"]}, [0, 2])).tolist()
    [[1.0], [-1.0]]
    """
    from fedscape.formats.kinds import as_codes
    from fedscape.learning.cells import numbers_in

    inputs.apply(table)  # refuses columns that do not fit
    if inputs.as_stored:
        values = table[inputs.features[0].name]
        return values if values.dtype.kind in "iu" and values.dtype != np.uint8 else values.astype(np.float32)
    parts = [
        as_codes(table[each.name], each.categories, table.names.get(each.name))[:, None]
        if each.kind == "category"
        else numbers_in(table, each.name)
        for each in inputs.features
    ]
    return np.concatenate(parts, axis=1, dtype=np.float32)


def export(path: str | os.PathLike[str], out: str | os.PathLike[str], *, to: str, client: str | None = None) -> Any:
    """Write a saved model for another program, atomically; return a description of the file.

    Parameters
    ----------
    path
        The folder of a run, or a model file.
    out
        The file to write.
    to
        "torch": a program of torch.export (.pt2), read by `torch.export.load`. "onnx": needs onnx and onnxscript.
        "sklearn": the layers of a linear model or MLP as JSON; `to_sklearn` builds a fitted Pipeline from it.
    client
        The client whose model is exported; by default the model of a new client.
    """
    if to not in FORMS:
        raise DataError(f"to must be one of {', '.join(FORMS)}, not {to!r}")
    trained = load_network(path)
    networks = networks_of(trained, client=client)
    about = {"method": trained.method, "client": client, "inputs": trained.inputs.to_json()}
    if to == "sklearn":
        content = json.dumps({"format": _LAYERS, **about, "layers": _layers(trained, networks)})
        replace_file(out, lambda file: file.write(content.encode()))
    else:
        program = Program(trained.inputs, networks).eval()
        write = _write_torch if to == "torch" else _write_onnx
        content = json.dumps(about)
        replace_file(out, lambda file: write(program, _example(trained), content, file))
    return {"out": os.fspath(out), "to": to, "method": trained.method, "client": client, "networks": len(networks)}


def _example(trained: Trained) -> torch.Tensor:
    inputs = trained.inputs
    if not inputs.as_stored:
        return torch.zeros(3, sum(1 if f.kind == "category" else f.width for f in inputs.features))
    if not inputs.features[0].shape:
        raise DataError("the inputs of this model were not saved: train it with 'fedscape train' to export")
    codes = np.dtype(inputs.features[0].dtype).kind in "iu" and inputs.features[0].dtype != "uint8"
    return torch.zeros(3, *inputs.features[0].shape, dtype=torch.int64 if codes else torch.float32)


def _write_torch(program: Program, x: torch.Tensor, about: str, file: IO[bytes]) -> None:
    with torch.no_grad():
        exported = torch.export.export(program, (x,), dynamic_shapes=({0: torch.export.Dim("rows")},))
    torch.export.save(exported, file, extra_files={"inputs.json": about})


def _write_onnx(program: Program, x: torch.Tensor, about: str, file: IO[bytes]) -> None:
    onnx = require("onnx", extra="onnx")
    require("onnxscript", extra="onnx")
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        where = Path(folder) / "model.onnx"
        how = {"input_names": ["columns"], "output_names": ["probabilities"], "verbose": False}
        rows = ({0: torch.export.Dim("rows")},)
        torch.onnx.export(program, (x,), where, dynamo=True, external_data=False, dynamic_shapes=rows, **how)
        graph = onnx.load(where)
        entry = graph.metadata_props.add()
        entry.key, entry.value = "fedscape", about
        file.write(graph.SerializeToString())


# -- scikit-learn ------------------------------------------------------------------------------------------------------


def _layers(trained: Trained, networks: list[tuple[float, Module]]) -> list[dict[str, Any]]:
    if len(networks) > 1 or trained.about["architecture"] not in ("linear", "mlp"):
        what = "a mixture of networks" if len(networks) > 1 else f"a {trained.about['architecture']}"
        raise DataError(
            f"scikit-learn has no model that is {what}: export to onnx or torch; a linear model or an mlp can be one"
        )
    arrays = [each.name for each in trained.inputs.features if each.kind == "array"]
    if arrays:
        raise DataError(
            f"scikit-learn reads one value a column, and {arrays[0]!r} holds arrays: export to onnx or torch"
        )
    linear = [layer for layer in networks[0][1].modules() if isinstance(layer, nn.Linear)]
    odd = next((type(layer).__name__ for layer in linear if type(layer) not in (nn.Linear, ShiftedLinear)), None)
    if odd is not None:
        raise DataError(f"scikit-learn has no layer like the {odd} of {trained.method}: export to onnx or torch")
    with torch.no_grad():  # at zero a layer gives its bias, a shift of its inputs included
        return [{"weight": f.weight.tolist(), "bias": f(f.weight.new_zeros(f.in_features)).tolist()} for f in linear]


def to_sklearn(path: str | os.PathLike[str], *, client: str | None = None) -> Any:
    """Build a fitted scikit-learn Pipeline from a linear model or MLP; it takes a DataFrame of the saved columns.

    Parameters
    ----------
    path
        The folder of a run, a model file, or a .json of `export(..., to="sklearn")`. Nothing is unpickled.
    client
        The client whose model is used; by default the model of a new client.
    """
    pipeline = require("sklearn.pipeline", extra="sklearn")
    if Path(path).suffix == ".json":
        inputs, layers = _read_layers(Path(path))
    else:
        trained = load_network(path)
        inputs, layers = trained.inputs, _layers(trained, networks_of(trained, client=client))
    first = _preprocessing(inputs)
    return pipeline.Pipeline([("inputs", first), ("model", _classifier(inputs, layers))])


def _read_layers(path: Path) -> tuple[Inputs, Any]:
    try:
        content = json.loads(path.read_text("utf-8"))
        if content["format"] != _LAYERS:
            raise ValueError(content["format"])
        return Inputs.from_json(content["inputs"]), content["layers"]
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError) as error:
        why = str(error).split("\n", 1)[0]
        raise DataError(f"{path} is no export for scikit-learn ({why}): write it with 'fedscape export'") from None


def _preprocessing(inputs: Inputs) -> Any:
    """Fills, scales and indicators: fitted on two made-up rows, then overwritten with the learned numbers."""
    compose, frame = require("sklearn.compose", extra="sklearn"), require("pandas", extra="sklearn").DataFrame
    steps = [(f"{i}", _step(each), [each.name]) for i, each in enumerate(inputs.features)]
    transformer = compose.ColumnTransformer(steps, verbose_feature_names_out=False)
    transformer.fit(frame({each.name: _made_up(each) for each in inputs.features}))
    for i, each in enumerate(inputs.features):
        if each.mean is not None and each.scale is not None:
            scaler = transformer.named_transformers_[f"{i}"][-1]
            scaler.mean_, scaler.scale_ = np.array(each.mean), np.array([s or np.inf for s in each.scale])
    return transformer


def _categories(each: Feature) -> list[Any]:
    """The categories with the types of the table: numbers if it had numbers."""
    return [float(text) for text in each.categories] if each.dtype != "str" else list(each.categories)


def _made_up(each: Feature) -> list[Any]:
    return [_categories(each)[0]] * 2 if each.kind == "category" else [0.0, 1.0]


def _step(each: Feature) -> Any:
    require("sklearn", extra="sklearn")
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import Pipeline
    from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler

    if each.kind == "category":
        return OneHotEncoder(categories=[_categories(each)], handle_unknown="ignore", sparse_output=False)
    steps: list[tuple[str, Any]] = []
    if each.fill is not None:
        steps.append(("fill", SimpleImputer(strategy="constant", fill_value=each.fill[0])))
    if each.low is not None and each.high is not None:
        ends = {"a_min": each.low[0], "a_max": each.high[0]}
        steps.append(("cut", FunctionTransformer(np.clip, kw_args=ends)))
    if each.mean is not None:
        steps.append(("scale", StandardScaler()))
    return Pipeline(steps) if steps else "passthrough"


def _classifier(inputs: Inputs, layers: list[dict[str, Any]]) -> Any:
    from sklearn.linear_model import LogisticRegression
    from sklearn.neural_network import MLPClassifier

    weights = [np.array(layer["weight"], dtype=np.float64).T for layer in layers]
    biases = [np.array(layer["bias"], dtype=np.float64) for layer in layers]
    names = np.array(inputs.classes)
    order = np.argsort(names)  # scikit-learn sorts the classes
    weights[-1], biases[-1] = weights[-1][:, order], biases[-1][order]
    if len(names) == 2:  # a binary classifier has one output: the difference of the logits
        weights[-1], biases[-1] = weights[-1][:, 1:] - weights[-1][:, :1], biases[-1][1:] - biases[-1][:1]
    if len(weights) == 1:
        classifier = LogisticRegression()
        classifier.classes_, classifier.coef_, classifier.intercept_ = names[order], weights[0].T, biases[0]
        classifier.n_features_in_, classifier.n_iter_ = inputs.width, np.zeros(1, dtype=np.int32)
        return classifier
    classifier = MLPClassifier(tuple(len(b) for b in biases[:-1]))
    classifier.partial_fit(np.zeros((len(names), inputs.width)), names[order], classes=names[order])
    classifier.coefs_, classifier.intercepts_ = weights, biases
    return classifier

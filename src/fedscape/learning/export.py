"""Trained weights as safetensors, and back: no pickle, nothing that executes."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedscape.core.checkpoint import replace_file
from fedscape.errors import DataError, require
from fedscape.learning.evaluation import model_arrays
from fedscape.learning.layers import Module
from fedscape.types import Array


def module_of(model: Module, state: Mapping[str, Array]) -> Module:
    """A copy of the model with the weights of a state, ready to predict.

    >>> model = torch.nn.Linear(2, 1, bias=False)
    >>> module_of(model, {"model.weight": np.ones((1, 2), "f4")})(torch.ones(1, 2)).tolist()
    [[2.0]]
    """
    twin = copy.deepcopy(model).eval()
    _put(twin, {n: torch.tensor(np.asarray(v)) for n, v in model_arrays(state).items()}, "the state")
    return twin


def save_model(
    path: str | os.PathLike[str],
    model: Module,
    state: Mapping[str, Array],
    *,
    about: Mapping[str, Any] | None = None,
    private: bool = False,
) -> None:
    """Write the model with the weights of a state as one safetensors file, whole or not at all.

    Parameters
    ----------
    path
        The file, `.safetensors`.
    model
        The model that was trained; parameters that were not, and buffers, are written too.
    state
        A state with `model.<parameter>` arrays.
    about
        Anything JSON can say; it is kept in the file's header.
    private
        Whether the file is for its owner alone, as those of a private run.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_model(folder + "/m.safetensors", torch.nn.Linear(2, 1), {"model.weight": np.ones((1, 2), "f4")})
    ...     load_model(folder + "/m.safetensors", torch.nn.Linear(2, 1)).weight.tolist()
    [[1.0, 1.0]]
    """
    pack = require("safetensors.torch", extra="learn").save
    tensors = {n: t.detach().cpu().contiguous().clone() for n, t in module_of(model, state).state_dict().items()}
    content = pack(tensors, metadata={"fedscape": json.dumps(dict(about or {}), sort_keys=True)})
    replace_file(path, lambda file: file.write(content), private=private)


def load_model(path: str | os.PathLike[str], model: Module) -> Module:
    """A copy of the model with the weights of a file of `save_model`; one of another model is refused."""
    unpack = require("safetensors.torch", extra="learn").load
    try:
        tensors = unpack(Path(path).read_bytes())
    except OSError as error:
        raise DataError(f"{os.fspath(path)} cannot be read: {error.strerror}") from None
    except Exception as error:  # the library's own error type is not public in all versions
        raise DataError(f"{os.fspath(path)} is no whole safetensors file: {error}") from None
    twin = copy.deepcopy(model).eval()
    missing = sorted(set(twin.state_dict()) - set(tensors))
    if missing:
        raise DataError(f"{os.fspath(path)} is of another model: it lacks {', '.join(missing[:3])}")
    _put(twin, tensors, os.fspath(path))
    return twin


def _put(module: Module, tensors: Mapping[str, Any], where: str) -> None:
    own = module.state_dict()
    for name, values in tensors.items():
        if name not in own or own[name].shape != values.shape:
            has = list(own[name].shape) if name in own else "no such parameter"
            raise DataError(f"{where} is of another model: {name!r} is {list(values.shape)}, the model has {has}")
    with torch.no_grad():
        for name, values in tensors.items():
            own[name].copy_(values)

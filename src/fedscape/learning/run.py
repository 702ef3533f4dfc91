"""From a federation to a trained model: the steps of the command line."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from fedscape.core.computation import Computation
from fedscape.core.engine import Engine
from fedscape.core.federation import Federation
from fedscape.core.progress import shown
from fedscape.core.rounds import Round, rounds
from fedscape.core.sampling import Sampler
from fedscape.errors import DataError
from fedscape.learning import models
from fedscape.learning.evaluation import Evaluation, evaluate
from fedscape.learning.layers import Module, Standardise
from fedscape.privacy.ledger import Ledger
from fedscape.privacy.mechanisms import Privacy
from fedscape.types import Arrays

MODELS = ("linear", "mlp", "cnn", "lenet5", "resnet18", "mobilenet_v2", "char_lstm", "transformer")
OF_CODES = ("char_lstm", "transformer")  # those that read sequences of codes


def with_features(federation: Federation, names: Sequence[str]) -> Federation:
    """Features as one column: the only one named, or several numeric columns joined as "x".

    >>> fed = Federation({"a": [1.0, 3.0], "b": [0, 4], "y": [0, 1]}, [0, 1, 2])
    >>> with_features(fed, ["a", "b"])["x"].tolist()
    [[1.0, 0.0], [3.0, 4.0]]
    """
    for name in names:
        if name in federation.names:
            raise DataError(f"the column {name!r} holds texts, not numbers: make indicator columns of it")
    if len(names) == 1 and federation[names[0]].ndim > 1:
        return federation
    columns = []
    for name in names:
        values = federation[name].astype(np.float64)
        if values.ndim != 1 or not np.isfinite(values).all():
            raise DataError(
                f"the column {name!r} must hold one finite number a row to be a feature: it has the shape "
                f"{list(values.shape[1:])} and {int((~np.isfinite(values)).sum()):,} missing values"
            )
        columns.append(values)
    table = np.stack(columns, axis=1).astype(np.float32)
    return federation.with_column("x" if len(names) > 1 else names[0], table)


def held_out(federation: Federation, *, test: float, seed: int = 0) -> tuple[Federation, Federation]:
    """Split the rows of each client into training and test rows; refuse a split without test rows.

    >>> [part.n_rows for part in held_out(Federation({"y": range(10)}, [0, 9, 10]), test=0.2)]
    [8, 2]
    """
    learners, rest = federation.split(test=test, seed=seed)
    if rest.n_rows == 0:
        most = int(federation.sizes.max(initial=0))
        raise DataError(
            f"no client has rows to test on: of a client's rows, {most:,} at most, a share of {test:g} is held out, "
            "never the only one; give clients more rows, or hold out a larger share"
        )
    return learners, rest


def standardising(model: Module, federation: Federation, column: str = "x") -> Module:
    """Put a layer in front of the model that standardises each input: subtract its mean, divide by its deviation.

    Images with a white background, or columns on different scales, need it: without it plain SGD on a linear model
    barely moves or diverges. Mean and deviation are exact values of these rows; no privacy budget covers them. They are
    buffers of the layer and are saved with the model. Constant inputs become 0.

    >>> fed = Federation({"x": [[1.0, 7.0], [3.0, 7.0]]}, [0, 1, 2])
    >>> standardising(torch.nn.Identity(), fed)(torch.tensor([[3.0, 7.0]])).tolist()
    [[1.0, 0.0]]
    """
    values = federation[column]
    if len(values) == 0:
        raise DataError(f"the column {column!r} has no rows to take a mean of")
    unit = 255.0 if values.dtype == np.uint8 else 1.0  # models get bytes scaled to 0..1
    mean, spread = (np.asarray(f(values, axis=0, dtype=np.float64)) / unit for f in (np.mean, np.std))
    scale = np.where(spread > 1e-9 * (np.abs(mean) + 1), spread, np.inf)
    return torch.nn.Sequential(Standardise(mean, scale), model)


def model_for(name: str, federation: Federation, *, features: str = "x", target: str = "y", seed: int = 0) -> Module:
    """A reference model that fits the columns: input shape from the features, classes from the target.

    >>> fed = Federation({"x": np.zeros((2, 28, 28), np.uint8), "y": [0, 9]}, [0, 2])
    >>> sum(p.numel() for p in model_for("lenet5", fed).parameters())
    61706
    """
    arguments = arguments_for(name, federation, features=features, target=target)
    return getattr(models, name)(**arguments, seed=seed)


def arguments_for(name: str, federation: Federation, *, features: str = "x", target: str = "y") -> dict[str, Any]:
    """The arguments of a reference model that fits the columns.

    >>> fed = Federation({"x": np.zeros((2, 28, 28), np.uint8), "y": [0, 9]}, [0, 2])
    >>> arguments_for("cnn", fed)
    {'shape': (1, 28, 28), 'n_classes': 10}
    """
    if name not in MODELS:
        raise DataError(f"model must be one of {', '.join(MODELS)}, not {name!r}")
    labels = federation[target]
    if labels.dtype.kind not in "biu" or labels.ndim != 1:
        missing = int(np.isnan(labels).sum()) if labels.dtype.kind == "f" else 0
        hint = f"; values that are missing: {missing:,}, fill them in or drop their rows" if missing else ""
        raise DataError(f"the column {target!r} must hold classes 0, 1, 2, ..., not {labels.dtype}{hint}")
    shape, n_classes = federation[features].shape[1:], max(2, federation.categories(target))
    if name in ("linear", "mlp"):
        return {"n_features": int(np.prod(shape)), "n_classes": n_classes}
    if name in OF_CODES:
        if federation[features].dtype.kind not in "iu" or len(shape) != 1:
            raise DataError(f"{name} reads rows of character codes, not {features!r} of shape {list(shape)}")
        n_codes = max(n_classes, int(federation[features].max(initial=0)) + 1)
        if name == "char_lstm":
            return {"n_characters": n_codes}
        return {"n_tokens": n_codes, "n_classes": n_classes, "length": shape[0]}
    if len(shape) == 2:
        shape = (1, *shape)
    elif len(shape) == 3 and shape[0] not in (1, 3) and shape[2] in (1, 3):
        shape = (shape[2], *shape[:2])
    if len(shape) != 3:
        raise DataError(f"{name} reads images, [H, W] or [H, W, channels], not {features!r} of shape {list(shape)}")
    return {"shape": shape, "n_classes": n_classes}


def training(
    method: Computation,
    engine: Engine | Federation,
    *,
    test: Federation | None,
    n_rounds: int,
    sampler: Sampler | None = None,
    seed: int = 0,
    every: int = 1,
    checkpoint: str | os.PathLike[str] | None = None,
    privacy: Privacy | None = None,
    ledger: Ledger | None = None,
    allow: Sequence[str] = (),
    judge: Callable[[Arrays, Federation], Evaluation] | None = None,
    done: Callable[[Arrays], bool] | None = None,
    progress: bool | None = False,
) -> Iterator[tuple[Round, Evaluation, list[dict[str, Any]]]]:
    """Train, and evaluate all clients every few rounds. Yield the round, the evaluation and the table so far.

    The one training loop of all methods: `fedscape.methods` builds methods by name, and their judges. A run with a
    checkpoint resumes from it and ends with the same bytes. Leaving the loop stops the run.

    Parameters
    ----------
    method
        The method to run.
    engine
        The engine that trains.
    test
        The clients' test rows; None skips evaluation.
    n_rounds
        Number of rounds.
    sampler, seed, privacy, ledger, allow
        As for `rounds`.
    every
        Evaluate, and save, every `every` rounds and after the last.
    checkpoint
        A file to save to and to resume from.
    judge
        Evaluates a state on the test rows; by default `evaluate` with the method's model and loss.
    done
        Whether a state has nothing left to learn: the run ends with it, before its last round.
    progress
        True shows a bar; None shows one on a terminal and prints a line a minute elsewhere.

    >>> from fedscape.learning import FedAvg, LocalSGD, cross_entropy
    >>> fed = Federation({"x": np.eye(4), "y": [0, 1, 0, 1]}, [0, 1, 4])
    >>> step = LocalSGD(models.linear(4, 2), cross_entropy, lr=1.0, epochs=1, batch_size=2)
    >>> [r.index for r, _, _ in training(FedAvg(step), fed, test=fed, n_rounds=5, every=2)]
    [1, 3, 4]
    """
    if every < 1 or n_rounds < 1:
        raise DataError(f"every and n_rounds must be at least 1, not {every} and {n_rounds}")
    loop = rounds(
        method,
        engine,
        n_rounds=n_rounds,
        sampler=sampler,
        seed=seed,
        measure=0,
        privacy=privacy,
        ledger=ledger,
        resume=checkpoint,
        allow=allow,
    )
    table, seconds = list(loop.notes.get("table", [])), 0.0
    if done is not None and loop.index and done(loop.state):
        loop.close()
        return
    for r in shown(loop, n_rounds=n_rounds, label=type(method).__name__, progress=progress):
        seconds += r.seconds
        last = done is not None and not r.abandoned and done(r.state)
        if (r.index + 1) % every and r.index + 1 < n_rounds and not last:
            continue
        evaluation = _nobody() if test is None else (judge or _judge(method))(r.state, test)
        table.append({"round": r.index + 1, "cohort": r.clients, "seconds": seconds, **evaluation.summary()})
        if checkpoint is not None:
            r.save(checkpoint, notes={"table": table})
        seconds = 0.0
        yield r, evaluation, table
        if last:
            loop.close()
            return


def _judge(method: Any) -> Callable[[Arrays, Federation], Evaluation]:
    return lambda state, test: evaluate(method.local, state, test)


def _nobody() -> Evaluation:
    none = np.zeros(0)
    return Evaluation(none.astype(np.int64), none.astype(np.int64), none, None)

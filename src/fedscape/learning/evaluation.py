"""How well a model does for each client: a table in simulation, sums and a histogram on a deployment.

Also which rows a network takes: numbers that its type holds, classes that it has an output for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.func import functional_call

from fedscape.core.arrays import offsets_of
from fedscape.core.computation import Computation
from fedscape.core.federation import Federation
from fedscape.core.random import Key
from fedscape.core.validate import all_valid
from fedscape.errors import DataError, plural
from fedscape.learning.layers import initialised
from fedscape.learning.local import LocalSGD
from fedscape.learning.loop import known_classes, one_thread, precise
from fedscape.learning.losses import checked_loss, correct, cross_entropy
from fedscape.learning.trainer import trainer_of
from fedscape.types import Array, Arrays, Kept, Tensor, Tensors

_BATCH = 1024  # rows of one forward pass
_BLOCK = 2**14  # rows on one thread


@dataclass(frozen=True)
class Evaluation:
    """Loss and accuracy of every client, and what they say together.

    `loss` and `accuracy` [clients] are means over a client's own rows, NaN for a client without rows; `accuracy` is
    None where the targets are no classes.

    >>> table = Evaluation(np.array([7, 8]), np.array([1, 3]), np.array([0.2, 0.4]), np.array([1.0, 0.0]))
    >>> table.summary()["accuracy_of_clients"], table.summary()["accuracy_pooled"]
    (0.5, 0.25)
    """

    ids: Array
    rows: Array
    loss: Array
    accuracy: Array | None

    def summary(self) -> dict[str, float]:
        """Pooled over rows, and over clients: mean, percentiles, the worst tenth of the clients, and the spread."""
        numbers: dict[str, float] = {"clients": len(self.ids), "clients_with_rows": int((self.rows > 0).sum())}
        numbers.update(_summary("loss", self.loss, self.rows, worst_is_high=True))
        if self.accuracy is not None:
            numbers.update(_summary("accuracy", self.accuracy, self.rows, worst_is_high=False))
        return numbers

    def table(self) -> dict[str, Array]:
        """One row per client, by column."""
        columns = {"client": self.ids, "rows": self.rows, "loss": self.loss}
        return columns if self.accuracy is None else {**columns, "accuracy": self.accuracy}

    def __repr__(self) -> str:
        shown = {n: v for n, v in self.summary().items() if n.endswith(("pooled", "of_clients", "worst_decile"))}
        return f"Evaluation({plural(len(self.ids), 'client')}, {', '.join(f'{n}={v:.4g}' for n, v in shown.items())})"


def _summary(name: str, values: Array, rows: Array, *, worst_is_high: bool) -> dict[str, float]:
    with_rows, weight = values[rows > 0], rows[rows > 0]
    if len(with_rows) == 0:
        return {}
    worst = np.sort(-with_rows if worst_is_high else with_rows)[: max(1, len(with_rows) // 10)]
    if np.isnan(with_rows).any():  # they would be sorted behind all others
        worst = with_rows
    cuts = dict(zip(("p5", "p25", "p50", "p75", "p95"), np.percentile(with_rows, (5, 25, 50, 75, 95)), strict=True))
    statistics = {
        "pooled": np.average(with_rows, weights=weight),
        "of_clients": with_rows.mean(),
        **cuts,
        "worst_decile": np.abs(worst.mean()),
        "spread": with_rows.std(),
    }
    return {f"{name}_{what}": float(value) for what, value in statistics.items()}


def evaluate(
    local: LocalSGD, state: Mapping[str, Array], federation: Federation, *, threads: int | None = None
) -> Evaluation:
    """Loss and accuracy of every client under the model of this state, in simulation.

    Parameters
    ----------
    local
        Says model, loss and columns.
    state
        A state with `model.<parameter>` arrays, or tensors on the device.
    federation
        The clients with the rows to evaluate on.
    threads
        How many blocks run at once; by default one per core.

    >>> fed = Federation({"x": np.eye(2), "y": [0, 1]}, [0, 1, 2])
    >>> local = LocalSGD(nn.Linear(2, 2), cross_entropy, lr=0.1, epochs=1, batch_size=2)
    >>> state = {"model.weight": 9 * np.eye(2, dtype="f4"), "model.bias": np.zeros(2, "f4")}
    >>> evaluate(local, state, fed).accuracy
    array([1., 1.])
    """
    from fedscape.core.schedule import cores, cut

    def work(block: tuple[int, int]) -> tuple[Array, Array | None, Array]:
        return sums_of_clients(local, dict(state), federation.take(slice(*block)))

    blocks = cut(federation.sizes, 4096, _BLOCK)
    if not blocks:
        raise DataError("federation must have a client to evaluate, it has none")
    with ThreadPoolExecutor(threads or cores()) as pool:
        parts = list(pool.map(work, blocks))
    loss, rows = np.concatenate([p[0] for p in parts]), np.concatenate([p[2] for p in parts])
    hits = [p[1] for p in parts if p[1] is not None]
    with np.errstate(invalid="ignore"):
        accuracy = np.concatenate(hits) / rows if len(hits) == len(parts) else None
        return Evaluation(federation.ids, rows, loss / rows, accuracy)


class ClientAccuracy(Computation):
    """Accuracy over clients without a list of clients: how many have how much, and the pooled sums.

    One round over a state with `model.<parameter>` arrays, given as `rounds(..., state=...)`. Clients send their rows,
    summed loss and number of right predictions, and one 1 in the bin of their own accuracy. After the round the state
    holds those sums as `rows`, `loss`, `correct` and `histogram` [bins].

    Parameters
    ----------
    local
        Says model, loss and columns.
    bins
        Bins of equal width over accuracies from 0 to 1.

    >>> from fedscape import rounds
    >>> fed = Federation({"x": np.eye(2), "y": [0, 0]}, [0, 1, 2])
    >>> local = LocalSGD(nn.Linear(2, 2), cross_entropy, lr=0.1, epochs=1, batch_size=2)
    >>> state = {"model.weight": 9 * np.eye(2, dtype="f4"), "model.bias": np.zeros(2, "f4")}
    >>> next(rounds(ClientAccuracy(local, bins=2), fed, n_rounds=1, state=state)).state["histogram"].tolist()
    [1.0, 1.0]
    """

    name = "client-accuracy"

    block_rows = _BLOCK

    def __init__(self, local: LocalSGD, *, bins: int = 20) -> None:
        self.local = local
        self.bins = bins
        if bins < 1:
            raise DataError(f"bins must be at least 1, not {bins}")

    def start(self, seed: int) -> Arrays:
        sums = {"rows": np.zeros(()), "loss": np.zeros(()), "correct": np.zeros(()), "histogram": np.zeros(self.bins)}
        return {**{f"model.{n}": p for n, p in self.local.parameters().items()}, **sums}

    def step(self, state: Arrays, clients: Federation, key: Key) -> tuple[Arrays, Kept]:
        loss, right, rows = sums_of_clients(self.local, state, clients)
        if right is None:
            raise DataError(
                f"the column {self.local.target!r} holds no classes: accuracy is not defined, use evaluate()"
            )
        bin_of = np.minimum(right.astype(np.int64) * self.bins // np.maximum(rows, 1), self.bins - 1)
        histogram = np.zeros((len(clients), self.bins), dtype=np.int64)
        histogram[np.arange(len(clients)), bin_of] = rows > 0
        return {"rows": rows, "loss": loss, "correct": right.astype(np.int64), "histogram": histogram}, {}

    def update(self, state: Arrays, total: Arrays, key: Key) -> Arrays:
        model = {n: v for n, v in state.items() if n.startswith("model.")}
        return {**model, **{n: np.asarray(total[n], dtype=float) for n in ("rows", "loss", "correct", "histogram")}}

    def coded_columns(self) -> Sequence[str]:
        return (self.local.target,)

    def valid_rows(self, state: Arrays, clients: Federation) -> Array | None:
        return valid_rows(self.local, clients)

    @classmethod
    def examples(cls) -> Sequence[tuple[ClientAccuracy, Federation]]:
        rng = np.random.default_rng(4)
        offsets = offsets_of(rng.integers(0, 6, 12))
        fed = Federation({"x": rng.normal(size=(offsets[-1], 3)), "y": rng.integers(0, 2, offsets[-1])}, offsets)
        model = initialised(nn.Linear(3, 2, dtype=torch.float64), 0)
        return [(cls(LocalSGD(model, cross_entropy, lr=0.1, epochs=1, batch_size=4), bins=4), fed)]


def sums_of_clients(local: LocalSGD, state: Arrays, clients: Federation) -> tuple[Array, Array | None, Array]:
    """Each client's summed loss, number of right predictions (None where there are no classes), and rows."""
    losses, right = np.zeros(clients.n_rows), np.zeros(clients.n_rows)
    classes = clients[local.target].dtype.kind in "biu"
    params = {name: values[0] for name, values in tensors_of(local, model_arrays(state)).items()}
    with one_thread(), precise(local), known_classes(local), torch.no_grad(), trainer_of(local).borrowed() as module:
        module.eval()
        for begin in range(0, clients.n_rows, _BATCH):
            rows = slice(begin, begin + _BATCH)
            data = trainer_of(local).data(clients, rows)
            output: Tensor = functional_call(module, params, (local.inputs(data.x),))
            losses[rows] = checked_loss(local.loss, output, data.y).cpu().numpy()
            hits = correct(output, data.y)
            classes = classes and hits is not None
            right[rows] = 0 if hits is None else hits.cpu().numpy()
        module.train()
    sums = [np.add.reduceat(np.append(v, 0.0), clients.offsets[:-1]) * (clients.sizes > 0) for v in (losses, right)]
    return sums[0], sums[1] if classes else None, clients.sizes


def model_arrays(state: Mapping[str, Array]) -> Arrays:
    """The model's parameters in a state, by their own names."""
    arrays = {name.removeprefix("model."): values for name, values in state.items() if name.startswith("model.")}
    if not arrays:
        raise DataError(f"the state holds no model.<parameter>: it has {', '.join(state) or 'nothing'}")
    return arrays


def checked_params(local: LocalSGD, params: Mapping[str, Array]) -> Arrays:
    """The parameters in the model's order; those of another model are refused."""
    missing = sorted(set(local.names) ^ set(params))
    if missing:
        raise DataError(f"the state is of another model: {', '.join(missing[:3])} is in one of the two only")
    return {n: params[n] for n in local.names}


def tensors_of(local: LocalSGD, params: Mapping[str, Array]) -> Tensors:
    """Parameters as tensors with a leading axis of one."""
    device, own = trainer_of(local), checked_params(local, params)
    return {
        n: (p if isinstance(p, torch.Tensor) else device.tensor(f"model.{n}", np.asarray(p)))[None]
        for n, p in own.items()
    }


def valid_rows(local: LocalSGD, clients: Federation) -> Array | None:
    """Which rows have features, a target and a weight that training takes; None where all have.

    >>> fed = Federation({"x": [[0.0], [np.nan], [1.0]], "y": [0, 1, 7]}, [0, 3])
    >>> valid_rows(LocalSGD(nn.Linear(1, 2), cross_entropy, lr=0.1, epochs=1, batch_size=1), fed).tolist()
    [True, False, False]
    """
    x, y = clients[local.features], clients[local.target]
    weights = None if local.weights is None else clients[local.weights]
    return all_valid(
        _held(x, local),
        _embedded(x, local),
        _held(y, local),
        _classes(y, x, local),
        None if weights is None else np.isfinite(weights) & (weights >= 0),
    )


def _held(values: Array, local: LocalSGD) -> Array | None:
    """Rows whose numbers are finite in the network's type."""
    if values.dtype.kind != "f":
        return None
    inside = np.abs(values) <= torch.finfo(local.dtype).max
    return np.asarray(inside.reshape(len(values), int(np.prod(values.shape[1:]))).all(axis=1))


def _embedded(x: Array, local: LocalSGD) -> Array | None:
    """Rows whose codes all have an embedding."""
    by_path = {path: layer for path, layer in local.model.named_modules() if isinstance(layer, nn.Embedding)}
    named = [layer for path, layer in by_path.items() if path.rpartition(".")[2] == "embed"]  # others may be of places
    layers = named or list(by_path.values())
    if x.dtype.kind not in "biu" or len(layers) != 1:
        return None
    inside = (x >= 0) & (x < layers[0].num_embeddings)
    return np.asarray(inside.reshape(len(x), int(np.prod(x.shape[1:]))).all(axis=1))


def _classes(y: Array, x: Array, local: LocalSGD) -> Array | None:
    """Rows whose class the network has an output for, where the loss is one of classes."""
    of_classes = local.loss is cross_entropy or isinstance(local.loss, nn.CrossEntropyLoss)
    if not of_classes or y.dtype.kind not in "biu" or y.ndim != 1 or not len(x):
        return None
    with torch.no_grad(), trainer_of(local).borrowed() as module:
        module.eval()
        output = module(local.inputs(torch.zeros((1, *x.shape[1:]), dtype=torch.from_numpy(x[:0].copy()).dtype)))
        module.train()
    return np.asarray((y >= 0) & (y < output.shape[-1]))  # the last axis: several branches come before it

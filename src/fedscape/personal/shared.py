"""Shared parts of personalised methods: several models side by side, their sample weights, each client's own model.

A state holds `model.<parameter>` [M, ...]: M models of one architecture, the learners.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch.func import functional_call
from torch.nn import functional

from fedscape.core.arrays import Ragged, as_slice, offsets_of, segment_sum_twin
from fedscape.core.blocks import on_host
from fedscape.core.federation import Federation
from fedscape.core.random import Key
from fedscape.core.validate import all_finite
from fedscape.errors import DataError, NotFinite
from fedscape.learning.batches import Plan, Work, groups, work_of
from fedscape.learning.device import Data
from fedscape.learning.evaluation import Evaluation, checked_params, model_arrays
from fedscape.learning.layers import Centre, initialised
from fedscape.learning.local import LocalSGD
from fedscape.learning.loop import known_classes, one_thread, precise, weighted_sum
from fedscape.learning.losses import checked_loss, cross_entropy, logistic
from fedscape.learning.optimisers import Rates
from fedscape.learning.trainer import train, trainer_of
from fedscape.types import Array, Arrays, Tensor, Tensors

COMMON_MODEL = "the common model"  # for a client that keeps nothing
_BATCH = 2048  # rows of one forward pass


def start_models(local: LocalSGD, n: int, seed: int, *, initial: str = "seed") -> Arrays:
    """The first state of n learners: each drawn from its own seed, or copies of the model."""
    models = [local.model if initial == "given" else initialised(local.model, seed * n + m) for m in range(n)]
    each = [local.parameters(model) for model in models]
    return {f"model.{name}": np.stack([p[name] for p in each]) for name in local.names}


def stacked(local: LocalSGD, state: Mapping[str, Array]) -> Tensors:
    """The learners' parameters as tensors [M, ...]."""
    return {n: torch.tensor(np.asarray(p), device=local.device) for n, p in checked_models(local, state).items()}


def log_softmax(output: Tensor) -> Tensor:
    """log p(class | x) from a model's output: [batch, classes], or log odds [batch] or [batch, 1] of two classes."""
    if output.ndim == 2 and output.shape[1] > 1:
        return functional.log_softmax(output, dim=1)
    odds = output.reshape(len(output))
    return torch.stack([functional.logsigmoid(-odds), functional.logsigmoid(odds)], dim=1)


def forward(local: LocalSGD, models: list[Tensors], clients: Federation, rows: slice, *, loss: bool) -> Array:
    """For these rows and each model: log p(class | x), [rows, M, classes]; with `loss`, minus the loss, [rows, M]."""
    parts = []
    if rows.stop > rows.start:
        trainer_of(local).check_row(
            trainer_of(local).column(clients, local.features, slice(rows.start, rows.start + 1))
        )
    with one_thread(), precise(local), known_classes(local), torch.no_grad(), trainer_of(local).borrowed() as module:
        module.eval()
        for begin in range(rows.start, rows.stop, _BATCH):
            part = slice(begin, min(begin + _BATCH, rows.stop))
            x = local.inputs(trainer_of(local).column(clients, local.features, part))
            y = trainer_of(local).targets(clients, part) if loss else None
            outputs = [functional_call(module, params, (x,)) for params in models]
            each = [-checked_loss(local.loss, o, y) if loss else log_softmax(o) for o in outputs]
            parts.append(torch.stack(each, dim=1).to("cpu", torch.float64).numpy())
        module.train()
    if parts:
        return np.concatenate(parts)
    return np.zeros((0, len(models)) if loss else (0, len(models), 1))


def each_model(params: Tensors) -> list[Tensors]:
    """Split stacked parameters into models."""
    return [{n: p[m] for n, p in params.items()} for m in range(len(next(iter(params.values()))))]


def trained(
    local: LocalSGD, starts: Tensors, clients: Federation, weights: Array, key: Key, *, counts: Array | None = None
) -> Iterator[tuple[Array, Tensors]]:
    """Train M learners on each client with the sample weights [rows, M]: positions, and moves [clients, M, ...].

    `starts` are [M, ...]; all learners get the same batches in the same order. `counts` are weights of the clients'
    moves, [clients, M]: with them, return the sums [M, ...] over clients in float64.
    """
    number = weights.shape[1]
    rates, data = Rates(local.rate(key.round), local.proximal), trainer_of(local).data(clients)
    mine = torch.from_numpy(weights).to(local.device, local.dtype)
    together = trainer_of(local).strategy != "sequential"
    if together:  # train learners side by side, as clients are: rows m * n + i have the weights of learner m
        x, y = (torch.cat([column] * number) for column in data[:2])
        data = Data(x, y, mine.T.reshape(-1))
    for positions in groups(clients.sizes, local.timing, most=max(1, trainer_of(local).chunk // number)):
        work = work_of(local, data, clients, positions, key)
        count = None if counts is None else counts[positions]
        if together:
            moved = train(local, starts, _for_each(work, number, len(weights)), rates, weights=count)
            shape = (len(positions), number)
            yield positions, moved if counts is not None else {n: p.unflatten(0, shape) for n, p in moved.items()}
            continue
        each = []
        for m in range(number):
            own = work._replace(data=data._replace(weights=mine[:, m]))
            each.append(train(local, _one(starts, m), own, rates, weights=None if count is None else count[:, m]))
        yield positions, {n: torch.stack([moves[n] for moves in each], dim=int(counts is None)) for n in starts}


def _one(params: Tensors, m: int) -> Tensors:
    return {n: p[m : m + 1] for n, p in params.items()}


def _for_each(work: Work, number: int, n_rows: int) -> Work:
    """Repeat every client's work for each learner, one after the other; those still training stay in front."""
    rows = work.plan.rows[:, None] + np.arange(number)[:, None, None] * n_rows  # [clients, M, steps, width]
    plan = Plan(rows.reshape(-1, *work.plan.rows.shape[1:]), np.repeat(work.plan.counts, number, axis=0))
    return work._replace(plan=plan, dropout=lambda path, steps: np.repeat(work.dropout(path, steps), number, axis=1))


def moved_models(state: Arrays, total: Arrays, weight: Array) -> Arrays:
    """Move the learners by the weighted mean of the clients' moves; an unused learner stays the same."""
    new = {}
    for name, params in model_arrays(state).items():
        shape = (-1, *[1] * (params.ndim - 1))
        over = np.maximum(np.asarray(weight, dtype=np.float64), 0.0).reshape(shape)
        mean = np.where(over > 1e-9, total[f"delta.{name}"] / np.maximum(over, 1e-9), 0.0)
        new[f"model.{name}"] = (params + mean).astype(params.dtype)
    return new


def weighted(moves: Mapping[str, Array | Tensor], weights: Array) -> Arrays:
    """Each client's moves times its weights [clients] or [clients, M], under the names sent: `delta.<parameter>`."""
    kinds = weights.shape[1:]
    return {
        f"delta.{n}": m.reshape(len(m), *[1 for _ in kinds], *m.shape[1:])
        * weights.astype(m.dtype).reshape(*weights.shape, *[1] * (m.ndim - 1))
        for n, m in on_host(moves).items()
    }


def weighted_sums(moves: Tensors, weights: Array) -> Arrays:
    """Sums of the same over clients, in float64; those of a GPU stay there, as an engine only adds them."""
    sums = sums_of(moves, weights)
    return {f"delta.{n}": s if s.is_cuda else s.numpy() for n, s in sums.items()}


def sums_of(moves: Tensors, weights: Array) -> Tensors:
    """The moves times weights [clients] or [clients, M], summed over clients in float64."""
    with one_thread():
        if weights.ndim == 1:
            return {n: weighted_sum(m, weights) for n, m in moves.items()}
        return {n: torch.stack([weighted_sum(m, each) for each in weights.T]) for n, m in moves.items()}


def sums_over_rows(values: Array, clients: Federation) -> Array:
    """Sums over each client's rows, without compiled code: [clients, ...]."""
    return segment_sum_twin(values, clients.offsets)


def evaluation(method: Any, state: Arrays, clients: Federation) -> Evaluation:
    """Loss and accuracy of every client under its own model; clients must carry their kept arrays.

    A client that keeps nothing gets the method's model for newcomers.
    """
    loss, right = losses_and_hits(method, state, clients)
    rows = clients.sizes
    with np.errstate(invalid="ignore"):
        return Evaluation(clients.ids, rows, loss / rows, right / rows)


def losses_and_hits(method: Any, state: Arrays, clients: Federation) -> tuple[Array, Array]:
    """Summed -log p(y | x) and number of correct predictions of each client."""
    target = class_column(method.local, clients)
    logs = method.log_probs(state, clients)
    chosen = log_probs_of(logs, target, otherwise=float(np.log(1e-12)))
    each = np.stack([-np.maximum(chosen, np.log(1e-300)), logs.argmax(axis=1) == target], axis=1)
    sums = sums_over_rows(each, clients)
    return sums[:, 0], sums[:, 1]


def class_column(local: LocalSGD, clients: Federation) -> Array:
    """The target of each row; refuse a column that does not hold classes."""
    target = clients[local.target]
    if len(target) and (target.dtype.kind not in "biu" or target.ndim != 1):
        shape = f" of shape {list(target.shape[1:])} a row" if target.ndim > 1 else ""
        raise DataError(f"column {local.target!r} must hold classes, whole numbers, not {target.dtype}{shape}")
    return target


def class_counts(local: LocalSGD, clients: Federation, n_classes: int) -> Array:
    """Each client's rows of each class: [clients, classes]; refuse a class that the model does not know."""
    y = class_column(local, clients).astype(np.int64)
    if len(y) and not 0 <= y.min() <= y.max() < n_classes:
        raise DataError(
            f"column {local.target!r} must hold classes from 0 to {n_classes - 1}, it holds {y.min()} to {y.max()}: "
            "drop such rows with where()"
        )
    counts = np.zeros((len(clients), n_classes))
    np.add.at(counts, (np.repeat(np.arange(len(clients)), clients.sizes), y), 1.0)
    return counts


def log_probs_of(logs: Array, target: Array, *, otherwise: float = -np.inf) -> Array:
    """log p(y | x) of each row from those of all classes; `otherwise` for a class that the model does not know."""
    inside = (target >= 0) & (target < logs.shape[1])
    return np.where(inside, logs[np.arange(len(target)), np.where(inside, target, 0).astype(np.int64)], otherwise)


def check_classes(method: Any, state: Arrays, clients: Federation) -> None:
    """Refuse a class that the model does not know, and name its row; only for classification losses."""
    name = method.local.target
    if method.local.loss not in (cross_entropy, logistic) or name not in clients or not clients.n_rows:
        return
    target = class_column(method.local, clients)
    first = clients.where(np.arange(clients.n_rows) == 0)
    number = method.log_probs(state, first).shape[1]
    bad = np.flatnonzero((target < 0) | (target >= number))
    if len(bad):
        raise DataError(
            f"column {name!r} holds the class {target[bad[0]]} in row {bad[0]:,}, but the model knows 0 to "
            f"{number - 1}: drop such rows with where()"
        )


def measured(method: Any, state: Arrays, clients: Federation) -> Arrays:
    """The metrics of a personalised method: means over a client's rows, 0 for a client without rows."""
    loss, right = losses_and_hits(method, state, clients)
    rows = np.maximum(clients.sizes, 1)
    return {"loss": loss / rows, "accuracy": right / rows, "with_rows": clients.sizes > 0}


def with_kept_of(clients: Federation, ids: Array, kept: Mapping[str, Ragged]) -> Federation:
    """Attach the kept arrays of clients with the same ids; other clients have none."""
    index_of = {v: i for i, v in enumerate(ids.tolist())}
    where = np.array([index_of.get(v, -1) for v in clients.ids.tolist()], dtype=np.int64)
    matched = np.flatnonzero(where >= 0)
    held = {}
    for name, ragged in kept.items():
        mine = ragged.take(where[matched])
        lengths = np.zeros(len(clients), dtype=np.int64)
        lengths[matched] = mine.lengths
        held[name] = Ragged(mine.flat, offsets_of(lengths))
    return clients.with_kept(held)


def own_models(local: LocalSGD, state: Arrays, clients: Federation) -> Tensors:
    """Each client's own parameters, [clients, ...]; the common ones for a client that keeps none."""
    trainer = trainer_of(local)
    return {n: trainer.kept_rows(clients, f"model.{n}", p) for n, p in common_model(local, state).items()}


def common_model(local: LocalSGD, state: Mapping[str, Array]) -> Tensors:
    """The parameters of a state on the device; they must not be written to."""
    return {n: trainer_of(local).tensor(f"model.{n}", np.asarray(p)) for n, p in checked_models(local, state).items()}


def spread(params: Tensors, clients: Federation) -> Tensors:
    """One set of parameters as that of each client, [clients, ...], without copies."""
    return {n: p.expand(len(clients), *p.shape) for n, p in params.items()}


def checked_models(local: LocalSGD, state: Mapping[str, Array]) -> Arrays:
    """The parameters in a state; refuse those of another model."""
    return checked_params(local, model_arrays(state))


def each_own_log_probs(local: LocalSGD, own: Tensors, clients: Federation) -> Array:
    """log p(class | x) of each row under its client's own parameters: [rows, classes]."""
    parts = []
    with one_thread():  # once for all of them: entering it costs more than a small client's rows
        for i in np.flatnonzero(clients.sizes):
            mine = {n: p[i] for n, p in own.items()}
            rows = slice(int(clients.offsets[i]), int(clients.offsets[i + 1]))
            parts.append(forward(local, [mine], clients, rows, loss=False)[:, 0])
    return np.concatenate(parts) if parts else np.zeros((0, 1))


def trained_alone(
    local: LocalSGD,
    own: Tensors,
    clients: Federation,
    key: Key,
    *,
    rate: float | None = None,
    pull: tuple[float, Tensors | None] | None = None,
    still: Collection[str] = (),
) -> Tensors:
    """Train each client's own parameters on its rows: [clients, ...]; a client without rows keeps its own.

    `pull` is a proximal weight and the parameters it pulls to, the same for all; None pulls to a client's start.
    `still` names parameters that stay fixed, for clients trained side by side.
    """
    new = moved_alone(local, own, clients, key, rate=rate, pull=pull, still=still)
    for n, p in own.items():
        new[n] += p
    check_own(new, clients, key)
    return new


def moved_from(local: LocalSGD, state: Arrays, which: Array, clients: Federation, key: Key) -> Tensors:
    """How far each client moves the one of a state's models [M, ...] that it begins with."""
    where = trainer_of(local).sent(which)
    begin = {n: p[where] for n, p in common_model(local, state).items()}
    moves = trained_alone(local, begin, clients, key)
    return {n: m.sub_(begin[n]) for n, m in moves.items()}


def moved_alone(
    local: LocalSGD,
    own: Tensors,
    clients: Federation,
    key: Key,
    *,
    rate: float | None = None,
    pull: tuple[float, Tensors | None] | None = None,
    still: Collection[str] = (),
    centre: Centre | None = None,
    weights: Array | None = None,
    each: Collection[str] = (),
) -> Tensors:
    """As `trained_alone`, but how far each client moves. `own` may be one set of parameters, `spread`.

    `centre` is what the mean inputs of a ShiftedLinear are pulled to. With weights, one for each client, the weighted
    sums over clients, but for the parameters in `each`.
    """
    strength, common = (local.proximal, None) if pull is None else pull
    rates = Rates(local.rate(key.round) if rate is None else rate, strength)
    anchor = None if common is None else {n: p[None] for n, p in common.items()}
    trainer = trainer_of(local)
    sums = [] if weights is None else [n for n in own if n not in each]
    moves: Tensors = {}
    for positions, work in trainer.works(clients, key):
        where = trainer.sent(positions)
        starts = {n: p[:1] if p.stride(0) == 0 else p[where] for n, p in own.items()}
        count = None if weights is None else weights[positions]
        moved = train(local, starts, work, rates, anchor, still=still, centre=centre, weights=count, each=each)
        if as_slice(positions) == slice(0, len(clients)) and moved.keys() == own.keys():  # all at once, in their order
            return {n: _writable(m.to(torch.float64) if n in sums else m) for n, m in moved.items()}
        moves = moves or _no_moves(own, sums)
        for n, values in moved.items():
            if n in sums:
                moves[n] += values
            else:
                moves[n][where] = values
    return moves or _no_moves(own, sums)


def _writable(values: Tensor) -> Tensor:
    """These values, or a copy where torch lets nobody change them in place."""
    return values.clone() if values.is_inference() else values


def _no_moves(own: Tensors, sums: Collection[str]) -> Tensors:
    return {
        n: p.new_zeros(p.shape[1:], dtype=torch.float64) if n in sums else p.new_zeros(p.shape) for n, p in own.items()
    }


def check_own(new: Tensors, clients: Federation, key: Key) -> None:
    """Refuse own models of clients that diverged: no sum would show it."""
    for name, values in new.items():
        finite = torch.isfinite(values).all() if values.is_cuda else all_finite(values.numpy())
        if not finite:
            bad = int(torch.argwhere(~torch.isfinite(values))[0][0])
            raise NotFinite(
                f"round {key.round}: client {clients.ids[bad]!s} has NaN or infinity in {name!r} of its own model: "
                "look for them in its rows, or lower the learning rate"
            )

"""FedALA: a client learns, weight by weight, how much of the common model it takes over before it trains."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np
import torch
from torch import nn
from torch.func import grad, vmap

from fedscape.core.federation import Federation
from fedscape.core.kept import kept_rows
from fedscape.core.random import Key
from fedscape.core.validate import check_number, check_whole
from fedscape.errors import DataError
from fedscape.learning.fedavg import FedAvg
from fedscape.learning.layers import Module, is_plain
from fedscape.learning.local import LocalSGD
from fedscape.learning.loop import one_thread, output_of
from fedscape.learning.losses import checked_loss, cross_entropy
from fedscape.learning.server import Mean, Rule
from fedscape.learning.stepping import groups_of
from fedscape.learning.trainer import trainer_of
from fedscape.personal.features import BATCH, embedded
from fedscape.personal.fedem import small_example
from fedscape.personal.shared import (
    COMMON_MODEL,
    check_own,
    common_model,
    each_own_log_probs,
    measured,
    moved_alone,
    own_models,
    spread,
    weighted,
    weighted_sums,
)
from fedscape.types import Array, Arrays, Kept, Tensor, Tensors

_MEAN = Mean()


class FedALA(FedAvg):
    """FedAvg whose clients start a round between their own model and the common one: Zhang et al. 2023, algorithm 1.

    With theta the broadcast model and theta_i the client's own from its last round, a client starts its upper layers at
    theta_i + (theta - theta_i) * W_i, and its lower ones at theta. The weights W_i, one for each parameter and clipped
    to [0, 1], first take gradient steps of the loss on a sample of the client's rows. Then the client trains as usual,
    sends its distance from theta, and keeps its model and W_i. W_i starts at 1. The first time a client mixes, its
    weights train for `warm_up` epochs, later for one. (The paper trains the first time until the loss converges.)

    Only the sum of the moves is sent, as in FedAvg. A new client has the common model.

    Parameters
    ----------
    local, server, weighting, initial
        As for FedAvg.
    layers
        Names or prefixes of the upper layers' parameters; by default the last layer.
    rate
        eta of the weights.
    sample
        The share of a client's rows on which the weights are learned.
    warm_up
        Epochs of a client's first mixing.

    >>> from fedscape.learning import cross_entropy, models
    >>> step = LocalSGD(models.mlp(4, 8, 2), cross_entropy, lr=1.0, epochs=1, batch_size=2)
    >>> FedALA(step).upper
    ['3.weight', '3.bias']
    """

    name = "fedala"
    newcomers: ClassVar[str | None] = COMMON_MODEL

    def __init__(
        self,
        local: LocalSGD,
        *,
        layers: tuple[str, ...] = (),
        rate: float = 1.0,
        sample: float = 0.8,
        warm_up: int = 10,
        server: Rule = _MEAN,
        weighting: str = "samples",
        initial: str = "given",
    ) -> None:
        super().__init__(local, server=server, weighting=weighting, initial=initial)
        self.layers = layers
        self.rate = rate
        self.sample = sample
        self.warm_up = warm_up
        check_whole("warm_up", warm_up, least=1)
        if not check_number("rate", rate) > 0 or not 0 < check_number("sample", sample) <= 1:
            raise DataError(f"rate must be above 0, sample above 0 and at most 1: {rate}, {sample}")
        if not self.upper:
            raise DataError(f"layers must name some of the parameters: {layers} of {', '.join(local.names)}")
        alone = _top(local.model, self.upper)  # where only the last layer mixes, nothing else is trained for it
        self._on_features = alone is not None
        mixing = replace(local, steps=None, epochs=1, early_stopping=None, strategy="vmap", model=alone or local.model)
        self._mixing = {epochs: replace(mixing, epochs=epochs) for epochs in (1, warm_up)}

    @property
    def upper(self) -> list[str]:
        """The parameters that are mixed."""
        last = self.local.names[-1].rpartition(".")[0]
        return [n for n in self.local.names if n.startswith(self.layers or (f"{last}." if last else "",))]

    def step(self, state: Arrays, clients: Federation, key: Key) -> tuple[Arrays, Kept]:
        moves, weight, kept = self._sent(state, clients, key)
        return {**weighted(moves, weight), **self._sent_weight(weight)}, kept

    def total(  # type: ignore[override]  # it keeps something
        self, state: Arrays, clients: Federation, key: Key
    ) -> tuple[Arrays, Kept]:
        moves, weight, kept = self._sent(state, clients, key)
        return {**weighted_sums(moves, weight), **self._sent_weight(weight.sum())}, kept

    def _sent_weight(self, weight: Array) -> Arrays:
        return {"weight": weight} if self.weighting == "samples" else {}

    def _sent(self, state: Arrays, clients: Federation, key: Key) -> tuple[Tensors, Array, Kept]:
        with one_thread():
            begin, mix = self._mixed(state, clients, key)
            moves, common = moved_alone(self.local, begin, clients, key), common_model(self.local, state)
        after = {n: begin[n] + move for n, move in moves.items()}
        check_own(after, clients, key)
        without_rows = trainer_of(self.local).sent(np.flatnonzero(clients.sizes == 0))
        for n in self.upper:
            moves[n] = after[n] - common[n]
            moves[n][without_rows] = 0.0  # such a client keeps its model and sends zeros
        weight = clients.sizes if self.weighting == "samples" else np.ones(len(clients))
        times = kept_rows(clients, "mixed", np.zeros((), dtype=np.int64)) + (clients.sizes > 0)
        kept = {f"model.{n}": v for n, v in after.items()} | {f"mix.{n}": v for n, v in mix.items()}
        return moves, weight, {**trainer_of(self.local).left(kept), "mixed": np.minimum(times, 2)}

    def _mixed(self, state: Arrays, clients: Federation, key: Key) -> tuple[Tensors, Tensors]:
        """The starting point of each client, and its weights."""
        trainer, common = trainer_of(self.local), common_model(self.local, state)
        own = {n: trainer.kept_rows(clients, f"model.{n}", common[n]) for n in self.upper}
        begin = spread(common, clients) | own
        mix = {n: trainer.kept_rows(clients, f"mix.{n}", torch.ones_like(common[n])).clone() for n in self.upper}
        times = kept_rows(clients, "mixed", np.zeros((), dtype=np.int64))
        draws = key.to("mixing")
        for epochs, who in ((self.warm_up, times == 1), (1, times > 1)):
            where = np.flatnonzero(who & (clients.sizes > 0))
            if len(where):
                these = clients if len(where) == len(clients) else clients.take(where)
                learned = self._weights(state, begin, mix, these, where, epochs, draws)
                for n, values in learned.items():
                    mix[n][trainer.sent(where)] = values
        for n, w in mix.items():
            begin[n] = own[n] + (common[n] - own[n]) * w
        return begin, mix

    def _weights(
        self, state: Arrays, begin: Tensors, mix: Tensors, clients: Federation, where: Array, epochs: int, key: Key
    ) -> Tensors:
        """The weights after steps on a sample of each client's rows: W <- [W - eta g * (theta - theta_i)] in [0, 1]."""
        local, common = self._mixing[epochs], common_model(self.local, state)
        keep = _sample(clients, self.sample, key)
        if self._on_features:  # the layers below are the same for all, and stay: their outputs are the rows
            others = [n for n in (local.target, local.weights) if n is not None]
            features = _embedded(clients, np.flatnonzero(keep), self.local, state)
            sampled = clients.select(others).where(keep).with_column(local.features, features)
        else:
            sampled = clients.where(keep)
        sent = trainer_of(self.local).sent
        learned = {n: mix[n][sent(where)] for n in self.upper}
        lower = {n: p for n, p in common.items() if n not in self.upper}
        for group in groups_of(local, sampled, key):
            rows_of_group = sent(where[group.positions])
            own = {n: begin[n][rows_of_group] for n in self.upper}
            away = {n: common[n] - own[n] for n in self.upper}
            w = {n: mix[n][rows_of_group] for n in self.upper}
            now = {n: own[n] + away[n] * w[n] for n in self.upper}
            gradient = _of_last_layer(local) if self._on_features else _of_upper_layers(local, group.module)
            for _, end, batch in group.steps():
                part = {n: p[:end] for n, p in now.items()}
                grads = gradient(part, lower, batch.random, batch.x, batch.y, batch.share)
                for n in self.upper:
                    w[n][:end].addcmul_(grads[n], away[n][:end], value=-self.rate).clamp_(0, 1)
                    torch.addcmul(own[n][:end], away[n][:end], w[n][:end], out=now[n][:end])
            for n, values in w.items():
                learned[n][sent(group.positions)] = values
        return learned

    def measure(self, state: Arrays, clients: Federation) -> Arrays:
        return measured(self, state, clients)

    def log_probs(self, state: Arrays, clients: Federation) -> Array:
        """log p(class | x) of each row under its client's own model: [rows, classes]."""
        return each_own_log_probs(self.local, own_models(self.local, state, clients), clients)

    def adapt(self, state: Arrays, clients: Federation, key: Key) -> Kept:
        """The model of each client after a round on its own rows."""
        return self._sent(state, clients, key)[2]

    @classmethod
    def examples(cls) -> Sequence[tuple[FedALA, Federation]]:
        fed, one, two = small_example()
        return [(cls(one, warm_up=2), fed), (cls(two, layers=("0", "2"), warm_up=2, weighting="equal"), fed)]


Gradient = Callable[[Tensors, Tensors, Tensors, Tensor, Tensor, Tensor], Tensors]


def _of_upper_layers(local: LocalSGD, module: Module) -> Gradient:
    """Gradients of the upper layers for a batch of each client; the lower ones are the same for all."""

    def loss(upper: Tensors, lower: Tensors, random: Tensors, x: Tensor, y: Tensor, share: Tensor) -> Tensor:
        output = output_of(local, module, x, {**lower, **upper}, random)
        return (checked_loss(local.loss, output, y) * share).sum()

    return vmap(grad(loss), in_dims=(0, None, 0, 0, 0, 0))  # type: ignore[no-any-return]


def _of_last_layer(local: LocalSGD) -> Gradient:
    """The same for a last linear layer on features; a client's part of the summed loss has its own weights alone."""

    def gradient(upper: Tensors, lower: Tensors, random: Tensors, x: Tensor, y: Tensor, share: Tensor) -> Tensors:
        weight, *bias = upper.values()
        z = local.inputs(x)
        output = torch.bmm(z, weight.transpose(1, 2)) if not bias else torch.baddbmm(bias[0][:, None], z, weight.mT)
        if local.loss is cross_entropy and y.ndim == 2:
            of_output = output.softmax(2).mul_(share[..., None]).scatter_add_(2, y[..., None], -share[..., None])
        else:
            output.requires_grad_()
            each = checked_loss(local.loss, output.flatten(0, 1), y.flatten(0, 1))
            (of_output,) = torch.autograd.grad(each, output, share.flatten())
        grads = [torch.bmm(of_output.mT, z), *(of_output.sum(dim=1) for _ in bias)]
        return dict(zip(upper, grads, strict=True))

    return gradient


def _top(model: Module, upper: Sequence[str]) -> Module | None:
    """The last layer of a sequence, under its own name, if it is linear and all that mixes, and no layer drops."""
    path, layer = "", model
    while is_plain(layer, nn.Sequential) and len(layer):
        name, layer = list(layer._modules.items())[-1]
        path = f"{path}.{name}".lstrip(".")
    drops = any(isinstance(m, nn.modules.dropout._DropoutNd) and m.p > 0 for m in model.modules())
    if drops or not path or not is_plain(layer, nn.Linear):
        return None
    if list(upper) != [f"{path}.{n}" for n, _ in layer.named_parameters()]:
        return None
    layer = copy.deepcopy(layer)
    for name in reversed(path.split(".")):
        layer = nn.Sequential(OrderedDict([(name, layer)]))
    return layer


def _sample(clients: Federation, share: float, key: Key) -> Array:
    """Which rows are a random share of each client's, at least one, drawn by key: one True or False for each row."""
    keep = np.zeros(clients.n_rows, dtype=bool)
    for i, rng in enumerate(key.of(clients)):
        size = int(clients.sizes[i])
        keep[clients.offsets[i] + rng.permutation(size)[: max(1, int(share * size))]] = True
    return keep


def _embedded(clients: Federation, rows: Array, local: LocalSGD, state: Arrays) -> Array:
    """The inputs of the last layer for these rows, under the common model."""
    trainer = trainer_of(local)
    column, where = trainer.column(clients, local.features, slice(None)), trainer.sent(rows)
    parts = embedded(local, state, (column.index_select(0, part) for part in where.split(BATCH)))
    return np.concatenate([part.cpu().numpy() for part in parts])

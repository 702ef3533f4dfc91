"""FedAvg and its variants: clients train, the server applies the mean of their moves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import nn

from fedscape.core.arrays import offsets_of
from fedscape.core.computation import Computation
from fedscape.core.federation import Federation
from fedscape.core.random import Key
from fedscape.errors import DataError
from fedscape.learning.evaluation import model_arrays, sums_of_clients, tensors_of, valid_rows
from fedscape.learning.layers import initialised
from fedscape.learning.local import LocalSGD, check_local
from fedscape.learning.loop import weighted_sum
from fedscape.learning.losses import cross_entropy
from fedscape.learning.server import Adagrad, Adam, Mean, Rule, Yogi
from fedscape.learning.trainer import Trainer, deltas, trainer_of
from fedscape.types import Array, Arrays, Kept, Tensor, Tensors

WEIGHTINGS = ("samples", "equal")
_MEAN = Mean()


class FedAvg(Computation):
    """Every client trains from the broadcast weights; the server applies the mean of their moves.

    The state holds `model.<parameter>` and the memory of the server rule as `server.<name>`. Clients send
    `delta.<parameter>`. With weighting="samples" they also send their number of rows as `weight`, and the delta is
    multiplied by it (McMahan et al. 2017, algorithm 1). With weighting="equal" the sum is divided by the number of
    clients that reported, and only the delta is sent. Use it with privacy, where a clip bounds all that is sent.

    Metrics: `loss` and `accuracy`, means over a client's rows, 0 for a client without rows. Divide them by `with_rows`,
    the share of clients that have rows.

    Parameters
    ----------
    local
        How a client trains.
    server
        The server's rule: Mean, Momentum, Adam, Yogi or Adagrad.
    weighting
        "samples" or "equal".
    initial
        "given": start from the model's own weights. "seed": draw the first weights from the seed of the run.

    >>> from fedscape import rounds
    >>> fed = Federation({"x": np.eye(4), "y": [0, 1, 0, 1]}, [0, 1, 4])
    >>> step = LocalSGD(nn.Linear(4, 2), cross_entropy, lr=1.0, epochs=1, batch_size=2)
    >>> loss = [float(r.metrics["loss"]) for r in rounds(FedAvg(step, initial="seed"), fed, n_rounds=9)]
    >>> loss[-1] < loss[0]
    True
    """

    name = "fedavg"

    block_rows = 2**14  # rows may be images

    def __init__(
        self, local: LocalSGD, *, server: Rule = _MEAN, weighting: str = "samples", initial: str = "given"
    ) -> None:
        self.local = local
        self.server = server
        self.weighting = weighting
        self.initial = initial
        check_local(local, initial)
        if weighting not in WEIGHTINGS:
            raise DataError(f"weighting must be one of {WEIGHTINGS}, not {weighting!r}")

    @property
    def block_clients(self) -> int:  # type: ignore[override]  # it depends on the model
        """Number of clients trained side by side: a block holds every client's parameters."""
        return trainer_of(self.local).chunk

    @property
    def trainer(self) -> Trainer | None:
        """The trainer of the device, which a run may use; None for a subclass that sums in another way."""
        return trainer_of(self.local) if type(self).total is FedAvg.total else None

    def start(self, seed: int) -> Arrays:
        model = self.local.model if self.initial == "given" else initialised(self.local.model, seed)
        params = self.local.parameters(model)
        memory = self.server.memory(params)
        return {**{f"model.{n}": p for n, p in params.items()}, **{f"server.{n}": v for n, v in memory.items()}}

    def step(self, state: Arrays, clients: Federation, key: Key) -> tuple[Arrays, Kept]:
        return rows_of_moves(self._moves(state, clients, key), model_arrays(state), clients, self.weighting), {}

    def total(self, state: Arrays, clients: Federation, key: Key) -> Arrays | None:
        weights = clients.sizes if self.weighting == "samples" else np.ones(len(clients))
        start = tensors_of(self.local, model_arrays(state))
        sums = deltas(self.local, start, clients, key, weights=weights)
        return sum_of_sums(sums, self.local, model_arrays(state), clients, self.weighting)

    def update(self, state: Arrays, total: Arrays, key: Key) -> Arrays:
        arrays, numbers = self.moved(state, total)
        return {**state, **trainer_of(self.local).arrays(arrays), **numbers}

    def moved(self, state: Arrays, total: Arrays) -> tuple[Tensors, Arrays]:
        """The arrays of the new state, on the training device, and its numbers; both empty if nobody had a row."""
        weight = float(total["weight" if self.weighting == "samples" else "clients"])
        if weight < 1:  # nobody had a row, or noise makes it look so
            return {}, {}
        device = trainer_of(self.local)
        params = {n: device.tensor(f"model.{n}", p) for n, p in model_arrays(state).items()}
        remembered = {n.removeprefix("server."): v for n, v in state.items() if n.startswith("server.")}
        held = {n: device.tensor(f"server.{n}", v) for n, v in remembered.items() if v.ndim}
        memory = {**remembered, **{n: v.to(torch.float64) for n, v in held.items()}}
        sums = [torch.as_tensor(total[f"delta.{n}"], device=self.local.device) for n in params]
        mean = dict(zip(params, torch._foreach_div(sums, weight), strict=True))
        moves, after = self.server.move(memory, mean)
        arrays = {f"model.{n}": values for n, values in _added(params, moves).items()}
        arrays |= {f"server.{n}": torch.as_tensor(v).to(held[n].dtype) for n, v in after.items() if n in held}
        numbers = {f"server.{n}": _number(v, remembered[n]) for n, v in after.items() if n not in held}
        return arrays, numbers

    def measure(self, state: Arrays, clients: Federation) -> Arrays:
        loss, right, rows = sums_of_clients(self.local, state, clients)
        shares = {"loss": loss} if right is None else {"loss": loss, "accuracy": right}
        return {**{n: v / np.maximum(rows, 1) for n, v in shares.items()}, "with_rows": rows > 0}

    def _moves(self, state: Arrays, clients: Federation, key: Key) -> Iterator[tuple[Array, Tensors]]:
        return deltas(self.local, tensors_of(self.local, model_arrays(state)), clients, key)

    def coded_columns(self) -> Sequence[str]:
        return (self.local.target,)

    def valid_rows(self, state: Arrays, clients: Federation) -> Array | None:
        return valid_rows(self.local, clients)

    @classmethod
    def examples(cls) -> Sequence[tuple[FedAvg, Federation]]:
        rng = np.random.default_rng(3)
        offsets = offsets_of(rng.integers(0, 9, 14))
        fed = Federation({"x": rng.normal(size=(offsets[-1], 4)), "y": rng.integers(0, 3, offsets[-1])}, offsets)
        linear = initialised(nn.Linear(4, 3, dtype=torch.float64), 0)
        deep = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Dropout(0.25), nn.Linear(5, 3)).to(torch.float64)
        one = LocalSGD(linear, cross_entropy, lr=0.3, epochs=2, batch_size=3, proximal=0.1)
        two = LocalSGD(
            initialised(deep, 1), cross_entropy, lr=0.1, steps=3, batch_size=4, momentum=0.5, strategy="sequential"
        )
        return [
            (cls(one), fed),
            (cls(replace(two, strategy="vmap"), server=Adam(), weighting="equal", initial="seed"), fed),
            (cls(two, server=Adam(correction="bias"), weighting="equal"), fed),
        ]


def _added(params: Tensors, moves: Tensors) -> Tensors:
    """The parameters plus their moves, in the type of the parameters; a GPU adds all by few kernels."""
    if not params or not all(p.is_cuda and p.is_floating_point() for p in params.values()):
        return {n: (p + moves[n]).to(p.dtype) for n, p in params.items()}
    sums = [torch.empty_like(p, dtype=torch.promote_types(p.dtype, moves[n].dtype)) for n, p in params.items()]
    ends = [torch.empty_like(p) for p in params.values()]
    torch._foreach_copy_(sums, list(params.values()))
    torch._foreach_add_(sums, [moves[n] for n in params])
    torch._foreach_copy_(ends, sums)
    return dict(zip(params, ends, strict=True))


def rows_of_moves(
    moves: Iterator[tuple[Array, Tensors]], params: Arrays, clients: Federation, weighting: str
) -> Arrays:
    """Rows that clients send: their moves, times their number of rows if that is the weight."""
    sent = {f"delta.{n}": np.zeros((len(clients), *p.shape), dtype=p.dtype) for n, p in params.items()}
    for positions, moved in moves:
        weight = clients.sizes[positions] if weighting == "samples" else None
        for name, rows in moved.items():
            rows_sent = rows.cpu().numpy()
            sent[f"delta.{name}"][positions] = (
                rows_sent
                if weight is None
                else rows_sent * weight.astype(rows_sent.dtype).reshape(-1, *[1] * (rows_sent.ndim - 1))
            )
    return {**sent, **({"weight": clients.sizes} if weighting == "samples" else {})}


def sum_of_moves(
    moves: Iterator[tuple[Array, Tensors]], local: LocalSGD, params: Arrays, clients: Federation, weighting: str
) -> Arrays:
    """The sum of what clients send, in float64, added on the training device: single rows stay there."""
    sums: Tensors = {}
    for positions, moved in moves:
        weights = clients.sizes[positions] if weighting == "samples" else np.ones(len(positions))
        for name, rows in moved.items():
            sums[name] = weighted_sum(rows, weights, onto=sums.get(name))
    return _sent(sums, local, params, clients, weighting)


def sum_of_sums(
    groups: Iterator[tuple[Array, Tensors]], local: LocalSGD, params: Arrays, clients: Federation, weighting: str
) -> Arrays:
    """The same from the sums of groups of clients."""
    sums: Tensors = {}
    for _, moved in groups:
        sums = {n: sums[n].add_(p) for n, p in moved.items()} if sums else moved
    return _sent(sums, local, params, clients, weighting)


def _sent(sums: Tensors, local: LocalSGD, params: Arrays, clients: Federation, weighting: str) -> Arrays:
    """Sums of moves under the names that clients send; zeros if there is no client."""
    if not sums:
        sums = {n: torch.zeros(p.shape, dtype=torch.float64, device=local.device) for n, p in params.items()}
    deltas = {f"delta.{n}": s if local.on_gpu else s.numpy() for n, s in sums.items()}  # an engine only adds
    return {**deltas, **({"weight": np.asarray(clients.sizes.sum())} if weighting == "samples" else {})}


def _number(value: Array | Tensor, like: Array) -> Array:
    return np.asarray(value.item() if isinstance(value, torch.Tensor) else value, dtype=like.dtype)


def FedProx(local: LocalSGD, *, proximal: float, server: Rule = _MEAN, weighting: str = "samples") -> FedAvg:
    """FedAvg with a proximal term: (proximal / 2) |w - w_broadcast|^2 is added to the clients' loss.

    Li et al. 2020, equation 2; the same as FedAvg(LocalSGD(..., proximal=...)).

    >>> step = LocalSGD(nn.Linear(4, 2), cross_entropy, lr=1.0, epochs=1, batch_size=2)
    >>> FedProx(step, proximal=0.1).local.proximal
    0.1
    """
    return FedAvg(replace(local, proximal=proximal), server=server, weighting=weighting)


def FedAdam(local: LocalSGD, *, lr: float = 0.1, epsilon: float = 1e-3, weighting: str = "samples") -> FedAvg:
    """FedAvg whose server rule is Adam with the constants of Reddi et al. 2021.

    >>> step = LocalSGD(nn.Linear(4, 2), cross_entropy, lr=1.0, epochs=1, batch_size=2)
    >>> FedAdam(step, lr=0.01).server
    Adam(lr=0.01, beta1=0.9, beta2=0.99, epsilon=0.001, floor=0.0, correction='none', steps_before=0)
    """
    return FedAvg(local, server=Adam(lr, epsilon=epsilon), weighting=weighting)


def FedYogi(local: LocalSGD, *, lr: float = 0.1, epsilon: float = 1e-3, weighting: str = "samples") -> FedAvg:
    """FedAvg whose server rule is Yogi: Reddi et al. 2021, algorithm 2.

    >>> step = LocalSGD(nn.Linear(4, 2), cross_entropy, lr=1.0, epochs=1, batch_size=2)
    >>> FedYogi(step, lr=0.01).server
    Yogi(lr=0.01, beta1=0.9, beta2=0.99, epsilon=0.001, floor=0.0)
    """
    return FedAvg(local, server=Yogi(lr, epsilon=epsilon), weighting=weighting)


def FedAdagrad(local: LocalSGD, *, lr: float = 0.1, epsilon: float = 1e-3, weighting: str = "samples") -> FedAvg:
    """FedAvg whose server rule is Adagrad, without momentum: Reddi et al. 2021, algorithm 2.

    >>> step = LocalSGD(nn.Linear(4, 2), cross_entropy, lr=1.0, epochs=1, batch_size=2)
    >>> FedAdagrad(step, lr=0.01).server
    Adagrad(lr=0.01, beta1=0.0, beta2=0.99, epsilon=0.001, floor=0.0)
    """
    return FedAvg(local, server=Adagrad(lr, epsilon=epsilon), weighting=weighting)

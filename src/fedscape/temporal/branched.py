"""Shared parts of the methods with branches: choose a branch, train by (4), send statistics of the trained network."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch.func import functional_call, vmap
from torch.nn import functional

from fedscape.core.arrays import offsets_of, rows_of, segment_sum_twin
from fedscape.core.blocks import add_up
from fedscape.core.federation import Federation
from fedscape.core.random import Key
from fedscape.errors import DataError
from fedscape.learning.batches import groups, work_of
from fedscape.learning.branches import BranchLoss, MultiBranch
from fedscape.learning.device import shared
from fedscape.learning.evaluation import model_arrays, tensors_of
from fedscape.learning.fedavg import FedAvg, rows_of_moves, sum_of_moves, sum_of_sums
from fedscape.learning.local import LocalSGD
from fedscape.learning.loop import one_thread, precise
from fedscape.learning.losses import cross_entropy
from fedscape.learning.optimisers import Rates
from fedscape.learning.server import Mean, Rule
from fedscape.learning.trainer import train, trainer_of
from fedscape.personal.shared import log_probs_of
from fedscape.temporal.gaussians import segment_means
from fedscape.types import Array, Arrays, Kept, Tensor, Tensors

_FEW = 128  # rows of one forward pass of a large network on a CPU: the activations of more leave the cache
_MANY = 1024  # rows of one forward pass otherwise
_WIDE = 128  # rows of each client in one pass over many clients
MEAN = Mean()
UNITS = ("sample", "batch", "client")


class Seen(NamedTuple):
    """Output of a network: features [rows, d] and, if requested, outputs [rows, K, classes]; float64."""

    features: Tensor
    outputs: Tensor | None


class Branched(FedAvg):
    """Clients train one branch of a shared network, and send statistics of their features.

    A subclass defines the branch of each row (`choose`), the statistics that clients send beside their moves
    (`look_back`), how the server uses them (`learn`), and how well each branch fits unlabelled rows (`evidence`).

    Parameters
    ----------
    local
        How a client trains; the model is a MultiBranch, the loss cross entropy.
    strength, smoothing
        lambda and epsilon of equation (4).
    server, weighting, initial
        As for FedAvg.
    """

    name = "branched"
    newcomers: ClassVar[str | None] = "the branch that its own rows choose, as every client"

    #: Whether clients compute their features once more, with the network they trained.
    looks_back = False

    def __init__(
        self,
        local: LocalSGD,
        *,
        strength: float = 0.5,
        smoothing: float = 0.1,
        server: Rule = MEAN,
        weighting: str = "samples",
        initial: str = "given",
    ) -> None:
        super().__init__(local, server=server, weighting=weighting, initial=initial)
        self.strength = strength
        self.smoothing = smoothing
        if not isinstance(local.model, MultiBranch):
            raise DataError(f"the model must be a MultiBranch(model, layer), not {type(local.model).__name__}")
        if local.loss is not cross_entropy:
            raise DataError("the loss must be fedscape.learning.cross_entropy: branches are trained on smoothed labels")
        BranchLoss(strength, smoothing)
        self._ready: tuple[Any, LocalSGD] | None = None

    @property
    def n_modes(self) -> int:
        """How many branches the network has."""
        return int(self.local.model.n_branches)

    # -- what a method defines -----------------------------------------------------------------------------------------

    def modes(self, seed: int) -> Arrays:
        """The first state without the network."""
        return {}

    def choose(self, state: Arrays, clients: Federation, key: Key) -> tuple[Array, Kept]:
        """The weight of each branch for each row in training, [rows, K], and the arrays that clients keep."""
        raise TypeError(f"{type(self).__name__} must define choose(state, clients, key)")

    def prepare_round(self, state: Arrays, clients: Federation, key: Key) -> tuple[Array, Kept, Arrays]:
        """As `choose`, and the statistics that clients send before they train: {name: [clients, ...]}."""
        return (*self.choose(state, clients, key), {})

    def look_back(self, state: Arrays, features: Tensor, offsets: Tensor) -> Arrays:
        """Statistics of the features, each client's under its trained network: {name: [clients, ...]}."""
        return {}

    def learn(self, state: Arrays, total: Arrays, key: Key) -> Arrays:
        """The new state without the network."""
        return {}

    def evidence(self, state: Arrays, rows: Seen) -> Tensor:
        """How well each branch fits unlabelled rows: [rows, K]; summed over the rows of a unit."""
        raise TypeError(f"{type(self).__name__} must define evidence(state, rows)")

    # -- a round -------------------------------------------------------------------------------------------------------

    def start(self, seed: int) -> Arrays:
        return {**super().start(seed), **self.modes(seed)}

    def step(self, state: Arrays, clients: Federation, key: Key) -> tuple[Arrays, Kept]:
        with one_thread():  # once for the whole step
            weights, kept, own = self.prepare_round(state, clients, key)
            own = {**own, **self._of_empty(state, clients)}
            moves = self._trained(state, clients, key, weights, own)
            return {**rows_of_moves(moves, model_arrays(state), clients, self.weighting), **own}, kept

    def total(  # type: ignore[override]  # some methods keep something
        self, state: Arrays, clients: Federation, key: Key
    ) -> Arrays | tuple[Arrays, Kept] | None:
        with one_thread():
            weights, kept, own = self.prepare_round(state, clients, key)
            own = {**own, **self._of_empty(state, clients)}
            counts = clients.sizes if self.weighting == "samples" else np.ones(len(clients))
            moves = self._trained(state, clients, key, weights, own, None if self.looks_back else counts)
            add = sum_of_moves if self.looks_back else sum_of_sums
            sums = add(moves, self.local, model_arrays(state), clients, self.weighting)
        sums.update({n: v if n in self.reveals else add_up(v) for n, v in own.items()})
        return (sums, kept) if kept else sums

    def update(self, state: Arrays, total: Arrays, key: Key) -> Arrays:
        own = self.own_names(state)
        network = super().update({n: v for n, v in state.items() if n not in own}, total, key)
        return {**state, **network, **self.learn(state, total, key)}

    def own_names(self, state: Arrays) -> Collection[str]:
        """The names in a state of what `modes` makes."""
        return self.modes(0)

    def measure(self, state: Arrays, clients: Federation) -> Arrays:
        loss, right = self.losses_and_hits(state, clients, unit="client")
        rows = np.maximum(clients.sizes, 1)
        return {"loss": loss / rows, "accuracy": right / rows, "with_rows": clients.sizes > 0}

    @classmethod
    def examples(cls) -> Sequence[tuple[FedAvg, Federation]]:
        return []  # its subclasses have them

    def _of_empty(self, state: Arrays, clients: Federation) -> Arrays:
        """Arrays for all clients, with what a client without rows sends; empty if every client has rows."""
        if not self.looks_back or (len(clients) and clients.sizes.all()):
            return {}
        none = torch.zeros(0, self.local.model.n_features, dtype=torch.float64, device=self.local.device)
        empty = torch.zeros(2, dtype=torch.int64, device=self.local.device)
        return {n: np.repeat(v, len(clients), axis=0) for n, v in self.look_back(state, none, empty).items()}

    def _trained(
        self, state: Arrays, clients: Federation, key: Key, weights: Array, own: Arrays, counts: Array | None = None
    ) -> Iterator[tuple[Array, Tensors]]:
        """Train group by group; write the statistics of each client's features to `own`.

        With `counts` moves are summed over a group, each client's times its count.
        """
        trainer, start = self._trainer, tensors_of(self.local, model_arrays(state))
        data = trainer_of(self.local).data(clients)
        _check_classes(self.local, clients)
        coded = torch.cat([data.y[:, None].to(self.local.dtype), self._tensor(weights)], dim=1)
        data = data._replace(y=coded)
        rates = Rates(self.local.rate(key.round), self.local.proximal)
        for positions in groups(clients.sizes, self.local.timing, most=trainer_of(self.local).chunk):
            work, looked = work_of(trainer, data, clients, positions, key), _Looked(trainer, data.x, clients, positions)
            some = None if counts is None else counts[positions]
            moved = train(trainer, start, work, rates, weights=some, look=looked if self.looks_back else None)
            if self.looks_back:
                features, offsets = looked.features(start, moved)
                for name, rows in self.look_back(state, features, offsets).items():
                    room = own.setdefault(name, np.zeros((len(clients), *rows.shape[1:]), dtype=rows.dtype))
                    room[positions] = rows
            yield positions, moved

    @property
    def _trainer(self) -> LocalSGD:
        """The same local training with the loss of equation (4)."""
        settings = (self.local, self.strength, self.smoothing)
        if self._ready is None or any(a is not b for a, b in zip(self._ready[0], settings, strict=True)):
            self._ready = (settings, replace(self.local, loss=BranchLoss(self.strength, self.smoothing)))
        return self._ready[1]

    def _tensor(self, values: Array) -> Tensor:
        return torch.as_tensor(np.array(values), device=self.local.device).to(self.local.dtype)

    def double(self, values: Array) -> Tensor:
        """An array of the state in float64, on the device of the clients."""
        return shared(np.asarray(values)).to(self.local.device, torch.float64)

    def offsets(self, clients: Federation) -> Tensor:
        """Where each client's rows begin and end."""
        return shared(clients.offsets).to(self.local.device)

    # -- which branch --------------------------------------------------------------------------------------------------

    def see(self, state: Arrays, clients: Federation, *, outputs: bool = False) -> Seen:
        """Features of all rows under the broadcast network and, if requested, outputs of all branches."""
        local, parts, parts_of_outputs = self.local, [], []
        many = _at_once(local)
        params = {n: p[0] for n, p in tensors_of(local, model_arrays(state)).items()}
        with one_thread(), precise(local), torch.no_grad(), trainer_of(self._trainer).borrowed() as module:
            module.eval()
            own = dict(module.named_parameters())
            torch._foreach_copy_([own[n] for n in params], list(params.values()))
            for begin in range(0, max(clients.n_rows, 1), many):
                x = local.inputs(trainer_of(local).column(clients, local.features, slice(begin, begin + many)))
                output, features = module(x, both=True, outputs=outputs)
                parts.append(features.to(torch.float64))
                parts_of_outputs += [] if output is None else [output.to(torch.float64)]
            module.train()
        return Seen(torch.cat(parts), torch.cat(parts_of_outputs) if outputs else None)

    def outputs_of(
        self, state: Arrays, clients: Federation, rows: Array | None = None, *, network: str = "model"
    ) -> Tensor:
        """Outputs of all branches for these (or all) rows under the `network` of the state: [rows, K, classes]."""
        local, trainer = self.local, trainer_of(self._trainer)
        device, number = trainer_of(local), clients.n_rows if rows is None else len(rows)
        params = {n: device.tensor(f"{network}.{n}", state[f"{network}.{n}"]) for n in local.names}
        many = _FEW if number <= _FEW else _at_once(local)

        def part(begin: int) -> Tensor:
            some = slice(begin, begin + many)
            return device.column(clients, local.features, some if rows is None else rows[some])

        return torch.cat([trainer.outputs(params, part(begin)) for begin in range(0, max(number, 1), many)])

    def branch_shares(self, evidence: Tensor, offsets: Tensor) -> Tensor:
        """One for the branch with the most evidence over the rows of a unit, zero for the others: [units, K]."""
        return _one_hot(segment_means(evidence, offsets))

    def log_probs(self, state: Arrays, clients: Federation, *, unit: str = "batch", batch: int = 64) -> Array:
        """log p(class | x) of each row under the branch that its unit chooses without labels: [rows, classes].

        Parameters
        ----------
        state
            The state of a round.
        clients
            The rows to predict; nothing is kept of them.
        unit
            "sample": each row on its own. "batch": rows of a client in batches. "client": all rows of a client.
        batch
            Rows of a batch.
        """
        rows = self.see(state, clients, outputs=True)
        shares = self._shares_of_units(state, rows, clients, unit, batch)
        logs = functional.log_softmax(rows.outputs, dim=-1)
        mixed = torch.logsumexp(logs + shares.clamp(min=1e-300).log()[:, :, None], dim=1)
        return mixed.cpu().numpy()  # type: ignore[no-any-return]

    def losses_and_hits(
        self, state: Arrays, clients: Federation, *, unit: str = "batch", batch: int = 64
    ) -> tuple[Array, Array]:
        """Each client's summed -log p(y | x) and number of correct predictions."""
        logs, y = self.log_probs(state, clients, unit=unit, batch=batch), clients[self.local.target]
        each = np.stack([-log_probs_of(logs, y, otherwise=float(np.log(1e-12))), logs.argmax(axis=1) == y], axis=1)
        sums = segment_sum_twin(each, clients.offsets)
        return sums[:, 0], sums[:, 1]

    def branches_of(self, state: Arrays, clients: Federation, *, unit: str = "batch", batch: int = 64) -> Array:
        """The branch of each row."""
        rows = self.see(state, clients, outputs=True)
        return self._shares_of_units(state, rows, clients, unit, batch).argmax(dim=1).cpu().numpy()  # type: ignore[no-any-return]

    def _shares_of_units(self, state: Arrays, rows: Seen, clients: Federation, unit: str, batch: int) -> Tensor:
        ends = self.offsets_of_units(clients, unit, batch)
        shares = self.branch_shares(self.evidence(state, rows), ends)
        return shares[torch.repeat_interleave(torch.arange(len(shares), device=ends.device), ends.diff())]

    def offsets_of_units(self, clients: Federation, unit: str, batch: int) -> Tensor:
        """Where the rows of each unit begin and end."""
        if unit not in UNITS or batch < 1:
            raise DataError(f"unit must be one of {UNITS} and batch at least 1, not {unit!r} and {batch}")
        size = {"sample": 1, "batch": batch, "client": max(clients.n_rows, 1)}[unit]
        starts = [np.arange(a, b, size) for a, b in zip(clients.offsets[:-1], clients.offsets[1:], strict=True)]
        ends = np.concatenate([*starts, [clients.n_rows]]).astype(np.int64)
        return torch.from_numpy(ends).to(self.local.device)


class _Looked:
    """Features of the rows of these clients, each under the network it has trained.

    Where clients train one after the other, features are computed right after training, in the same memory.
    """

    def __init__(self, local: LocalSGD, x: Tensor, clients: Federation, positions: Array) -> None:
        self.local, self.x, self.clients, self.positions = local, x, clients, positions
        self.parts: list[Tensor] = []

    def __call__(self, row: int, module: Any) -> None:
        begin, end = self.clients.offsets[self.positions[row] :][:2].tolist()
        many = _at_once(self.local)
        module.eval()
        for first in range(begin, end, many):
            part = self.local.inputs(self.x[first : min(first + many, end)])
            self.parts.append(module(part, both=True, outputs=False)[1].to(torch.float64))
        module.train()

    def features(self, start: Tensors, moved: Tensors) -> tuple[Tensor, Tensor]:
        """Features [rows, d], client by client in order, and their offsets; float64."""
        local, (_, offsets) = self.local, rows_of(self.clients.offsets, self.positions)
        if not self.parts:
            with one_thread(), precise(local), torch.no_grad(), trainer_of(local).borrowed() as module:
                module.eval()
                self.parts = [_all_at_once(local, module, start, moved, self.x, self.clients, self.positions)]
                module.train()
        return torch.cat(self.parts), shared(offsets).to(local.device)


def _all_at_once(
    local: LocalSGD, module: Any, start: Tensors, moved: Tensors, x: Tensor, clients: Federation, positions: Array
) -> Tensor:
    def features(params: Tensors, rows: Tensor) -> Tensor:
        return functional_call(module, params, (local.inputs(rows),), {"both": True, "outputs": False})[1]

    params, sizes = {n: start[n] + moved[n] for n in start}, clients.sizes[positions]  # sizes do not increase
    first, begin_of = clients.offsets[:-1][positions], offsets_of(sizes)[:-1]
    all_features = torch.zeros(int(sizes.sum()), local.model.n_features, dtype=torch.float64, device=local.device)
    for begin in range(0, int(sizes.max()), _WIDE):
        going = int((sizes > begin).sum())
        position = begin + np.arange(min(_WIDE, int(sizes[0]) - begin))
        real = position < sizes[:going, None]
        rows = torch.from_numpy(np.where(real, first[:going, None] + position, first[:going, None])).to(local.device)
        batch_features = vmap(features)({n: p[:going] for n, p in params.items()}, x[rows])
        target = torch.from_numpy((begin_of[:going, None] + position)[real]).to(local.device)
        all_features[target] = batch_features[torch.from_numpy(real).to(local.device)].to(torch.float64)
    return all_features


def _at_once(local: LocalSGD) -> int:
    return _FEW if torch.device(local.device).type == "cpu" and trainer_of(local).strategy == "sequential" else _MANY


def _one_hot(values: Tensor) -> Tensor:
    return functional.one_hot(values.argmax(dim=1), values.shape[1]).to(values.dtype)


def _check_classes(local: LocalSGD, clients: Federation) -> None:
    if clients[local.target].dtype.kind not in "biu" or clients[local.target].ndim != 1:
        raise DataError(
            f"the column {local.target!r} must hold classes 0, 1, 2, ..., not {clients[local.target].dtype}"
        )

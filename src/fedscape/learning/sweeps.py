"""Many settings of one training as one run: one more batch dimension."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from fedscape.core.computation import Computation
from fedscape.core.federation import Federation
from fedscape.core.random import Key
from fedscape.errors import DataError
from fedscape.learning.batches import Plan, Work, groups, work_of
from fedscape.learning.device import Data
from fedscape.learning.evaluation import model_arrays, sums_of_clients, valid_rows
from fedscape.learning.fedavg import WEIGHTINGS, FedAvg, rows_of_moves, sum_of_sums
from fedscape.learning.local import LocalSGD
from fedscape.learning.loop import one_thread
from fedscape.learning.optimisers import Rates
from fedscape.learning.server import Mean, Rule
from fedscape.learning.trainer import Draws, Works, train, trainer_of
from fedscape.types import Array, Arrays, Kept, Tensor, Tensors

_MEAN = Mean()


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What may differ between the runs of a sweep: numbers that change no shape.

    `lr` and `proximal` are the client's, `server` is a factor on the server's learning rate, and `seed` draws shuffles,
    dropout and (with initial="seed") the first weights.

    >>> Setting(lr=0.1, seed=3)
    Setting(lr=0.1, proximal=0.0, server=1.0, seed=3)
    """

    lr: float
    proximal: float = 0.0
    server: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not all(0 <= v < np.inf for v in (self.lr, self.proximal, self.server)):
            raise DataError(f"lr, proximal and server must be numbers of at least 0: {self!r}")


class Sweep(Computation):
    """FedAvg under several settings at once, on the same cohorts.

    The state holds `model.<parameter>` [settings, ...]; setting s goes through the numbers of
    `FedAvg(LocalSGD(..., lr, proximal), server=...)` run with its seed on these cohorts.

    Parameters
    ----------
    local
        How a client trains; `lr` and `proximal` are the settings' own.
    settings
        What differs.
    server, weighting, initial
        As for FedAvg.
    begin
        The number of the first round, where an earlier sweep is gone on with.

    >>> from fedscape.learning import cross_entropy, models
    >>> local = LocalSGD(models.linear(4, 2), cross_entropy, lr=1.0, epochs=1, batch_size=2)
    >>> Sweep(local, [Setting(lr=0.1), Setting(lr=0.2)]).start(0)["model.1.weight"].shape
    (2, 2, 4)
    """

    name = "sweep"

    block_rows = 2**14

    def __init__(
        self,
        local: LocalSGD,
        settings: Sequence[Setting],
        *,
        server: Rule = _MEAN,
        weighting: str = "samples",
        initial: str = "given",
        begin: int = 0,
    ) -> None:
        self.local = local
        self.settings = tuple(settings)
        self.server = server
        self.weighting = weighting
        self.initial = initial
        self.begin = begin
        if not self.settings:
            raise DataError("settings must name at least one Setting, got none")
        if weighting not in WEIGHTINGS:
            raise DataError(f"weighting must be one of {WEIGHTINGS}, not {weighting!r}")

    @property
    def block_clients(self) -> int:  # type: ignore[override]  # it depends on the model
        """As many clients as are trained side by side under all settings; on a GPU four times as many as of one."""
        return max(1, (4 if self.local.on_gpu else 1) * trainer_of(self.local).chunk // len(self.settings))

    def start(self, seed: int) -> Arrays:
        one = FedAvg(self.local, server=self.server, weighting=self.weighting, initial=self.initial)
        seeds = [setting.seed for setting in self.settings]
        begin = {s: one.start(s) for s in dict.fromkeys(seeds)}
        which = np.array([list(begin).index(s) for s in seeds])
        numbers = {n: v for n, v in begin[seeds[0]].items() if n == "server.t"}  # the same for all
        each = {n: np.stack([s[n] for s in begin.values()]) for n in begin[seeds[0]] if n not in numbers}
        return {**numbers, **self._begun({**each, "server.diverged": np.zeros(len(begin), dtype=bool)}, which)}

    def _begun(self, each: Arrays, which: Array) -> Arrays:
        """The state of all settings: rows of these arrays."""
        return {n: v[which] for n, v in each.items()}

    def step(self, state: Arrays, clients: Federation, key: Key) -> tuple[Arrays, Kept]:
        moves, number = self._moves(state, clients, key), len(self.settings)
        each = ((who, {n: d.unflatten(0, (len(who), number)) for n, d in moved.items()}) for who, moved in moves)
        return rows_of_moves(each, model_arrays(state), clients, self.weighting), {}

    def total(self, state: Arrays, clients: Federation, key: Key) -> Arrays | None:
        weights = clients.sizes if self.weighting == "samples" else np.ones(len(clients))
        with one_thread():  # also for what is summed
            moves = self._moves(state, clients, key, np.repeat(weights[:, None], len(self.settings), axis=1))
            return sum_of_sums(moves, self.local, model_arrays(state), clients, self.weighting)

    def _moves(
        self, state: Arrays, clients: Federation, key: Key, weights: Array | None = None
    ) -> Iterator[tuple[Array, Tensors]]:
        """Groups of clients, and how far each moves each parameter under each setting; or sums, as `train` has them."""
        start = {n: trainer_of(self.local).tensor(f"model.{n}", p) for n, p in model_arrays(state).items()}
        for positions, work in trainer_of(self.local).works(clients, key, self.draws):
            mine = None if weights is None else weights[positions]
            rates = self._rates(key.round + self.begin, len(positions))
            yield positions, train(self.local, start, work, rates, weights=mine)

    @property
    def draws(self) -> Draws:
        """How the batches of a round are drawn."""
        return Draws((self.settings, self.begin), self._works, len(self.settings))

    def _works(self, clients: Federation, key: Key) -> Works:
        data, drawn = trainer_of(self.local).data(clients), key.at(key.round + self.begin)
        for positions in groups(clients.sizes, self.local.timing, most=self.block_clients):
            yield positions, self._work(data, clients, positions, drawn)

    def update(self, state: Arrays, total: Arrays, key: Key) -> Arrays:
        one = FedAvg(self.local, server=self.server, weighting=self.weighting)
        tensors, numbers = one.moved(state, total)  # server rules work number by number
        before = {n: trainer_of(self.local).tensor(n, state[n]) for n in tensors}
        factors = torch.tensor([setting.server for setting in self.settings], dtype=torch.float64)
        for n in tensors if bool((factors != 1).any()) else ():
            if n.startswith("model."):
                factor = _along(factors.to(tensors[n].device), tensors[n])
                tensors[n] = (before[n] + factor * (tensors[n].to(torch.float64) - before[n])).to(tensors[n].dtype)
        return {**state, **self._stopped(state, before, tensors), **numbers}

    def _stopped(self, state: Arrays, before: Tensors, after: Tensors) -> Arrays:
        """A setting whose numbers run away stays where it last was and is marked; the others go on."""
        diverged = trainer_of(self.local).tensor("server.diverged", state["server.diverged"])
        for values in after.values():
            if values.numel():  # NaN is its own minimum, and all numbers are read once
                lowest, highest = torch.aminmax(values.reshape(len(diverged), -1), dim=1)
                diverged = diverged | ~(torch.isfinite(lowest) & torch.isfinite(highest))
        stay = {n: torch.where(_along(diverged, values), before[n], values) for n, values in after.items()}
        return self._arrays({**stay, "server.diverged": diverged})

    def _arrays(self, tensors: Tensors) -> Arrays:
        """Tensors as arrays of the state."""
        return trainer_of(self.local).arrays(tensors)

    @property
    def trainer(self) -> SweepTrainer:
        """What a run may ask of the device."""
        return SweepTrainer(self)

    def measure(self, state: Arrays, clients: Federation) -> Arrays:
        sums = [sums_of_clients(self.local, self.state_of(state, s), clients) for s in range(len(self.settings))]
        rows = np.maximum(clients.sizes, 1)[:, None]
        metrics = {"loss": np.stack([s[0] for s in sums], axis=1) / rows, "with_rows": clients.sizes > 0}
        right = [s[1] for s in sums if s[1] is not None]
        return {**metrics, "accuracy": np.stack(right, axis=1) / rows} if right else metrics

    def taken(self, state: Arrays, which: Sequence[int], *, looked_at: bool) -> Arrays:
        """The state of some settings: in host memory if somebody looks at it, or else where it is."""
        trainer, rows = trainer_of(self.local), np.array(which, dtype=np.int64)
        held, where = trainer.only_here(state), trainer.sent(rows)
        on_host = {n: v if n == "server.t" else v[rows] for n, v in state.items() if n not in held}
        tensors = {n: v[where] for n, v in held.items()}
        return {**on_host, **(trainer.fetched(tensors) if looked_at else self._arrays(tensors))}

    def state_of(self, state: Arrays, place: int) -> Arrays:
        """The state of one setting, as FedAvg has it."""
        return {n: v if n == "server.t" else v[place] for n, v in state.items() if n != "server.diverged"}

    def _rates(self, index: int, clients: int) -> Rates:
        factor = 1.0 if self.local.schedule is None else self.local.schedule(index)
        columns = [[s.lr * factor for s in self.settings], [s.proximal for s in self.settings]]
        kind, send = torch.empty(0, dtype=self.local.dtype).numpy().dtype, trainer_of(self.local).sent
        both = [send(np.tile(np.array(column, dtype=kind), clients)) for column in columns]
        return Rates(both[0], both[1] if any(columns[1]) else 0.0)

    def _work(self, data: Data, clients: Federation, positions: Array, key: Key) -> Work:
        """The work of each client under each setting; settings of one seed share their shuffles."""
        seeds = [setting.seed for setting in self.settings]
        works = {s: work_of(self.local, data, clients, positions, replace(key, seed=s)) for s in dict.fromkeys(seeds)}
        plans = [works[s].plan for s in seeds]
        rows = np.stack([p.rows for p in plans], axis=1)  # [clients, settings, steps, width]
        counts = np.repeat(plans[0].counts, len(seeds), axis=0)

        def dropout(path: str, steps: int) -> Array:
            each = {s: work.dropout(path, steps) for s, work in works.items()}
            return np.stack([each[s] for s in seeds], axis=2).reshape(steps, -1, 2)

        return works[seeds[0]]._replace(plan=Plan(rows.reshape(-1, *rows.shape[2:]), counts), dropout=dropout)

    def coded_columns(self) -> Sequence[str]:
        return (self.local.target,)

    def valid_rows(self, state: Arrays, clients: Federation) -> Array | None:
        return valid_rows(self.local, clients)

    @classmethod
    def examples(cls) -> Sequence[tuple[Sweep, Federation]]:
        computation, fed = FedAvg.examples()[1]
        settings = [Setting(lr=0.1), Setting(lr=0.2, seed=1), Setting(lr=0.1, proximal=0.3, server=0.5)]
        return [(cls(computation.local, settings, initial="seed"), fed)]


class SweepTrainer:
    """The device's trainer as a run asks it, which draws the batches of all settings ahead.

    >>> SweepTrainer(Sweep.examples()[0][0]).prefetches
    False
    """

    def __init__(self, sweep: Sweep) -> None:
        self._trainer, self._draws = trainer_of(sweep.local), sweep.draws

    @property
    def prefetches(self) -> bool:
        """Whether the device computes while the host is free to prefetch."""
        return self._trainer.prefetches

    def prefetch(self, clients: Federation, key: Key) -> None:
        """Draw the batches of the round of this key under each setting."""
        self._trainer.prefetch(clients, key, self._draws)

    def known_finite(self, state: Mapping[str, Array]) -> bool:
        """Whether all numbers of this state were checked on the device."""
        return self._trainer.known_finite(state)


def _along(values: Tensor, like: Tensor) -> Tensor:
    """One value for each setting, in the shape of an array [settings, ...]."""
    return values.reshape(-1, *[1] * (like.ndim - 1))


def grid(
    *,
    lr: Sequence[float],
    proximal: Sequence[float] = (0.0,),
    server: Sequence[float] = (1.0,),
    seeds: Sequence[int] = (0,),
) -> list[Setting]:
    """All combinations.

    >>> len(grid(lr=[0.1, 0.2], seeds=[0, 1, 2]))
    6
    """
    return [Setting(lr=a, proximal=b, server=c, seed=d) for a in lr for b in proximal for c in server for d in seeds]

"""Try many settings side by side, and drop the worse ones on the way: successive halving."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedscape.core.engine import Engine, Local, as_engine
from fedscape.core.federation import Federation
from fedscape.core.progress import shown
from fedscape.core.random import Key
from fedscape.core.rounds import rounds
from fedscape.core.sampling import All, Sampler
from fedscape.errors import DataError
from fedscape.learning.evaluation import Evaluation, evaluate
from fedscape.learning.local import LocalSGD
from fedscape.learning.server import Mean, Rule
from fedscape.learning.sweeps import Setting, Sweep
from fedscape.learning.trainer import trainer_of
from fedscape.types import Array, Arrays, HasKeys, Tensors

_MEAN = Mean()


@dataclass(frozen=True)
class Trial:
    """One setting of a sweep: how long it ran, and how it then did on the validation rows.

    A setting that diverged is evaluated where its weights were last finite, and comes last.
    """

    setting: Setting
    rounds: int
    evaluation: Evaluation
    state: Arrays
    diverged: bool = False

    @property
    def loss(self) -> float:
        """Pooled over the validation rows; infinite for a setting that diverged."""
        return float("inf") if self.diverged else self.evaluation.summary()["loss_pooled"]

    def __repr__(self) -> str:
        return f"Trial({self.setting}, rounds={self.rounds}, loss={self.loss:.4g})"


@dataclass(frozen=True)
class _Later:
    """A sampler whose first round is a later one of another."""

    sampler: Sampler
    begin: int

    def draw(self, clients: HasKeys, key: Key) -> Array:
        return self.sampler.draw(clients, key.at(key.round + self.begin))


def sweep(
    local: LocalSGD,
    federation: Engine | Federation,
    settings: Sequence[Setting],
    *,
    n_rounds: int,
    validation: Federation,
    rungs: int = 1,
    keep: float = 1 / 3,
    sampler: Sampler | None = None,
    server: Rule = _MEAN,
    weighting: str = "samples",
    initial: str = "given",
    seed: int = 0,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: bool | None = False,
) -> list[Trial]:
    """Try settings side by side, dropping the worse ones on the way; the best comes first.

    Successive halving (Jamieson and Talwalkar 2016). With R = `rungs`, settings that reach the end of rung i have
    trained for n_rounds keep^(R - 1 - i) rounds. The best `keep` of them by pooled validation loss go on.

    Parameters
    ----------
    local
        How a client trains.
    federation
        The clients that train, or an engine where they live.
    settings
        What to try.
    n_rounds
        Rounds of the settings that stay to the end.
    validation
        Clients with the rows to compare on: never those reported on in the end.
    rungs
        How often settings are compared; 1 lets all run to the end.
    keep
        The share of settings that goes on.
    sampler, server, weighting, initial, seed
        As for FedAvg and `rounds`; the seed draws the cohorts, which all settings share.
    checkpoint
        Prefix of the files written, one per rung. A sweep that finds them continues, with the same result.
    progress
        Whether a bar is shown; None shows one on a terminal.

    >>> from fedscape.learning import cross_entropy, models
    >>> fed = Federation({"x": [[1.0, 0.0], [0.0, 1.0]] * 2, "y": [0, 1, 0, 1]}, [0, 1, 4])
    >>> local = LocalSGD(models.linear(2, 2), cross_entropy, lr=1.0, epochs=1, batch_size=2)
    >>> tried = sweep(local, fed, [Setting(lr=0.01), Setting(lr=1.0)], n_rounds=4, validation=fed, rungs=2, keep=0.5)
    >>> [(t.setting.lr, t.rounds) for t in tried]
    [(1.0, 4), (0.01, 2)]
    """
    if rungs < 1 or not 0 < keep <= 1 or n_rounds < 1:
        raise DataError(
            f"rungs and n_rounds must be at least 1, keep above 0 and at most 1: {rungs}, {n_rounds}, {keep}"
        )
    if validation.n_rows == 0:
        raise DataError("validation must have rows to compare settings on, it has none")
    federation = as_engine(federation)
    kind = _Unseen if checkpoint is None and isinstance(federation, Local) else Sweep
    racing, done = list(settings), 0
    state: Arrays | None = None
    out: list[Trial] = []
    for rung in range(rungs):
        until = max(done, round(n_rounds * keep ** (rungs - 1 - rung)), 1)
        computation = kind(local, racing, server=server, weighting=weighting, initial=initial, begin=done)
        state = computation.start(seed) if state is None else state
        later = _Later(All() if sampler is None else sampler, done)
        state = _race(computation, federation, until - done, later, seed, state, _file(checkpoint, rung), progress)
        done = until
        results, diverged = _judged(computation, state, validation)
        loss = [np.inf if bad else table.summary()["loss_pooled"] for table, bad in zip(results, diverged, strict=True)]
        best = sorted(range(len(racing)), key=lambda s: loss[s])
        stay = 0 if rung == rungs - 1 else max(1, round(len(racing) * keep))
        ended, on = computation.taken(state, best[stay:], looked_at=True), sorted(best[:stay])
        states = [computation.state_of(ended, i) for i in range(len(best) - stay)]
        ending = zip(best[stay:], states, strict=True)
        out = [Trial(racing[s], done, results[s], last, diverged[s]) for s, last in ending] + out
        state, racing = computation.taken(state, on, looked_at=False), [racing[s] for s in on]
    return out


class _Unseen(Sweep):
    """A sweep in rounds of which nobody looks at the state: on a GPU it is there alone, from the first round on."""

    name = "sweep-unseen"

    def _begun(self, each: Arrays, which: Array) -> Arrays:
        send = trainer_of(self.local).sent
        return self._arrays({n: send(v)[send(which)] for n, v in each.items()})

    def _arrays(self, tensors: Tensors) -> Arrays:
        return trainer_of(self.local).unseen(tensors)

    @classmethod
    def examples(cls) -> Sequence[tuple[Sweep, Federation]]:
        return []  # those of Sweep: only `sweep` runs this


def _race(
    computation: Sweep,
    federation: Engine,
    n_rounds: int,
    sampler: Sampler,
    seed: int,
    state: Arrays,
    file: str | None,
    progress: bool | None,
) -> Arrays:
    """The rounds of one rung; with a file, a rung that was stopped goes on, a finished one is not repeated."""
    loop = rounds(
        computation, federation, n_rounds=n_rounds, sampler=sampler, seed=seed, state=state, measure=0, resume=file
    )
    for r in shown(loop, n_rounds=n_rounds, label=f"{len(computation.settings)} settings", progress=progress):
        if file is not None:
            r.save(file)
    return loop.state


def _judged(computation: Sweep, state: Arrays, validation: Federation) -> tuple[list[Evaluation], list[bool]]:
    """How each setting does on the validation rows, and whether it diverged: the weights stay where they are."""
    trainer = trainer_of(computation.local)
    params: dict[str, Any] = {n: trainer.tensor(n, v) for n, v in state.items() if n.startswith("model.")}
    each = [{n: p[row] for n, p in params.items()} for row in range(len(computation.settings))]
    diverged = trainer.tensor("server.diverged", state["server.diverged"]).tolist()
    return [evaluate(computation.local, mine, validation) for mine in each], diverged


def _file(checkpoint: str | os.PathLike[str] | None, rung: int) -> str | None:
    return None if checkpoint is None else f"{os.fspath(checkpoint)}.{rung}"

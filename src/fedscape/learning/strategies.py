"""Which strategy is faster here: measured, for a person to read; no run depends on a clock."""

from __future__ import annotations

import time
from dataclasses import replace

import torch

from fedscape.core.federation import Federation
from fedscape.core.random import Key
from fedscape.errors import DataError
from fedscape.learning.evaluation import tensors_of
from fedscape.learning.local import LocalSGD
from fedscape.learning.trainer import deltas, trainer_of


def measure_strategies(local: LocalSGD, clients: Federation, *, repeats: int = 3) -> dict[str, float]:
    """Seconds to train these clients once on one thread, by strategy; the faster one can be given as `strategy`.

    Parameters
    ----------
    local
        How a client trains.
    clients
        A handful is enough, as many as train side by side at best.
    repeats
        How often each is timed, after one run that is not; the smallest counts.

    >>> from fedscape.learning import cross_entropy, models
    >>> fed = Federation({"x": [[0.0, 1.0]] * 4, "y": [0, 1, 0, 1]}, [0, 1, 4])
    >>> local = LocalSGD(models.linear(2, 2), cross_entropy, lr=1.0, epochs=1, batch_size=2)
    >>> sorted(measure_strategies(local, fed, repeats=1))
    ['sequential', 'stacked', 'vmap']
    """
    if repeats < 1 or clients.n_rows == 0:
        raise DataError(
            f"repeats must be at least 1 and clients must have rows, not {repeats} and {clients.n_rows} rows"
        )
    names = ["sequential", "vmap", *(["recorded", "compiled"] if local.on_gpu else [])]
    stacked = trainer_of(replace(local, strategy="stacked")).strategy == "stacked"
    names += ["stacked"] if stacked else []
    return {name: _seconds(replace(local, strategy=name), clients, repeats) for name in names}


def _seconds(local: LocalSGD, clients: Federation, repeats: int) -> float:
    times = []
    for index in range(repeats + 1):
        began = time.perf_counter()
        for _ in deltas(local, tensors_of(local, local.parameters()), clients, Key(0, index)):
            pass
        if local.on_gpu:
            torch.cuda.synchronize(local.device)
        times.append(time.perf_counter() - began)
    return min(times[1:])

"""What does a round of each method cost beside one of FedAvg?

Twenty clients of 100 rows with batches of 10 and one epoch, every client in every round: a stack of linear layers (784,
64, 10) and two small convolutions, on a CPU. The median processor time of `--repeats` rounds after two to warm up,
methods by turns.
"""

from __future__ import annotations

import statistics
import time

import numpy as np
from torch import nn

from fedscape import Federation, LocalSGD, rounds
from fedscape.learning import cross_entropy, models
from fedscape.learning.layers import drawing
from fedscape.methods import METHODS, Course, Options
from table import arguments, report

NAMES = ("fedavg", "fedyogi", "scaffold", "fedper", "fedrep", "fedbabu", "fedala", "feddbe", "gpfl", "pfedfda", "ditto")


def network(kind: str) -> nn.Module:
    if kind == "mlp":
        return models.mlp(784, 64, 10)
    with drawing(0):
        return nn.Sequential(
            nn.Unflatten(1, (1, 28)), nn.Conv2d(1, 8, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 5), nn.ReLU(),
            nn.MaxPool2d(2), nn.Flatten(), nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 10),
        )  # fmt: skip


def main() -> None:
    given = arguments(__doc__, repeats=9)
    repeats, size = (2, 30) if given.quick else (given.repeats, 100)
    rng = np.random.default_rng(given.seed)
    x, y = rng.normal(size=(20 * size, 28, 28)).astype(np.float32), rng.integers(0, 10, 20 * size)
    fed = Federation({"x": x, "y": y}, np.arange(0, 20 * size + 1, size))
    lines: dict[str, dict[str, object]] = {name: {"method": METHODS[name].title} for name in NAMES}
    for kind in ("mlp", "cnn"):
        step = LocalSGD(network(kind), cross_entropy, lr=0.01, epochs=1, batch_size=10)
        loops = {}
        for name in NAMES:
            course = Course(name, step, fed, Options(initial="seed"))
            loops[name] = iter(rounds(course.computation, course.engine, n_rounds=repeats + 2, measure=0))
        seconds: dict[str, list[float]] = {name: [] for name in NAMES}
        for turn in range(repeats + 2):
            for name, loop in loops.items():
                began = time.process_time()
                next(loop)
                if turn > 1:
                    seconds[name].append(time.process_time() - began)
        base = statistics.median(seconds["fedavg"])
        for name in NAMES:
            middle = statistics.median(seconds[name])
            lines[name] |= {f"{kind}, ms": f"{1000 * middle:.0f}", f"{kind}, of FedAvg": f"{middle / base:.2f}"}
    report("method_rounds", list(lines.values()))


if __name__ == "__main__":
    main()

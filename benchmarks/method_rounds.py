"""What does a round of each method cost beside one of FedAvg?

Twenty clients of 100 rows with batches of 10 and one epoch, every client in every round: a stack of linear layers (784,
64, 10) and two small convolutions, on a CPU. The median processor time of `--repeats` rounds after two to warm up,
methods by turns. Then what of a round of SCAFFOLD and FedALA on the linear layers is not in one of FedAvg: medians of
processor time within these functions, in rounds of FedAvg (`method_extra.json`).
"""

from __future__ import annotations

import functools
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
from torch import nn

from fedscape import Federation, LocalSGD, rounds
from fedscape.learning import cross_entropy, models, scaffold
from fedscape.learning.fast import stacks, trainers
from fedscape.learning.layers import drawing
from fedscape.methods import METHODS, Course, Options
from fedscape.personal import fedala
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


#: Functions of a round: where they are, and what they do.
PARTS: dict[str, tuple[tuple[Any, str, str], ...]] = {
    "fedavg": ((trainers, "train_stack", "train"),),
    "scaffold": (
        (trainers, "train_stack", "train"),
        (stacks, "laid_out", "lay out the control variates for the steps"),
        (scaffold, "weighted_sums", "sum moves and changes over clients"),
        (scaffold.Scaffold, "update", "move the server's model and control variate"),
        (scaffold.Scaffold, "total", "all of a block"),
    ),
    "fedala": (
        (trainers, "train_stack", "train"),
        (fedala, "_embedded", "pass 80% of the rows through the lower layers"),
        (fedala, "_sample", "draw these rows"),
        (fedala.FedALA, "_weights", "these two, and steps of the weights on them"),
        (fedala, "weighted_sums", "sum moves over clients"),
        (fedala.FedALA, "total", "all of a block"),
    ),
}


def clocked(where: Any, name: str, spent: list[float]) -> Callable[[], None]:
    """Let a function note the processor time of each call; what is returned puts the plain one back."""
    plain = getattr(where, name)

    @functools.wraps(plain)
    def noting(*given: Any, **named: Any) -> Any:
        began = time.thread_time()
        answer = plain(*given, **named)
        spent.append(time.thread_time() - began)
        return answer

    setattr(where, name, noting)
    return lambda: setattr(where, name, plain)


def extra(fed: Federation, repeats: int) -> list[dict[str, object]]:
    """Medians over rounds of what functions of a round take, methods by turns."""
    step = LocalSGD(network("mlp"), cross_entropy, lr=0.01, epochs=1, batch_size=10)
    courses = {name: Course(name, step, fed, Options(initial="seed")) for name in PARTS}
    loops = {n: iter(rounds(c.computation, c.engine, n_rounds=repeats + 12, measure=0)) for n, c in courses.items()}
    spent: dict[tuple[str, str], list[float]] = defaultdict(list)
    for turn in range(repeats + 12):
        for name, loop in loops.items():
            calls: dict[str, list[float]] = {what: [] for _, _, what in PARTS[name]}
            undo = [clocked(where, function, calls[what]) for where, function, what in PARTS[name]]
            began = time.thread_time()
            next(loop)
            calls["the round"] = [time.thread_time() - began]
            for put_back in undo:
                put_back()
            if turn >= 12:  # what is compiled after some calls is
                for what, each in calls.items():
                    spent[name, what].append(sum(each))
    base = statistics.median(spent["fedavg", "the round"])
    lines = []
    for (name, what), each in spent.items():
        middle = statistics.median(each)
        line = {
            "method": METHODS[name].title,
            "what": what,
            "ms": f"{1000 * middle:.1f}",
            "rounds": f"{middle / base:.2f}",
        }
        lines.append(line)
    return lines


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
    report("method_extra", extra(fed, 3 * repeats))


if __name__ == "__main__":
    main()

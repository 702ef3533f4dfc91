"""Does a small transformer learn the roles of an unseen play by adapters as well as by all its weights?

The network is trained on the roles of two plays (hamlet, henryv) and then fine-tuned by those of a third (midsummer),
on windows of 16 characters. Of each role the first 70% of the text train, the next 10% choose the clients' rate (seed 0
alone), the last 15% are reported, with a gap of windows between them. Bytes are those of a client's message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

import fedscape as fs
from fedscape.learning import Adapted, FedAvg, cross_entropy, evaluate, grid, models, module_of, sweep
from fedscape.personal import LocalOnly
from fedscape.personal.personalised import Personalised
from table import arguments, report

WIDE, RATES = 16, [0.3, 1.0]
ARMS: dict[str, Callable[[Any], Any]] = {
    "all weights": lambda net: net,
    "rank 4": lambda net: Adapted(net, 4),
    "rank 4, one factor": lambda net: Adapted(net, 4, factors="up"),
}


def main() -> None:
    args = arguments(__doc__, seeds=3)
    report("adapters", list(lines(args.quick, 1 if args.quick else args.seeds)))


def lines(quick: bool, seeds: int) -> Iterator[dict[str, Any]]:
    fed = fs.datasets.load("shakespeare-mini")
    fed = fed.with_column("x", fed["x"][:, -WIDE:])
    third = np.char.startswith(fed.ids.astype(str), "midsummer")
    two, play = fed.take(np.flatnonzero(~third)), fed.take(np.flatnonzero(third))
    train, choose, test = part(play, 0, 0.7), part(play, 0.72, 0.82), part(play, 0.85, 1)
    before, after = (2, 2) if quick else (30, 10)
    rates: dict[str, float] = {}
    for seed in range(seeds):
        base, local = pretrained(two, before, seed)
        start = {f"model.{n}": p for n, p in local.parameters(base).items()}
        yield line(seed, "not tuned", evaluate(local, start, test, threads=1), 0, 0.0)
        for name, adapted in ARMS.items():
            own = replace(local, model=adapted(base))
            if name not in rates:
                settings = grid(lr=RATES)
                how: dict[str, Any] = {"n_rounds": after, "validation": choose, "sampler": fs.FixedSize(4), "seed": 100}
                rates[name] = sweep(own, fs.Local(train, threads=1), settings, **how)[0].setting.lr
            own = replace(own, lr=rates[name])
            state = last(FedAvg(own), train, after, 4, seed)
            yield line(seed, name, evaluate(own, state, test, threads=1), 4 * own.n_parameters, own.lr)
            if name in ("all weights", "rank 4"):
                yield line(seed, f"{name}, each role alone", alone(own, train, test, after // 4, seed), 0, own.lr)


def part(fed: fs.Federation, begin: float, end: float) -> fs.Federation:
    """This part of each role's windows, in the order of its text."""
    where = np.arange(fed.n_rows) - np.repeat(fed.offsets[:-1], fed.sizes)
    share = where / np.repeat(fed.sizes, fed.sizes)
    return fed.where((begin <= share) & (share < end))


def pretrained(two: fs.Federation, n_rounds: int, seed: int) -> tuple[Any, fs.LocalSGD]:
    """A network that knows two plays, and how it was trained."""
    net = models.transformer(80, width=64, layers=2, heads=4, length=WIDE, seed=seed)
    local = fs.LocalSGD(net, cross_entropy, lr=0.3, steps=8, batch_size=32)
    return module_of(net, last(FedAvg(local), two, n_rounds, 5, seed)), local


def last(method: Any, fed: fs.Federation, n_rounds: int, cohort: int, seed: int) -> dict[str, Any]:
    loop = fs.rounds(
        method, fs.Local(fed, threads=1), n_rounds=n_rounds, sampler=fs.FixedSize(cohort), seed=seed, measure=0
    )
    for _ in loop:
        pass
    return loop.state


def alone(own: fs.LocalSGD, train: fs.Federation, test: fs.Federation, n_rounds: int, seed: int) -> Any:
    """Every role tunes for itself, as often as it is in a cohort, and sends nothing but its number of rows."""
    engine, method = fs.Local(train, threads=1), LocalOnly(own)
    loop = fs.rounds(method, engine, n_rounds=max(1, n_rounds), seed=seed, measure=0)
    for _ in loop:
        pass
    return Personalised(method, loop.state, train.ids, engine.kept()).evaluate(test)


def line(seed: int, name: str, result: Any, size: int, lr: float) -> dict[str, Any]:
    summary = result.summary()
    numbers = {"loss": summary["loss_pooled"], "accuracy": 100 * summary["accuracy_pooled"]}
    found = {"seed": seed, "tuned": name, "bytes of a message": size, "rate": lr, **numbers}
    print(found, flush=True)
    return found


if __name__ == "__main__":
    main()

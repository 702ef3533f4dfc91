"""What makes FedDBE good? Its authors' algorithm as a plain loop, with four forms of the consensus, on PFLlib's deal.

The loop knows nothing of fedscape but its deal of the clients: it copies models, draws batches by torch and steps by
autograd. `consensus` is what features are pulled to: "last batches" of a first training, as the authors' code has it
with momentum 1; "after training": the mean over all rows under each client's model after it; "first weights": the same
before any training, which fedscape had; "none": no pull. Beside them FedPer by the same loop, and fedscape's FedDBE.
Its first round only finds the consensus, so it has one more. Accuracy in % over all clients' test rows after a third,
two thirds and all of the rounds; "spread" is the variance of the features between a client's test rows under the common
body, a mean over features and clients: at 0 every image looks the same. Seed 99 is in no other table; `--seeds "0 1 2"`
are those of the board. `--kappas` are weights of the pull; `--fedper 0` and `--ours 0` leave those two out; `--name` is
that of the result.
"""

from __future__ import annotations

import argparse
import copy
import os
import statistics
import time
from collections.abc import Iterator

import torch
from board import Split, data_folder
from pfllib import clients, network, work
from torch import Tensor, nn
from torch.nn import functional

from cells import Row
from fedscape.learning.layers import initialised
from table import arguments, report

KAPPA = 50.0
FORMS = ("last batches", "after training", "first weights", "none")
Rows = list[tuple[Tensor, Tensor]]


def rows_of(split: Split) -> tuple[Rows, Rows]:
    """Each client's images and classes: those to train on, and those to test."""
    sides: list[Rows] = []
    for fed in split:
        ends = zip(fed.offsets[:-1], fed.offsets[1:], strict=True)
        sides.append([(torch.tensor(fed["x"][a:b]).float() / 255, torch.tensor(fed["y"][a:b])) for a, b in ends])
    return sides[0], sides[1]


def trained(
    model: nn.Module, rows: tuple[Tensor, Tensor], lr: float, shift: Tensor, target: Tensor | None, kappa: float = KAPPA
) -> tuple[Tensor, Tensor]:
    """One epoch of a client, in place: its shift after it, and the mean features of the last batch.

    Without a target there is neither shift nor pull.
    """
    (x, y), body, head = rows, model[:-1], model[-1]
    shift, params = shift.clone().requires_grad_(), list(model.parameters())
    order, mean = torch.randperm(len(y)), shift.detach()
    for begin in range(0, len(y), 10):
        batch = order[begin : begin + 10]
        z = body(x[batch])
        mean = z.mean(0)
        loss = functional.cross_entropy(head(z if target is None else z + shift), y[batch])
        own = params if target is None else [*params, shift]
        if target is not None:
            loss = loss + kappa * (0.5 * (mean - target) ** 2).mean()
        with torch.no_grad():
            for p, g in zip(own, torch.autograd.grad(loss, own), strict=True):
                p -= lr * g
    return shift.detach(), mean.detach()


def consensus(form: str, model: nn.Module, rows: Rows, lr: float, weights: list[float]) -> Tensor:
    """What the features of all clients are pulled to."""
    total = torch.zeros(model[-1].in_features)
    for (x, y), weight in zip(rows, weights, strict=True):
        own = copy.deepcopy(model)
        if form != "first weights":
            mean = trained(own, (x, y), lr, total * 0, None)[1]
        if form != "last batches":
            with torch.no_grad():
                mean = own[:-1](x).mean(0)
        total += weight * mean
    return total


def rounds(
    method: str, form: str, sides: tuple[Rows, Rows], width: int, lr: float, n: int, seed: int, weight_of_pull: float
) -> Iterator[tuple[float, float]]:
    """Accuracy, and the spread of the common features, after each round of FedDBE or FedPer."""
    torch.manual_seed(seed)
    rows, test = sides
    weights = [len(y) / sum(len(y) for _, y in rows) for _, y in rows]
    common = initialised(network(width), seed)
    heads, shifts = [copy.deepcopy(common[-1]) for _ in rows], torch.zeros(len(rows), common[-1].in_features)
    kappa = 0.0 if form == "none" else weight_of_pull
    target = None if method == "fedper" else consensus(form, common, rows, lr, weights)
    for _ in range(n):
        new = {name: torch.zeros_like(p) for name, p in common.state_dict().items()}
        for i, weight in enumerate(weights):
            own = copy.deepcopy(common)
            if method == "fedper":
                own[-1].load_state_dict(heads[i].state_dict())
            shifts[i] = trained(own, rows[i], lr, shifts[i], target, kappa)[0]
            heads[i] = copy.deepcopy(own[-1])
            for name, p in own.state_dict().items():
                new[name] += weight * p
        common.load_state_dict(new)
        hits, spread = 0, []
        with torch.no_grad():
            for i, (x, y) in enumerate(test):
                z = common[:-1](x)
                spread.append(float(z.var(0).mean()))
                output = heads[i](z) if method == "fedper" else common[-1](z + shifts[i])
                hits += int((output.argmax(1) == y).sum())
        yield 100 * hits / sum(len(y) for _, y in test), statistics.fmean(spread)


def lines_of(seed: int, given: argparse.Namespace, n: int, most: int) -> Iterator[Row]:
    """The loop in all its forms, and fedscape's FedDBE, on the deal of one seed."""
    shown = sorted({max(1, n // 3), max(1, 2 * n // 3), n})
    folder = os.fspath(data_folder())
    sides = rows_of(clients("fashion_mnist", given.part, seed, most, folder))
    forms = [form for form in given.forms.split(", ") if form]
    kappas = [float(kappa) for kappa in given.kappas.split()]
    kinds = [("fedper", "", 0.0)] * given.fedper + [*(("feddbe", form, kappa) for form in forms for kappa in kappas)]
    for method, form, kappa in kinds:
        found = list(rounds(method, form, sides, given.width, given.lr, n, seed, kappa))
        numbers = {f"{r} rounds": f"{found[r - 1][0]:.1f}" for r in shown}
        numbers |= {f"spread, {r} rounds": f"{found[r - 1][1]:.4f}" for r in (1, n)}
        kind = {"consensus": form, "kappa": f"{kappa:g}" if form else ""}
        yield {"seed": seed, "what": f"{method}, plain loop", **kind, **numbers}
    cell: Row = {"set": "fashion_mnist", "part": given.part, "method": "feddbe", "seed": seed, "rounds": n + 1}
    cell |= {"lr": given.lr, "most": most, "width": given.width, "steps": 0}
    for kappa in kappas * given.ours:
        last = work(cell, time.time() + 1e6, device="cpu", most=most, folder=folder, kappa=kappa)[0]["last"]
        yield {
            "seed": seed,
            "what": "feddbe of fedscape",
            "consensus": "after training",
            "kappa": f"{kappa:g}",
            f"{n} rounds": f"{100 * last:.1f}",
        }


def main() -> None:
    given = arguments(
        __doc__, rounds=15, lr=0.05, width=8, part="classes", seeds="99", forms=", ".join(FORMS), kappas="50", fedper=1,
        ours=1, name="others_feddbe",
    )  # fmt: skip
    n, most, lines = (3, 1_000, []) if given.quick else (given.rounds, 0, [])
    torch.set_num_threads(1)
    for seed in map(int, given.seeds.split()):
        for line in lines_of(seed, given, n, most):
            lines.append(line)
            print(line, flush=True)
    report(given.name, lines, note=f"{given.part}, width {given.width}, rate {given.lr}, kappa {given.kappas}")


if __name__ == "__main__":
    main()

"""How fast is a round of training? fedscape, a plain loop, pfl and Flower's simulation; one model, the same clients."""

from __future__ import annotations

import copy
import os
import resource
import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from by_flower import by_flower
from fedscape import Federation, Local, rounds
from fedscape.learning import FedAvg, LocalSGD, cross_entropy, evaluate, models
from fedscape.learning.trainer import trainer_of
from table import arguments, report


def clients_of(n: int, rows: int, shape: tuple[int, ...], n_classes: int, seed: int) -> Federation:
    """Clients with learnable classes: each class has its own mean."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, n_classes, n * rows)
    means = rng.normal(size=(n_classes, *shape)).astype(np.float32)
    x = means[y] + rng.normal(size=(n * rows, *shape)).astype(np.float32)
    return Federation({"x": x, "y": y}, np.arange(0, n * rows + 1, rows))


def texts_of(n: int, rows: int, length: int, seed: int) -> Federation:
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 80, (n * rows, length))
    return Federation({"x": x, "y": x[:, -1]}, np.arange(0, n * rows + 1, rows))


def cifar(n: int, rows: int, seed: int) -> Federation | None:
    """CIFAR-10 images drawn with replacement from the folder FEDSCAPE_DATA; None where it is not there."""
    path = Path(os.environ.get("FEDSCAPE_DATA", "../shared/data")) / "small" / "cifar10_small.npz"
    if not path.exists():
        return None
    data = np.load(path)
    pick = np.random.default_rng(seed).integers(0, len(data["y"]), n * rows)
    x = (data["x"][pick] / 255).astype(np.float32).transpose(0, 3, 1, 2)
    return Federation(
        {"x": np.ascontiguousarray(x), "y": data["y"][pick].astype(np.int64)}, np.arange(0, n * rows + 1, rows)
    )


def by_fedscape(local: LocalSGD, fed: Federation, n_rounds: int, threads: int) -> tuple[list[float], float]:
    times = []
    for r in rounds(FedAvg(local), Local(fed, threads=threads), n_rounds=n_rounds, measure=0):
        times.append(r.seconds)
        state = r.state
    return times, evaluate(local, state, fed).summary()["accuracy_pooled"]


def by_plain_loop(local: LocalSGD, fed: Federation, n_rounds: int, threads: int) -> tuple[list[float], float]:
    torch.set_num_threads(threads)
    server, times = copy.deepcopy(local.model), []
    x, y = torch.tensor(fed["x"]), torch.tensor(fed["y"])
    for index in range(n_rounds):
        began = time.perf_counter()
        sums = [torch.zeros_like(p) for p in server.parameters()]
        for i in range(len(fed)):
            model = copy.deepcopy(server)
            optimiser = torch.optim.SGD(model.parameters(), lr=local.lr)
            rows = fed.offsets[i] + np.random.default_rng([index, i]).permutation(fed.sizes[i])
            for begin in range(0, len(rows), local.batch_size):
                batch = torch.from_numpy(rows[begin : begin + local.batch_size])
                optimiser.zero_grad()
                torch.nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
                optimiser.step()
            for total, p, q in zip(sums, model.parameters(), server.parameters(), strict=True):
                total += (p.detach() - q.detach()) * (len(rows) / fed.n_rows)
        with torch.no_grad():
            for p, total in zip(server.parameters(), sums, strict=True):
                p += total
        times.append(time.perf_counter() - began)
    state = {f"model.{n}": p.detach().cpu().numpy() for n, p in server.named_parameters()}
    return times, evaluate(local, state, fed).summary()["accuracy_pooled"]


def by_pfl(local: LocalSGD, fed: Federation, n_rounds: int, threads: int) -> tuple[list[float], float]:
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam.base import NNTrainHyperParams
    from pfl.metrics import Metrics
    from pfl.model.pytorch import PyTorchModel

    torch.set_num_threads(threads)
    server, stamps = copy.deepcopy(local.model), []

    class WithLoss(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = server

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x)

        def loss(self, x: torch.Tensor, y: torch.Tensor, eval: bool = False) -> torch.Tensor:  # noqa: A002
            return torch.nn.functional.cross_entropy(self.inner(x), y)

        def metrics(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, object]:
            return {}

    class Stamps(TrainingProcessCallback):
        def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
            stamps.append(time.perf_counter())
            return False, Metrics()

    whole = WithLoss()
    model = PyTorchModel(whole, torch.optim.SGD, torch.optim.SGD(whole.parameters(), lr=1.0))
    x, y = torch.tensor(fed["x"]), torch.tensor(fed["y"])
    tables = [
        Dataset((x[a:b], y[a:b]), user_id=str(i))
        for i, (a, b) in enumerate(zip(fed.offsets[:-1], fed.offsets[1:], strict=True))
    ]
    data = FederatedDataset(
        lambda user: tables[int(user)], get_user_sampler("minimize_reuse", [str(i) for i in range(len(fed))])
    )
    params = NNAlgorithmParams(
        central_num_iterations=n_rounds, evaluation_frequency=10**9, train_cohort_size=len(fed), val_cohort_size=1
    )
    hyper = NNTrainHyperParams(local_learning_rate=local.lr, local_num_epochs=1, local_batch_size=local.batch_size)
    algorithm = FederatedAveraging()
    began = time.perf_counter()
    algorithm.run(
        algorithm_params=params,
        backend=SimulatedBackend(training_data=data, val_data=data),
        model=model,
        model_train_params=hyper,
        model_eval_params=hyper,
        callbacks=[Stamps()],
        send_metrics_to_platform=False,
    )
    times = np.diff([began, *stamps]).tolist()
    state = {f"model.{n}": p.detach().cpu().numpy() for n, p in server.named_parameters()}
    return times, evaluate(local, state, fed).summary()["accuracy_pooled"]


Way = Callable[[LocalSGD, Federation, int, int], tuple[list[float], float]]


def row(
    task: str, way: str, run: Way, local: LocalSGD, fed: Federation, n_rounds: int, threads: int
) -> dict[str, object]:
    before = torch.get_num_threads()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            began = time.process_time()
            times, accuracy = run(local, fed, n_rounds + 1, threads)
            processor: float | str = (time.process_time() - began) / (n_rounds + 1)
        took: float | str = statistics.median(times[1:])
    except ImportError as error:
        took, processor, accuracy = f"not installed ({error.name})", "", float("nan")
    torch.set_num_threads(before)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    line = {"task": task, "way": way, "threads": threads, "s per round": took, "processor s per round": processor}
    line |= {"accuracy": accuracy, "peak GB": peak}
    print({k: round(v, 4) if isinstance(v, float) else v for k, v in line.items()}, flush=True)
    return line


def tasks(quick: bool, seed: int) -> dict[str, tuple[Federation, LocalSGD]]:
    part = 5 if quick else 1
    images = cifar(50 // part, 50, seed) or clients_of(50 // part, 50, (3, 32, 32), 10, seed)
    step = {"lr": 0.05, "epochs": 1, "batch_size": 10}
    return {
        f"CNN, CIFAR-10, {50 // part} x 50": (
            images,
            LocalSGD(models.cnn((3, 32, 32), 10, dropout=False), cross_entropy, **step),
        ),
        f"MLP 784-512-10, 10 x {600 // part}": (
            clients_of(10, 600 // part, (784,), 10, seed),
            LocalSGD(models.mlp(), cross_entropy, **step),
        ),
        f"linear 784-10, {500 // part} x 20": (
            clients_of(500 // part, 20, (784,), 10, seed),
            LocalSGD(models.linear(784, 10), cross_entropy, **step),
        ),
        f"logistic 60-10, {1000 // part} x 20": (
            clients_of(1000 // part, 20, (60,), 10, seed),
            LocalSGD(models.linear(60, 10), cross_entropy, **step),
        ),
        f"LSTM {80 // part} characters, {10 // part} x 20": (
            texts_of(10 // part, 20, 80 // part, seed),
            LocalSGD(models.char_lstm(hidden=64), cross_entropy, **step),
        ),
    }


def main() -> None:
    args = arguments(__doc__, only="", rounds=3, repeats=1)
    n_rounds, lines = 1 if args.quick else args.rounds, []
    peers = (1,) if args.quick else (1, 2)  # threads; compare with the better
    for task, (fed, local) in tasks(args.quick, args.seed).items():
        if args.only and args.only not in task:
            continue
        ways: list[tuple[str, Way, LocalSGD, int]] = []
        for way, run in (("plain loop", by_plain_loop), ("pfl", by_pfl)):
            ways += [(way, run, local, threads) for threads in peers]
        if not args.quick and args.repeats == 1 and ("CNN" in task or "MLP" in task):
            ways.append(("Flower simulation", by_flower, local, 2))
        for strategy in ("sequential",) if "CNN" in task else ("sequential", "vmap", "stacked"):
            chosen = " (auto)" if trainer_of(local).strategy == strategy else ""
            ways.append((f"fedscape {strategy}{chosen}", by_fedscape, replace(local, strategy=strategy), 2))
        runs = [[row(task, way, run, how, fed, n_rounds, n) for way, run, how, n in ways] for _ in range(args.repeats)]
        for same in zip(*runs, strict=True):  # one way, in turn with the others: its median run
            known = [line for line in same if isinstance(line["s per round"], float)]
            lines.append(sorted(known, key=lambda line: line["s per round"])[len(known) // 2] if known else same[0])
    if not args.only or args.only == "many":
        for n in (1_000, 2_000) if args.quick else (1_000, 10_000):
            for name, model in (("linear 784-10", models.linear(784, 10)), ("MLP 784-512-10", models.mlp())):
                local = LocalSGD(model, cross_entropy, lr=0.05, epochs=1, batch_size=10)
                fed = clients_of(n, 4, (784,), 10, args.seed)
                lines.append(row(f"{name}, {n} clients x 4", "fedscape (auto)", by_fedscape, local, fed, 1, 2))
    report(
        "training_speed",
        lines,
        note="the first round counts in processor seconds (with the evaluation at the end) and not in seconds; "
        "the peak is of the whole process so far",
    )


if __name__ == "__main__":
    main()

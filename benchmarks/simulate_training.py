"""Does training on simulated clients tell what training on the true ones would do?

The paper's experiment of section 4.2 and appendix D.2, smaller: FedAvg under 12 settings (3 learning rates x 4 numbers
of local epochs), several seeds, on true clients, conditionally IID ones, clients of the fitted mixture and fully IID
ones. Beside the mean difference in accuracy stands the noise floor: true against true with other seeds.

    python benchmarks/simulate_training.py --prepare FOLDER     # where the data and numba are
    python benchmarks/simulate_training.py --data FOLDER        # needs NumPy, SciPy and torch alone

All runs of one experiment (kinds of clients x seeds x settings x cohort) are trained side by side, as batched matrix
products. Experiments that are in the results folder (--out) already are not run again; --only names some of them;
--minutes ends the rounds of an experiment, for all its clients alike.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np
import torch

from fedscape.errors import FedscapeError
from fedscape.simulate.training import compare_training
from table import RESULTS, arguments

EPOCHS = (1, 2, 5, 10)
RATES = {"femnist": (0.005, 0.01, 0.05), "cifar": (0.01, 0.05, 0.1)}
WIDTHS = (16, 32, 64)  # channels of the two convolutions, and the dense layer

Array = np.ndarray


# -- what is trained on ------------------------------------------------------------------------------------------------


def prepare(folder: Path, *, quick: bool, seeds: int) -> None:
    """Write, for every experiment, images, labels, test rows, and the rows of the clients of every kind and seed."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, made in {**_femnist(quick, seeds), **_cifar(quick, seeds)}.items():
        np.savez_compressed(folder / f"{name}.npz", **made)
        print(f"{name}: {(folder / f'{name}.npz').stat().st_size / 2**20:.1f} MiB, {len(made)} arrays")


def _plans(made: dict, kind: str, plans: list) -> None:
    for s, plan in enumerate(plans):
        rows, offsets = plan if isinstance(plan, tuple) else (plan.rows, plan.offsets)
        made[f"{kind}|{s}|rows"], made[f"{kind}|{s}|offsets"] = rows.astype(np.int32), offsets.astype(np.int32)


def _femnist(quick: bool, seeds: int) -> dict[str, dict]:
    from fedscape import FederatedKMeans, Federation, MixtureOfDirichletMultinomials, datasets
    from fedscape.simulate import Cells, ConditionallyIID, FromMixture, FullyIID, Labels, plan, with_codes

    fed = datasets.load("femnist-mini" if quick else "femnist")
    if quick:  # 24 rows of each writer
        fed = fed.where(np.arange(fed.n_rows) - np.repeat(fed.offsets[:-1], fed.sizes) < 24)
    fed = fed.with_column("row", np.arange(fed.n_rows))
    train, test = fed.split(test=0.2, seed=0)
    kmeans = FederatedKMeans(16, rounds=15, n_init=1).fit(train, progress=False)
    label = Labels("y", 62)
    cells = [label, Cells(kmeans, 16)]
    coded = with_codes(train, cells)
    everyone = datasets.load("femnist-labels").counts("y")
    rng = np.random.default_rng(0)
    share = 0.08 if quick else 0.8  # as large as the clients that train
    thinned = np.stack([rng.multivariate_hypergeometric(c, round(share * c.sum())) for c in everyone])
    campaign = np.array([int(writer[1:5]) >= 1500 for writer in fed.ids])

    def kinds(true: Federation, server: Federation, also: dict) -> dict:
        n, counts, made = len(true), true.counts("y", 62), {}
        fitted = MixtureOfDirichletMultinomials(3).fit(counts, progress=False)
        recipes = {
            "conditional": (ConditionallyIID(counts), label, None),
            "mixture": (FromMixture(fitted), label, n),
            "iid": (FullyIID(true.sizes), label, n),
            **also,
        }
        _plans(made, "true", [(true["row"], true.offsets)] * 2 * seeds)
        for name, (recipe, by, number) in recipes.items():
            plans = [plan(recipe, server, n_clients=number, column=by, seed=s, policy="replace") for s in range(seeds)]
            _plans(made, name, [(server["row"][p.rows], p.offsets) for p in plans])
        made["test"] = test.take(np.isin(test.ids, true.ids))["row"]
        made["test"] = np.random.default_rng(0).permutation(made["test"])
        return made

    whole = MixtureOfDirichletMultinomials(3).fit(thinned, progress=False)
    first = np.arange(len(train)) < int(np.searchsorted(np.cumsum(train.sizes), train.n_rows / 2))
    by_cell = MixtureOfDirichletMultinomials(3).fit(coded, column="code", progress=False)
    also = {
        "mixture of all 3,597": (FromMixture(whole), label, len(train)),
        "conditional, 16 cells": (ConditionallyIID(coded.counts("code")), cells, None),
        "mixture, 16 cells": (FromMixture(by_cell), cells, len(train)),
    }
    out = {"femnist_same": kinds(train, train, also)}
    if not quick:  # few writers lack some characters altogether
        out["femnist_disjoint"] = kinds(train.take(first), train.take(~first), {})
        print(
            f"disjoint: {first.sum()} true writers, {campaign[first].mean():.2f} of campaign 2; {(~first).sum()} others"
        )
    out["femnist_data"] = {"x": fed["x"], "y": fed["y"].astype(np.uint8)}
    return out


def _cifar(quick: bool, seeds: int) -> dict[str, dict]:
    from fedscape import Federation, MixtureOfDirichletMultinomials, datasets
    from fedscape.datasets.generators import mdm_table1
    from fedscape.simulate import ConditionallyIID, FromMixture, FullyIID, Labels, plan

    try:
        fed = datasets.load("cifar10")
        rows = {s: np.random.default_rng(s).permutation(np.flatnonzero(fed["split"] == s)) for s in (0, 1)}
        chosen = np.concatenate((rows[0][: 500 if quick else 8000], rows[1][: 200 if quick else 2000]))
        x, y = fed["x"][chosen][:, 4:28, 4:28], fed["y"][chosen]
    except FedscapeError as error:  # no data folder, no decoder: random pictures serve a quick look
        if not quick:
            raise
        print(f"random pictures instead of CIFAR-10: {error}")
        y = np.arange(700) % 10
        noise = np.random.default_rng(0).normal(0, 40, (700, 24, 24, 3))
        x = np.clip(noise + 25 * y[:, None, None, None], 0, 255).astype(np.uint8)
    n_train = len(y) - (200 if quick else 2000)
    proxy, clients = Federation({"y": y[:n_train]}, [0, n_train]), 40 if quick else 400
    out: dict[str, dict] = {}
    for setting in ("high-2",) if quick else ("high-2", "medium-3", "high-3"):
        counts = mdm_table1(setting, clients, n=20, seed=1)[0].counts("y")
        fitted = MixtureOfDirichletMultinomials(int(setting[-1]), n_init=8, sizes="histogram")
        fitted.fit(counts, progress=False)
        made: dict[str, Array] = {"test": np.arange(n_train, len(y))}

        def cut(recipe, number, s, proxy=proxy):
            return plan(recipe, proxy, n_clients=number, column=Labels("y", 10), seed=s, policy="replace")

        _plans(made, "true", [cut(ConditionallyIID(counts), None, 0)] * 2 * seeds)
        _plans(made, "conditional", [cut(ConditionallyIID(counts), None, 100 + s) for s in range(seeds)])
        _plans(made, "mixture", [cut(FromMixture(fitted), clients, 100 + s) for s in range(seeds)])
        _plans(made, "iid", [cut(FullyIID(20), clients, 100 + s) for s in range(seeds)])
        out[f"cifar_{setting.replace('-', '')}"] = made
    out["cifar_data"] = {"x": np.ascontiguousarray(x), "y": y.astype(np.uint8)}
    return out


# -- many models at once -----------------------------------------------------------------------------------------------


def first_weights(shape: tuple[int, int, int], classes: int, seed: int) -> list[torch.Tensor]:
    """Xavier-uniform weights and zero biases of conv3x3, pool, conv3x3, pool, dense, dense; channels last."""
    side = ((shape[0] - 2) // 2 - 2) // 2
    a, b, c = WIDTHS
    sizes = [(9 * shape[2], a, 9 * a), (9 * a, b, 9 * b), (side * side * b, c, c), (c, classes, classes)]
    generator = torch.Generator().manual_seed(seed)
    made = []
    for fan_in, out, fan_out in sizes:
        bound = (6 / (fan_in + fan_out)) ** 0.5
        made += [(torch.rand(fan_in, out, generator=generator) * 2 - 1) * bound, torch.zeros(1, out)]
    return made


def forward(params: list[torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """Outputs [models, batch, classes] for images [models, batch, height, width, channels], a model for each."""
    for weight, bias in (params[0:2], params[2:4]):
        x = pooled(torch.relu(convolved(x, weight, bias)))
    x = torch.relu(torch.baddbmm(params[5], x.flatten(2), params[4]))
    return torch.baddbmm(params[7], x, params[6])


def convolved(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    models, batch, height, width, _ = x.shape
    patches = x.unfold(2, 3, 1).unfold(3, 3, 1).flatten(4)  # [models, batch, height - 2, width - 2, 9 channels]
    out = torch.baddbmm(bias, patches.flatten(1, 3), weight)
    return out.view(models, batch, height - 2, width - 2, -1)


def pooled(x: torch.Tensor) -> torch.Tensor:
    models, batch, height, width, channels = x.shape
    h, w = height // 2, width // 2
    return x[:, :, : 2 * h, : 2 * w].reshape(models, batch, h, 2, w, 2, channels).amax(dim=(3, 5))


def local_training(
    params: list[torch.Tensor], x: torch.Tensor, y: torch.Tensor, batches: torch.Tensor, who: torch.Tensor,
    counts: Array, rates: torch.Tensor,
) -> None:  # fmt: skip
    """SGD in place for models in falling order of steps: model m takes batches[who[m], t] in step t < its number."""
    for t in range(counts.shape[1]):
        end = int((counts[:, t] > 0).sum())
        if end == 0:
            break
        here = [p[:end].detach().requires_grad_(True) for p in params]
        rows = batches[who[:end], t]
        known = rows >= 0
        images = x[rows.clamp(min=0)]
        logits = forward(here, images.float())
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), y[rows.clamp(min=0)].flatten(), reduction="none")
        share = known / known.sum(dim=1, keepdim=True)
        grads = torch.autograd.grad((loss.view(end, -1) * share).sum(), here)
        with torch.no_grad():
            for p, g in zip(params, grads, strict=True):
                p[:end] -= rates[:end, None, None] * g


def standard(x: torch.Tensor) -> torch.Tensor:
    """Images with mean 0 and spread 1 in each channel: plain SGD hardly moves on white paper at 1."""
    sample = x[:: max(len(x) // 5000, 1)].float()
    mean, spread = sample.mean(dim=(0, 1, 2)), sample.std(dim=(0, 1, 2))
    return torch.cat([((part.float() - mean) / spread).half() for part in x.split(4096)])


def cohort_batches(plans: list[tuple[Array, Array]], seeds: list[int], index: int, cohort: int, size: int):
    """The cohort of every run: rows of all batches of the most epochs [runs x cohort, steps, size], -1 for none."""
    rows, sizes = [], []
    for (of, offsets), seed in zip(plans, seeds, strict=True):
        rng = np.random.default_rng([seed, index])
        for client in rng.permutation(len(offsets) - 1)[:cohort]:
            mine = of[offsets[client] : offsets[client + 1]]
            wide = -(-len(mine) // size) * size
            epochs = np.full((max(EPOCHS), wide), -1, dtype=np.int64)
            for e in range(max(EPOCHS)):
                epochs[e, : len(mine)] = rng.permutation(mine)
            rows.append(epochs.reshape(-1, size))
            sizes.append(len(mine))
    out = np.full((len(rows), max(map(len, rows)), size), -1, dtype=np.int64)
    for place, batches in enumerate(rows):
        out[place, : len(batches)] = batches
    return out, np.array(sizes)


def train(name: str, data: dict, made: dict, args, device: str) -> tuple[dict[str, list], int]:
    """Final accuracies {kind: [settings, seeds]} of one experiment, and after how many rounds."""
    kinds = sorted({key.split("|")[0] for key in made if "|" in key})
    runs = [(k, int(s)) for k in kinds for s in sorted({key.split("|")[1] for key in made if key.startswith(f"{k}|")})]
    plans = [(made[f"{k}|{s}|rows"], made[f"{k}|{s}|offsets"]) for k, s in runs]
    seeds = [1000 * (args.seed + 1) + place for place in range(len(runs))]
    rates, x = RATES[name.split("_")[0]], torch.from_numpy(data["x"]).to(device)
    x = standard(x[..., None] if x.ndim == 3 else x)
    y = torch.from_numpy(data["y"].astype(np.int64)).to(device)
    settings = [(rate, epochs) for epochs in EPOCHS for rate in rates]
    classes, n = int(y.max()) + 1, len(settings)
    start = [
        torch.stack(p).to(device) for p in zip(*[first_weights(x.shape[1:], classes, s) for s in seeds], strict=True)
    ]
    world = [p.repeat_interleave(n, dim=0) for p in start]  # [runs x settings, ...]
    began = time.perf_counter()
    for index in range(args.rounds * (4 if name.startswith("cifar") and not args.quick else 1)):  # clients of 20 rows
        batches, sizes = cohort_batches(plans, seeds, index, args.cohort, args.batch)
        cohort = len(sizes) // len(runs)
        client = np.tile(np.arange(len(sizes)), n)  # of each model
        setting = np.repeat(np.arange(n), len(sizes))
        steps = -(-sizes[client] // args.batch) * np.array(settings)[setting, 1].astype(int)
        order = np.argsort(-steps, kind="stable")
        client, setting, steps = client[order], setting[order], steps[order]
        owner = torch.from_numpy(client // cohort * n + setting).to(device)
        lr = torch.tensor(np.array(settings)[setting, 0], dtype=torch.float32, device=device)
        params = [p[owner] for p in world]
        counts = np.arange(steps.max())[None, :] < steps[:, None]
        local_training(
            params, x, y, torch.from_numpy(batches).to(device), torch.from_numpy(client).to(device), counts, lr
        )
        weight = sizes[client] / sizes.reshape(len(runs), -1).sum(axis=1)[client // cohort]
        weight = torch.tensor(weight, dtype=torch.float32, device=device)[:, None, None]
        world = [torch.zeros_like(w).index_add_(0, owner, p * weight) for w, p in zip(world, params, strict=True)]
        seconds = time.perf_counter() - began
        if index in (0, 1, 4, 19) or (index + 1) % 50 == 0:
            print(f"  {name}: round {index + 1}, {seconds:.1f} s", flush=True)
        if seconds > 60 * args.minutes:
            print(f"  {name}: stopped after round {index + 1} by --minutes, for all clients alike", flush=True)
            break
    test = torch.from_numpy(np.asarray(made["test"]).astype(np.int64)).to(device)[: args.test]
    right = torch.zeros(len(runs) * n, device=device)
    with torch.no_grad():
        for rows in test.split(100):
            images = x[rows].float()
            for part in torch.arange(len(right), device=device).split(128):
                logits = forward([p[part] for p in world], images.expand(len(part), *images.shape))
                right[part] += (logits.argmax(dim=2) == y[rows]).sum(dim=1)
    accuracy = (right / len(test)).cpu().numpy().reshape(len(runs), n)
    columns = {k: [a for (kind, _), a in zip(runs, accuracy, strict=True) if kind == k] for k in kinds}
    return {k: np.array(v).T.tolist() for k, v in columns.items()}, index + 1


# -- what it says ------------------------------------------------------------------------------------------------------


def rows_of(name: str, found: dict[str, list], rounds: int) -> list[dict]:
    compared = compare_training(found["true"], {k: v for k, v in found.items() if k != "true"})
    iid, made = compared["iid"].excess, []
    for kind, about in compared.items():
        made.append(
            {
                "experiment": f"{name}, {rounds} rounds",
                "clients": kind,
                "difference": f"{100 * about.difference:.2f} [{_pair(about.difference_interval)}]",
                "floor": f"{100 * about.floor:.2f}",
                "excess": f"{100 * about.excess:.2f} [{_pair(about.excess_interval)}]",
                "of IID's excess": f"{about.excess / iid:.2f}" if iid > 0 else "-",
                "mean accuracy": f"{100 * np.mean(found[kind]):.1f} (true {100 * np.mean(found['true']):.1f})",
                "tau": f"{about.tau:.2f} [{about.tau_interval[0]:.2f}, {about.tau_interval[1]:.2f}]",
                "tau floor": f"{about.tau_floor:.2f}",
            }
        )
    return made


def _pair(interval: tuple[float, float]) -> str:
    return f"{100 * interval[0]:.2f}, {100 * interval[1]:.2f}"


def main() -> None:
    args = arguments(
        __doc__, prepare="", data="", out="", only="", rounds=150, cohort=20, batch=10, seeds=3, test=4000, minutes=8.0
    )
    if args.prepare:
        prepare(Path(args.prepare), quick=args.quick, seeds=args.seeds)
        return
    folder = Path(args.data) if args.data else RESULTS / "simulate_training_quick"
    if args.quick:
        args.rounds, args.cohort, args.test, args.seeds = 2, 2, 200, 1
        global EPOCHS
        EPOCHS = (1, 2)
    if args.quick and not args.data:
        prepare(folder, quick=True, seeds=args.seeds)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_float32_matmul_precision("high")
    out = Path(args.out) if args.out else RESULTS / ("simulate_training_quick" if args.quick else "simulate_training")
    out.mkdir(parents=True, exist_ok=True)
    began, lines = time.perf_counter(), []
    for path in sorted(folder.glob("*.npz"), key=lambda p: (p.stem != "femnist_same", "cifar" not in p.stem, p.stem)):
        name, done = path.stem, out / f"{path.stem}.json"
        if name.endswith("_data") or args.only not in name:
            continue
        if not done.exists() or args.quick:
            with np.load(folder / f"{name.split('_')[0]}_data.npz") as data, np.load(path) as made:
                at = time.perf_counter()
                found, rounds = train(name, dict(data), dict(made), args, device)
            about = {"command": " ".join(sys.argv), "device": _device(device), "torch": torch.__version__}
            about |= {"rounds": rounds, "cohort": args.cohort, "seconds": time.perf_counter() - at}
            done.write_text(json.dumps({**about, "accuracy": found}, indent=1) + "\n")
        known = json.loads(done.read_text())
        lines += rows_of(name, known["accuracy"], known["rounds"])
    if not lines:
        print("nothing to show: give --data, or --quick")
        return
    print(f"| {' | '.join(lines[0])} |\n|{' --- |' * len(lines[0])}")
    for line in lines:
        print(f"| {' | '.join(line.values())} |")
    print(f"\ncohort {args.cohort}, {time.perf_counter() - began:.0f} s on {_device(device)}")


def _device(device: str) -> str:
    return torch.cuda.get_device_name() if device == "cuda" else "CPU"


if __name__ == "__main__":
    main()

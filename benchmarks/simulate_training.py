"""Does training on simulated clients tell what training on the true ones would do?

The paper's experiment of section 4.2 and appendix D.2, smaller: FedAvg under 12 settings (3 learning rates x 4 numbers
of local epochs), several seeds, on true clients, conditionally IID ones, clients of the fitted mixture and fully IID
ones. Beside the mean difference in accuracy stands the noise floor: true against true with other seeds.

    python benchmarks/simulate_training.py --prepare FOLDER     # where the data and numba are
    python benchmarks/simulate_training.py --data FOLDER        # needs NumPy, SciPy and torch alone

All runs of one experiment (kinds of clients x seeds x settings x cohort) are trained side by side, in chunks of models
(`simulate_steps.py`); on a GPU by kernels of their own where these can be built (--way, --products tf32 or bf16).
Experiments that are in the results folder (--out) already are not run again; --only names some of them, --kinds some
kinds of clients ("true;iid"); --minutes ends the rounds of an experiment, for all its clients alike. Accuracies after
25, 50 and 100 rounds are kept beside the last.
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
from simulate_steps import WAYS, first_weights, forward, local_training, ready
from table import RESULTS, arguments

EPOCHS = (1, 2, 5, 10)
RATES = {"femnist": (0.005, 0.01, 0.05), "cifar": (0.01, 0.05, 0.1)}
MARKS = (25, 50, 100)  # rounds after which accuracies are kept beside the last

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


# -- training ----------------------------------------------------------------------------------------------------------


def standard(x: torch.Tensor) -> torch.Tensor:
    """Images with mean 0 and spread 1 in each channel: plain SGD hardly moves on white paper at 1."""
    sample = x[:: max(len(x) // 5000, 1)].float()
    mean, spread = sample.mean(dim=(0, 1, 2)), sample.std(dim=(0, 1, 2))
    return torch.cat([((part.float() - mean) / spread).half() for part in x.split(4096)])


class Experiment:
    """The global models of all runs (kinds of clients x seeds) under all settings, and their rounds of FedAvg.

    Parameters
    ----------
    name, data, made
        The experiment, its images and labels, and the rows of its clients of every kind and seed.
    args
        What the command line says: kinds, seed, cohort, batch, chunk, way, products, quick.
    device
        "cpu" or "cuda".
    """

    def __init__(self, name: str, data: dict, made: dict, args, device: str) -> None:
        kinds = sorted({key.split("|")[0] for key in made if "|" in key})
        every = [(k, int(key.split("|")[1])) for k in kinds for key in sorted(made) if key.startswith(f"{k}|")]
        every = list(dict.fromkeys(every))
        wanted = kinds if args.kinds == "all" else [k.strip() for k in args.kinds.split(";")]
        places = [place for place, (kind, _) in enumerate(every) if kind in wanted]
        self.runs, self.seeds = [every[p] for p in places], [1000 * (args.seed + 1) + p for p in places]
        self.plans = [(made[f"{k}|{s}|rows"], made[f"{k}|{s}|offsets"]) for k, s in self.runs]
        self.epochs, self.cohort, self.batch = EPOCHS[:2] if args.quick else EPOCHS, args.cohort, args.batch
        x = torch.from_numpy(data["x"]).to(device)
        self.x = standard(x[..., None] if x.ndim == 3 else x)
        self.y = torch.from_numpy(data["y"].astype(np.int64)).to(device)
        self.test = torch.from_numpy(np.asarray(made["test"]).astype(np.int64)).to(device)
        self.settings = np.array([(rate, e) for e in self.epochs for rate in RATES[name.split("_")[0]]])
        shape, classes = tuple(self.x.shape[1:]), int(self.y.max()) + 1
        start = [first_weights(shape, classes, s) for s in self.seeds]
        each = [torch.stack(p).to(device) for p in zip(*start, strict=True)]
        self.world = [p.repeat_interleave(len(self.settings), dim=0) for p in each]  # [runs x settings, ...]
        longest = max(int(np.diff(offsets).max()) for _, offsets in self.plans)
        clients = sum(min(self.cohort, len(offsets) - 1) for _, offsets in self.plans)
        steps = -(-longest // self.batch) * max(self.epochs)
        self.batches = torch.full((clients, steps, self.batch), -1, dtype=torch.int32, device=device)
        self.batches.copy_(torch.from_numpy(self.draw(0)[0]))
        size = min(args.chunk, clients * len(self.settings))
        ways = () if args.way == "plain" else (WAYS if args.way == "auto" else (args.way,))
        ways = tuple(way for way in ways if device == "cuda" or way == "unfused")
        half = args.products == "bf16"
        self.chunk = ready(self.x, self.y, start[0], self.batches, size=size, ways=ways, half=half)

    def draw(self, index: int) -> tuple[Array, Array]:
        """The cohort of every run in a round: rows of all batches of the most epochs, -1 for none, and sizes."""
        out, sizes = np.full(self.batches.shape, -1, dtype=np.int32), []
        for (rows, offsets), seed in zip(self.plans, self.seeds, strict=True):
            rng = np.random.default_rng([seed, index])
            for client in rng.permutation(len(offsets) - 1)[: self.cohort]:
                mine = rows[offsets[client] : offsets[client + 1]]
                wide = -(-len(mine) // self.batch) * self.batch
                mixed = rng.permuted(np.broadcast_to(mine, (max(self.epochs), len(mine))), axis=1)
                filled = out[len(sizes)].reshape(-1)[: max(self.epochs) * wide].reshape(max(self.epochs), wide)
                filled[:, : len(mine)] = mixed
                sizes.append(len(mine))
        return out, np.array(sizes)

    def round(self, drawn: tuple[Array, Array]) -> None:
        """Local training of all clients under all settings, and the means of their weights by size."""
        batches, sizes = drawn
        n, device, cohort = len(self.settings), self.x.device, len(sizes) // len(self.runs)
        client, setting = np.tile(np.arange(len(sizes)), n), np.repeat(np.arange(n), len(sizes))  # of each model
        steps = -(-sizes[client] // self.batch) * self.settings[setting, 1].astype(int)
        order = np.argsort(-steps, kind="stable")
        client, setting, steps = client[order], setting[order], steps[order]
        weight = sizes[client] / sizes.reshape(len(self.runs), -1).sum(axis=1)[client // cohort]
        self.batches.copy_(torch.from_numpy(batches))
        who, owner, number = (torch.from_numpy(a).to(device) for a in (client, client // cohort * n + setting, steps))
        rates, share = (torch.from_numpy(a).float().to(device) for a in (self.settings[setting, 0], weight))
        sums = [torch.zeros_like(w) for w in self.world]
        size = self.chunk.size if self.chunk else len(client)
        for part in (slice(first, first + size) for first in range(0, len(client), size)):
            params = [w[owner[part]] for w in self.world]
            if self.chunk:
                self.chunk.load(params, who[part], number[part], rates[part])
                self.chunk.run(steps[part])
                params = self.chunk.params
            else:
                local_training(params, self.x, self.y, self.batches, who[part], steps[part], rates[part])
            for total, p in zip(sums, params, strict=True):
                total.index_add_(0, owner[part], p[: len(owner[part])] * share[part, None, None])
        self.world = sums

    def accuracy(self, rows: int) -> dict[str, list]:
        """Accuracies {kind: [settings, seeds]} on this many test rows."""
        test, right = self.test[:rows], torch.zeros(len(self.world[0]), device=self.x.device)
        with torch.no_grad():
            for some in test.split(100):
                images = self.x[some].float()
                for part in torch.arange(len(right), device=right.device).split(128):
                    logits = forward([p[part] for p in self.world], images.expand(len(part), *images.shape))
                    right[part] += (logits.argmax(dim=2) == self.y[some]).sum(dim=1)
        found = (right / len(test)).cpu().numpy().reshape(len(self.runs), -1)
        kinds = dict.fromkeys(kind for kind, _ in self.runs)
        return {
            k: np.array([a for (kind, _), a in zip(self.runs, found, strict=True) if kind == k]).T.tolist()
            for k in kinds
        }


def train(name: str, data: dict, made: dict, args, device: str) -> dict:
    """Accuracies of one experiment {kind: [settings, seeds]}, after how many rounds, and those of earlier rounds."""
    experiment = Experiment(name, data, made, args, device)
    rounds = args.rounds * (4 if name.startswith("cifar") and not args.quick else 1)  # clients of 20 rows
    began, drawn, earlier = time.perf_counter(), experiment.draw(0), {}
    for index in range(rounds):
        experiment.round(drawn)
        drawn = experiment.draw(index + 1)  # while the device works
        if device == "cuda":
            torch.cuda.synchronize()
        seconds = time.perf_counter() - began
        if index in (0, 1, 4, 19) or (index + 1) % 50 == 0:
            print(f"  {name}: round {index + 1}, {seconds:.1f} s", flush=True)
        if seconds > 60 * args.minutes:
            print(f"  {name}: stopped after round {index + 1} by --minutes, for all clients alike", flush=True)
            break
        if index + 1 in MARKS:
            earlier[index + 1] = experiment.accuracy(args.test)
            means = {kind: round(100 * float(np.mean(found)), 1) for kind, found in earlier[index + 1].items()}
            print(f"  {name}: mean accuracies after round {index + 1}: {means}", flush=True)
    way = experiment.chunk.name if experiment.chunk else "plain"
    return {"way": way, "rounds": index + 1, "accuracy": experiment.accuracy(args.test), "earlier": earlier}


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
        __doc__, prepare="", data="", out="", only="", kinds="all", rounds=150, cohort=20, batch=10, seeds=3, test=4000,
        minutes=8.0, chunk=8192, way="auto", products="tf32",
    )  # fmt: skip
    if args.way not in ("auto", "plain", *WAYS) or args.products not in ("tf32", "bf16"):
        raise SystemExit(f"--way is auto, plain or one of {', '.join(WAYS)}; --products tf32 or bf16")
    if args.prepare:
        prepare(Path(args.prepare), quick=args.quick, seeds=args.seeds)
        return
    folder = Path(args.data) if args.data else RESULTS / "simulate_training_quick"
    if args.quick:
        args.rounds, args.cohort, args.test, args.seeds = 2, 2, 200, 1
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
                found = train(name, dict(data), dict(made), args, device)
            about = {"command": " ".join(sys.argv), "device": _device(device), "torch": torch.__version__}
            about |= {"cohort": args.cohort, "seconds": time.perf_counter() - at}
            done.write_text(json.dumps({**about, **found}, indent=1) + "\n")
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

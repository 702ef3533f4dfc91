"""Personalised methods on images whose laws of x and of y given x both differ (Tables 2 and 5, Figures 4 and 8).

FEMNIST by writer, or CIFAR-10 dealt to 80 clients by Dirichlet 0.4 over labels. A client's share of transformed rows is
drawn from Beta(0.4, 0.4): these are turned by 90 degrees, mirrored and inverted, and their labels permuted. The same
network, rounds and rates to choose from for every method: the rate with the best validation accuracy on the first seed
is used for all seeds. A fifth of the clients is unseen: they adapt on half of their rows and are tested on the others.
In a round a client makes eight steps of 16 rows, or with `--epochs 1 --batch 128` an epoch as in the paper. Networks:
`--net` conv (two convolutions, one hidden layer; with "lenet", which is deeper and narrower, everything is still
learning after 100 rounds), and on FedAvg, FedEM and FedGMM alone, with a quarter of the clients in a round, "cnn" (1.2
million weights) and, for half of the rounds and one rate, "mobilenet" (MobileNetV2, width 0.5).

`--prepare FOLDER` writes the data as .npz files; with `--data FOLDER` nothing but NumPy, SciPy, torch and a reader of
JPEG (pillow or torchvision) is needed. Cells run in `--workers` processes until `--limit` seconds are over; `--merge
FILES` prints the tables of rows (`--name` of the result files), `--guesses 1` how far labels alone go.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from functools import cache, lru_cache, partial
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from cells import Row, check_time, percent, read, run_cells, share_programs
from fedscape import Federation, FixedSize, GaussianMixture, Local, Moments, rounds
from fedscape.core.blocks import as_ragged
from fedscape.core.random import Key
from fedscape.core.rounds import frozen
from fedscape.learning import LocalSGD, cross_entropy, models
from fedscape.learning.fast import program
from fedscape.learning.layers import Standardise, drawing
from fedscape.learning.models import _Image as Image
from fedscape.methods import Options, make
from fedscape.personal import FedGMM, LocalOnly, Personalised, with_embedding, with_projection
from fedscape.personal.methods import Common
from table import RESULTS, arguments, report

SHAPES = {"femnist": (1, 28, 28), "cifar10": (3, 32, 32)}
CLASSES = {"femnist": 62, "cifar10": 10}
MAIN = ["fedavg", "fedem", "fedgmm-embedding", "fedgmm-pca", "local"]  # fedavg makes fedavg+, too
OTHERS = ["ifca", "ditto", "fedprox", "fedrep", "pfedme", "clustered"]
SLOW = ("clustered",)  # the server sees a projection of every update: a round costs a second, so it comes last
QUARTER = ("cnn", "mobilenet")  # networks with a quarter of the clients in a round
LARGE = ["fedavg", "fedem", "fedgmm-embedding"]
ADAPT = (0, 1, 2, 5, 20)  # rounds of a new client's own, Figure 8
STATES = Path(tempfile.gettempdir()) / "fedgmm_images"  # of FedAvg, for the embedding
BLOCK = 2**17  # rows of a block: images are small


def prepare(folder: Path, quick: bool) -> None:
    from fedscape import datasets

    folder.mkdir(parents=True, exist_ok=True)
    fed = datasets.load("femnist-mini" if quick else "femnist")
    pick = np.argsort(-fed.sizes, kind="stable")[:12] if quick else np.random.default_rng(0).permutation(len(fed))[:360]
    fed = fed.take(np.sort(pick))
    np.savez_compressed(folder / "femnist.npz", x=fed["x"], y=fed["y"].astype(np.uint8), offsets=fed.offsets)
    if quick:
        return
    with np.load(Path(os.environ["FEDSCAPE_DATA"]) / "cifar10" / "cifar10_train_jpeg.npz") as stored:
        rows = np.sort(np.random.default_rng(0).permutation(len(stored["y"]))[:20_000])
        blob, ends = stored["blob"].tobytes(), stored["offset"]
        streams = [blob[ends[i] : ends[i + 1]] for i in rows]
        offset = np.concatenate(([0], np.cumsum([len(s) for s in streams])))
        images = np.frombuffer(b"".join(streams), dtype=np.uint8)
        np.savez_compressed(folder / "cifar10.npz", blob=images, offset=offset, y=stored["y"][rows].astype(np.uint8))


def photographs(blob: np.ndarray, offset: np.ndarray) -> np.ndarray:
    """Images [n, 32, 32, 3] from JPEG streams one behind the other."""
    streams = [blob[a:b] for a, b in pairwise(offset.tolist())]
    try:
        from PIL import Image

        return np.stack([np.asarray(Image.open(BytesIO(s.tobytes())).convert("RGB")) for s in streams])
    except ImportError:
        from torchvision.io import ImageReadMode, decode_jpeg

        read_one = partial(decode_jpeg, mode=ImageReadMode.RGB)
        return np.stack([read_one(torch.from_numpy(s.copy())).permute(1, 2, 0).numpy() for s in streams])


@cache
def stored(name: str, folder: str) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    with np.load(Path(folder) / f"{name}.npz") as data:
        x = photographs(data["blob"], data["offset"]) if "blob" in data else data["x"]
        return x, data["y"].astype(np.int64), data.get("offsets")


@lru_cache(maxsize=2)
def load(name: str, folder: str, seed: int) -> dict[str, Federation]:
    """Rows to fit, to choose by and to test on, of 80% of the clients; to adapt to and to test on, of the others."""
    x, y, offsets = stored(name, folder)
    rng = np.random.default_rng(seed)
    if offsets is None:
        shares = rng.dirichlet(np.full(80, 0.4), CLASSES[name])  # [classes, clients]
        owner = np.empty(len(y), dtype=np.int64)
        for c in range(CLASSES[name]):
            rows = rng.permutation(np.flatnonzero(y == c))
            owner[rows] = np.searchsorted(np.cumsum(shares[c]), (np.arange(len(rows)) + 0.5) / len(rows))
        owner = np.minimum(owner, 79)
        order = np.argsort(owner, kind="stable")
        x, y = x[order], y[order]
        offsets = np.concatenate(([0], np.cumsum(np.bincount(owner, minlength=80))))
    owner = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    turned = rng.random(len(y)) < rng.beta(0.4, 0.4, len(offsets) - 1)[owner]
    x, y = x.copy(), y.copy()
    x[turned] = transformed(x[turned])
    y[turned] = rng.permutation(CLASSES[name])[y[turned]]
    fed = Federation({"x": x, "y": y}, offsets)
    unseen = Key(seed, purpose="unseen").uniform(fed) < 0.2
    rest, test = fed.take(~unseen).split(test=0.2, seed=seed)
    fit, valid = rest.split(test=0.25, seed=seed)
    adapt, later = fed.take(unseen).split(test=0.5, seed=seed)
    return {"fit": fit, "valid": valid, "test": test, "adapt": adapt, "later": later}


def transformed(x: np.ndarray) -> np.ndarray:
    """Turned by 90 degrees, mirrored, inverted; uint8 images [n, H, W] or [n, H, W, channels]."""
    return 255 - np.rot90(x, axes=(1, 2))[:, :, ::-1]


def network(name: str, shape: tuple[int, int, int], classes: int) -> Any:
    made = {
        "conv": lambda: two_convolutions(shape, classes),
        "mlp": lambda: models.mlp(int(np.prod(shape)), 32, classes),
        "lenet": lambda: models.lenet5(shape, classes),
        "cnn": lambda: models.cnn(shape, classes),
        "mobilenet": lambda: models.mobilenet_v2(shape, classes, width=0.5),
    }
    return made[name]()


def two_convolutions(shape: tuple[int, int, int], classes: int) -> Any:
    """Pixels about zero, two convolutions of 3 x 3, one hidden layer."""
    flat = 32 * ((shape[1] - 6) // 4) * ((shape[2] - 6) // 4)
    with drawing(0):
        return nn.Sequential(
            Standardise(np.full(1, 0.5), np.full(1, 0.3)),
            *(Image(shape), nn.Conv2d(shape[0], 16, 3), nn.MaxPool2d(2), nn.ReLU()),
            *(nn.Conv2d(16, 32, 3), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten()),
            *(nn.Linear(flat, 128), nn.ReLU(), nn.Linear(128, classes)),
        )


def step_of(cell: Row) -> LocalSGD:
    model = network(cell["net"], SHAPES[cell["set"]], CLASSES[cell["set"]])
    program.MANY = 0  # so many methods and shapes: gradients are recorded on a GPU as they are, not compiled
    how: Row = {"precision": "tf32"} if cell["device"] != "cpu" else {}
    proximal = 0.1 if cell["method"] == "fedprox" else 0.0
    how |= {"proximal": proximal, "device": cell["device"]}
    how |= {"epochs": cell["epochs"]} if cell["epochs"] else {"steps": 8}
    local = LocalSGD(model, cross_entropy, lr=cell["lr"], batch_size=cell["batch"], **how)
    share_programs(local, (cell["set"], cell["net"], cell["batch"]))
    return local


@lru_cache(maxsize=2)
def with_z(name: str, folder: str, seed: int, state: str, net: str, device: str) -> tuple[dict[str, Federation], Any]:
    """The parts with the column of the Gaussians, made from the rows to fit alone; and the mixture."""
    parts = load(name, folder, seed)
    if state:
        with np.load(state) as common:
            cell = {"set": name, "net": net, "device": device, "lr": 0.1, "method": "", "epochs": 0, "batch": 16}
            arrays = dict(common)
            parts = {n: with_embedding(p, step_of(cell), arrays, name="flat") for n, p in parts.items()}
    else:
        parts = {n: p.with_column("flat", pixels(p["x"])) for n, p in parts.items()}
    moments = Moments(column="flat").fit(parts["fit"], progress=False)
    parts = {n: with_projection(p, moments, min(48, len(moments.mean_))) for n, p in parts.items()}
    mixture = GaussianMixture(3, column="z", regularisation=1e-3, rounds=20, n_init=2, seed=seed)
    mixture.fit(Local(parts["fit"], threads=1), progress=False)
    return {n: p.select(["x", "y", "z"]) for n, p in parts.items()}, mixture


def pixels(x: np.ndarray) -> np.ndarray:
    """Pixels as numbers from 0 to 1; of photographs the means of two by two."""
    if x.ndim == 4:
        n, h, w, c = x.shape
        return x.reshape(n, h // 2, 2, w // 2, 2, c).mean(axis=(2, 4)).reshape(n, -1) / 255.0
    return x.reshape(len(x), -1) / 255.0


def work(cell: Row, until: float) -> list[Row]:
    """Train one method to the end and test it; FedAvg also tuned, which is FedAvg+."""
    parts, mixture = load(cell["set"], cell["data"], cell["seed"]), None
    if cell["method"].startswith("fedgmm"):
        about = (cell["seed"], cell.get("state", ""), cell["net"], cell["device"])
        parts, mixture = with_z(cell["set"], cell["data"], *about)
    step, began = step_of(cell), time.time()
    model, curve = trained(cell, step, parts, mixture, until)
    found = [{**cell, **scored(model, parts), "curve": curve, "seconds": time.time() - began}]
    if cell["method"] == "fedavg":
        STATES.mkdir(exist_ok=True)
        np.savez(STATES / f"{name_of(cell)}.npz", **model.state)
    if cell["method"] == "fedavg" and cell["net"] not in QUARTER:
        begin = {**{n: v for n, v in model.state.items() if n.startswith("model.")}, "rows": np.zeros(())}
        plain = Personalised(LocalOnly(step), begin, parts["fit"].ids, {})
        tuned = plain.adapt(parts["fit"], seed=cell["seed"])
        found.append({**cell, "method": "fedavg+", **scored(tuned, parts), "seconds": time.time() - began})
    return found


def name_of(cell: Row) -> str:
    return f"{cell['set']}_{cell['net']}_{cell['rounds']}_{cell['seed']}_{cell['lr']:g}"


def trained(
    cell: Row, step: LocalSGD, parts: dict[str, Federation], mixture: Any, until: float
) -> tuple[Personalised, list[tuple[int, float]]]:
    """The method after its last round, and its accuracy on the test rows on the way."""
    engine, seed = Local(parts["fit"], threads=1), cell["seed"]
    name = "fedavg" if cell["method"] == "fedprox" else cell["method"]
    made: Any = Common(step, initial="seed") if name == "fedavg" else None
    if made is None:
        options = Options(engine=engine, seed=seed)
        made = FedGMM(step, mixture, 3) if mixture is not None else make(name, step, options)
    made.block_rows = BLOCK
    cohort = FixedSize(max(1, len(parts["fit"]) // 4)) if cell["net"] in QUARTER else None
    marks = [int(cell["rounds"] * share) for share in (0.1, 0.25, 0.5, 0.75)]
    curve = []
    loop = rounds(made, engine, n_rounds=cell["rounds"], sampler=cohort, seed=seed, measure=0, allow=made.reveals)
    for r in loop:
        check_time(until)
        if r.index + 1 in marks:
            now = Personalised(made, r.state, engine.clients.ids, dict(engine.kept()))
            curve.append((r.index + 1, now.evaluate(parts["test"]).summary()["accuracy_of_clients"]))
    return Personalised(made, loop.state, engine.clients.ids, dict(engine.kept())), curve


def scored(model: Personalised, parts: dict[str, Federation]) -> Row:
    """Accuracy on the rows to choose by and to test on, of new clients that adapted, and how that went."""
    found: Row = {n: model.evaluate(parts[n]).summary()["accuracy_of_clients"] for n in ("valid", "test")}
    new = model.adapt(parts["adapt"])
    found["unseen"] = new.evaluate(parts["later"]).summary()["accuracy_of_clients"]
    found |= {"adapt_seconds": new.cost["seconds"], "adapt_numbers": new.cost["numbers_per_client"]}
    if type(model.method).__name__ in ("FedEM", "FedGMM"):
        found["adapt_curve"] = [after(model, parts["adapt"], parts["later"], r) for r in ADAPT]
    if isinstance(model.method, FedGMM):
        without = parts["adapt"].select(["x", "z"])
        found["unseen_unlabelled"] = after(model, without, parts["later"], 20)
    return found


def after(model: Personalised, data: Federation, later: Federation, n: int) -> float:
    """The accuracy of new clients that adapted for so many rounds of their own."""
    made = model.method.adapt(dict(model.method.prepare(frozen(model.state))), data, Key(0), rounds=n)
    new = Personalised(model.method, model.state, data.ids, as_ragged(made, len(data)))
    return float(new.evaluate(later).summary()["accuracy_of_clients"])


def best_rate(rows: list[Row], where: Row, method: str, rates: list[float]) -> float | None:
    """The rate with the best accuracy on the rows to choose by, on the first seed; None until all were tried."""
    mine = [r for r in rows if r["method"] == method and r["seed"] == 0 and where.items() <= r.items()]
    tried = {r["lr"]: r.get("valid", -1.0) for r in mine}
    good = {lr: v for lr, v in tried.items() if np.isfinite(v) and v >= 0}
    return max(good, key=lambda lr: good[lr]) if good and set(rates) <= set(tried) else None


def plan(rows: list[Row], args: Any) -> list[Row]:
    """All cells that can be run: the main methods on both sets, the large networks, the other methods."""
    base: Row = {n: getattr(args, n) for n in ("data", "device", "rounds", "epochs", "batch")}
    rates, cells = [float(v) for v in args.rates.split(",")], []
    for sets, net, methods, n_seeds, tried in tiers(args, rates):
        for name in sets:
            few = {"rounds": max(1, args.rounds // 2)} if net == "mobilenet" else {}
            where = {**base, **few, "set": name, "net": net}
            cells += cells_of(rows, where, methods, n_seeds, tried)
    return cells


def tiers(args: Any, rates: list[float]) -> list[tuple[list[str], str, list[str], int, list[float]]]:
    """Sets, network, methods, seeds and rates, the most important first."""
    sets, asked = args.sets.split(","), args.methods.split()
    made = [(sets, args.net, [m for m in MAIN if m in asked], args.seeds, rates)]
    if args.large:
        made.append((["cifar10"], "mobilenet", ["fedgmm-pca", "fedavg"], 1, rates[:1]))
    made.append((sets, args.net, [m for m in OTHERS if m in asked and m not in SLOW], args.seeds, rates))
    if args.large:
        made.append((["femnist"], "cnn", LARGE, 1, rates))
    return [*made, (sets, args.net, [m for m in SLOW if m in asked], args.seeds, rates)]


def cells_of(rows: list[Row], where: Row, methods: list[str], n_seeds: int, rates: list[float]) -> list[Row]:
    """Every rate on the first seed, then the best of them on the others."""
    common = best_rate(rows, where, "fedavg", rates)

    def cell(method: str, seed: int, lr: float) -> list[Row]:
        made = {**where, "method": method, "seed": seed, "lr": lr}
        if method != "fedgmm-embedding":
            return [made]
        state = STATES / f"{name_of({**made, 'lr': common})}.npz" if common else None
        return [{**made, "state": str(state)}] if state is not None and state.exists() else []

    best = {m: best_rate(rows, where, m, rates) for m in [*methods, "fedavg+"]}
    tuning = [(m, lr) for lr in rates for m in methods]
    tuning.sort(key=lambda pair: pair[0] != "fedavg")  # it gives the embedding
    cells = [c for m, lr in tuning for c in cell(m, 0, lr)]
    later = [(m, s) for s in range(1, n_seeds) for m in methods]
    cells += [c for m, s in later if (lr := best[m]) is not None for c in cell(m, s, lr)]
    plus = best["fedavg+"] if "fedavg" in methods else None
    return cells + ([c for s in range(1, n_seeds) for c in cell("fedavg", s, plus)] if plus is not None else [])


def summary(rows: list[Row], title: str) -> None:
    """The table of accuracies, the curves, and how new clients adapt."""
    rows = [r for r in rows if "test" in r]
    keys = list(dict.fromkeys((r["set"], r["net"], r["rounds"], r["method"]) for r in rows))
    table, curves, adapting = [], [], []
    for key in sorted(keys, key=lambda k: keys.index(next(o for o in keys if o[:3] == k[:3]))):
        mine = [r for r in rows if (r["set"], r["net"], r["rounds"], r["method"]) == key]
        first = {r["lr"]: r["valid"] for r in mine if r["seed"] == 0}
        best = max(first, key=lambda lr: first[lr]) if first else mine[0]["lr"]
        mine = [r for r in mine if r["lr"] == best]
        about = {"data": key[0], "network": key[1], "method": key[3]}
        line = {**about, "lr": best, "rates tried": len(first), "seeds": len(mine)}
        line |= {"test": percent([r["test"] for r in mine]), "unseen, adapted": percent([r["unseen"] for r in mine])}
        alone = [r["unseen_unlabelled"] for r in mine if "unseen_unlabelled" in r]
        line |= {"unseen, features alone": percent(alone), "s per run": float(np.mean([r["seconds"] for r in mine]))}
        table.append(line)
        if "curve" in mine[0]:
            ways = [{**dict(map(tuple, r["curve"])), r["rounds"]: r["test"]} for r in mine]
            curves.append({**about, **{f"round {n}": percent([w[n] for w in ways]) for n in ways[0]}})
        if "adapt_curve" in mine[0]:
            values = zip(ADAPT, *[r["adapt_curve"] for r in mine], strict=True)
            adapting.append({**about, **{f"{n} rounds": percent(list(v)) for n, *v in values}})
    table.sort(key=lambda r: (r["data"], r["network"], -float(r["test"].split()[0])))
    note = "95% t intervals over seeds; " + "; ".join(gains(rows, table))
    for part, lines in (("", table), ("_curves", curves), ("_adapting", adapting)):
        if lines:
            report(f"{title}{part}", lines, note=note if not part else "")
            print()


def gains(rows: list[Row], table: list[Row]) -> list[str]:
    """FedGMM and FedAvg minus FedEM, FedGMM minus FedAvg, on the same seeds: on test rows, and of unseen clients."""
    said, rate = [], {(r["data"], r["network"], r["method"]): r["lr"] for r in table}
    pairs = [(place, other) for place in rate for other in ("fedem", "fedavg") if place[2] != other]
    for (name, net, method), other in pairs:
        if not method.startswith("fedgmm") and (method, other) != ("fedavg", "fedem"):
            continue
        mine, theirs = (
            {r["seed"]: r for r in rows if (r["set"], r["net"], r["method"], r["lr"]) == (name, net, m, lr)}
            for m in (method, other)
            for lr in (rate.get((name, net, m)),)
        )
        seeds = [s for s in mine if s in theirs]
        each = [f"{percent([mine[s][k] - theirs[s][k] for s in seeds])} ({k})" for k in ("test", "unseen")]
        said += [f"{name}, {net}: {method} minus {other}, {len(seeds)} seeds, {', '.join(each)}"] if seeds else []
    return said


def guesses(args: Any) -> None:
    """How far one gets by saying each client's commonest class, and how many classes a client has (exp of entropy)."""
    lines = []
    for name in args.sets.split(","):
        found = []
        for seed in range(args.seeds):
            fit, test = (load(name, args.data, seed)[part].counts("y", CLASSES[name]) for part in ("fit", "test"))
            there = (fit.sum(axis=1) > 0) & (test.sum(axis=1) > 0)
            fit, test = fit[there], test[there]
            right = test[np.arange(len(test)), fit.argmax(axis=1)] / test.sum(axis=1)
            share = fit / fit.sum(axis=1, keepdims=True)
            spread = np.exp(-(share * np.log(np.where(share > 0, share, 1.0))).sum(axis=1))
            found.append((right.mean(), spread.mean()))
        accuracy, classes = zip(*found, strict=True)
        lines.append({"data": name, "commonest class, accuracy": percent(list(accuracy)), "classes": np.mean(classes)})
    report("fedgmm_images_guesses", lines, note=f"{args.seeds} seeds")


def main() -> None:
    options: Row = {"rounds": 100, "seeds": 3, "rates": "0.3,0.1,0.03", "sets": "femnist,cifar10", "net": "conv"}
    options |= {"methods": " ".join([*MAIN, *OTHERS]), "large": 1, "workers": 0, "limit": 1e9, "out": "", "merge": ""}
    options |= {"guesses": 0, "epochs": 0, "batch": 16, "name": "fedgmm_images"}
    args = arguments(__doc__, prepare="", data="", device="cpu", **options)
    if args.prepare:
        prepare(Path(args.prepare), args.quick)
        return
    if args.quick:
        args.data = args.data or str(RESULTS / "images")
        prepare(Path(args.data), True)
        args.rounds, args.seeds, args.rates, args.sets, args.net, args.large = 5, 1, "0.3", "femnist", "mlp", 0
        args.methods, args.limit = "local fedavg ifca fedem fedgmm-pca fedgmm-embedding", min(args.limit, 60)
    if args.guesses:
        guesses(args)
        return
    if args.merge:
        summary(read(args.merge), args.name)
        return
    out = args.out or str(RESULTS / f"fedgmm_images{'_quick' if args.quick else ''}.jsonl")
    if args.quick and not args.out:
        Path(out).unlink(missing_ok=True)
    if not Path(out).exists():
        shutil.rmtree(STATES, ignore_errors=True)
    rows = run_cells(partial(plan, args=args), work, out=out, workers=args.workers, limit=args.limit)
    summary(rows, args.name)


if __name__ == "__main__":
    main()

"""Personalised methods on images whose laws of x and of y given x both differ (Table 2, Table 5).

FEMNIST by writer, or CIFAR-10 dealt to 80 clients by Dirichlet 0.4 over labels. A client's share of transformed rows is
drawn from Beta(0.4, 0.4): these are turned by 90 degrees, mirrored and inverted, and their labels permuted. The same
network, rounds and rates to choose from for every method: the rate with the best validation accuracy on the first seed
is used for all seeds. A fifth of the clients is unseen: they adapt on half of their rows and are tested on the others.

`--prepare FOLDER` writes the data as .npz files; with `--data FOLDER` nothing but NumPy, SciPy and torch is needed.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedscape import Federation, GaussianMixture, Moments
from fedscape.learning import LocalSGD, cross_entropy, models
from fedscape.personal import FedGMM, Personalised, train, with_embedding, with_projection
from fedscape.random import Key
from table import RESULTS, arguments, report

SHAPES = {"femnist": (1, 28, 28), "cifar10": (3, 32, 32)}
CLASSES = {"femnist": 62, "cifar10": 10}
EVERY = "local fedavg fedprox fedavg+ clustered ifca pfedme ditto fedrep fedem fedgmm-pca fedgmm-embedding"


def prepare(folder: Path, quick: bool) -> None:
    from fedscape import datasets

    folder.mkdir(parents=True, exist_ok=True)
    fed = datasets.load("femnist-mini" if quick else "femnist")
    pick = np.argsort(-fed.sizes, kind="stable")[:12] if quick else np.random.default_rng(0).permutation(len(fed))[:360]
    fed = fed.take(np.sort(pick))
    np.savez_compressed(folder / "femnist.npz", x=fed["x"], y=fed["y"], offsets=fed.offsets)
    if quick:
        return
    cifar = datasets.load("cifar10")
    np.savez_compressed(folder / "cifar10.npz", x=cifar["x"], y=cifar["y"])


def load(name: str, folder: Path, seed: int) -> Federation:
    """The clients, with half of the rows transformed."""
    data = np.load(folder / f"{name}.npz")
    x, y = data["x"], data["y"].astype(np.int64)
    rng = np.random.default_rng(seed)
    if "offsets" in data:
        offsets = data["offsets"]
    else:
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
    return Federation({"x": x, "y": y}, offsets)


def transformed(x: np.ndarray) -> np.ndarray:
    """Turned by 90 degrees, mirrored, inverted; uint8 images [n, H, W] or [n, H, W, channels]."""
    return 255 - np.rot90(x, axes=(1, 2))[:, :, ::-1]


def step_of(name: str, lr: float, device: str, quick: bool) -> LocalSGD:
    shape = SHAPES[name]
    model = models.mlp(int(np.prod(shape)), 32, CLASSES[name]) if quick else models.cnn(shape, CLASSES[name])
    return LocalSGD(model, cross_entropy, lr=lr, epochs=1, batch_size=128, device=device)


def fit(method: str, step: LocalSGD, fed: Federation, rounds: int, seed: int) -> Personalised:
    """Train one method to the end."""
    if method == "fedprox":
        return train("fedavg", replace(step, proximal=0.1), fed, n_rounds=rounds, seed=seed)
    if not method.startswith("fedgmm"):
        return train(method, step, fed, n_rounds=rounds, seed=seed)
    mixture = GaussianMixture(3, column="z", regularisation=1e-3, rounds=20, n_init=2, seed=seed)
    return train(FedGMM(step, mixture.fit(fed, progress=False), 3), step, fed, n_rounds=rounds, seed=seed)


def with_z(method: str, parts: list[Federation], step: LocalSGD, common: Any) -> list[Federation]:
    """The parts with the column of the Gaussians, made from the first part alone."""
    if method == "fedgmm-pca":
        parts = [p.with_column("flat", p["x"].reshape(p.n_rows, -1) / 255.0) for p in parts]
        moments = Moments(column="flat").fit(parts[0], progress=False)
        return [with_projection(p, moments, 48) for p in parts]
    parts = [with_embedding(p, step, common, name="deep") for p in parts]
    moments = Moments(column="deep").fit(parts[0], progress=False)
    return [with_projection(p, moments, min(48, len(moments.mean_))) for p in parts]


def one(method: str, name: str, args: Any, seed: int, lr: float, common: Any) -> tuple[dict[str, float], Personalised]:
    fed = load(name, Path(args.data), seed)
    unseen = Key(seed, purpose="unseen").uniform(fed) < 0.2
    rest, test = fed.take(~unseen).split(test=0.2, seed=seed)
    fit_rows, valid = rest.split(test=0.25, seed=seed)
    adapt, later = fed.take(unseen).split(test=0.5, seed=seed)
    step = step_of(name, lr, args.device, args.quick)
    parts = [fit_rows, valid, test, adapt, later]
    if method.startswith("fedgmm"):
        parts = with_z(method, parts, step, common)
    began = time.perf_counter()
    model = fit(method, step, parts[0], args.rounds, seed)
    took = time.perf_counter() - began
    known = zip(("valid", "test"), parts[1:3], strict=True)
    score = {what: model.evaluate(part).summary()["accuracy_of_clients"] for what, part in known}
    new = model.adapt(parts[3]).evaluate(parts[4]).summary()["accuracy_of_clients"]
    return {**score, "unseen": new, "seconds": took}, model


def main() -> None:
    options = {"rounds": 100, "seeds": 3, "rates": "0.3,0.1,0.03", "methods": EVERY, "sets": "femnist,cifar10"}
    args = arguments(__doc__, prepare="", data="", device="cpu", **options)
    if args.prepare:
        prepare(Path(args.prepare), args.quick)
        return
    if args.quick:
        args.data = args.data or str(RESULTS / "images")
        prepare(Path(args.data), True)
        args.rounds, args.seeds, args.rates, args.sets = 5, 1, "0.3", "femnist"
        args.methods = "local fedavg fedavg+ ifca fedem fedgmm-pca fedgmm-embedding"
    torch.manual_seed(0)
    rates = [float(v) for v in args.rates.split(",")]
    rows = []
    for name in args.sets.split(","):
        common: dict[int, Any] = {}
        methods = args.methods.split()
        for method in sorted(methods, key=lambda m: m != "fedavg"):  # FedAvg first: it gives the embedding
            tried = {lr: one(method, name, args, 0, lr, common.get(0)) for lr in rates}
            best = max(rates, key=lambda lr: tried[lr][0]["valid"])
            found = [tried[best]]
            found += [one(method, name, args, s, best, common.get(s)) for s in range(1, args.seeds)]
            if method == "fedavg":
                common = {s: f[1].state for s, f in enumerate(found)}
            for what in ("test", "unseen"):
                values = [100 * f[0][what] for f in found]
                half = 1.96 * np.std(values, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else float("nan")
                found[0][0][f"{what} text"] = f"{np.mean(values):.2f} +/- {half:.2f}"
            row = {"data": name, "method": method, "lr": best, "test": found[0][0]["test text"]}
            rows.append({**row, "unseen, adapted": found[0][0]["unseen text"], "seconds": found[0][0]["seconds"]})
            print("#", rows[-1], flush=True)
    report("fedgmm_images", rows, note=f"{args.rounds} rounds, seeds 0 to {args.seeds - 1}, 95% intervals over seeds")


if __name__ == "__main__":
    main()

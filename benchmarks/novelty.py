"""Can a personalised model tell novel images from known ones (Table 4)?

MNIST dealt to clients by Dirichlet 0.4 over labels; a quarter of the rows is turned by 90 degrees, mirrored and
inverted, a quarter has permuted labels. Known: held-out rows of the same law. Novel: the same rows at half their size,
turned and mirrored. The score is chosen on outliers of another kind, two digits laid over one another, never on the
novel ones.
Methods without a law of x score by minus the largest class probability, of the client that is surest (as in the paper).

`--prepare FOLDER` writes the data as one .npz file; with `--data FOLDER` only NumPy, SciPy and torch are needed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fedscape import Federation, GaussianMixture, Moments
from fedscape.learning import LocalSGD, cross_entropy, models
from fedscape.personal import (
    Alarm,
    FedGMM,
    Novelty,
    Personalised,
    auroc,
    average_precision,
    max_f1,
    train,
    with_embedding,
    with_projection,
)
from table import RESULTS, arguments, report

SCORES = ("log_prob_x", "typicality", "confidence")


def prepare(folder: Path, quick: bool) -> None:
    from fedscape import datasets

    folder.mkdir(parents=True, exist_ok=True)
    fed = datasets.load("femnist-mini" if quick else "mnist")
    x, y = fed["x"], fed["y"]
    if quick:  # embedded: the digits of a few writers
        x, y = x[y < 10], y[y < 10]
    np.savez_compressed(folder / "mnist.npz", x=x, y=y)


def draw(folder: Path, seed: int, clients: int, rows: int) -> tuple[Federation, Federation]:
    """Clients that train, and the same clients' held-out rows."""
    data = np.load(folder / "mnist.npz")
    rng = np.random.default_rng(seed)
    pick = rng.permutation(len(data["y"]))[:rows]
    x, y = data["x"][pick], data["y"][pick].astype(np.int64)
    kind = rng.random(rows)
    turned, renamed = kind < 0.25, (kind >= 0.25) & (kind < 0.5)
    x[turned] = 255 - np.rot90(x[turned], axes=(1, 2))[:, :, ::-1]
    before = y.copy()
    y[renamed] = rng.permutation(10)[y[renamed]]
    shares = rng.dirichlet(np.full(clients, 0.4), 10)
    owner = np.array([rng.choice(clients, p=shares[c]) for c in before])
    order = np.argsort(owner, kind="stable")
    offsets = np.concatenate(([0], np.cumsum(np.bincount(owner, minlength=clients))))
    return Federation({"x": x[order], "y": y[order]}, offsets).split(test=0.3, seed=seed)


def novel(fed: Federation) -> Federation:
    """Half as large on an even ground of the corner's grey, turned and mirrored."""
    x = fed["x"]
    small = x.reshape(len(x), 14, 2, 14, 2).mean(axis=(2, 4)).astype(np.uint8)
    out = np.repeat(x[:, :1, :1], 28, axis=1).repeat(28, axis=2)
    out[:, 7:21, 7:21] = small
    return fed.with_column("x", np.ascontiguousarray(np.rot90(out, axes=(1, 2))[:, :, ::-1]))


def overlaid(fed: Federation, seed: int) -> Federation:
    """Two rows laid over one another: outliers of another kind, to choose the score by."""
    other = fed["x"][np.random.default_rng(seed).permutation(fed.n_rows)]
    return fed.with_column("x", np.maximum(fed["x"], other))


def surest(model: Personalised, data: Federation) -> np.ndarray:
    """Minus the largest class probability over all clients that keep something."""
    if not model.kept:
        return -model.predict_proba(data["x"]).max(axis=1)
    return -np.max([model.predict_proba(data["x"], client=c).max(axis=1) for c in model.ids], axis=0)


def row(what: str, known: np.ndarray, new: np.ndarray, valid: np.ndarray | None) -> dict[str, Any]:
    scores, label = np.concatenate([known, new]), np.repeat([False, True], [len(known), len(new)])
    made: dict[str, Any] = {"method": what, "AUROC": 100 * auroc(scores, label)}
    made |= {"AP": 100 * average_precision(scores, label), "max-F1": 100 * max_f1(scores, label)}
    if valid is not None:
        half = len(known) // 2
        alarm = Alarm.calibrated(known[:half], rate=0.05)
        made |= {"false alarms at 5%": 100 * float(alarm.raised(known[half:]).mean())}
        made |= {"alarms on novel": 100 * float(alarm.raised(new).mean())}
        both = np.repeat([False, True], [len(known), len(valid)])
        made["AUROC on overlaid"] = 100 * auroc(np.concatenate([known, valid]), both)
    return made


def main() -> None:
    args = arguments(
        __doc__, prepare="", data="", device="cpu", clients=100, rows=30_000, rounds=50, lr=0.1, model="cnn"
    )
    if args.prepare:
        prepare(Path(args.prepare), args.quick)
        return
    if args.quick:
        args.data = args.data or str(RESULTS / "novelty")
        prepare(Path(args.data), True)
        args.clients, args.rows, args.rounds, args.model = 10, 2000, 5, "mlp"
    fed, held = draw(Path(args.data), args.seed, args.clients, args.rows)
    order = np.random.default_rng(args.seed).permutation(held.n_rows)  # known rows are split at random for the alarm
    parts = {"fit": fed, "known": held, "new": novel(held), "valid": overlaid(held, args.seed)}
    model = models.mlp(784, 64, 10) if args.model == "mlp" else models.cnn((1, 28, 28), 10)
    step = LocalSGD(model, cross_entropy, lr=args.lr, epochs=1, batch_size=64, device=args.device)
    rows = []
    trained = {m: train(m, step, fed, n_rounds=args.rounds, seed=args.seed) for m in ("local", "fedavg", "fedem")}
    for name, done in trained.items():
        rows.append(row(name, surest(done, parts["known"]), surest(done, parts["new"]), None))
    for where in ("pixels, PCA 48", "pixels, PCA 48 and rest", "FedAvg embedding, PCA 48 and rest"):
        if where.startswith("pixels"):
            made = {n: p.with_column("flat", p["x"].reshape(p.n_rows, -1) / 255.0) for n, p in parts.items()}
        else:
            made = {n: with_embedding(p, step, trained["fedavg"].state, name="flat") for n, p in parts.items()}
        moments = Moments(column="flat").fit(made["fit"], progress=False)
        rest = where.endswith("rest")
        made = {n: with_projection(p, moments, min(48, len(moments.mean_)), residual=rest) for n, p in made.items()}
        mixture = GaussianMixture(args.gaussians, column="z", regularisation=1e-3, n_init=2, rounds=30, seed=args.seed)
        method = FedGMM(step, mixture.fit(made["fit"], progress=False), 3)
        done = train(method, step, made["fit"], n_rounds=args.rounds, seed=args.seed)
        for score in SCORES:
            by = Novelty(done, score).fitted(made["fit"])
            found = {n: by.rows(made[n]) for n in ("known", "new", "valid")}
            rows.append(row(f"fedgmm, {where}: {score}", found["known"][order], found["new"], found["valid"]))
    best = max(rows[3:], key=lambda r: r["AUROC on overlaid"])
    note = (
        f"chosen on overlaid digits: {best['method']}; {args.model}, M1 = {args.gaussians}, {args.clients} clients, "
        f"{args.rows:,} rows, {args.rounds} rounds, seed {args.seed}"
    )
    report("novelty", rows, note=note)


if __name__ == "__main__":
    main()

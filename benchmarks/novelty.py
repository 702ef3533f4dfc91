"""Can a personalised model tell novel images from known ones (Table 4, Figures 2 and 5 to 7)?

MNIST dealt to clients by Dirichlet 0.4 over labels; a quarter of the rows is turned by 90 degrees, mirrored and
inverted, a quarter has permuted labels. Known: held-out rows of the same law. Novel: the same rows at half their size,
turned and mirrored. Embedding and score are chosen on outliers of five other kinds, never on the novel ones: two digits
laid over one another, blurred, halves exchanged, noise, stripes.
Methods without a law of x score by minus the largest class probability, of the client that is surest (as in the paper).
The Gaussians of FedGMM are of pixels, or of what layers of the FedAvg network give: the input of the last one, or mean
and spread of each channel of the convolutions. "and rest" adds how long the part is that the PCA leaves out. Scores are
those under the common weights. Figure 2: plain digits but 1; can 1 be told by p(x), and a wrong label by p(y | x)?
Figures 5 to 7: how far apart known and novel lie, row by row and by the mean of each client's rows, under FedAvg, FedEM
and FedGMM; and under FedGMM if only p(x) is new (0.8 of the size, turned) or only p(y | x) (labels permuted). There
p(x) has the common weights, p(y | x) and the joint those of each client; "scaled sum" is the score of the public code,
log p(x) and log p(y | x) each scaled from 0 to 1 over known and novel rows, then added. Histograms are of likelihoods
scaled from 0 to 1 between the 1% and 99% quantiles of all rows; a PNG is drawn where matplotlib is installed.

Networks: `--net` conv (two convolutions, one hidden layer, as in fedgmm_images.py) or lenet.

`--prepare FOLDER` writes the data as one .npz file; with `--data FOLDER` only NumPy, SciPy and torch are needed. Cells
run in `--workers` processes until `--limit` seconds are over, with `--only figure` those of the figures alone;
`--merge FILES` prints the tables of rows.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cells import Row, check_time, percent, read, run_cells, share_programs
from fedgmm_images import two_convolutions
from fedscape import Federation, GaussianMixture, Local, Moments, rounds
from fedscape.core.arrays import segment_sum_twin
from fedscape.core.kept import kept_rows
from fedscape.learning import LocalSGD, cross_entropy, models
from fedscape.learning.export import module_of
from fedscape.learning.trainer import trainer_of
from fedscape.methods import make
from fedscape.personal import (
    Alarm,
    ClusteredFL,
    FedEM,
    FedGMM,
    LocalOnly,
    Novelty,
    Personalised,
    auroc,
    average_precision,
    max_f1,
    with_embedding,
    with_projection,
)
from fedscape.personal.methods import Common
from fedscape.personal.shared import each_model, forward, own_models, stacked
from table import RESULTS, arguments, report

SHOWN = RESULTS / "quick" if "--quick" in sys.argv else RESULTS  # where rows and pictures go
SCORES = ("log_prob_x", "typicality", "confidence")
EMBEDDINGS = {"convolutions": 25, "last layer and rest": 10, "pixels, PCA 48 and rest": 10, "pixels, PCA 48": 3}  # M1
STATES = Path(tempfile.gettempdir()) / "fedgmm_novelty"  # of FedAvg
BASELINES = ("fedavg", "local", "fedem", "fedprox", "clustered", "pfedme")  # fedavg makes fedavg+, too
DRAWN = 300  # points of each kind in a figure
PARTS = ("log_prob_x", "log_prob_y_given_x", "log_prob_joint")


def prepare(folder: Path, quick: bool) -> None:
    from fedscape import datasets

    folder.mkdir(parents=True, exist_ok=True)
    fed = datasets.load("femnist-mini" if quick else "mnist")
    x, y = fed["x"], fed["y"]
    if quick:  # embedded: the digits of a few writers
        x, y = x[y < 10], y[y < 10]
    rows = np.random.default_rng(0).permutation(len(y))[:20_000]
    np.savez_compressed(folder / "mnist.npz", x=x[rows], y=y[rows].astype(np.uint8))


def draw(folder: Path, seed: int, clients: int, rows: int, *, plain: bool = False) -> tuple[Federation, Federation]:
    """Clients that train, and the same clients' held-out rows; `plain`: nothing is transformed."""
    data = np.load(folder / "mnist.npz")
    rng = np.random.default_rng(seed)
    pick = rng.permutation(len(data["y"]))[:rows]
    x, y = data["x"][pick], data["y"][pick].astype(np.int64)
    kind = rng.random(len(y)) + plain
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
    return fed.with_column("x", np.ascontiguousarray(turned(x, small)[:, :, ::-1]))


def turned(x: np.ndarray, small: np.ndarray) -> np.ndarray:
    """Smaller images in the middle of the ground of the large ones, turned."""
    begin, end = (28 - small.shape[1]) // 2, (28 + small.shape[1]) // 2
    out = np.repeat(x[:, :1, :1], 28, axis=1).repeat(28, axis=2)
    out[:, begin:end, begin:end] = small
    return np.rot90(out, axes=(1, 2))


def new_in_part(fed: Federation, seed: int) -> dict[str, Federation]:
    """Figure 6: rows of which only p(x) is new, and rows of which only p(y | x) is; every label becomes another."""
    x, order = fed["x"], np.random.default_rng(seed + 1).permutation(10)
    pixels = torch.tensor(x, dtype=torch.float32)[:, None]
    small = torch.nn.functional.interpolate(pixels, size=22, mode="bilinear", antialias=True)[:, 0]
    smaller = np.ascontiguousarray(turned(x, small.round().to(torch.uint8).numpy()))
    label = np.empty(10, dtype=np.int64)
    label[order] = np.roll(order, 1)
    return {"0.8 of the size": fed.with_column("x", smaller), "labels permuted": fed.with_column("y", label[fed["y"]])}


def others(fed: Federation, seed: int) -> dict[str, Federation]:
    """Outliers of other kinds, to choose embedding and score by."""
    rng, x = np.random.default_rng(seed), fed["x"]
    wide = np.pad(x.astype(np.uint16), ((0, 0), (2, 2), (2, 2)), mode="edge")
    blurred = sum(wide[:, i : i + 28, j : j + 28] for i in range(5) for j in range(5)) // 25
    stripes = x.copy()
    stripes[:, :, ::2] = x[:, :1, :1]
    made = {
        "overlaid": np.maximum(x, x[rng.permutation(len(x))]),
        "blurred": blurred,
        "exchanged": np.roll(x, 14, axis=2),
        "noise": np.clip(x + rng.normal(0, 40, x.shape), 0, 255),
        "stripes": stripes,
    }
    return {name: fed.with_column("x", values.astype(np.uint8)) for name, values in made.items()}


def surest(model: Personalised, data: Federation) -> np.ndarray:
    """Minus the largest class probability over all clients that keep something."""
    if not model.kept:
        return -model.predict_proba(data["x"]).max(axis=1)
    state, local = model.ready(), model.method.local
    everyone = model.with_kept(Federation({}, np.zeros(len(model.ids) + 1, dtype=np.int64), model.ids))
    if isinstance(model.method, FedEM):  # the learners once, then every client's mixture of them
        p = np.exp(forward(local, each_model(stacked(local, state)), data, slice(0, data.n_rows), loss=False))
        own = kept_rows(everyone, "shares", state["weights"])
        return -np.max([np.einsum("rmk,m->rk", p, shares).max(axis=1) for shares in own], axis=0)
    if isinstance(model.method, ClusteredFL):
        models = each_model(stacked(local, state))
        models = [models[k] for k in np.unique(model.method._cluster(state, everyone))]
    else:
        models = each_model(own_models(local, state, everyone))
    parts = [slice(begin, begin + 25) for begin in range(0, len(models), 25)]
    logs = [forward(local, models[part], data, slice(0, data.n_rows), loss=False).max(axis=(1, 2)) for part in parts]
    return -np.exp(np.max(logs, axis=0))


def row(what: str, scores: dict[str, np.ndarray], order: np.ndarray) -> Row:
    known, new = scores["known"][order], scores["new"]  # known rows are split at random for the alarm
    both, label = np.concatenate([known, new]), np.repeat([False, True], [len(known), len(new)])
    made: Row = {"method": what, "AUROC": auroc(both, label), "AP": average_precision(both, label)}
    half = len(known) // 2
    alarm = Alarm.calibrated(known[:half], rate=0.05)
    made |= {"max-F1": max_f1(both, label), "false alarms at 5%": float(alarm.raised(known[half:]).mean())}
    made |= {"alarms on novel": float(alarm.raised(new).mean())}
    kinds = [n for n in scores if n not in ("known", "new")]
    made["of others"] = {n: auroc(np.concatenate([known, scores[n]]), label) for n in kinds}
    return {**made, "AUROC, other kinds": float(np.mean(list(made["of others"].values())))}


def channels(fed: Federation, local: LocalSGD, state: Any) -> np.ndarray:
    """Mean and spread over places of each channel of the convolutions (of a dense network, its first layer)."""
    module, seen = module_of(local.model, state).to(local.device), []
    found = [layer for layer in module.modules() if isinstance(layer, torch.nn.Conv2d)]
    for layer in found or [m for m in module.modules() if isinstance(m, torch.nn.Linear)][:1]:
        layer.register_forward_hook(lambda *given: seen.append(given[2].detach()))
    parts = []
    with torch.no_grad():
        for begin in range(0, fed.n_rows, 2048):
            seen.clear()
            module(local.inputs(trainer_of(local).column(fed, "x", slice(begin, begin + 2048))))
            flat = [torch.cat([o.mean((2, 3)), o.std((2, 3))], dim=1) if o.ndim == 4 else o for o in seen]
            parts.append(torch.cat(flat, dim=1).double().cpu().numpy())
    return np.concatenate(parts)


def with_z(where: str, parts: dict[str, Federation], step: LocalSGD, state: Any) -> dict[str, Federation]:
    """The parts with the column that the Gaussians are of, made by the moments of the rows to fit."""
    if where == "convolutions":
        parts = {n: p.with_column("z", channels(p, step, state)) for n, p in parts.items()}
        moments = Moments(column="z").fit(parts["fit"], progress=False)
        spread = np.sqrt(np.diagonal(moments.covariance_)) + 1e-6
        return {n: p.with_column("z", (p["z"] - moments.mean_) / spread) for n, p in parts.items()}
    if where.startswith("pixels"):
        parts = {n: p.with_column("flat", p["x"].reshape(p.n_rows, -1) / 255.0) for n, p in parts.items()}
    else:
        parts = {n: with_embedding(p, step, state, name="flat") for n, p in parts.items()}
    moments, rest = Moments(column="flat").fit(parts["fit"], progress=False), where.endswith("rest")
    made = {n: with_projection(p, moments, min(48, len(moments.mean_)), residual=rest) for n, p in parts.items()}
    return {n: p.select(["x", "y", "z"]) for n, p in made.items()}


def trained(made: Any, fed: Federation, cell: Row, until: float) -> Personalised:
    engine = Local(fed, threads=1)
    made.block_rows = 2**17
    loop = rounds(made, engine, n_rounds=cell["rounds"], seed=cell["seed"], measure=0, allow=made.reveals)
    for _ in loop:
        check_time(until)
    return Personalised(made, loop.state, fed.ids, dict(engine.kept()))


def step_of(cell: Row) -> LocalSGD:
    made = {"mlp": lambda: models.mlp(784, 64, 10), "lenet": lambda: models.lenet5((1, 28, 28), 10)}
    made["conv"] = lambda: two_convolutions((1, 28, 28), 10)
    model = made[cell["net"]]()
    how: Row = {"precision": "tf32"} if cell["device"] != "cpu" else {}
    local = LocalSGD(model, cross_entropy, lr=cell["lr"], steps=8, batch_size=16, device=cell["device"], **how)
    share_programs(local, cell["net"])
    return local


def state_of(cell: Row) -> Path:
    return STATES / f"{cell['net']}_{cell['rows']}_{cell['rounds']}_{cell['seed']}.npz"


def work(cell: Row, until: float) -> list[Row]:
    """Methods without a law of x; or FedGMM on one embedding; or figures."""
    seed, step = cell["seed"], step_of(cell)
    if cell["part"].startswith("figure"):
        return (figure_2 if cell["part"] == "figure 2" else figures_5_to_7)(cell, step, until)
    fed, held = draw(Path(cell["data"]), seed, cell["clients"], cell["rows"])
    order = np.random.default_rng(seed).permutation(held.n_rows)
    parts = {"known": held, "new": novel(held), **others(held, seed)}
    if cell["part"].startswith("baseline"):
        name = cell["part"].removeprefix("baseline ")
        done = trained(method(name, step), fed, cell, until)
        made = {name: done}
        if name == "fedavg":
            STATES.mkdir(exist_ok=True)
            np.savez(state_of(cell), **done.state)
            begin = {**{n: v for n, v in done.state.items() if n.startswith("model.")}, "rows": np.zeros(())}
            made["fedavg+"] = Personalised(LocalOnly(step), begin, fed.ids, {}).adapt(fed, seed=seed)
        found = [row(n, {part: surest(d, p) for part, p in parts.items()}, order) for n, d in made.items()]
        return [{**cell, **each} for each in found]
    with np.load(state_of(cell)) as common:
        made = with_z(cell["part"], {"fit": fed, **parts}, step, dict(common))
    done = gaussian(made["fit"], step, cell, until)
    found = []
    for score in SCORES:
        by = Novelty(done.common(), score).fitted(made["fit"])
        found.append(row(f"fedgmm, {cell['part']}: {score}", {n: by.rows(made[n]) for n in parts}, order))
    return [{**cell, **each} for each in found]


def method(name: str, step: LocalSGD) -> Any:
    if name == "fedprox":
        step = replace(step, proximal=0.1)
    return Common(step, initial="seed") if name in ("fedavg", "fedprox") else make(name, step)


def gaussian(fed: Federation, step: LocalSGD, cell: Row, until: float) -> Personalised:
    """FedGMM on the column z."""
    about: Row = {"regularisation": 1e-2, "n_init": 2, "rounds": 30, "seed": cell["seed"]}
    mixture = GaussianMixture(cell["gaussians"], column="z", **about).fit(Local(fed, threads=1), progress=False)
    check_time(until)
    return trained(FedGMM(step, mixture, 3), fed, cell, until)


def figure_2(cell: Row, step: LocalSGD, until: float) -> list[Row]:
    """Trained without the digit 1: AUROC of p(x) for ones, and of p(y | x) for rows with another's label."""
    fed, held = draw(Path(cell["data"]), cell["seed"], cell["clients"], cell["rows"], plain=True)
    ones = held.where(held["y"] == 1)
    fed, held = fed.where(fed["y"] != 1), held.where(held["y"] != 1)
    common = trained(Common(step, initial="seed"), fed, cell, until)
    made = with_z("convolutions", {"fit": fed, "held": held, "ones": ones}, step, common.state)
    done = gaussian(made["fit"], step, cell, until)
    digits = np.setdiff1d(np.arange(10), [1])
    wrong = made["held"].with_column("y", digits[(np.searchsorted(digits, held["y"]) + 4) % 9])
    found = {}
    for what, score, new in (("digit 1", "log_prob_x", made["ones"]), ("wrong label", "log_prob_y_given_x", wrong)):
        model = done.common() if score == "log_prob_x" else done
        scores = [Novelty(model, score).rows(p) for p in (made["held"], new)]
        found[f"{what}: {score}"] = auroc(np.concatenate(scores), np.repeat([False, True], [len(s) for s in scores]))
    drawn = points(done, {"known": made["held"], "digit 1": made["ones"], "wrong label": wrong})
    return [*({**cell, "method": what, "figure": value} for what, value in found.items()), {**cell, "points": drawn}]


def part_of_law(done: Personalised, score: str, data: Federation) -> np.ndarray:
    return Novelty(done.common() if score == "log_prob_x" else done, score).rows(data)


def points(done: Personalised, kinds: dict[str, Federation]) -> dict[str, list[list[float]]]:
    """log p(x) and log p(y | x) of some rows of each kind."""
    found = {}
    for kind, data in kinds.items():
        pick = np.random.default_rng(0).permutation(data.n_rows)[:DRAWN]
        found[kind] = [(-part_of_law(done, score, data)[pick]).round(3).tolist() for score in PARTS[:2]]
    return found


def apart(known: np.ndarray, new: np.ndarray, offsets: np.ndarray) -> Row:
    """How far apart scores of the same clients lie: AUROC of rows and of clients, two histograms, what they share."""
    label, full = np.repeat([False, True], len(known)), np.diff(offsets) > 0
    means = [(segment_sum_twin(s, offsets)[full] / np.diff(offsets)[full]) for s in (known, new)]
    by_client = auroc(np.concatenate(means), np.repeat([False, True], full.sum()))
    low, high = np.quantile([known, new], [0.01, 0.99])
    scaled = [np.clip((high - s) / max(high - low, 1e-300), 0, 1) for s in (known, new)]
    bars = [np.histogram(s, bins=30, range=(0, 1))[0] / len(s) for s in scaled]
    made: Row = {"AUROC of rows": auroc(np.concatenate([known, new]), label), "AUROC of clients": by_client}
    return made | {"shared": float(np.minimum(*bars).sum()), "bars": [b.round(5).tolist() for b in bars]}


def figures_5_to_7(cell: Row, step: LocalSGD, until: float) -> list[Row]:
    """FedAvg, FedEM and FedGMM on novel rows; FedGMM on rows new in one part of the law."""
    fed, held = draw(Path(cell["data"]), cell["seed"], cell["clients"], cell["rows"])
    parts = {"half the size": novel(held), **new_in_part(held, cell["seed"])}
    found, state = [], {}
    for name in ("fedem", "fedavg"):
        done = trained(method(name, step), fed, cell, until)
        scores, state = [surest(done, p) for p in (held, parts["half the size"])], done.state
        found.append({"novel": "half the size", "score": f"{name}: confidence", **apart(*scores, held.offsets)})
    made = with_z("convolutions", {"fit": fed, "known": held, **parts}, step, state)
    done = gaussian(made["fit"], step, cell, until)
    for kind in parts:
        each = {s: np.stack([part_of_law(done, s, made[n]) for n in ("known", kind)]) for s in PARTS}
        each["scaled sum"] = sum((each[s] - each[s].min()) / np.ptp(each[s]) for s in PARTS[:2])
        found += [{"novel": kind, "score": f"fedgmm: {s}", **apart(*v, held.offsets)} for s, v in each.items()]
    drawn = points(done, {n: made[n] for n in ("known", "labels permuted")})
    return [*({**cell, **each} for each in found), {**cell, "points": drawn}]


def summary(rows: list[Row]) -> None:
    """Means over seeds with intervals, and which score the other kinds choose in each seed."""
    told = [r for r in rows if "AUROC" in r]
    columns = ("AUROC", "AP", "max-F1", "false alarms at 5%", "alarms on novel", "AUROC, other kinds")
    lines = []
    for name in dict.fromkeys(r["method"] for r in told):
        mine = [r for r in told if r["method"] == name]
        about = {"method": name, "M1": mine[0]["gaussians"] or "", "seeds": len(mine)}
        lines.append({**about, **{c: percent([r[c] for r in mine]) for c in columns}})
    said = []
    for seed in sorted({r["seed"] for r in told}):
        mine = [r for r in told if r["seed"] == seed and r["method"].startswith("fedgmm")]
        best = max(mine, key=lambda r: r["AUROC, other kinds"]) if mine else None
        said += [f"seed {seed}: {best['method']} with {100 * best['AUROC']:.2f}"] if best else []
    if told:
        about = {k: v for k, v in told[0].items() if k in ("net", "clients", "rows", "rounds", "lr")}
        chosen = f"chosen on the other kinds: {'; '.join(said)}; {about}; 95% t intervals over seeds"
        report("novelty", lines, note=chosen)
    figure = list({(r["method"], r["seed"]): r for r in rows if "figure" in r}.values())
    names = list(dict.fromkeys(r["method"] for r in figure))
    if figure:
        print()
        lines = [{"told": n, "AUROC": percent([r["figure"] for r in figure if r["method"] == n])} for n in names]
        report("novelty_figure_2", lines)
    if any("bars" in r for r in rows):
        print()
        histograms(rows)
        picture([r for r in rows if "bars" in r or "points" in r])


def histograms(rows: list[Row]) -> None:
    """Figures 5 to 7 in numbers."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for r in rows:
        if "bars" in r:
            groups.setdefault((r["novel"], r["score"]), []).append(r)
    columns, lines = ("AUROC of rows", "AUROC of clients", "shared"), []
    for (kind, score), mine in groups.items():
        about = {"novel": kind, "score": score, "seeds": len(mine)}
        lines.append({**about, **{c: percent([r[c] for r in mine]) for c in columns}})
    report(
        "novelty_figures_5_to_7",
        lines,
        note="shared: the part of the two histograms that lies on one another, in percent",
    )


def picture(rows: list[Row]) -> None:
    """Figures 2 and 5 to 7 of the first seed as results/novelty_figures.png, where there is matplotlib."""
    try:
        import matplotlib as mpl
    except ImportError:
        return
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    first = min(r["seed"] for r in rows if "bars" in r)
    rows = [r for r in rows if r["seed"] == first]
    bars = {(r["novel"], r["score"]): r["bars"] for r in rows if "bars" in r}
    dots = {r["part"]: r["points"] for r in rows if "points" in r}
    half, both = "half the size", "fedgmm: scaled sum"
    panels: list[tuple[str, Any]] = [("5a", (half, "fedavg: confidence")), ("5b", (half, "fedem: confidence"))]
    panels += [("5c", (half, both)), ("5, without labels", (half, "fedgmm: log_prob_x"))]
    panels += [("6a", ("0.8 of the size", both)), ("6b", ("labels permuted", both))]
    figure, axes = plt.subplots(2, 4, figsize=(15, 6.4), layout="constrained")
    for axis, (name, key) in zip(axes.flat, panels, strict=False):
        for values, kind, colour in zip(bars.get(key, ()), ("known", "novel"), ("#1f4e79", "#c55a11"), strict=False):
            axis.bar((np.arange(30) + 0.5) / 30, values, 1 / 30, alpha=0.6, color=colour, label=kind)
        axis.set(title=f"{name}: {key[0]}\n{key[1]}", xlabel="scaled likelihood", ylabel="share of rows")
    for axis, name, part in zip(axes.flat[6:], ("7", "2"), ("figures 5 to 7", "figure 2"), strict=True):
        for (kind, xy), colour in zip(dots.get(part, {}).items(), ("#1f4e79", "#c55a11", "#7a1f79"), strict=False):
            axis.scatter(*xy, s=6, alpha=0.6, color=colour, label=kind)
        axis.set(title=f"Figure {name}", xlabel="log p(x)", ylabel="log p(y | x)")
    for axis in axes.flat[[0, 6, 7]]:
        if axis.has_data():
            axis.legend(frameon=False, fontsize=8)
    figure.savefig(SHOWN / "novelty_figures.png", dpi=50)


def plan(rows: list[Row], args: Any) -> list[Row]:
    """Baselines first, whose FedAvg gives the embeddings; then these, the best first."""
    base = {n: getattr(args, n) for n in ("data", "device", "clients", "rows", "rounds", "lr", "net")}
    seeds = [{**base, "seed": args.seed + s} for s in range(args.seeds)]
    cells = [{**c, "part": f"baseline {name}", "gaussians": 0} for name in BASELINES for c in seeds]
    ready = [c for c in seeds if state_of(c).exists()]
    each = [{**c, "part": part, "gaussians": min(m1, args.gaussians)} for part, m1 in EMBEDDINGS.items() for c in ready]
    drawn = {"gaussians": min(EMBEDDINGS["convolutions"], args.gaussians), "drawn": DRAWN}
    last = [{**c, "part": part, **drawn} for part in ("figure 2", "figures 5 to 7") for c in seeds]
    return [c for c in [*cells, *each, *last] if c["part"].startswith(args.only)]


def main() -> None:
    options: Row = {
        "clients": 100,
        "rows": 20_000,
        "rounds": 60,
        "lr": 0.1,
        "net": "conv",
        "gaussians": 99,
        "seeds": 3,
    }
    options |= {"workers": 0, "limit": 1e9, "out": "", "merge": "", "only": ""}
    args = arguments(__doc__, prepare="", data="", device="cpu", **options)
    if args.prepare:
        prepare(Path(args.prepare), args.quick)
        return
    if args.merge:
        summary(read(args.merge))
        return
    out = args.out or str(SHOWN / "novelty.jsonl")
    SHOWN.mkdir(parents=True, exist_ok=True)
    if args.quick:
        args.data = args.data or str(RESULTS / "novelty")
        prepare(Path(args.data), True)
        args.clients, args.rows, args.rounds, args.net, args.gaussians, args.seeds = 10, 2000, 5, "mlp", 3, 1
        if not args.out:
            Path(out).unlink(missing_ok=True)
    if not Path(out).exists() and not args.only:
        shutil.rmtree(STATES, ignore_errors=True)
    summary(run_cells(partial(plan, args=args), work, out=out, workers=args.workers, limit=args.limit))


if __name__ == "__main__":
    main()

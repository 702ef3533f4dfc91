"""Do nonlinear classes predict real nested data better than linear ones, and than a mixed model?

The FedHLCR paper names them as future work: `LatentClassRegression(basis=...)`, classes linear in functions of the
features, or in each class a network whose 16 hidden units are learned (100 rounds for 20). Chem97 (authority, school,
pupil), Exam (school, sex, pupil), radon (county, floor, house), flights (carrier, aircraft, flight): held-out R^2 and
log-likelihood of an event, a fifth of each agent's events held out. The mixed model has a random intercept and slope of
the first feature by entity, fixed effects of the same columns; "mixed model, hinges" fixed effects of the same
functions as "hinges". Differences to the linear classes are paired by split. `--methods "network;hinges, K = 4"` runs
these beside the linear classes; `--name N` goes into the result's name.
"""

from __future__ import annotations

import os
import time
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

from fedscape import Federation, LatentClassRegression, datasets
from fedscape.mixtures.latent_class.basis import parse_basis
from hlcr_real import TABLES, interval, judged, mixed_model, numbers
from table import arguments, report

K = 4
BASES = {"linear": None, "hinges": "hinges", "polynomials": "polynomials:3", "layer of 16": "layer:16"}
NETWORK = "network:16"


def nested(folder: Path, name: str) -> tuple[Federation, list[str], str, str]:
    """The federation, its features, target and entity."""
    if name in TABLES:
        features, target, entity = TABLES[name]
        fed = datasets.load(name)
        for column in set(features) & set(fed.names):
            fed = fed.with_column(column, fed[column] * 1.0)
        return fed, list(features), target, entity
    frame = pd.read_csv(folder / "hierarchical" / f"{name}.csv.gz")
    if name == "Exam":  # one entity a school and sex, as pupils' groups
        frame["entity"] = (frame["sex"] == "F").astype(int)
        frame["intake2"] = (frame["intake"].astype(str).str.startswith("top")).astype(float)
        names = {"agent": "school", "features": ["standLRT", "schavg", "intake2"], "target": "normexam"}
    else:
        frame["entity"] = frame["basement"].astype(float).astype(int)
        names = {"agent": "county", "features": ["basement", "uranium"], "target": "log.radon"}
    frame = frame.sort_values(names["agent"], kind="stable")
    ends = np.append(np.flatnonzero(np.append(True, np.diff(pd.factorize(frame[names["agent"]])[0]) != 0)), len(frame))
    columns = {c: frame[c].to_numpy(dtype=float) for c in [*names["features"], names["target"]]}
    fed = Federation({**columns, "entity": frame["entity"].to_numpy()}, ends)
    return fed, names["features"], names["target"], "entity"


def latent(train, test, features, target, entity, *, k, basis, seed):
    columns = {"features": features, "target": target, "entity": entity}
    rounds = 100 if basis == NETWORK else 20
    reg = LatentClassRegression(k, **columns, basis=basis, rounds=rounds, seed=seed)
    reg.fit(train, progress=False)
    found = judged(test[target].astype(float), *reg.predict(test, return_std=True))
    return {**found, "log-likelihood": reg.score(test)}


def by_em(y: np.ndarray, design: np.ndarray, group: np.ndarray) -> tuple[np.ndarray, float]:
    """Covariance of a random intercept and slope, and variance of the noise: maximum likelihood by 500 steps of EM."""
    codes, group = np.unique(group, return_inverse=True)
    z = design[:, :2]

    def total(values: np.ndarray) -> np.ndarray:
        out = np.zeros((len(codes), *values.shape[1:]))
        np.add.at(out, group, values)
        return out

    zz, zx = (total(z[:, :, None] * other[:, None, :]) for other in (z, design))
    zy, gram, cross = total(z * y[:, None]), design.T @ design, design.T @ y
    fixed = np.linalg.solve(gram, cross)
    noise = float(np.var(y - design @ fixed))
    c = 0.1 * noise * np.eye(2)
    for _ in range(500):
        unsure = np.linalg.inv(np.linalg.inv(c) + zz / noise)  # of the effects, given all else
        effects = np.einsum("gab,gb->ga", unsure, zy - zx @ fixed) / noise
        fixed = np.linalg.solve(gram, cross - np.einsum("gap,ga->p", zx, effects))
        left = y - design @ fixed - (z * effects[group]).sum(axis=1)
        noise = float((left @ left + np.einsum("gab,gba->", zz, unsure)) / len(y))
        c = (effects.T @ effects + unsure.sum(axis=0)) / len(codes) + 1e-9 * np.eye(2)
    return c, noise


def expanded(train, test, features):
    """Columns h0, h1, ... with the functions of "hinges", standardised by the training rows."""
    x = numbers(train, features)
    centre, scale = x.mean(axis=0), np.where(x.std(axis=0) > 0, x.std(axis=0), 1.0)
    parts = []
    for fed in (train, test):
        h = parse_basis("hinges").expand((numbers(fed, features) - centre) / scale)
        keep = np.arange(h.shape[1])
        for i in keep:
            fed = fed.with_column(f"h{i}", h[:, i])
        parts.append(fed)
    h = numbers(parts[0], [f"h{i}" for i in keep])
    used = [0]
    for i in keep[1:]:  # a hinge of a column of two values is that column again
        if np.linalg.matrix_rank(np.column_stack([np.ones(len(h)), h[:, [*used, i]]])) == len(used) + 2:
            used.append(int(i))
    return *parts, [f"h{i}" for i in used]


def jobs_of(fed, features, target, entity, *, seed: int, most: int):
    """What is fitted to one split, by its title."""
    train, test = fed.split(test=0.2, seed=seed)
    about, mixed = (train, test, features, target, entity), {"most": most, "seed": seed, "variances": by_em}
    jobs = {
        f"{title}, K = {k}": partial(latent, *about, k=k, basis=basis, seed=seed)
        for k in (1, K)
        for title, basis in BASES.items()
    }
    jobs[f"network of 16, K = {K}"] = partial(latent, *about, k=K, basis=NETWORK, seed=seed)
    jobs["mixed model"] = partial(mixed_model, *about, **mixed)
    one, two, more = expanded(train, test, features)
    jobs["mixed model, hinges"] = partial(mixed_model, one, two, more, target, entity, **mixed)
    return jobs


def tried(name: str, seeds: int, folder: Path, most: int, wanted: tuple[str, ...]) -> list[dict[str, object]]:
    fed, features, target, entity = nested(folder, name)
    found: dict[str, list[dict[str, float]]] = {}
    for seed in range(seeds):
        for title, run in jobs_of(fed, features, target, entity, seed=seed, most=most).items():
            if not title.startswith((*wanted, f"linear, K = {K}")):
                continue
            begin = time.perf_counter()
            found.setdefault(title, []).append({**run(), "seconds": time.perf_counter() - begin})
    rows = []
    for title, each in found.items():
        row: dict[str, object] = {"data": name, "method": title}
        for column in ("R2", "log-likelihood"):
            values, base = (np.array([one[column] for one in found[m]]) for m in (title, f"linear, K = {K}"))
            row[column] = f"{values.mean():.4f}"
            row[f"{column} less linear, K = {K}"] = "" if title == f"linear, K = {K}" else interval(values - base)
        rows.append({**row, "seconds": float(np.median([one["seconds"] for one in each]))})
    return rows


def main() -> None:
    args = arguments(__doc__, seeds=5, only="", data="", most=20_000, methods="", name="")
    folder = Path(args.data or os.environ.get("FEDSCAPE_DATA", "."))
    names = ["flights-mini"] if args.quick else ["chem97", "Exam", "radon", "flights-mini", "flights"]
    names = [name for name in names if args.only == "" or name in args.only.split(",")]
    wanted = tuple(args.methods.split(";"))
    seeds = 1 if args.quick else args.seeds
    rows = [row for name in names for row in tried(name, seeds, folder, args.most, wanted)]
    note = f"mean over {seeds} splits (seeds from 0), differences with 95% t intervals; the splits share their data"
    report("_".join(filter(None, ("nonlinear_classes", args.name or args.only))), rows, note=note)


if __name__ == "__main__":
    main()

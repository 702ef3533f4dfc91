"""Does latent class regression predict real nested data better than a ridge, EM, a mixed model, boosted trees?

Chem97 (authority, school, pupil), flights (carrier, aircraft, flight): held-out R^2 and log-likelihood of an event, a
fifth of each agent's events held out. FEMNIST (Table 2): is a character a digit, from the outputs of the paper's CNN,
trained centrally on 1, 5, 10% of the writers, writers as agents with one entity each, AUC and log-likelihood over the
test images of all other writers; beside the paper's regression of 0 and 1 its scores calibrated by one logistic class,
and classes with a logistic link. The rows of gradient boosting have agent and entity as codes; the mixed model a random
intercept and slope of the first feature by entity. --quick takes the embedded flights and handwriting. --only cnn
--cnn FOLDER --device cuda trains the CNNs alone, for a later run with the same --cnn.
"""

from __future__ import annotations

import time
import warnings
from pathlib import Path

import numpy as np
from scipy import stats

from fedscape import Federation, LatentClassRegression, datasets
from table import arguments, half_width, report

TABLES = {
    "chem97": (["gcsescore", "gender", "age"], "score", "school"),
    "flights": (["dep_delay", "distance", "hour", "month"], "arr_delay", "tailnum"),
    "flights-mini": (["dep_delay", "distance", "hour", "month"], "arr_delay", "tailnum"),
}


def numbers(fed: Federation, features: list[str]) -> np.ndarray:
    return np.column_stack([fed[name].astype(float) for name in features])


def entity_codes(fed: Federation, entity: str) -> np.ndarray:
    """Entities counted over all agents, because another agent's entity of the same name is another entity."""
    return fed.client_of_row * (int(fed[entity].max(initial=0)) + 1_000_000) + fed[entity]


def judged(y, mean, deviation) -> dict[str, float]:
    return {
        "R2": float(1 - ((y - mean) ** 2).mean() / y.var()),
        "log-likelihood": float(stats.norm.logpdf(y, mean, deviation).mean()),
    }


def latent(train, test, features, target, entity, *, k, method, seed):
    reg = LatentClassRegression(k, features=features, target=target, entity=entity, method=method, seed=seed)
    reg.fit(train, progress=False)
    found = judged(test[target].astype(float), *reg.predict(test, return_std=True))
    return {**found, "log-likelihood": reg.score(test)}


def by_statsmodels(y, design, group) -> tuple[np.ndarray, float]:
    """Covariance of a random intercept and slope, and variance of the noise."""
    import statsmodels.api as sm

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit = sm.MixedLM(y, design, groups=group, exog_re=design[:, :2]).fit(method="lbfgs")
    return np.asarray(fit.cov_re), float(fit.scale)


def mixed_model(train, test, features, target, entity, *, most: int, seed: int, variances=by_statsmodels):
    """A random intercept and slope by entity: variances by statsmodels, from the events of some entities where there
    are more than `most`; then coefficients and what each entity differs by from all events, in closed form.
    """
    x, y, group = numbers(train, features), train[target].astype(float), entity_codes(train, entity)
    centre, scale = x.mean(axis=0), x.std(axis=0)
    design, future = (
        np.column_stack([np.ones(len(part)), (part - centre) / scale]) for part in (x, numbers(test, features))
    )
    codes, group = np.unique(group, return_inverse=True)
    order = np.random.default_rng(seed).permutation(len(codes))
    few = np.cumsum(np.bincount(group)[order]) <= most
    some = np.isin(group, order[few])
    c, noise = variances(y[some], design[some], group[some])

    def total(values):
        out = np.zeros((len(codes), *values.shape[1:]))
        np.add.at(out, group, values)
        return out

    z = design[:, :2]
    zz, zx, zy = (total(z[:, :, None] * other[:, None, :]) for other in (z, design, y[:, None]))
    shrink = c @ np.linalg.inv(noise * np.eye(2) + zz @ c)  # V^-1 = (I - Z shrink Z') / noise
    left = design.T @ design - np.einsum("gap,gab,gbq->pq", zx, shrink, zx)
    right = design.T @ y - np.einsum("gap,gab,gb->p", zx, shrink, zy[..., 0])
    fixed = np.linalg.solve(left, right)
    effects = np.einsum("gab,gb->ga", shrink, zy[..., 0] - zx @ fixed)
    place = np.searchsorted(codes, wanted := entity_codes(test, entity)).clip(max=len(codes) - 1)
    known = codes[place] == wanted
    own = np.where(known[:, None], effects[place], 0.0)
    unsure = np.where(known[:, None, None], noise * shrink[place], c)
    mean = future @ fixed + (own * future[:, :2]).sum(axis=1)
    variance = noise + np.einsum("na,nab,nb->n", future[:, :2], unsure, future[:, :2])
    return judged(test[target].astype(float), mean, np.sqrt(variance))


def boosting(train, test, features, target, entity, seed):
    from sklearn.ensemble import HistGradientBoostingRegressor
    from sklearn.preprocessing import TargetEncoder

    y = train[target].astype(float)
    codes = [np.column_stack([part.client_of_row, entity_codes(part, entity)]) for part in (train, test)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        encoder = TargetEncoder(target_type="continuous", random_state=seed)
        one = np.column_stack([numbers(train, features), encoder.fit_transform(codes[0], y)])
        two = np.column_stack([numbers(test, features), encoder.transform(codes[1])])
        trees = HistGradientBoostingRegressor(random_state=seed).fit(one, y)
    return judged(test[target].astype(float), trees.predict(two), np.std(y - trees.predict(one)))


def regressions(name: str, seeds: int, ks: tuple[int, ...], most: int) -> None:
    features, target, entity = TABLES[name]
    found: dict[str, list[dict[str, float]]] = {}
    fed = datasets.load(name)
    for column in set(features) & set(fed.names):  # a text of two values: 0 and 1
        fed = fed.with_column(column, fed[column] * 1.0)
    for seed in range(seeds):
        train, test = fed.split(test=0.2, seed=seed)
        about = (train, test, features, target, entity)
        tried = {"ridge": lambda a=about, s=seed: latent(*a, k=1, method="federated", seed=s)}
        for k in ks:
            for method in ("em", "federated", "central"):
                shown = {"em": "LCR (EM)", "federated": "FedHLCR", "central": "HLCR"}[method]
                tried[f"{shown}, K = {k}"] = lambda a=about, k=k, m=method, s=seed: latent(*a, k=k, method=m, seed=s)
        tried["linear mixed model"] = lambda a=about, s=seed: mixed_model(*a, most=most, seed=s)
        tried["gradient boosting"] = lambda a=about, s=seed: boosting(*a, s)
        for method, run in tried.items():
            begin = time.perf_counter()
            found.setdefault(method, []).append({**run(), "seconds": time.perf_counter() - begin})
            print(name, seed, method, found[method][-1], flush=True)
    ours = f"FedHLCR, K = {ks[-1]}"
    rows = []
    for method, each in found.items():
        row: dict[str, object] = {"data": name, "method": method}
        for column in ("R2", "log-likelihood"):
            values, base = (np.array([one[column] for one in found[m]]) for m in (method, ours))
            row[column] = interval(values)
            row[f"{column} less {ours}"] = "" if method == ours else interval(values - base)
        rows.append({**row, "seconds": float(np.median([one["seconds"] for one in each]))})
    note = f"mean and 95% t-interval over {seeds} splits, which share their data; 20 rounds or sweeps"
    report(f"hlcr_real_{name}", rows, note=note)


def interval(values: np.ndarray, digits: int = 4) -> str:
    reach = half_width(values.tolist())
    return f"{values.mean():.{digits}f} ± {reach:.{digits}f}"


def network():
    """The paper's CNN."""
    from torch import nn

    return nn.Sequential(
        nn.Conv2d(1, 32, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 62),
    )  # fmt: skip


def taught(fed: Federation, writers: np.ndarray, *, epochs: int, seed: int, device: str):
    """The CNN trained on these writers' images, and the seconds."""
    import torch
    from torch import nn

    torch.manual_seed(seed)
    net = network().to(device)
    begin = time.perf_counter()
    mine = np.flatnonzero(np.isin(fed.client_of_row, writers))
    images = torch.from_numpy(1 - np.asarray(fed["x"][mine], dtype=np.float32) / 255)[:, None].to(device)
    labels = torch.from_numpy(np.asarray(fed["y"][mine], dtype=np.int64)).to(device)
    optimiser = torch.optim.Adam(net.parameters(), 1e-3)
    for _ in range(epochs):
        for batch in torch.randperm(len(mine)).to(device).split(64):
            optimiser.zero_grad()
            nn.functional.cross_entropy(net(images[batch]), labels[batch]).backward()
            optimiser.step()
    return net.cpu(), time.perf_counter() - begin


def networks(fed: Federation, share: float, seeds: int, *, epochs: int, device: str, folder: str):
    """For each seed: writers in a drawn order, how many of them taught the CNN, the CNN, its seconds.

    Weights that an earlier run left in the folder are read, others are written there (as float16).
    """
    import torch

    file = Path(folder) / f"cnn_{share:g}_{epochs}.npz"
    known = dict(np.load(file)) if folder and file.is_file() else {}
    for seed in range(seeds):
        drawn = np.random.default_rng(seed).permutation(len(fed))
        n = max(1, round(share * len(fed)))
        net, seconds = network(), known.get(f"{seed}.seconds")
        if seconds is None:
            net, seconds = taught(fed, drawn[:n], epochs=epochs, seed=seed, device=device)
            known |= {f"{seed}.{name}": value.numpy().astype(np.float16) for name, value in net.state_dict().items()}
            known[f"{seed}.seconds"] = np.asarray(seconds)
            if folder:
                file.parent.mkdir(parents=True, exist_ok=True)
                np.savez(file, **known)
        net.load_state_dict({name: torch.from_numpy(known[f"{seed}.{name}"]).float() for name in net.state_dict()})
        yield drawn, n, net, float(seconds)


def outputs(fed: Federation, net) -> np.ndarray:
    """The network's class probabilities for all images."""
    import torch

    images = torch.from_numpy(1 - np.asarray(fed["x"], dtype=np.float32) / 255)[:, None]
    with torch.no_grad():
        return torch.cat([net(part).softmax(dim=1) for part in images.split(2048)]).double().numpy()


def judged_scores(y, score) -> tuple[float, float]:
    """AUC, and the mean log-likelihood of the score as a probability."""
    from sklearn.metrics import log_loss, roc_auc_score

    return roc_auc_score(y, score), -log_loss(y, np.clip(score, 0.001, 0.999))


def writers_classes(train, test, ks, seed) -> dict[str, tuple[float, float, float]]:
    """AUC, log-likelihood and seconds of each regression on the CNN's outputs."""
    found: dict[str, tuple[float, float, float]] = {}
    y = test["digit"]
    for k in (1, *ks):
        name = "linear regression" if k == 1 else f"FedHLCR, K = {k}"
        begin = time.perf_counter()
        reg = LatentClassRegression(k, features="p", target="digit", seed=seed).fit(train, progress=False)
        score = reg.predict(test)
        found[name] = (*judged_scores(y, score), time.perf_counter() - begin)
        scale = LatentClassRegression(1, features="score", target="digit", entity=None, link="logistic")
        scale.fit(train.with_column("score", reg.predict(train)), progress=False)
        calibrated = scale.predict(test.with_column("score", score))
        found[f"{name}, calibrated"] = (*judged_scores(y, calibrated), time.perf_counter() - begin)
        begin = time.perf_counter()
        reg = LatentClassRegression(k, features="p", target="digit", link="logistic", seed=seed)
        score = reg.fit(train, progress=False).predict(test)
        found[f"logistic, K = {k}"] = (*judged_scores(y, score), time.perf_counter() - begin)
    return found


def digits_or_letters(name: str, args, shares: tuple[float, ...], ks: tuple[int, ...], epochs: int) -> None:
    rows = []
    fed = datasets.load(name)
    for share in shares:
        found: dict[str, list[tuple[float, ...]]] = {}
        made = networks(fed, share, args.seeds, epochs=epochs, device=args.device, folder=args.cnn)
        for seed, (drawn, n, net, seconds) in enumerate(made):
            if args.only == "cnn":
                print(f"{share:.0%} of the writers, seed {seed}: {seconds:.1f} s", flush=True)
                continue
            others = fed.take(np.sort(drawn[n:]))
            others = Federation(
                {"p": outputs(others, net), "digit": (others["y"] < 10).astype(float)}
                | {"entity": np.zeros(others.n_rows, dtype=np.int32)},
                others.offsets,
                ids=others.ids,
            )
            train, test = others.split(test=0.2, seed=seed)
            scores = {"CNN, argmax": (test["p"].argmax(axis=1) < 10) * 1.0, "CNN, sum": test["p"][:, :10].sum(axis=1)}
            each = {method: (*judged_scores(test["digit"], score), 0.0) for method, score in scores.items()}
            each |= writers_classes(train, test, ks, seed)
            for method, (auc, fit, took) in each.items():
                gain = auc - each["linear regression"][0]
                found.setdefault(method, []).append((auc, gain, fit, took, seconds))
                print(share, seed, method, f"{100 * auc:.2f} {fit:.4f} {took:.1f} s", flush=True)
        for method, each_seed in found.items():
            auc, gain, fit, took, cnn = np.array(each_seed).T
            row = {
                "writers of the CNN": f"{share:.0%}",
                "method": method,
                "AUC, %": interval(100 * auc, 2),
                "less linear regression": interval(100 * gain, 2) if gain.any() else "",
            }
            row |= {"log-likelihood": float(fit.mean()), "s": float(np.median(took)), "s of the CNN": np.median(cnn)}
            rows.append(row)
    if rows:
        note = f"mean and 95% t-interval over {args.seeds} seeds, {epochs} epochs; s: seconds beside the CNN's training"
        report(f"hlcr_real_{name}", rows, note=note)


def main() -> None:
    extra = {"seeds": 3, "only": "", "shares": "0.01,0.05,0.1", "epochs": 15, "most": 10_000_000}
    args = arguments(__doc__, **extra, device="cpu", cnn="")
    if args.quick:
        args.seeds = 1
        regressions("flights-mini", 1, (2,), args.most)
        digits_or_letters("femnist-mini", args, (0.1,), (4,), 1)
        return
    for name in ("chem97", "flights"):
        if args.only in ("", name):
            regressions(name, args.seeds, (4, 8), args.most)
            print()
    if args.only in ("", "femnist", "cnn"):
        shares = tuple(float(share) for share in args.shares.split(","))
        digits_or_letters("femnist", args, shares, (4, 8), args.epochs)


if __name__ == "__main__":
    main()

"""Does latent class regression predict real nested data better than a ridge, EM, a mixed model, boosted trees?

Chem97 (authority, school, pupil), flights (carrier, aircraft, flight): held-out R^2 and log-likelihood of an event, a
fifth of each agent's events held out. FEMNIST (Table 2): is a character a digit, from the outputs of the paper's CNN,
trained centrally on 1, 5, 10% of the writers, writers as agents with one entity each, AUC and log-likelihood over the
test images of all other writers; beside the paper's regression of 0 and 1 its scores calibrated by one logistic class,
and classes with a logistic link. The rows of gradient boosting have agent and entity as codes; the mixed model a random
intercept and slope of the first feature by entity. --quick takes the embedded flights and handwriting.
"""

from __future__ import annotations

import time
import warnings

import numpy as np
from scipy import stats

from fedscape import Federation, LatentClassRegression, datasets
from table import arguments, report

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


def mixed_model(train, test, features, target, entity):
    """A random intercept and slope by entity, by statsmodels; what an entity differs by is predicted for the test."""
    import statsmodels.api as sm

    x, y, group = numbers(train, features), train[target].astype(float), entity_codes(train, entity)
    centre, scale = x.mean(axis=0), x.std(axis=0)
    design, future = (
        sm.add_constant((part - centre) / scale, has_constant="add") for part in (x, numbers(test, features))
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit = sm.MixedLM(y, design, groups=group, exog_re=design[:, :2]).fit(method="lbfgs")
        effects = {key: np.asarray(value) for key, value in fit.random_effects.items()}
    own = np.array([effects.get(g, np.zeros(2)) for g in entity_codes(test, entity)])
    mean = future @ fit.fe_params + (own * future[:, :2]).sum(axis=1)
    return judged(test[target].astype(float), mean, np.sqrt(fit.scale))


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


def regressions(name: str, seeds: int, ks: tuple[int, ...]) -> None:
    features, target, entity = TABLES[name]
    found: dict[str, list[dict[str, float]]] = {}
    for seed in range(seeds):
        train, test = datasets.load(name).split(test=0.2, seed=seed)
        about = (train, test, features, target, entity)
        tried = {"ridge": lambda a=about, s=seed: latent(*a, k=1, method="federated", seed=s)}
        for k in ks:
            for method in ("em", "federated", "central"):
                shown = {"em": "LCR (EM)", "federated": "FedHLCR", "central": "HLCR"}[method]
                tried[f"{shown}, K = {k}"] = lambda a=about, k=k, m=method, s=seed: latent(*a, k=k, method=m, seed=s)
        if train.n_rows < 100_000:  # too slow here for more
            tried["linear mixed model"] = lambda a=about: mixed_model(*a)
        tried["gradient boosting"] = lambda a=about, s=seed: boosting(*a, s)
        for method, run in tried.items():
            begin = time.perf_counter()
            found.setdefault(method, []).append({**run(), "seconds": time.perf_counter() - begin})
    rows = []
    for method, each in found.items():
        row: dict[str, object] = {"data": name, "method": method}
        for column in ("R2", "log-likelihood"):
            values = np.array([one[column] for one in each])
            row[column] = f"{values.mean():.4f} ± {values.std(ddof=1) if seeds > 1 else 0:.4f}"
        rows.append({**row, "seconds": float(np.median([one["seconds"] for one in each]))})
    report(f"hlcr_real_{name}", rows, note=f"mean ± sd of {seeds} splits and seeds, 20 rounds or sweeps")


def outputs(fed: Federation, writers: np.ndarray, epochs: int, seed: int) -> tuple[np.ndarray, float]:
    """The class probabilities of the paper's CNN trained on these writers' images, for all images; and the seconds."""
    import torch
    from torch import nn

    torch.manual_seed(seed)
    begin = time.perf_counter()
    images = torch.from_numpy(1 - np.asarray(fed["x"], dtype=np.float32) / 255)[:, None]
    labels = torch.from_numpy(np.asarray(fed["y"], dtype=np.int64))
    net = nn.Sequential(
        nn.Conv2d(1, 32, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 62),
    )  # fmt: skip
    optimiser = torch.optim.Adam(net.parameters(), 1e-3)
    mine = torch.from_numpy(np.flatnonzero(np.isin(fed.client_of_row, writers)))
    for _ in range(epochs):
        for batch in mine[torch.randperm(len(mine))].split(64):
            optimiser.zero_grad()
            nn.functional.cross_entropy(net(images[batch]), labels[batch]).backward()
            optimiser.step()
    with torch.no_grad():
        probabilities = torch.cat([net(part).softmax(dim=1) for part in images.split(2048)])
    return probabilities.double().numpy(), time.perf_counter() - begin


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


def digits_or_letters(name: str, seeds: int, shares: tuple[float, ...], ks: tuple[int, ...], epochs: int) -> None:
    rows = []
    for share in shares:
        found: dict[str, list[tuple[float, float, float]]] = {}
        for seed in range(seeds):
            fed = datasets.load(name)
            drawn = np.random.default_rng(seed).permutation(len(fed))
            taught = drawn[: max(1, round(share * len(fed)))]
            p, seconds = outputs(fed, taught, epochs, seed)
            made = Federation(
                {"p": p, "digit": (fed["y"] < 10).astype(float), "entity": np.zeros(fed.n_rows, dtype=np.int32)},
                fed.offsets,
                ids=fed.ids,
            ).take(np.sort(drawn[len(taught) :]))
            train, test = made.split(test=0.2, seed=seed)
            scores = {"CNN, argmax": (test["p"].argmax(axis=1) < 10) * 1.0, "CNN, sum": test["p"][:, :10].sum(axis=1)}
            each = {method: (*judged_scores(test["digit"], score), 0.0) for method, score in scores.items()}
            for method, (auc, fit, took) in {**each, **writers_classes(train, test, ks, seed)}.items():
                found.setdefault(method, []).append((auc, fit, seconds + took))
        for method, each_seed in found.items():
            auc, fit, took = np.array(each_seed).T
            spread = auc.std(ddof=1) if seeds > 1 else 0.0
            row = {
                "writers of the CNN": f"{share:.0%}",
                "method": method,
                "AUC, %": f"{100 * auc.mean():.2f} ± {100 * spread:.2f}",
            }
            rows.append({**row, "log-likelihood": float(fit.mean()), "seconds": float(np.median(took))})
    report(
        f"hlcr_real_{name}", rows, note=f"mean ± sd of {seeds} seeds, {epochs} epochs; seconds with the CNN's training"
    )


def main() -> None:
    args = arguments(__doc__, seeds=3, only="", shares="0.01,0.05,0.1", epochs=15)
    if args.quick:
        regressions("flights-mini", 1, (2,))
        digits_or_letters("femnist-mini", 1, (0.1,), (4,), 1)
        return
    for name in ("chem97", "flights"):
        if args.only in ("", name):
            regressions(name, args.seeds, (4, 8))
            print()
    if args.only in ("", "femnist"):
        shares = tuple(float(share) for share in args.shares.split(","))
        digits_or_letters("femnist", args.seeds, shares, (4, 8), args.epochs)


if __name__ == "__main__":
    main()

"""Is a GLM by sums the pooled one, what does it cost, and what is left of it under privacy?"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.linear_model import GammaRegressor, LinearRegression, LogisticRegression, PoissonRegressor

from fedscape import GLM, Federation, Gaussian
from fedscape.core.sampling import All
from fedscape.privacy import calibrate
from table import arguments, report

DATA = Path(os.environ.get("FEDSCAPE_DATA", "../shared/data"))
ROUNDS = 5  # of a private fit


def tables() -> list[tuple[str, str, Federation, dict[str, Any]]]:
    """Name, family, rows by site, and ranges that nobody needs the rows for."""
    import pandas as pd

    exam = pd.read_csv(DATA / "hierarchical" / "Exam.csv.gz")
    chem = pd.read_csv(DATA / "hierarchical" / "Chem97.csv.gz")
    hearts = pd.read_csv(DATA / "hospitals" / "heart_disease.csv").dropna(subset=["age", "sex", "thalach"])
    x = np.column_stack([(chem.gcsescore - 6), chem.gender == "F"]).astype(float)
    score = chem.score.to_numpy().astype(float)
    heart = np.column_stack([(hearts.age - 55) / 10, hearts.sex, (hearts.thalach - 140) / 25]).astype(float)

    def dealt(x: Any, y: Any, who: Any) -> Federation:
        return Federation.from_arrays({"x": x, "y": np.asarray(y, dtype=float)}, clients=np.asarray(who))

    return [
        (
            "Exam, 65 schools",
            "gaussian",
            dealt(exam.standLRT.to_numpy(), exam.normexam, exam.school),
            {"x": (-3, 3), "y": (-4, 4)},
        ),
        (
            "heart disease, 4 hospitals",
            "logistic",
            dealt(heart, hearts.target > 0, hearts.hospital.astype(str)),
            {"x": (-4, 4)},
        ),
        ("Chem97, 131 authorities", "poisson", dealt(x, score, chem.lea), {"x": (-4, 4), "y": (0, 10)}),
        ("Chem97, score + 1", "gamma", dealt(x, score + 1, chem.lea), {"x": (-4, 4), "y": (1, 11)}),
    ]


def pooled(family: str, fed: Federation) -> np.ndarray:
    """The coefficients of scikit-learn on pooled rows, the intercept last."""
    x = fed["x"].reshape(fed.n_rows, -1)
    if family == "gaussian":
        model = LinearRegression()
    elif family == "logistic":
        model = LogisticRegression(C=np.inf, tol=1e-12, max_iter=10_000)
    else:
        kind = PoissonRegressor if family == "poisson" else GammaRegressor
        model = kind(alpha=0, tol=1e-12, max_iter=10_000, solver="newton-cholesky")
    model.fit(x, fed["y"])
    return np.append(np.ravel(model.coef_), np.ravel(model.intercept_))


def private(
    family: str, fed: Federation, ranges: dict[str, Any], epsilon: float, plain: GLM, seeds: int
) -> dict[str, Any]:
    """How far coefficients of fits under row-level privacy are from the plain ones, in the errors of those."""
    model = GLM(family, ranges=ranges, rounds=ROUNDS)
    clip = model.row_bound({"coefficients": np.zeros(0)}, 2, fed)
    releases = 1 if family == "gaussian" else ROUNDS
    multiplier = calibrate(epsilon, 1e-6, rounds=releases, sampler=All())
    own, distances = np.append(plain.coefficients_, plain.intercept_), []
    for seed in range(seeds):
        noise = Gaussian(clip=clip, multiplier=multiplier, unit="row", noise_seed=seed)
        model.fit(fed, privacy=noise)
        far = np.append(model.coefficients_, model.intercept_) - own
        distances.append(float(np.abs(far / plain.standard_errors_).max()))
    return {"rounds": releases, "clip": clip, "errors off (median)": float(np.median(distances))}


def main() -> None:
    args = arguments(__doc__, seeds=20)
    rows: list[dict[str, Any]] = []
    for name, family, fed, ranges in tables() if DATA.exists() else []:
        begun = time.perf_counter()
        glm = GLM(family).fit(fed)
        seconds = time.perf_counter() - begun
        own, theirs = np.append(glm.coefficients_, glm.intercept_), pooled(family, fed)
        about = {"data": name, "family": family, "rows": fed.n_rows}
        cost = {"rounds": len(glm.history_), "kB up": float(np.sum(glm.history_["bytes_up"])) / 1e3, "seconds": seconds}
        apart = float(np.abs(own - theirs).max())
        rows.append({**about, "fit": "by sums", **cost, "largest difference to scikit-learn": apart})
        for epsilon in (1.0, 2.0, 4.0, 8.0):
            found = private(family, fed, ranges, epsilon, glm, 3 if args.quick else args.seeds)
            rows.append({**about, "fit": f"epsilon {epsilon:g}", **found})
    report("glm", rows, note="Privacy: unit row, delta 1e-6; errors off: the largest of the coefficients.")


if __name__ == "__main__":
    main()

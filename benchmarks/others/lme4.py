"""Random intercepts by sums beside lme4's answers: pupils of 65 schools, pupils of 131 authorities, cattle of 15 herds.

`GLM(random_intercept=True)` gives each client an intercept of its own, by Laplace's approximation as `glmer` does. The
clients are schools, education authorities and herds. lme4's numbers are those of its version 1.1-31 under R 4.2.2 with
tight tolerances; its reference page of `glmer` prints those of the herds with three digits. `Exam.csv.gz` and
`Chem97.csv.gz` lie in the folder hierarchical/ of FEDSCAPE_DATA; the herds are written below. Errors are relative.
"""

from __future__ import annotations

import csv
import gzip
from pathlib import Path

import numpy as np
from board import data_folder

from fedscape import GLM, Federation
from fedscape.types import Array
from table import arguments, report

#: Contagious bovine pleuropneumonia (Lesnoff et al. 2004), lme4's data `cbpp`: cases, animals, and the period of each.
CASES = (
    "2 3 4 0 3 1 1 8 2 0 2 2 0 2 0 5 0 0 1 3 0 0 1 8 1 3 0 12 2 0 0 0 1 1 0 2 0 5 3 1 2 1 0 0 1 2 0 0 11 0 0 0 1 1 1 0"
)
ANIMALS = (
    "14 12 9 5 22 18 21 22 16 16 20 10 10 9 6 18 25 24 4 17 17 18 20 16 10 9 5 34 "
    "9 6 8 6 22 22 18 22 25 27 22 22 10 8 6 5 21 24 19 23 19 2 3 2 19 15 15 15"
)
PERIODS = "1234123" + "1234" * 5 + "1" + "1234" * 7
CHOICES = 185.475659684  # the log of all binomial coefficients, which lme4 adds to the log-likelihood

#: The model, the names of its coefficients, lme4's coefficients, standard errors, deviation of the intercepts, logLik.
LME4 = {
    "herds": (
        "glmer(cbind(incidence, size - incidence) ~ period + (1 | herd), binomial)",
        ("period2", "period3", "period4", "intercept"),
        (-0.992332654491, -1.128672011323, -1.580313926439, -1.398532147980),
        (0.306642106519, 0.326637471585, 0.427435861649, 0.232471816481),
        0.642261439625,
        -92.0262818715,
    ),
    "Chem97, counts": (
        "glmer(score ~ gcse + girl + (1 | lea), poisson)",
        ("gcse", "girl", "intercept"),
        (0.502738231025, -0.120124948004, 1.726199763576),
        (0.00313915201426, 0.00481502165219, 0.00859737654653),
        0.0871505908478,
        -75073.2415968,
    ),
    "Chem97, top mark": (
        "glmer(score == 10 ~ gcse + girl + (1 | lea), binomial)",
        ("gcse", "girl", "intercept"),
        (2.667728179324, -0.691644782405, -1.972692438321),
        (0.0358527327508, 0.0355604355804, 0.0420096312652),
        0.311393905494,
        -10709.4229369,
    ),
    "Exam": (
        "lmer(normexam ~ standLRT + (1 | school), REML = FALSE)",
        ("standLRT", "intercept"),
        (0.56336977522058, 0.00238652156105),
        (0.0124653700508, 0.0400225546612),
        0.303526942132,
        -4678.60648886,
    ),
}


def herds() -> Federation:
    cases, animals = (np.array(text.split(), dtype=float) for text in (CASES, ANIMALS))
    period = np.array(list(PERIODS), dtype=int)
    columns = {"x": (period[:, None] == [2, 3, 4]).astype(float), "y": cases / animals, "n": animals}
    return Federation(columns, [*np.flatnonzero(period == 1), len(period)])


def columns_of(file: Path) -> dict[str, Array]:
    with gzip.open(file, "rt", newline="") as lines:
        rows = list(csv.DictReader(lines))
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}


def pupils(name: str, folder: Path) -> Federation:
    if name == "Exam":
        exam = columns_of(folder / "Exam.csv.gz")
        return Federation.from_arrays(
            {"x": exam["standLRT"].astype(float), "y": exam["normexam"].astype(float)}, clients=exam["school"]
        )
    chem = columns_of(folder / "Chem97.csv.gz")
    gcse, score = chem["gcsescore"].astype(float), chem["score"].astype(float)
    x = np.column_stack([gcse - gcse.mean(), chem["gender"] == "F"]).astype(float)
    return Federation.from_arrays(
        {"x": x, "y": score if name == "Chem97, counts" else (score == 10).astype(float)}, clients=chem["lea"]
    )


def main() -> None:
    given = arguments(__doc__)
    families = {"herds": "logistic", "Chem97, counts": "poisson", "Chem97, top mark": "logistic", "Exam": "gaussian"}
    rows = []
    for name, (_, names, coefficients, errors, deviation, log_likelihood) in LME4.items():
        if given.quick and name != "herds":
            continue
        fed = herds() if name == "herds" else pupils(name, data_folder() / "hierarchical")
        glm = GLM(families[name], random_intercept=True, **({"weights": "n"} if name == "herds" else {})).fit(fed)
        found = [*glm.coefficients_, glm.intercept_, glm.intercept_sd_]
        found.append(glm.log_likelihood_ + (CHOICES if name == "herds" else 0.0))
        theirs = [*coefficients, deviation, log_likelihood]
        wrong = [*(np.abs(np.array(glm.standard_errors_) / errors - 1)), None, None]
        for what, lme4, ours, error in zip(
            [*names, "deviation of intercepts", "log-likelihood"], theirs, found, wrong, strict=True
        ):
            row = {"data": name, "clients": len(fed), "what": what, "lme4": f"{lme4:.6f}", "fedscape": f"{ours:.6f}"}
            row |= {"difference": f"{abs(ours / lme4 - 1):.0e}"}
            rows.append(row | {"difference of standard errors": "" if error is None else f"{error:.0e}"})
    report(
        "others_lme4", rows, note="; ".join(f"{name}: {parts[0].replace('|', 'given')}" for name, parts in LME4.items())
    )


if __name__ == "__main__":
    main()

"""Write visits.csv and new_visits.csv: patients of clinics, as untidy as an export from a ward's own program.

There is an id, a form that is filled in after the outcome is known (a leak), "?" among the numbers, and gaps. The new
visits come from two known clinics and from a new one that measures in other units.
"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

NAMES = ["visit_id", "clinic", "age", "blood pressure", "sugar", "ward", "form", "days", "outcome"]
OUTCOMES = np.array(["home", "therapy", "surgery"])


def visits(rng: np.random.Generator, clinic: int, *, rows: int, unit: float = 1.0) -> list[list[object]]:
    lines: list[list[object]] = []
    for _ in range(rows):
        age, pressure, sugar = rng.normal(58, 14), rng.normal(130, 15), rng.normal(5.6, 0.9)
        risk = 0.05 * (age - 58) + 0.04 * (pressure - 130) + rng.normal(0, 0.5) + (1.4 if clinic % 3 == 0 else -0.5)
        outcome = OUTCOMES[int(risk > -0.4) + int(risk > 0.8)]
        days = 3 + 0.1 * (age - 58) + 0.05 * (pressure - 130) + rng.normal(0, 0.5)
        cells = ["" if rng.random() < 0.06 else f"{unit * sugar:.2f}", rng.choice(["east", "west"])]
        shown = "?" if rng.random() < 0.02 else f"{unit * pressure:.0f}"
        form = f"F-{'HTS'[int(np.flatnonzero(outcome == OUTCOMES)[0])]}"
        name = f"clinic {clinic:02d}"
        lines.append([f"{rng.integers(10**9)}-x", name, f"{age:.1f}", shown, *cells, form, f"{days:.2f}", outcome])
    return lines


def main() -> None:
    rng = np.random.default_rng(0)
    old = [line for clinic in range(48) for line in visits(rng, clinic, rows=int(rng.integers(14, 28)))]
    new = [*visits(rng, 3, rows=30), *visits(rng, 4, rows=30), *visits(rng, 99, rows=30, unit=18.0)]
    for name, lines in (("visits.csv", old), ("new_visits.csv", new)):
        rng.shuffle(lines)
        with Path(name).open("w", newline="") as file:
            csv.writer(file).writerows([NAMES, *lines])


if __name__ == "__main__":
    main()

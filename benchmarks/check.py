"""Does `fedscape check` raise as many false alarms as it says, and does it see what has changed?

Clients of one law are drawn for a reference and again for each run. A run may raise an alarm with a chance of 5% (as
--alarms-per-year 18.25 says) where nothing has changed; the chance that problems are listed is measured beside it. Then
five changes are planted, each small enough to be missed at times.
"""

from __future__ import annotations

import numpy as np

from fedscape import Federation
from fedscape.studies import Study, prepare
from fedscape.studies.check import NIGHTS, check
from fedscape.studies.describe import about_study, described
from fedscape.studies.kinds import model
from fedscape.studies.reference import reference
from table import arguments, report

RATE = 0.05
ALPHA = np.array([[8.0, 3.0, 2.0, 1.0], [1.0, 2.0, 3.0, 8.0]])


def draw(n: int, seed: int, *, shift: float = 0.0, larger: float = 1.0, tilt: float = 0.0, new: float = 0.0,
         unit: int = 0) -> Federation:  # fmt: skip
    """Clients of two kinds; `shift` of a feature, `larger` sizes, `tilt` to the second kind, a share of a `new` kind,
    and how many clients write one column in another `unit`."""
    rng = np.random.default_rng(seed)
    sizes = np.maximum((larger * rng.lognormal(3.3, 0.5, n)).astype(int), 2)
    kind = (rng.random(n) < 0.4 + tilt).astype(int)
    shares = np.stack([rng.dirichlet(ALPHA[k]) for k in kind])
    novel = rng.random(n) < new
    shares[novel] = rng.dirichlet([1.0, 12.0, 12.0, 1.0], int(novel.sum()))
    owner = np.repeat(np.arange(n), sizes)
    y = np.minimum((rng.random(len(owner))[:, None] > np.cumsum(shares, axis=1)[owner]).sum(axis=1), 3)
    age = 50 + shift + 5 * rng.normal(size=n)[owner] + 12 * rng.normal(size=len(owner))
    weight = 75 + 4 * rng.normal(size=n)[owner] + 12 * rng.normal(size=len(owner))
    weight[owner < unit] /= 0.45359237
    weight[rng.random(len(weight)) < 0.05] = np.nan
    columns = {"age": age, "weight": weight, "y": y.astype(np.int32)}
    return Federation(columns, np.concatenate(([0], np.cumsum(sizes))), names={"y": list("abcd")})


def referred(fed: Federation, seed: int) -> Study:
    """What a study keeps of these clients for a check, without its tournament."""
    data = prepare(fed, seed=seed)
    about = about_study(data, "reference", seed, False)
    modelled = model(data, seed=seed, progress=False)[0]
    kept = reference(data, modelled, seed=seed)
    result = {"about": about, "describe": described(data, False), "model": modelled, "reference": kept}
    return Study(result)


CHANGES = {
    "nothing": {},
    "a feature moves by half a standard deviation of client means": {"shift": 2.5},
    "clients have 1.3 times as many rows": {"larger": 1.3},
    "15 points more clients of the second kind": {"tilt": 0.15},
    "8% of the clients are of a new kind": {"new": 0.08},
    "two clients write pounds": {"unit": 2},
}


def main() -> None:
    given = arguments(__doc__, clients=200, runs=200, references=20)
    if given.quick:
        given.runs, given.references = 4, 2
    rows = []
    references = [referred(draw(given.clients, 10_000 + r), r) for r in range(given.references)]
    for called, change in CHANGES.items():
        alarms, tests, mended = [], {}, []
        runs = given.runs if called == "nothing" else max(given.runs // 4, 2)
        for run in range(runs):
            against = references[run % len(references)]
            found = check(
                draw(given.clients, given.seed + run, **change), against, alarms_per_year=RATE * NIGHTS, seed=run
            )
            alarms.append(found["alarms"] > 0)
            mended.append(len(found["problems"]) > 0)
            for test in found["tests"]:
                tests[test["test"]] = tests.get(test["test"], 0) + test["alarm"]
        rows.append(
            {
                "change": called,
                "runs": runs,
                "alarm": f"{100 * np.mean(alarms):.1f}%",
                **{name: tests[name] for name in ("labels", "sizes", "features", "kinds")},
                "runs with problems listed": sum(mended),
            }
        )
        print(rows[-1], flush=True)
    error = 100 * np.sqrt(RATE * (1 - RATE) / given.runs)
    note = f"{given.clients} clients; with nothing changed 5.0% ± {error:.1f} (one standard error) may alarm"
    report("check", rows, note=note)


if __name__ == "__main__":
    main()

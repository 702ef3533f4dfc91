"""What does privacy cost a latent class regression?

Agents with three entities of ten events each, two classes, three features; the unit of privacy is an agent. Held-out
log-likelihood of an event (two of ten) by budget, ten rounds, delta 1e-6, clip 25, about twice the events of an agent.
"""

from __future__ import annotations

import numpy as np

import fedscape as fs
from fedscape.datasets.generators import hlcr_synthetic
from table import arguments, report

MODEL = {"alpha": 4.0, "beta": 2.0, "ranges": {"x": (-3.0, 3.0), "y": (-8.0, 8.0)}, "rounds": 10}


def private(train, test, multiplier: float, k: int, seed: int) -> float:
    reg = fs.LatentClassRegression(k, **MODEL, seed=seed)
    return reg.fit(train, privacy=fs.Gaussian(clip=25.0, multiplier=multiplier), progress=False).score(test)


def shown(each: list[float]) -> str:
    return f"{np.mean(each):.3f} ({min(each):.2f} to {max(each):.2f})"


def main() -> None:
    args = arguments(__doc__, seeds=3, agents="1000,4000,16000")
    noise = {e: fs.calibrate(e, 1e-6, rounds=MODEL["rounds"], sampler=fs.All()) for e in (1.0, 2.0, 4.0, 8.0)}
    rows = []
    for agents in (200,) if args.quick else (int(n) for n in args.agents.split(",")):
        fed, _ = hlcr_synthetic(
            agents, entities=3, events=10, features=3, components=2, sigma=0.7, delta=1.5, beta=2.0, alpha=4.0, seed=1
        )
        place = np.arange(fed.n_rows) % 10
        train, test = fed.where(place < 8), fed.where(place >= 8)
        row: dict[str, object] = {"agents": agents}
        seeds = range(1 if args.quick else args.seeds)
        for name, k in (("no privacy", 2), ("no privacy, one line", 1)):
            each = [fs.LatentClassRegression(k, **MODEL, seed=s).fit(train, progress=False).score(test) for s in seeds]
            row[name] = shown(each)
        for epsilon, multiplier in noise.items():
            for k in (2, 1):
                each = [private(train, test, multiplier, k, seed) for seed in seeds]
                what = f"epsilon {epsilon:g}" + ("" if k == 2 else ", one line")
                row[what] = shown(each)
        rows.append(row)
    turned = [{"": name, **{f"{row['agents']:,} agents": row[name] for row in rows}} for name in list(rows[0])[1:]]
    report("hlcr_private", turned, note="log-likelihood of a held-out event, mean (range) of the seeds")


if __name__ == "__main__":
    main()

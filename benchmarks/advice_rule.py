"""What do stages and the rule of the advice bring? Tournaments drawn row by row, where the truth is a table.

Methods have known accuracies, most of them near a point apart, since far ones are easy. Clients differ, methods share
what is hard, trainings move a little from repeat to repeat. Nothing is trained. The scenarios and the rule were chosen
by looking at this table: it says what clients bring, not how often the advice is right elsewhere.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from fedscape import Federation
from fedscape.studies.budget import budget_of
from fedscape.studies.choose import ORDER
from fedscape.studies.judged import BASELINES, Judged
from fedscape.studies.staged import Stage, staged
from table import arguments, report

MOVES, GUESS = 0.003, 0.35  # of a training; right guesses
SCENARIOS = {  # accuracies in the order of ORDER, rows of a client, clients, spread of a client's own gains
    "one rule, heavy tails": ((72, 91.8, 91.5, 91.0, 91.5, 91.2), 12, 400, 0.04),
    "one rule, features shifted": ((83.6, 91.1, 90.9, 90.5, 91, 90.8), 50, 80, 0.03),
    "four namings of classes": ((56.7, 31.8, 52, 58, 60.5, 62.5), 60, 100, 0.08),
    "own intercepts": ((77.4, 69.9, 81.4, 76, 82.2, 81.5), 40, 150, 0.06),
    "two experts": ((68.9, 64.8, 74, 79.4, 80.7, 79.5), 50, 300, 0.06),
    "few of 8 classes": ((87.3, 93.0, 94.5, 93.2, 94.0, 94.2), 30, 1000, 0.03),
    "rules near a common one": ((65, 72, 75.2, 72, 73, 73.5), 60, 300, 0.05),
    "all alike": ((70, 70, 70, 70, 70, 70), 40, 300, 0.05),
    "0.7 points to gain": ((60, 70, 70.7, 70.5, 70.7, 70.7), 40, 500, 0.05),
    "1.2 points to gain": ((60, 70, 71.2, 70.5, 71.2, 71.0), 40, 500, 0.05),
}


def stages_of(name: str, seed: int) -> list[Stage[Judged]]:
    accuracy, rows, n, spread = SCENARIOS[name]
    rng = np.random.default_rng([seed, list(SCENARIOS).index(name)])
    own, luck = rng.normal(0, 0.08, n), rng.random(n * rows)
    chance = {m: np.clip(a / 100 + own + rng.normal(0, spread, n), 0.01, 0.99)
              for m, a in zip(ORDER, accuracy, strict=True)}  # fmt: skip
    fed = Federation({"at": np.arange(n * rows)}, np.arange(0, n * rows + 1, rows))

    def play(some, limits, those):
        at, hits = some["at"], {}
        held = at % limits.repeats == np.arange(limits.repeats)[:, None]
        for method in (m for m in ORDER if m in those):
            mixed = np.where(rng.random(held.shape) < 0.6, luck[at], rng.random(held.shape))
            right = mixed < chance[method][at // rows] + rng.normal(0, MOVES, len(held))[:, None]
            hits[method] = np.where(held, right, -1).astype(np.int8)
        for guess in BASELINES:
            hits[guess] = np.where(held, rng.random(len(at)) < GUESS, -1).astype(np.int8)
        return Judged(hits, some.client_of_row, len(some), 4), {method: [0.1] for method in those}

    return staged(fed, budget_of("2min"), play, order=ORDER, common="fedavg", seed=seed)


def main() -> None:
    given = arguments(__doc__, repeats=20)
    repeats = 4 if given.quick else given.repeats
    rows, total = [], Counter()
    for name, (accuracy, *_) in SCENARIOS.items():
        known = dict(zip(ORDER, accuracy, strict=True))
        right: Counter[str] = Counter()
        runs = [stages_of(name, seed) for seed in range(repeats)]
        for stages in runs:
            for i, cap in enumerate((60, 240, 1000)):
                choice = stages[min(i, len(stages) - 1)].choice
                for rule, method in (("advised", choice.advised), ("simplest", choice.simplest)):
                    right[f"{rule}, {cap} clients"] += known.get(method or "", 0) >= max(accuracy) - 1
        total += right
        last = Counter(stages[-1].choice.advised for stages in runs).most_common(1)[0]
        shown = {f"{rule}, {cap} clients": right[f"{rule}, {cap} clients"] for rule in ("simplest", "advised")
                 for cap in (60, 240, 1000)}  # fmt: skip
        settled = sum(stages[-1].settled for stages in runs)
        rows.append({"scenario": name, **shown, "most often": f"{last[0]} {last[1]}", "settled": settled})
    note = "; ".join(f"{name}: {n} of {repeats * len(SCENARIOS)}" for name, n in sorted(total.items()))
    report("advice_rule", rows, note=f"within a point of the best, of {repeats} draws each. {note}")


if __name__ == "__main__":
    main()

"""Day and night: the cohort swings between two kinds of clients, and training swings with it.

Writers of digits are awake by day, writers of letters by night; a period is 16 rounds. One network forgets by night
what it learned by day. FedTKM need not: two light branches share one body and are chosen without labels, from sums
alone. At the end the period is estimated from the training curve of the plain method.
"""

from __future__ import annotations

import numpy as np

import fedscape as fs
from fedscape.learning import cross_entropy, models
from fedscape.methods import Options, make
from fedscape.temporal import Cosine, Linear, MultiBranch, Shifting, by_mode, evaluate, read_clock

PERIOD, ROUNDS = 16, 96


def main() -> None:
    writers = fs.datasets.load("femnist-mini")
    ink = 1 - writers["x"].reshape(-1, 28, 28)[:, ::2, ::2].reshape(writers.n_rows, -1) / 255
    fed, modes = by_mode(writers.with_column("x", ink.astype(np.float32)), (writers["y"] >= 10).astype(int))
    train, test = fed.split(test=0.25, seed=0)
    print(f"{(modes == 0).sum()} clients of the day, {(modes == 1).sum()} of the night")

    step = fs.LocalSGD(MultiBranch(models.mlp(196, 32, 62)), cross_entropy, lr=0.3, epochs=1, batch_size=20)
    swinging = Shifting(modes, Cosine(PERIOD, p=1), 10)
    curves = {}
    for name in ("vanilla", "fedtkm"):
        method = make(name, step, Options(prior=Linear(PERIOD)))
        curve = []
        for r in fs.rounds(method, train, n_rounds=ROUNDS, sampler=swinging, seed=0, measure=0):
            if r.index % 2 == 1:
                curve.append(evaluate(method, r.state, test).summary()["accuracy_pooled"])
        curves[name] = np.array(curve)
        late = curves[name][-PERIOD:]
        print(f"{name:<8} last two periods: mean {late.mean():.3f}, worst moment {late.min():.3f}")

    print(f"accuracy of vanilla over the last period: {np.round(curves['vanilla'][-PERIOD // 2 :], 2)}")
    cycle = read_clock(curves["vanilla"])
    print(f"the clock, read from that curve (a value every two rounds): {cycle}")


if __name__ == "__main__":
    main()

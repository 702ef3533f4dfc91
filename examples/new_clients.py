"""New clients without labels: give each the model of the client most like it, or the global model if none is.

Writers who are already known (warm) train a global model and tune it on their own rows. New writers (cold) have
unlabelled pictures only: each is matched by its sketch. There are also two impostors, whose pictures are upside down;
the match must abstain for those. Labels of new writers are used to evaluate, never to match.
"""

from __future__ import annotations

import numpy as np

import fedscape as fs
from fedscape.learning import cross_entropy, models
from fedscape.methods import train
from fedscape.personal.cold_start import ColdStart


def main() -> None:
    writers = fs.datasets.load("femnist-mini")
    ink = (1 - writers["x"] / 255).astype(np.float32)
    writers = writers.with_column("x", ink)
    warm, new = writers.take(slice(0, 24)), writers.take(slice(24, 30))
    impostors = new.take([0, 1])
    impostors = impostors.with_column("x", 1 - impostors["x"][:, ::-1])

    local = fs.LocalSGD(models.mlp(784, 64, 62), cross_entropy, lr=0.1, epochs=1, batch_size=10)
    whole = train("fedavg", local, warm, n_rounds=15, seed=0)
    own = train("fedavg+", local, warm, n_rounds=15, seed=0)

    sketch = fs.DistributionSketch(rows=200, centre="mean", seed=0).fit(warm)
    start = ColdStart(sketch, alpha=0.08).fit(warm)
    for name, clients in (("new", new), ("impostor", impostors)):
        match = start.match(clients)
        for i, client in enumerate(clients.ids):
            x, y = clients.take([i])["x"], clients.take([i])["y"]
            summary = (
                f"{name} writer {client}: p = {match.p_value[i]:.2f}, global {accuracy(whole, x, y, warm.ids[0]):.2f}"
            )
            if match.index[i] < 0:
                print(f"{summary}; like nobody we know: global model")
            else:
                friend = warm.ids[match.index[i]]
                print(f"{summary}; like {friend}, whose model has {accuracy(own, x, y, friend):.2f}")


def accuracy(model, x: np.ndarray, y: np.ndarray, client: object) -> float:
    return float((model.predict(x, client=client) == y).mean())


if __name__ == "__main__":
    main()

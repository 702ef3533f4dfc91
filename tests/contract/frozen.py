"""What every computation and a few whole fits end in, as numbers that must not move when code is moved.

`python tests/contract/frozen.py` writes what is new or changed, and names it; a commit that does so says why. Numbers
that agree to rounding stay as they are: on another machine the last digit of some differs.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from computations import examples

import fedscape as fs
from fedscape import Computation, Federation, Gaussian, Local, rounds

FILE = Path(__file__).with_name("frozen.json")


def summary(values: Any) -> list[Any]:
    """Type, shape, length and two projections of an array: close for close arrays, on any machine."""
    array = np.asarray(values)
    if array.dtype.kind not in "biuf":
        return [array.dtype.kind, list(array.shape), array.tolist()]
    flat = array.astype(float).ravel()
    index = np.arange(flat.size)
    numbers = [np.linalg.norm(flat), flat @ np.cos(index), flat @ np.sin(index * index % 7 + 0.5)]
    return [array.dtype.str, list(array.shape), [float(f"{number:.15g}") for number in numbers]]


def alike(mine: list[Any], frozen: list[Any]) -> bool:
    """Whether two summaries are of the same array to rounding: 1e-9 in float64, 1e-4 in float32.

    Counts are the same or differ by one at least. The last digit of their projections is of the processor.
    """
    if mine[:2] != frozen[:2] or mine[0][-2:-1] not in tuple("biuf"):
        return mine == frozen
    tolerance = {"f8": 1e-9, "f4": 1e-4}.get(mine[0][-2:], 1e-13)
    scale = max(abs(mine[2][0]), 1e-12) * max(1.0, np.sqrt(np.prod(mine[1])))
    return bool(np.allclose(mine[2], frozen[2], rtol=0.0, atol=tolerance * scale))


def final_state(computation: Computation, federation: Federation, *, threads: int) -> dict[str, Any]:
    """The state after two rounds."""
    engine = Local(federation, threads=threads)
    *_, last = rounds(computation, engine, n_rounds=2, allow=computation.reveals, seed=3)
    return dict(last.state)


def fits() -> dict[str, dict[str, Any]]:
    """Whole fits, one of them private."""
    labels = fs.datasets.load("femnist-labels").take(slice(0, 400))
    mdm = fs.MixtureOfDirichletMultinomials(2, rounds=8, n_init=2, seed=1).fit(labels)
    digits = fs.datasets.load("femnist-mini")
    rng = np.random.default_rng(5)
    rows = Federation({"x": rng.normal(size=(600, 3)) + 4 * rng.integers(0, 2, (600, 1))}, np.arange(0, 601, 20))
    gmm = fs.GaussianMixture(2, rounds=10, seed=1).fit(rows)
    means = fs.FederatedKMeans(4, rounds=5, n_init=2, seed=1).fit(rows)
    privacy = Gaussian(clip=40.0, multiplier=0.5, noise_seed=11)
    private = fs.Histogram(62).fit(digits, privacy=privacy)
    return {
        "mixture of Dirichlet-multinomials": {"weights": mdm.weights_, "concentrations": mdm.concentrations_},
        "Gaussian mixture": {"means": gmm.means_, "covariances": gmm.covariances_, "weights": gmm.weights_},
        "k-means": {"centres": means.centres_, "sizes": means.sizes_},
        "private histogram": {"counts": private.counts_},
        "study": study_numbers(digits),
    }


def study_numbers(fed: Federation) -> dict[str, Any]:
    """The advice and accuracies of a short study."""
    result = fs.study(fed.take(slice(0, 12)), seed=2, progress=False).result
    accuracy = [row["accuracy"]["value"] for row in result["learn"]["true"]]
    return {"advice": [item["answer"] for item in result["advise"]], "accuracy": accuracy}


def current() -> dict[str, dict[str, Any]]:
    """Everything that is frozen, as it is now."""
    states = {name: final_state(work, fed, threads=1) for name, work, fed in examples()}
    return {
        name: {array: summary(values) for array, values in sorted(state.items())}
        for name, state in {**states, **fits()}.items()
    }


def rewrite() -> None:
    """Write the file, and say what is not as it was."""
    before, now = json.loads(FILE.read_text()), current()
    for name, arrays in now.items():
        old = before.get(name, {})
        now[name] = {n: old[n] if n in old and alike(line, old[n]) else line for n, line in arrays.items()}
    FILE.write_text(json.dumps(now, indent=0, sort_keys=True) + "\n")
    what = {"new": set(now) - set(before), "gone": set(before) - set(now)}
    what["changed"] = {name for name in set(now) & set(before) if now[name] != before[name]}
    sys.stdout.writelines(f"{name}: {kind}\n" for kind, names in what.items() for name in sorted(names))


if __name__ == "__main__":
    rewrite()

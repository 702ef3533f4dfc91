"""The FedTEM paper in small: what its Figure 2 claims, where clients differ by mode first and where they do not."""

from __future__ import annotations

import numpy as np

import fedscape as fs
from fedscape.learning import Adam, cross_entropy, models
from fedscape.methods import Options, make
from fedscape.papers import temporal_as_printed
from fedscape.temporal import Linear, MultiBranch, Shifting, Steady, evaluate

PERIOD, PERIODS = 16, 6
SEEDS = range(2)
CURVE = Linear(PERIOD)


def two_modes(apart: float, seed: int = 0, clients: int = 60, rows: int = 24):
    """Day and night have two classes each, by the sign of x_2; the modes lie `apart` in x_0."""
    rng = np.random.default_rng(seed)
    modes = np.arange(clients) % 2
    owner = np.repeat(np.arange(clients), rows)
    x = rng.normal(size=(clients * rows, 6))
    y = 2 * modes[owner] + (x[:, 2] > 0)
    x[:, 0] += np.where(modes[owner] == 0, -apart / 2, apart / 2)
    fed = fs.Federation({"x": x.astype(np.float32), "y": y}, np.arange(0, clients * rows + 1, rows))
    train, test = fed.split(test=0.25, seed=seed)
    return train, test, modes


def learned(name: str, apart: float, seed: int, curve=CURVE) -> tuple[float, float]:
    """Accuracy over the last period, of test rows of both modes, and the share of rows in the branch of their mode."""
    train, test, modes = two_modes(apart, seed)
    local = fs.LocalSGD(MultiBranch(models.mlp(6, 16, 4)), cross_entropy, lr=0.05, epochs=1, batch_size=8)
    plain: dict = {"server": Adam(0.02), "initial": "seed"}
    if name.startswith("printed "):
        method = temporal_as_printed(name.removeprefix("printed "), local, Linear(PERIOD), **plain)
    else:
        method = make(name, local, Options(prior=Linear(PERIOD), **plain))
    how = {"n_rounds": PERIOD * PERIODS, "sampler": Shifting(modes, curve, 8), "seed": seed, "measure": 0}
    scores, right = [], []
    for r in fs.rounds(method, train, **how, allow=method.reveals):
        if r.index < PERIOD * (PERIODS - 1) or r.index % 4:
            continue
        scores.append(evaluate(method, r.state, test).summary()["accuracy_pooled"])
        if hasattr(method, "branches_of"):
            mine = np.mean(method.branches_of(r.state, test, unit="client") == modes[test.client_of_row])
            right.append(max(mine, 1 - mine))
    return float(np.mean(scores)), float(np.mean(right)) if right else np.nan


def test_as_printed_branches_are_found_where_clients_differ_by_mode_first():
    """FedTEM by (10) as printed, FedTKM by (12): most rows go to the branch of their mode; FedTKM beats vanilla."""
    vanilla, tem, tkm = (
        np.array([learned(name, 3.0, seed) for seed in SEEDS])
        for name in ("vanilla", "printed fedtem", "printed fedtkm")
    )
    assert tem[:, 1].mean() > 0.8
    assert tkm[:, 1].mean() > 0.8
    assert (tkm[:, 0] - vanilla[:, 0]).mean() > 0.01
    assert (tem[:, 0] - vanilla[:, 0]).mean() > -0.01


def test_a_skewed_shift_costs_training_without_branches_accuracy():
    """Figure 2, p = 4: night has most of the rounds, and the day's classes are forgotten."""
    even, skewed = (
        np.mean([learned("vanilla", 1.0, seed, curve)[0] for seed in SEEDS]) for curve in (Steady(2), Linear(PERIOD, 4))
    )
    assert even - skewed > 0.03

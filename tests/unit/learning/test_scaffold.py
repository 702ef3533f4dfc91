"""SCAFFOLD against the paper's algorithm written out, closed forms and FedAvg; the adaptive rules against theirs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import fedscape as fs
from fedscape import DataError, Federation, Local
from fedscape.learning import FedAdagrad, FedYogi, LocalSGD, Scaffold, cross_entropy, models, squared_error
from fedscape.learning.layers import initialised
from fedscape.learning.trainer import trainer_of


def regression(n_clients: int = 3, rows: int = 6) -> Federation:
    rng = np.random.default_rng(2)
    x = rng.normal(size=(n_clients * rows, 2)) + np.repeat(rng.normal(size=(n_clients, 2)), rows, axis=0)
    truth = np.repeat(rng.normal(size=(n_clients, 2)) * 2, rows, axis=0)
    y = (x * truth).sum(axis=1) + rng.normal(size=len(x))
    return Federation({"x": x, "y": y}, np.arange(0, len(x) + 1, rows))


def step(**changes: object) -> LocalSGD:
    model = initialised(nn.Linear(2, 1, bias=False, dtype=torch.float64), 0)
    return replace(LocalSGD(model, squared_error, lr=0.05, epochs=4, batch_size=6), **changes)


def last(method: fs.Computation, data: object, n: int) -> dict[str, np.ndarray]:
    *_, end = fs.rounds(method, data, n_rounds=n)
    return dict(end.state)


def test_it_is_the_algorithm_of_the_paper_written_out():
    fed, local, n = regression(), step(), 3
    w, c, own = local.parameters()["weight"][0].copy(), np.zeros(2), np.zeros((n, 2))
    for _ in range(5):
        ends, change = [], []
        for i in range(n):
            x, y = (fed[k][fed.offsets[i] : fed.offsets[i + 1]] for k in "xy")
            v = w.copy()
            for _ in range(4):
                v -= 0.05 * (x.T @ (x @ v - y) / len(y) - own[i] + c)
            new = own[i] - c + (w - v) / (4 * 0.05)
            ends.append(v)
            change.append(new - own[i])
            own[i] = new
        w, c = np.mean(ends, axis=0), c + np.mean(change, axis=0)
    engine = Local(fed)
    state = last(Scaffold(local), engine, 5)
    np.testing.assert_allclose(state["model.weight"][0], w, atol=1e-12)
    np.testing.assert_allclose(state["control.weight"][0], c, atol=1e-12)
    np.testing.assert_allclose(engine.kept()["control.weight"].flat[:, 0], own, atol=1e-12)


def test_it_ends_at_the_pooled_least_squares_and_fedavg_does_not():
    fed, local = regression(), step(epochs=20)
    pooled = np.linalg.lstsq(fed["x"], fed["y"], rcond=None)[0]
    far = np.abs(last(fs.FedAvg(local), fed, 150)["model.weight"][0] - pooled).max()
    near = np.abs(last(Scaffold(local), fed, 150)["model.weight"][0] - pooled).max()
    assert near < 1e-6 < 0.02 < far


def test_with_one_client_it_is_fedavg():
    fed, local = regression(n_clients=1), step(batch_size=4)
    one, other = (last(kind(local), fed, 4)["model.weight"] for kind in (Scaffold, fs.FedAvg))
    np.testing.assert_allclose(one, other, atol=1e-12)


def test_the_first_round_is_that_of_fedavg():
    fed, local = regression(), step(batch_size=4)
    one, other = (last(kind(local), fed, 1)["model.weight"] for kind in (Scaffold, fs.FedAvg))
    np.testing.assert_allclose(one, other, atol=1e-12)


@pytest.mark.parametrize("weighting", ["samples", "equal"])
def test_the_common_control_variate_is_the_mean_of_the_clients_own(weighting):
    rng = np.random.default_rng(0)
    sizes = [3, 8, 5]
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    fed = Federation({"x": rng.normal(size=(16, 2)), "y": rng.normal(size=16)}, offsets)
    engine = Local(fed)
    state = last(Scaffold(step(batch_size=2), weighting=weighting), engine, 4)
    weights = sizes if weighting == "samples" else None
    mean = np.average(engine.kept()["control.weight"].flat, axis=0, weights=weights)
    np.testing.assert_allclose(state["control.weight"], mean, atol=1e-12)


@pytest.mark.parametrize("strategy", ["sequential", "vmap"])
def test_all_strategies_make_the_same_corrected_steps(strategy):
    """The written-out steps of a stack, the reference loop and vmap, with decay, a pull and clients of other sizes."""
    rng, offsets = np.random.default_rng(5), [0, 7, 7, 10, 21]
    fed = Federation({"x": rng.normal(size=(21, 3)), "y": rng.integers(0, 2, 21)}, offsets)
    local = LocalSGD(
        initialised(models.mlp(3, 5, 2).double(), 0), cross_entropy, lr=0.3, epochs=2, batch_size=4,
        weight_decay=0.01, proximal=0.1,
    )  # fmt: skip
    assert trainer_of(local).strategy == "stacked"
    want, got = (last(Scaffold(how), fed, 3) for how in (local, replace(local, strategy=strategy)))
    assert {n: v.shape for n, v in want.items()} == {n: v.shape for n, v in got.items()}
    for name, values in want.items():
        np.testing.assert_allclose(got[name], values, atol=1e-12)


def test_what_is_no_plain_sgd_is_refused():
    with pytest.raises(DataError, match="must be plain SGD"):
        Scaffold(step(momentum=0.5))
    with pytest.raises(DataError, match="participation must be above 0 and at most 1, not 0"):
        Scaffold(step(), participation=0)


@pytest.mark.parametrize("make", [FedYogi, FedAdagrad])
def test_adaptive_servers_are_the_rules_of_the_paper_written_out(make):
    fed, local = regression(), step(epochs=2)
    w, m, v = local.parameters()["weight"].copy(), np.zeros((1, 2)), np.zeros((1, 2))
    for _ in range(6):
        at = replace(local, model=initialised(local.model, 0))
        with torch.no_grad():
            at.model.weight.copy_(torch.tensor(w))
        d = last(fs.FedAvg(at), fed, 1)["model.weight"] - w
        beta = 0.9 if make is FedYogi else 0.0
        m = beta * m + (1 - beta) * d
        v = v - 0.01 * d**2 * np.sign(v - d**2) if make is FedYogi else v + d**2
        w = w + 0.3 * m / (np.sqrt(v) + 1e-3)
    np.testing.assert_allclose(last(make(local, lr=0.3), fed, 6)["model.weight"], w, atol=1e-12)

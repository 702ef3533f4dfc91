"""FedNova against closed forms: effective steps, quadratics, and FedAvg where all make as many steps."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from fedscape import DataError, Federation, rounds
from fedscape.learning import FedAvg, FedNova, LocalSGD, cross_entropy, initialised, squared_error
from fedscape.learning.fednova import effective_steps

SIZES, CENTRES = np.array([1, 4, 9]), np.array([2.0, -1.0, 0.5])


def one(lr: float, **how) -> LocalSGD:
    """A single weight w with the loss (w - c)^2 / 2 of every row of a client, one step a row."""
    model = nn.Linear(1, 1, bias=False, dtype=torch.float64)
    nn.init.constant_(model.weight, 3.0)
    return LocalSGD(model, squared_error, lr=lr, **{"epochs": 1, **how}, batch_size=1)


def quadratics() -> Federation:
    offsets = np.concatenate([[0], np.cumsum(SIZES)])
    return Federation({"x": np.ones((offsets[-1], 1)), "y": np.repeat(CENTRES, SIZES)}, offsets)


def last(method, n_rounds: int, fed: Federation | None = None) -> float:
    *_, r = rounds(method, quadratics() if fed is None else fed, n_rounds=n_rounds, measure=0)
    return float(r.state["model.weight"][0, 0])


def limit(method) -> float:
    """Where rounds on quadratics end: they are affine in w, so two of them say it exactly."""
    fed, ends = quadratics(), []
    for begin in (0.0, 1.0):
        state = {**method.start(0), "model.weight": np.full((1, 1), begin)}
        ends.append(float(next(rounds(method, fed, n_rounds=1, state=state, measure=0)).state["model.weight"][0, 0]))
    return ends[0] / (1 - (ends[1] - ends[0]))


def impulses(steps: int, momentum: float, pull: float) -> np.ndarray:
    """a of the paper by brute force: how far one unit of gradient in step k alone moves the weights in the end."""
    a = np.zeros(steps)
    for k in range(steps):
        way = velocity = 0.0
        for t in range(steps):
            velocity = momentum * velocity + (t == k) - pull * way
            way += velocity
        a[k] = way
    return a


def test_effective_steps_are_the_papers_closed_forms_and_the_sum_of_impulses():
    rho, alpha, tau = 0.7, 0.2, np.arange(9)
    np.testing.assert_allclose(effective_steps(8), tau)
    closed = (tau - rho * (1 - rho**tau) / (1 - rho)) / (1 - rho)
    np.testing.assert_allclose(effective_steps(8, momentum=rho), closed, atol=1e-12)
    np.testing.assert_allclose(effective_steps(8, pull=alpha), (1 - (1 - alpha) ** tau) / alpha, atol=1e-12)
    for momentum, pull in ((0.0, 0.0), (rho, 0.0), (0.0, alpha), (0.4, 0.1)):
        each = [impulses(t, momentum, pull).sum() for t in tau]
        np.testing.assert_allclose(effective_steps(8, momentum=momentum, pull=pull), each, atol=1e-12)


@pytest.mark.parametrize("how", [{}, {"momentum": 0.6}, {"proximal": 0.5}, {"momentum": 0.3, "proximal": 0.2}])
@pytest.mark.parametrize("weighting", ["samples", "equal"])
def test_with_as_many_steps_for_all_it_is_fedavg(how, weighting):
    rng = np.random.default_rng(0)
    offsets = np.array([0, 5, 12, 14])
    fed = Federation({"x": rng.normal(size=(14, 4)), "y": rng.integers(0, 3, 14)}, offsets)
    model = initialised(nn.Linear(4, 3, dtype=torch.float64), 0)
    step = LocalSGD(model, cross_entropy, lr=0.2, steps=6, batch_size=3, **how)
    ends = [[*rounds(kind(step, weighting=weighting), fed, n_rounds=4)][-1].state for kind in (FedAvg, FedNova)]
    for name, values in ends[0].items():
        np.testing.assert_allclose(ends[1][name], values, rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("weighting", ["samples", "equal"])
def test_a_round_on_quadratics_has_its_closed_form(weighting):
    lr, w = 0.1, 3.0
    p = SIZES / SIZES.sum() if weighting == "samples" else np.full(3, 1 / 3)
    moves = (CENTRES - w) * (1 - (1 - lr) ** SIZES)
    want = w + (p @ SIZES) * (p @ (moves / SIZES))
    assert last(FedNova(one(lr), weighting=weighting), 1) == pytest.approx(want, abs=1e-12)


@pytest.mark.parametrize("how", [{}, {"momentum": 0.5}, {"proximal": 0.5}])
def test_the_objective_inconsistency_of_fedavg_is_gone(how):
    lr = 1e-5
    fed_avg, fed_nova = (limit(kind(one(lr, **how), weighting="equal")) for kind in (FedAvg, FedNova))
    least = CENTRES.mean()  # of the mean of the clients' losses
    steps = effective_steps(9, momentum=how.get("momentum", 0.0), pull=lr * how.get("proximal", 0.0))[SIZES]
    surrogate = steps @ CENTRES / steps.sum()  # the paper's theorem 1: what FedAvg goes to
    assert abs(surrogate - least) > 0.25
    assert fed_avg == pytest.approx(surrogate, abs=1e-3)  # but for terms of the order of lr
    assert fed_nova == pytest.approx(least, abs=1e-3)


def test_without_momentum_the_limit_is_known_exactly():
    lr = 0.05
    pull = (1 - (1 - lr) ** SIZES) / SIZES
    assert limit(FedNova(one(lr), weighting="equal")) == pytest.approx(pull @ CENTRES / pull.sum(), abs=1e-9)
    fed_avg = 1 - (1 - lr) ** SIZES
    assert limit(FedAvg(one(lr), weighting="equal")) == pytest.approx(fed_avg @ CENTRES / fed_avg.sum(), abs=1e-9)


def test_clients_without_rows_count_for_nothing():
    fed = quadratics()
    more = Federation(dict(fed.columns), np.concatenate([fed.offsets, fed.offsets[-1:]]))
    assert last(FedNova(one(0.1), weighting="equal"), 3, more) == last(FedNova(one(0.1), weighting="equal"), 3)


def test_a_noisy_sum_that_says_nobody_changes_nothing():
    method = FedNova(one(0.1))
    state = method.start(0)
    for weight, steps in ((0.5, 3.0), (4.0, -1.0)):
        total = {"delta.weight": np.ones((1, 1)), "weight": np.asarray(weight), "steps": np.asarray(steps)}
        assert (method.update(state, total, None)["model.weight"] == state["model.weight"]).all()


def test_what_has_no_effective_steps_is_refused():
    with pytest.raises(DataError, match=r"FedNova counts the steps of SGD: .*, not 'adam' and None"):
        FedNova(one(0.1, optimiser="adam"))
    with pytest.raises(DataError, match=r"early_stopping=None, not 'sgd' and 0\.1"):
        FedNova(one(0.1, early_stopping=0.1))

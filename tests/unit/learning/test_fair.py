"""q-FedAvg: the numbers of a hand-written loop, FedAvg at q = 0, and the worst client first where q is large."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from fedscape import DataError, Federation, Gaussian, Key, Ledger, Local, rounds
from fedscape.learning import (
    Adam,
    CosineDecay,
    FedAvg,
    LocalSGD,
    Mean,
    QFedAvg,
    cross_entropy,
    evaluate,
    initialised,
    models,
    squared_error,
)

ALL_ROWS = 1000  # a batch of all rows: the order in which a client shuffles them is then no matter


def federation(sizes=(5, 2, 7, 1), *, seed=0) -> Federation:
    rng = np.random.default_rng(seed)
    offsets = np.concatenate(([0], np.cumsum(sizes)))
    x = rng.normal(size=(offsets[-1], 4))
    return Federation({"x": x, "y": rng.integers(0, 3, offsets[-1])}, offsets)


def learner(**given) -> LocalSGD:
    model = initialised(nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double(), 1)
    return LocalSGD(model, cross_entropy, **{"lr": 0.2, "epochs": 3, "batch_size": ALL_ROWS, **given})


def by_hand(local: LocalSGD, fed: Federation, q: float, n_rounds: int) -> dict[str, np.ndarray]:
    """Algorithm 2 of Li et al. 2020, line by line: L is 1 / lr, every client with rows takes part."""
    server = copy.deepcopy(local.model)
    for index in range(n_rounds):
        lipschitz = 1 / local.rate(index)
        above = [torch.zeros_like(p) for p in server.parameters()]
        below = 0.0
        for i in np.flatnonzero(fed.sizes):
            one = fed.take([i])
            x, y = torch.tensor(one["x"]), torch.tensor(one["y"])
            with torch.no_grad():
                loss = float(local.loss(server(x), y).mean())
            model = copy.deepcopy(server)
            optimiser = torch.optim.SGD(model.parameters(), lr=local.rate(index))
            for _ in range(local.epochs):
                optimiser.zero_grad()
                local.loss(model(x), y).mean().backward()
                optimiser.step()
            delta = [
                lipschitz * (w - w_k).detach() for w, w_k in zip(server.parameters(), model.parameters(), strict=True)
            ]
            square = sum(float(d.square().sum()) for d in delta)
            for a, d in zip(above, delta, strict=True):
                a += loss**q * d
            below += q * loss ** (q - 1) * square + lipschitz * loss**q
        with torch.no_grad():
            for p, a in zip(server.parameters(), above, strict=True):
                p -= a / below
    return {f"model.{n}": p.detach().numpy() for n, p in server.named_parameters()}


def trained(method: FedAvg, fed: Federation, *, n_rounds=3, threads=1):
    return [r.state for r in rounds(method, Local(fed, threads=threads), n_rounds=n_rounds, seed=5, measure=0)][-1]


def assert_agree(a, b, tolerance=1e-9):
    assert set(a) == set(b)
    for name in a:
        np.testing.assert_allclose(a[name], b[name], rtol=tolerance, atol=tolerance, err_msg=name)


@pytest.mark.parametrize("q", [0.0, 0.3, 1.0, 2.0, 15.0])
@pytest.mark.parametrize("strategy", ["sequential", "vmap"])
def test_it_is_the_loop_written_by_hand(q, strategy):
    local, fed = learner(strategy=strategy), federation((5, 0, 2, 7, 1))
    assert_agree(by_hand(local, fed, q, 3), trained(QFedAvg(local, q=q), fed))


def test_l_follows_the_schedule_of_the_rate():
    local, fed = learner(schedule=CosineDecay(5)), federation()
    assert_agree(by_hand(local, fed, 2.0, 4), trained(QFedAvg(local, q=2.0), fed, n_rounds=4))


def test_a_rate_of_zero_moves_nothing():
    stopped = learner(schedule=lambda index: 1.0 if index == 0 else 0.0)
    one, three = (trained(QFedAvg(stopped, q=2.0), federation(), n_rounds=n) for n in (1, 3))
    assert_agree(one, three)


@pytest.mark.parametrize("rule", [Mean(), Mean(0.5), Adam(0.01)])
def test_q_of_zero_is_fedavg_with_equal_weights(rule):
    local, fed = learner(batch_size=2, momentum=0.5), federation()
    assert_agree(
        trained(FedAvg(local, server=rule, weighting="equal"), fed), trained(QFedAvg(local, q=0, server=rule), fed)
    )


def test_clients_without_rows_have_no_say():
    local = learner()
    for q in (0.0, 1.0):
        method = QFedAvg(local, q=q)
        assert_agree(trained(method, federation((5, 2, 7, 1))), trained(method, federation((5, 0, 2, 7, 0, 1, 0))))


def test_where_nobody_has_rows_nothing_moves():
    local = learner()
    assert_agree(QFedAvg(local).start(0), trained(QFedAvg(local), federation((0, 0))))


def test_a_large_q_goes_where_the_worst_client_goes():
    local, fed = learner(lr=0.05), federation()
    start = QFedAvg(local).start(5)
    worst = int(np.argmax(evaluate(local, start, fed).loss))

    def way(method: FedAvg, who: Federation) -> np.ndarray:
        after = trained(method, who, n_rounds=1)
        return np.concatenate([(after[n] - start[n]).ravel() for n in start])

    its_own = way(FedAvg(local), fed.take([worst]))
    cosine = [way(QFedAvg(local, q=q), fed) @ its_own for q in (0, 200)] / (
        np.linalg.norm(its_own) * np.array([np.linalg.norm(way(QFedAvg(local, q=q), fed)) for q in (0, 200)])
    )
    assert cosine[0] < 0.95
    assert cosine[1] > 1 - 1e-6


def test_a_larger_q_makes_the_worst_client_better_off():
    # nine clients want the mean 0, one wants 1: with w their common answer, F is w^2 / 2 and (w - 1)^2 / 2, and the
    # minimum of sum F^(q+1) / (q+1) is where 9 w^(2q+1) = (1 - w)^(2q+1)
    fed = Federation({"x": np.ones((10, 1)), "y": np.r_[np.zeros(9), 1.0]}, np.arange(11))
    model = nn.Linear(1, 1, bias=False).double()
    local = LocalSGD(initialised(model, 0), squared_error, lr=1.0, steps=1, batch_size=1)
    for q in (0.0, 1.0, 4.0):
        w = float(trained(QFedAvg(local, q=q), fed, n_rounds=150)["model.weight"][0, 0])
        assert w == pytest.approx(1 / (1 + 9 ** (1 / (2 * q + 1))), abs=1e-6)


def test_a_loss_of_zero_is_no_trouble_for_a_q_below_one():
    fed = Federation({"x": np.ones((2, 1)), "y": [0.0, 1.0]}, [0, 1, 2])
    model = nn.Linear(1, 1, bias=False).double()
    nn.init.zeros_(model.weight)
    local = LocalSGD(model, squared_error, lr=0.1, steps=1, batch_size=1)
    for q in (0.0, 0.5, 1.0):
        w = trained(QFedAvg(local, q=q), fed, n_rounds=1)["model.weight"]
        assert 0 < w < 0.1


def test_single_precision_agrees():
    local, fed = learner(), federation()
    single = replace(local, model=copy.deepcopy(local.model).float())
    assert_agree(trained(QFedAvg(local, q=2.0), fed), trained(QFedAvg(single, q=2.0), fed), 1e-5)


def test_what_is_sent_is_the_moves_and_one_number():
    method, fed = QFedAvg(learner()), federation((5, 0))
    sent, kept = method.step(method.start(0), fed, Key(0, 0))
    assert not kept
    assert set(sent) == {f"delta.{n}" for n in method.local.names} | {"scale"}
    assert all((values[1] == 0).all() for values in sent.values())


def test_a_private_run_is_in_the_ledger():
    ledger = Ledger()
    privacy = Gaussian(clip=1.0, multiplier=0.1, noise_seed=0)
    for r in rounds(QFedAvg(learner()), federation(), n_rounds=2, privacy=privacy, ledger=ledger):
        assert all(np.isfinite(v).all() for v in r.state.values())
    assert sum(line["kind"] == "release" for line in ledger.entries()) == 2


def negative(output, target):
    return -cross_entropy(output, target)


def test_errors_say_what_to_do():
    with pytest.raises(DataError, match="q must be a number of at least 0, not -1"):
        QFedAvg(learner(), q=-1)
    with pytest.raises(DataError, match="q must be a number of at least 0, not nan"):
        QFedAvg(learner(), q=float("nan"))
    with pytest.raises(DataError, match="lr must be above 0 for QFedAvg, which divides by it"):
        QFedAvg(learner(lr=0.0))
    with pytest.raises(DataError, match=r"local has sample weights, the column 'w': .* use weights=None"):
        QFedAvg(learner(weights="w"))
    with pytest.raises(DataError, match="local must be a LocalSGD"):
        QFedAvg(models.linear(4, 3))
    with pytest.raises(DataError, match=r"the mean loss of client 3 is -.*at least 0"):
        trained(QFedAvg(replace(learner(), loss=negative)), federation())
    single = replace(learner(), model=learner().model.float())
    with pytest.raises(
        DataError, match=r"client 3 is 1\..*to the power q=500 it is beyond torch.float32: use a smaller q"
    ):
        trained(QFedAvg(single, q=500), federation())

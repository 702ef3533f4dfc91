"""FedPer, FedBN, FedBABU, FedALA, FedDBE, PFedFDA: reductions to what is known, and what each sends and keeps."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from torch import nn

import fedscape as fs
from fedscape import DataError, Federation, Local
from fedscape.core.random import Key
from fedscape.learning import LocalSGD, cross_entropy
from fedscape.learning.batches import Rows, make_plan
from fedscape.learning.layers import initialised
from fedscape.learning.trainer import trainer_of
from fedscape.methods import train
from fedscape.personal import FedALA, FedBABU, FedBN, FedDBE, FedPer, FedRep, LocalOnly, PFedFDA
from fedscape.personal.features import with_embedding

D, C = 4, 3


def two_concepts(n_clients: int = 8, rows: int = 30) -> Federation:
    """Half of the clients call the classes the other way round."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n_clients * rows, D))
    y = (x[:, 0] > 0).astype(int)
    y = np.where(np.repeat(np.arange(n_clients) % 2 == 0, rows), y, 1 - y)
    return Federation({"x": x, "y": y}, np.arange(0, len(x) + 1, rows))


def step(norm: bool = False, **changes: object) -> LocalSGD:
    middle = [nn.GroupNorm(2, 6)] if norm else []
    deep = nn.Sequential(nn.Linear(D, 6), *middle, nn.Tanh(), nn.Linear(6, C)).to(torch.float64)
    return replace(LocalSGD(initialised(deep, 0), cross_entropy, lr=0.5, epochs=2, batch_size=10), **changes)


def last(method: fs.Computation, data: object, n: int, **how: object) -> dict[str, np.ndarray]:
    *_, end = fs.rounds(method, data, n_rounds=n, **how)
    return dict(end.state)


def frozen(local: LocalSGD, *layers: str) -> LocalSGD:
    model = copy.deepcopy(local.model)
    for name, p in model.named_parameters():
        p.requires_grad_(not name.startswith(layers))
    return replace(local, model=model)


# -- FedPer, FedRep, FedBN, FedBABU ------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["sequential", "vmap"])
def test_fedper_moves_its_body_as_fedavg_does_in_the_first_round(strategy):
    fed, local = two_concepts(), step(strategy=strategy)
    one, other = last(FedPer(local), fed, 1), last(fs.FedAvg(local), fed, 1)
    np.testing.assert_allclose(one["model.0.weight"], other["model.0.weight"], atol=1e-12)
    assert (one["model.2.weight"] == local.parameters()["2.weight"]).all()


@pytest.mark.parametrize("kind", [FedPer, FedRep, FedBN, FedALA])
def test_one_client_alone_trains_its_own_model(kind):
    fed = two_concepts(1)
    local = step(norm=kind is FedBN)
    engine, alone = Local(fed), Local(fed)
    state = last(kind(local), engine, 1)
    last(LocalOnly(local), alone, 1)
    own = {n: engine.kept()[n].flat[0] if n in engine.kept() else state[n] for n in state}
    same = [np.abs(alone.kept()[n].flat[0] - own[n]).max() < 1e-12 for n in state]
    assert all(same) == (kind is not FedRep)  # which trains one part after the other


def test_fedper_is_fedrep_where_head_and_body_train_at_once():
    fed, local = two_concepts(), step(epochs=1, batch_size=30)  # one full step: both heads move by the same gradient
    engines = Local(fed), Local(fed)
    states = [last(kind(local), engine, 1) for kind, engine in zip((FedPer, FedRep), engines, strict=True)]
    heads = [engine.kept()["model.2.weight"].flat for engine in engines]
    np.testing.assert_allclose(*heads, atol=1e-12)
    assert np.abs(states[0]["model.0.weight"] - states[1]["model.0.weight"]).max() > 1e-4  # FedRep's after its head's


def test_fedbn_with_norms_that_stay_is_fedavg_with_norms_that_stay():
    fed, local = two_concepts(), step(norm=True)
    method = FedBN(local)
    assert method.head_names == ["1.weight", "1.bias"]
    engine = Local(fed)
    state = last(method, engine, 3)
    assert set(engine.kept()) == {"model.1.weight", "model.1.bias"}
    assert np.ptp(engine.kept()["model.1.weight"].flat, axis=0).max() > 1e-3
    assert (state["model.1.weight"] == 1).all()
    with pytest.raises(DataError, match="must have a normalisation layer"):
        FedBN(step())


@pytest.mark.parametrize("strategy", ["sequential", "vmap"])
def test_fedbabu_is_fedavg_of_the_body_under_a_fixed_head(strategy):
    fed, local = two_concepts(), step(strategy=strategy)
    one = last(FedBABU(local), fed, 3)
    other = last(fs.FedAvg(frozen(local, "2")), fed, 3)
    for n in ("model.0.weight", "model.0.bias"):
        np.testing.assert_allclose(one[n], other[n], atol=1e-12)
    assert (one["model.2.weight"] == local.parameters()["2.weight"]).all()


def test_fedbabu_fine_tunes_the_whole_network_at_the_end():
    fed, local = two_concepts(), step()
    model = train(FedBABU(local), local, fed, n_rounds=10)
    assert set(model.kept) == {f"model.{n}" for n in local.names}
    assert model.evaluate(fed).accuracy.mean() > model.common().evaluate(fed).accuracy.mean() + 0.2


# -- FedALA ------------------------------------------------------------------------------------------------------------


def test_fedala_with_weights_that_stay_one_is_fedavg():
    fed, local = two_concepts(), step()
    one, other = last(FedALA(local, rate=1e-300), fed, 4), last(fs.FedAvg(local), fed, 4)
    np.testing.assert_allclose(one["model.2.weight"], other["model.2.weight"], atol=1e-12)


def test_fedala_learns_the_weights_that_the_paper_writes_out():
    fed = two_concepts(2)
    local = step(batch_size=30)
    method, engine = FedALA(local, rate=3.0, sample=1.0, warm_up=1), Local(fed)
    state = last(method, engine, 1)
    own = {n: engine.kept()[f"model.{n}"].flat for n in local.names}
    begin, mix = method._mixed(state, fed.with_kept(engine.kept()), Key(0, round=1))
    for i in range(2):
        model = copy.deepcopy(local.model)
        common = {n: torch.tensor(state[f"model.{n}"]) for n in local.names}
        mine = {n: torch.tensor(own[n][i]) for n in local.names}
        w = torch.ones_like(mine["2.weight"])
        start = {**common, "2.weight": mine["2.weight"] + (common["2.weight"] - mine["2.weight"]) * w}
        params = {n: p.clone().requires_grad_() for n, p in start.items()}
        x, y = (torch.tensor(fed[k][fed.offsets[i] : fed.offsets[i + 1]]) for k in "xy")
        cross_entropy(torch.func.functional_call(model, params, (x,)), y).mean().backward()
        w = (w - 3.0 * params["2.weight"].grad * (common["2.weight"] - mine["2.weight"])).clamp(0, 1)
        np.testing.assert_allclose(mix["2.weight"][i], w, atol=1e-12)
        there = mine["2.weight"] + (common["2.weight"] - mine["2.weight"]) * w
        np.testing.assert_allclose(begin["2.weight"][i], there, atol=1e-12)
        np.testing.assert_allclose(begin["0.weight"][i], common["0.weight"], atol=0)
    assert mix["2.weight"].min() < 0.999


@pytest.mark.parametrize("strategy", ["auto", "sequential"])
@pytest.mark.parametrize("uneven", [False, True])
def test_fedala_mixes_its_last_layer_on_features_as_it_would_in_the_whole_model(strategy, uneven, monkeypatch):
    fed, ends = two_concepts(6), []
    fed = (
        fed.where(np.random.default_rng(1).random(fed.n_rows) < np.repeat(np.linspace(0, 1, 6), 30)) if uneven else fed
    )
    for whole in (False, True):
        if whole:
            monkeypatch.setattr("fedscape.personal.fedala._top", lambda *_: None)
        method, engine = FedALA(step(strategy=strategy), rate=2.0, warm_up=3), Local(fed)
        assert method._on_features is not whole
        ends.append((last(method, engine, 4), engine.kept()))
    (one, kept_by_one), (other, kept_by_other) = ends
    for n in one:
        np.testing.assert_allclose(one[n], other[n], atol=1e-12)
    for n in ("mix.2.weight", "mix.2.bias", "model.0.weight"):
        np.testing.assert_allclose(kept_by_one[n].flat, kept_by_other[n].flat, atol=1e-12)
    assert kept_by_one["mix.2.weight"].flat.min() < 0.9


def test_fedala_mixes_in_the_whole_model_where_a_layer_drops_or_more_than_the_last_mixes():
    deep = nn.Sequential(nn.Linear(D, 6), nn.Dropout(0.5), nn.Linear(6, C)).to(torch.float64)
    assert not FedALA(step(model=deep))._on_features
    assert not FedALA(step(), layers=("0", "2"))._on_features
    assert not FedALA(step(model=nn.Linear(D, C).to(torch.float64)))._on_features
    assert FedALA(step(model=nn.Sequential(nn.Flatten(), step().model)))._on_features


def test_fedala_serves_clients_that_disagree():
    fed, local = two_concepts(), step()
    model = train(FedALA(local), local, fed, n_rounds=8)
    assert model.evaluate(fed).accuracy.mean() > 0.85


# -- FedDBE ------------------------------------------------------------------------------------------------------------


def test_feddbe_without_a_pull_is_fedper_of_the_shift():
    fed, local = two_concepts(), step()
    method = FedDBE(local, kappa=0.0)
    one = last(method, fed, 3)
    other = last(FedPer(method.local, head=("2.shift",)), fed, 3)
    assert all((one[n] == other[n]).all() for n in other)


def test_the_consensus_of_feddbe_is_the_mean_of_features_after_a_first_training():
    fed, local = two_concepts(), step()
    method, alone = FedDBE(local), Local(fed)
    state = last(method, fed, 3)
    last(LocalOnly(method.local), alone, 1)
    each = [
        with_embedding(fed.take([i]), method.local, {n: v.flat[i] for n, v in alone.kept().items()})["z"]
        for i in range(len(fed))
    ]
    np.testing.assert_allclose(state["consensus"], np.concatenate(each).mean(axis=0), atol=1e-12)
    before = with_embedding(fed, method.local, method.start(0))["z"].mean(axis=0)
    assert np.abs(state["consensus"] - before).max() > 0.05


@pytest.mark.parametrize("strategy", ["auto", "sequential", "vmap"])
def test_feddbe_is_a_plain_loop_over_clients_and_batches(strategy):
    """Four rounds of a model of two layers: the loop is the algorithm, the batches are the ones of LocalSGD.

    The first finds the consensus, and what it trained is dropped.
    """
    sizes = [25, 9, 0, 14]
    everyone = two_concepts(len(sizes), 25)
    fed = everyone.where(np.concatenate([np.arange(25) < n for n in sizes]))
    fed = fed.with_column("x", fed["x"] + np.repeat([0.0, 1.0, 0.0, -1.0], sizes)[:, None])
    local = step(epochs=2, batch_size=10, lr=0.2, strategy=strategy)
    method, engine = FedDBE(local, kappa=30.0, momentum=0.3), Local(fed)
    assert trainer_of(method.local).strategy == {"auto": "stacked"}.get(strategy, strategy)
    state = last(method, engine, 4, seed=3)
    common = {n: torch.tensor(p) for n, p in method.local.parameters().items() if n != "2.shift"}
    shift, consensus = torch.zeros(len(sizes), 6, dtype=torch.float64), None
    for r in range(4):
        moved, features = {n: torch.zeros_like(p) for n, p in common.items()}, torch.zeros(6, dtype=torch.float64)
        for i in np.flatnonzero(sizes):
            own = {n: p.clone().requires_grad_() for n, p in common.items()}
            b, mean = shift[i].clone().requires_grad_(), torch.zeros(6, dtype=torch.float64)
            for rows in batches(local, fed, int(i), Key(3, round=r)):
                x, y = torch.tensor(fed["x"][rows]), torch.tensor(fed["y"][rows])
                z = torch.tanh(x @ own["0.weight"].T + own["0.bias"])
                loss = cross_entropy((z + b) @ own["2.weight"].T + own["2.bias"], y).mean()
                mean = 0.7 * mean.detach() + 0.3 * z.mean(dim=0)
                if consensus is not None:
                    loss = loss + 30 / 2 * (mean - consensus).square().mean()
                params = [*own.values(), b]
                for p, g in zip(params, torch.autograd.grad(loss, params), strict=True):
                    p.data -= 0.2 * g
            mine = torch.tensor(fed["x"][fed.offsets[i] : fed.offsets[i + 1]])
            features += torch.tanh(mine @ own["0.weight"].T + own["0.bias"]).detach().sum(dim=0)
            if consensus is not None:
                shift[i] = b.detach()
                for n, p in own.items():
                    moved[n] += sizes[i] / sum(sizes) * (p.detach() - common[n])
        common = {n: p + moved[n] for n, p in common.items()}
        consensus = features / sum(sizes) if consensus is None else consensus
    for n, p in common.items():
        np.testing.assert_allclose(state[f"model.{n}"], p, atol=1e-10)
    np.testing.assert_allclose(engine.kept()["model.2.shift"].flat, shift, atol=1e-10)


def batches(local: LocalSGD, fed: Federation, client: int, key: Key) -> list[np.ndarray]:
    """The rows of one client's steps."""
    plan = make_plan(Rows(fed.keys[[client]], fed.offsets[client : client + 2]), key, local.timing)
    return [rows[:n] for rows, n in zip(plan.rows[0], plan.counts[0], strict=True)]


def test_feddbe_stops_early_where_its_settings_say_so():
    fed, local = two_concepts(), step(epochs=6, early_stopping=1e9)
    one, other = last(FedDBE(local), fed, 2), last(FedDBE(replace(local, epochs=2, early_stopping=None)), fed, 2)
    np.testing.assert_allclose(one["model.0.weight"], other["model.0.weight"], atol=1e-12)


@pytest.mark.parametrize("momentum", [1.0, 0.4])
def test_a_step_of_feddbe_is_the_gradient_of_loss_and_pull(momentum):
    fed = two_concepts(2)
    local = step(epochs=2, batch_size=30, lr=0.2)
    method = FedDBE(local, kappa=5.0, momentum=momentum)
    state = {**method.start(0), "consensus": np.linspace(-1, 1, 6), "known": np.ones(())}
    moves, kept = method._trained(state, fed, Key(0))
    for i in range(2):
        params = {n: torch.tensor(state[f"model.{n}"]).requires_grad_() for n in method.local.names}
        begin = {n: p.detach().clone() for n, p in params.items()}
        x, y = (torch.tensor(fed[k][fed.offsets[i] : fed.offsets[i + 1]]) for k in "xy")
        mean = torch.zeros(6, dtype=torch.float64)
        for _ in range(2):
            z = torch.tanh(x @ params["0.weight"].T + params["0.bias"])
            mean = (1 - momentum) * mean.detach() + momentum * z.mean(dim=0)
            output = (z + params["2.shift"]) @ params["2.weight"].T + params["2.bias"]
            pull = 2.5 * (mean - torch.linspace(-1, 1, 6, dtype=torch.float64)).square().mean()
            grads = torch.autograd.grad(cross_entropy(output, y).mean() + pull, list(params.values()))
            params = {
                n: (p - 0.2 * g).detach().requires_grad_() for (n, p), g in zip(params.items(), grads, strict=True)
            }
        for n in params:
            got = kept[f"model.{n}"][i] - begin[n].numpy() if n == "2.shift" else moves[n][i]
            np.testing.assert_allclose(got, (params[n] - begin[n]).detach(), atol=1e-12)


# -- pFedFDA -----------------------------------------------------------------------------------------------------------


def blobs(n_clients: int = 6, rows: int = 40, shift: float = 1.0) -> Federation:
    rng = np.random.default_rng(4)
    y = rng.integers(0, C, n_clients * rows)
    away = np.repeat(rng.normal(size=(n_clients, D)), rows, axis=0)
    x = rng.normal(size=(len(y), D)) + 3 * np.eye(C, D)[y] + shift * away
    return Federation({"x": x, "y": y}, np.arange(0, len(y) + 1, rows))


def test_the_law_of_pfedfda_is_that_of_the_pooled_rows():
    fed, method = blobs(), PFedFDA(step())
    first = method.start(0)
    state = last(method, fed, 1)
    z = with_embedding(fed, method.local, first)["z"]
    oracle = LinearDiscriminantAnalysis(solver="lsqr", store_covariance=True, priors=np.full(C, 1 / C)).fit(z, fed["y"])
    np.testing.assert_allclose(state["means"], oracle.means_, atol=1e-10)
    within = sum(np.cov(z[fed["y"] == c].T, bias=True) * np.mean(fed["y"] == c) for c in range(C))
    np.testing.assert_allclose(state["covariance"], within, atol=1e-10)


def test_the_head_of_pfedfda_is_linear_discriminant_analysis():
    fed, method = blobs(), PFedFDA(step(lr=0.0), ridge=1e-9)
    state = last(method, fed, 2)
    z = with_embedding(fed, method.local, method.start(0))["z"]
    oracle = LinearDiscriminantAnalysis(priors=np.full(C, 1 / C)).fit(z, fed["y"])
    agree = method.log_probs(state, fed).argmax(axis=1) == oracle.predict(z)
    assert agree.all()


def test_pfedfda_gives_a_new_client_its_own_law_without_training():
    fed = blobs(12, 60, shift=3.0)
    learners, test = fed.take(slice(0, 8)), fed.take(slice(8, 12))
    model = train(PFedFDA(step(lr=0.1)), step(), learners, n_rounds=12)
    rows, rest = test.split(test=0.5, seed=0)
    own, common = model.adapt(rows).evaluate(rest).accuracy, model.evaluate(rest).accuracy
    assert own.mean() > common.mean() + 0.05


def test_pfedfda_goes_on_under_noise():
    privacy = fs.Gaussian(clip=5.0, multiplier=0.3, noise_seed=1)
    state = last(PFedFDA(step()), blobs(), 3, privacy=privacy)
    assert np.linalg.eigvalsh(state["covariance"]).min() > -1e-9
    assert all(np.isfinite(v).all() for v in state.values())

"""Personalised methods: formulas by hand, the paper's toy, new clients, files."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.special import logsumexp
from scipy.stats import multivariate_normal
from torch import nn

import fedscape as fs
from fedscape import DataError, Federation, GaussianMixture, Key, Local
from fedscape.core import checkpoint
from fedscape.core.blocks import as_ragged
from fedscape.errors import CheckpointError
from fedscape.learning import LocalSGD, cross_entropy, initialised, models, squared_error
from fedscape.methods import make, names, train
from fedscape.mixtures import Diagonal
from fedscape.personal import (
    IFCA,
    ClusteredFL,
    Ditto,
    FedEM,
    FedGMM,
    FedRep,
    LocalOnly,
    Novelty,
    Personalised,
    PFedMe,
    load_personal,
    save_personal,
    with_embedding,
    with_projection,
)
from fedscape.personal.clustered import halves
from fedscape.trained.model import load

D, C = 3, 2


def step(lr: float = 0.3, **options) -> LocalSGD:
    model = initialised(nn.Linear(D, C, dtype=torch.float64), 0)
    return LocalSGD(model, cross_entropy, **{"lr": lr, "epochs": 1, "batch_size": 8, **options})


def clients(n: int = 6, rows: int = 20, seed: int = 0) -> Federation:
    rng = np.random.default_rng(seed)
    kind = rng.integers(0, 2, n * rows)
    x = rng.normal(size=(n * rows, D)) + 4.0 * kind[:, None]
    y = (x[:, 0] > 4.0 * kind) ^ (kind == 1)
    return Federation({"x": x, "y": y.astype(np.int64)}, np.arange(n + 1) * rows)


def two_concepts(n: int = 8, rows: int = 60, seed: int = 1) -> Federation:
    """Half of the clients label by x0 > 0, the others the other way round; features are alike."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n * rows, D))
    flip = np.repeat(np.arange(n) % 2 == 1, rows)
    return Federation({"x": x, "y": ((x[:, 0] > 0) ^ flip).astype(np.int64)}, np.arange(n + 1) * rows)


def last_state(method, engine, n: int):
    return [r.state for r in fs.rounds(method, engine, n_rounds=n, allow=method.reveals)][-1]


def log_p(state, x, m):
    z = x @ state["model.weight"][m].T + state["model.bias"][m]
    return z - logsumexp(z, axis=1, keepdims=True)


# -- formulas by hand --------------------------------------------------------------------------------------------------


def test_shares_of_fedem_are_the_posterior_of_the_learners():
    fed, method = clients(), FedEM(step(), 2)
    state = method.start(3)
    _, kept = method.step(state, fed, Key(0))
    fits = np.stack([log_p(state, fed["x"], m)[np.arange(fed.n_rows), fed["y"]] for m in range(2)], axis=1)
    q = np.exp(fits - logsumexp(fits, axis=1, keepdims=True))
    np.testing.assert_allclose(kept["shares"], q.reshape(6, 20, 2).mean(axis=1), atol=1e-12)


def test_shares_sums_and_predictions_of_fedgmm_are_those_of_the_formulas():
    fed = clients()
    mixture = GaussianMixture(2, seed=1).fit(fed)
    method = FedGMM(step(), mixture, 2, warm=0)
    state = method.prepare(method.start(3))
    sent, kept = method.step(state, fed, Key(0))
    density = np.stack(
        [multivariate_normal(m, c).logpdf(fed["x"]) for m, c in zip(mixture.means_, mixture.covariances_, strict=True)],
        axis=1,
    )
    said = np.stack([log_p(state, fed["x"], m) for m in range(2)], axis=1)  # [rows, M2, classes]
    fits = said[np.arange(fed.n_rows), :, fed["y"]]
    joint = np.log(state["weights"]) + density[:, :, None] + fits[:, None, :]
    q = np.exp(joint - logsumexp(joint, axis=(1, 2), keepdims=True))
    np.testing.assert_allclose(kept["shares"], q.reshape(6, 20, 2, 2).mean(axis=1), atol=1e-10)
    np.testing.assert_allclose(sent["mass"].sum(axis=0), q.sum(axis=0), atol=1e-9)
    r = q.sum(axis=2)
    new = method.update(state, {n: v.sum(axis=0) for n, v in sent.items()}, Key(0))
    np.testing.assert_allclose(new["means"], r.T @ fed["x"] / r.sum(axis=0)[:, None], atol=1e-9)
    away = fed["x"] - new["means"][0]
    np.testing.assert_allclose(
        new["covariances"][0], (r[:, :1] * away).T @ away / r[:, 0].sum() + 1e-6 * np.eye(D), atol=1e-9
    )
    prior = np.exp(np.log(state["weights"]) + density[:, :, None])  # equation (3), term by term
    by_hand = (prior[..., None] * np.exp(said)[:, None]).sum(axis=(1, 2)) / prior.sum(axis=(1, 2))[:, None]
    np.testing.assert_allclose(np.exp(method.log_probs(state, fed)), by_hand, atol=1e-10)
    np.testing.assert_allclose(method.log_prob_x(state, fed), np.log(prior.sum(axis=(1, 2))), atol=1e-10)
    np.testing.assert_allclose(method.log_prob_joint(state, fed), logsumexp(joint, axis=(1, 2)), atol=1e-10)
    np.testing.assert_allclose(
        method.log_prob_y_given_x(state, fed), np.log(by_hand[np.arange(fed.n_rows), fed["y"]]), atol=1e-9
    )


def test_one_learner_is_fedavg():
    fed = clients()
    one, common = FedEM(step(), 1, initial="given"), fs.FedAvg(step())
    for a, b in zip(fs.rounds(one, fed, n_rounds=3), fs.rounds(common, fed, n_rounds=3), strict=True):
        np.testing.assert_allclose(a.state["model.weight"][0], b.state["model.weight"], atol=1e-12)
        assert float(a.metrics["accuracy"]) == pytest.approx(float(b.metrics["accuracy"]))


@pytest.mark.parametrize("bound", [None, 4.0, 50.0])
def test_with_common_weights_of_learners_the_gaussian_part_is_a_gaussian_mixture(bound):
    fed = clients()
    mixture = GaussianMixture(2, rounds=1, tol=0.0, seed=2, bound=bound).fit(fed)
    method, work = FedGMM(step(), mixture, 1), mixture._rounds(
        mixture.weights_[None], mixture.means_[None], mixture.covariances_[None], "x"
    )  # fmt: skip
    joint = [r.state for r in fs.rounds(method, fed, n_rounds=4)][-1]
    alone = [r.state for r in fs.rounds(work, fed, n_rounds=4)][-1]
    np.testing.assert_allclose(joint["means"], alone["means"][0], atol=1e-9)
    np.testing.assert_allclose(joint["covariances"], alone["covariances"][0], atol=1e-9)


class Counted(fs.Computation):
    """Sends and keeps the number of rows, or gives the sum with what is kept at once."""

    def __init__(self, together: bool) -> None:
        self.together = together

    def start(self, seed):
        return {"rows": np.zeros(())}

    def step(self, state, clients, key):
        return {"rows": clients.sizes}, {"mine": clients.sizes}

    def total(self, state, clients, key):
        sent, kept = self.step(state, clients, key)
        return ({n: v.sum(axis=0) for n, v in sent.items()}, kept) if self.together else None

    def update(self, state, total, key):
        return {"rows": np.asarray(total["rows"], dtype=float)}


def test_sums_may_come_together_with_what_is_kept():
    fed = clients()
    found = []
    for together in (False, True):
        engine = Local(fed)
        found.append((last_state(Counted(together), engine, 1)["rows"], engine.kept()["mine"].flat.tolist()))
    assert found[0] == found[1]


@pytest.mark.parametrize("kind", ["fedem", "fedgmm"])
def test_sums_made_where_clients_trained_equal_those_of_their_rows(kind):
    fed = clients()
    method = FedEM(step(), 2) if kind == "fedem" else FedGMM(step(), GaussianMixture(2).fit(fed), 2, warm=0)
    state = method.prepare(method.start(1))
    rows, kept = method.step(state, fed, Key(0))
    sums, same = method.sums(state, fed, Key(0))
    assert (same["shares"] == kept["shares"]).all()
    for name, values in rows.items():
        np.testing.assert_allclose(sums[name], values.sum(axis=0), atol=1e-9, err_msg=name)


# -- what they can learn -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["fedem", "ifca", "local", "fedavg+", "ditto"])
def test_clients_with_opposite_labels_are_served_by_every_personal_method_and_not_by_fedavg(name):
    fed = two_concepts()
    local = step(1.0, batch_size=16)
    assert train("fedavg", local, fed, n_rounds=6).evaluate(fed).summary()["accuracy_pooled"] < 0.7
    assert train(name, local, fed, n_rounds=12, finish_rounds=5).evaluate(fed).summary()["accuracy_pooled"] > 0.9


@pytest.mark.parametrize("kind", [FedEM, IFCA])
def test_learners_side_by_side_train_as_they_do_one_after_the_other(kind):
    rng = np.random.default_rng(3)
    offsets = np.concatenate(([0], np.cumsum([5, 0, 19, 8, 20])))
    fed = Federation({"x": rng.normal(size=(52, D)), "y": rng.integers(0, C, 52)}, offsets)
    deep = nn.Sequential(nn.Linear(D, 6), nn.Tanh(), nn.Dropout(0.4), nn.Linear(6, C)).to(torch.float64)
    how = replace(step(momentum=0.5), model=initialised(deep, 1))
    ends = [last_state(kind(replace(how, strategy=s), 3), Local(fed), 3) for s in ("sequential", "vmap")]
    assert all(np.abs(ends[0][n] - ends[1][n]).max() < 1e-9 for n in ends[0])
    assert np.ptp(ends[0]["model.0.weight"], axis=0).max() > 0.1  # the learners differ


def test_fedrep_side_by_side_is_fedrep_client_by_client(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    rng = np.random.default_rng(3)
    offsets = np.concatenate(([0], np.cumsum([5, 0, 19, 8, 20])))
    fed = Federation({"x": rng.normal(size=(52, D)), "y": rng.integers(0, C, 52)}, offsets)
    deep = nn.Sequential(nn.Linear(D, 6), nn.Tanh(), nn.Dropout(0.4), nn.Linear(6, C)).to(torch.float64)
    how = replace(step(momentum=0.5, weight_decay=0.1), model=initialised(deep, 1))
    engines = Local(fed), Local(fed), Local(fed)
    ways = zip(("sequential", "vmap", "compiled"), engines, strict=True)
    ends = [last_state(FedRep(replace(how, strategy=s)), engine, 3) for s, engine in ways]
    assert all(np.abs(ends[0][n] - end[n]).max() < 1e-9 for end in ends[1:] for n in end)
    heads = [engine.kept()["model.3.weight"].flat for engine in engines]
    assert all(np.abs(heads[0] - head).max() < 1e-9 for head in heads[1:])
    assert np.abs(heads[0][0] - heads[0][1]).max() > 1e-9


def test_ifca_gives_clients_of_one_kind_the_same_learner():
    fed = two_concepts()
    engine = Local(fed)
    last_state(IFCA(step(1.0), 2), engine, 8)
    chosen = engine.kept()["shares"].flat.argmax(axis=1)
    assert len(set(chosen[::2])) == len(set(chosen[1::2])) == 1
    assert chosen[0] != chosen[1]


@pytest.mark.parametrize("projection", [None, 4])
def test_clustered_fl_separates_clients_of_opposite_labels(projection):
    fed = two_concepts(12)
    engine = Local(fed)
    method = ClusteredFL(step(1.0), 2, projection=projection, wait=3, small=0.5)
    state = last_state(method, engine, 10)
    assert int(state["open"]) == 2
    cluster = state["of_client.cluster"]
    assert len(set(cluster[::2])) == len(set(cluster[1::2])) == 1
    assert cluster[0] != cluster[1]


def test_clients_that_were_away_when_their_cluster_was_cut_find_their_own():
    fed, local = two_concepts(24), step(1.0)
    method = ClusteredFL(local, 2, wait=3, small=0.5)
    model = train(method, local, fed, n_rounds=12, sampler=fs.FixedSize(8))
    assert int(model.state["open"]) == 2
    assert (model.state["of_client.cluster"] < 0).sum() > 4  # the server does not know theirs
    chosen = method._cluster(dict(model.state), fed.with_kept(dict(model.kept)))
    assert len(set(chosen[::2])) == len(set(chosen[1::2])) == 1
    assert chosen[0] != chosen[1]
    assert model.evaluate(fed).accuracy.min() > 0.9


def test_clustered_fl_judges_clients_by_the_cluster_they_are_in_not_by_the_one_they_last_trained():
    fed = two_concepts(12)
    local = step(1.0)
    method = ClusteredFL(local, 2, wait=6, small=0.5)
    model = train(method, local, fed, n_rounds=6)  # the cut is the last thing that happens
    assert int(model.state["open"]) == 2
    assert not model.kept["cluster"].flat.any()
    right = np.zeros((2, C, D))
    right[:, 1, 0] = [9.0, -9.0] if model.state["of_client.cluster"][0] == 0 else [-9.0, 9.0]
    moved = {**model.state, "model.weight": right}
    assert Personalised(method, moved, model.ids, model.kept).evaluate(fed).accuracy.min() > 0.9
    new = named(fed, [f"new {i}" for i in range(12)])  # whom the server has never seen: what they keep counts
    adapted = Personalised(method, moved, new.ids[:0], {}).adapt(new)
    assert adapted.evaluate(new).accuracy.mean() > 0.9


@pytest.mark.parametrize("name", ["local", "fedrep", "ditto", "pfedme"])
def test_clients_that_no_round_drew_train_their_own_model_at_the_end(name):
    fed = two_concepts()
    deep = nn.Sequential(nn.Linear(D, 4), nn.Tanh(), nn.Linear(4, C)).to(torch.float64)
    local = replace(step(1.0, epochs=10), model=initialised(deep, 0))
    model = train(name, local, fed, n_rounds=1, sampler=fs.FixedSize(2))
    assert model.ids.tolist() == fed.ids.tolist()
    assert all((kept.lengths > 0).all() for kept in model.kept.values())
    assert model.evaluate(fed).accuracy.mean() > model.common().evaluate(fed).accuracy.mean() + 0.1
    engine = Local(fed)  # those that were drawn keep what they had
    method = make(name, local)
    for _ in fs.rounds(method, engine, n_rounds=1, sampler=fs.FixedSize(2)):
        pass
    for n, ragged in engine.kept().items():
        drawn = np.flatnonzero(ragged.lengths)
        assert len(drawn) == 2
        assert model.kept[n].take(drawn).flat.tobytes() == ragged.flat.tobytes()


def test_what_the_server_sees_of_clustered_fl_must_be_allowed():
    with pytest.raises(fs.EngineError, match="lets the server see, client by client: update"):
        fs.rounds(ClusteredFL(step(), 2), two_concepts(), n_rounds=1)
    sent, _ = ClusteredFL(step(), 2, projection=4).step(ClusteredFL(step(), 2).start(0), two_concepts(), Key(0))
    assert sent["update"].shape == (8, 4)


def test_cosines_of_projected_updates_are_those_of_the_updates():
    rng = np.random.default_rng(0)
    common = rng.standard_normal((40, 50))
    moves = {"a": rng.standard_normal((30, 40, 50)) + common, "b": rng.standard_normal((30, 7))}
    moves["a"][::2] -= 2 * common

    def cosines(rows):
        unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        return (unit @ unit.T)[np.triu_indices(len(rows), 1)]

    whole, seen = (ClusteredFL(step(), projection=p)._projected(moves) for p in (None, 256))
    assert (whole.shape, seen.shape) == ((30, 2007), (30, 256))
    error = cosines(seen) - cosines(whole)
    assert error.std() < 0.08
    assert abs(error.mean()) < 0.03
    assert np.abs(cosines(whole)).min() > 0.3  # so that an answer without content would be far off


def test_halves_of_a_single_client_is_one_group():
    assert halves(np.ones((1, 1))).tolist() == [0]


def test_ditto_without_pull_is_training_alone():
    fed, local = clients(), step()
    alone, free = Local(fed), Local(fed)
    for method, engine in ((LocalOnly(local), alone), (Ditto(local, strength=0.0), free)):
        last_state(method, engine, 2)
    np.testing.assert_allclose(free.kept()["model.weight"].flat, alone.kept()["model.weight"].flat, atol=1e-12)


@pytest.mark.parametrize("strategy", ["sequential", "vmap"])
@pytest.mark.parametrize("strength", [0.05, 1.0, 4.0])
def test_ditto_goes_to_the_least_of_loss_and_pull(strength, strategy):
    rng = np.random.default_rng(3)
    x = rng.normal(size=(60, D))
    y = x @ rng.normal(size=D) + np.repeat([-2.0, 0.0, 5.0], 20)
    fed = Federation({"x": x, "y": y}, [0, 20, 40, 60])
    model = initialised(nn.Linear(D, 1, dtype=torch.float64), 0)
    local = LocalSGD(model, squared_error, lr=0.2, epochs=400, batch_size=20, proximal=0.3, strategy=strategy)
    method = Ditto(local, strength=strength)
    state = method.start(0)
    kept = method.adapt(state, fed, Key(0))
    w = np.append(state["model.weight"][0], state["model.bias"])
    for i in range(3):
        a, b = np.column_stack([x, np.ones(60)])[20 * i : 20 * i + 20], y[20 * i : 20 * i + 20]
        least = np.linalg.solve(a.T @ a / 20 + strength * np.eye(D + 1), a.T @ b / 20 + strength * w)
        np.testing.assert_allclose(np.append(kept["model.weight"][i, 0], kept["model.bias"][i]), least, atol=1e-6)
    begun = fed.with_kept({n: as_ragged({n: v + 1.0}, 3)[n] for n, v in kept.items()})  # from elsewhere, the same end
    again = method.adapt(state, begun, Key(0))
    np.testing.assert_allclose(again["model.weight"], kept["model.weight"], atol=1e-6)


def test_pfedme_with_full_pull_and_no_strength_is_fedavg():
    fed, local = clients(), step()
    a = [r.state for r in fs.rounds(PFedMe(local, strength=0.0, pull=1.0), fed, n_rounds=2)][-1]
    b = [r.state for r in fs.rounds(fs.FedAvg(local), fed, n_rounds=2)][-1]
    np.testing.assert_allclose(a["model.weight"], b["model.weight"], atol=1e-12)


def test_fedrep_moves_the_body_by_sums_and_keeps_heads():
    deep = nn.Sequential(nn.Linear(D, 4), nn.Tanh(), nn.Linear(4, C)).to(torch.float64)
    local = replace(step(1.0, epochs=2), model=initialised(deep, 0))
    engine, method = Local(two_concepts()), FedRep(local)
    first = method.start(0)
    state = last_state(method, engine, 10)
    assert set(engine.kept()) == {"model.2.weight", "model.2.bias"}
    assert (state["model.2.weight"] == first["model.2.weight"]).all()
    assert (state["model.0.weight"] != first["model.0.weight"]).any()
    assert Personalised(method, state, engine.clients.ids, engine.kept()).evaluate(engine.clients).accuracy.mean() > 0.9
    with pytest.raises(DataError, match="a model of one layer has no body to share"):
        FedRep(step())


# -- new clients, restarts, files --------------------------------------------------------------------------------------


def gmm_of(fed: Federation, rounds: int = 15) -> Personalised:
    local = step(0.3, optimiser="adam")
    return train(FedGMM(local, GaussianMixture(2, seed=0).fit(fed), 2), local, fed, n_rounds=rounds)


def test_new_clients_learn_only_shares_from_labels_or_from_features_alone():
    known, new = clients(20, 60), clients(4, 60, seed=9)
    new = Federation(dict(new.columns), new.offsets, ids=[100, 101, 102, 103])
    model = gmm_of(known)
    unaware = model.evaluate(new).summary()["accuracy_pooled"]
    for data in (new, new.select(["x"])):
        adapted = model.adapt(data)
        assert adapted.cost["numbers_per_client"] == 4
        assert adapted.evaluate(new).summary()["accuracy_pooled"] >= unaware - 0.02
        assert (adapted.state["means"] == model.state["means"]).all()
        assert adapted.log_prob_x(new).mean() >= model.log_prob_x(new).mean()
    assert adapted.evaluate(known).summary() == model.evaluate(known).summary()
    with pytest.raises(DataError, match="learns a client's shares from labels"):
        train("fedem", model.method.local, known, n_rounds=1).adapt(new.select(["x"]))


@pytest.mark.parametrize("name", ["fedem", "ifca", "fedgmm", "clustered", "local", "ditto"])
@pytest.mark.parametrize("odd", [-1, C])
def test_a_class_the_model_does_not_know_has_no_probability_and_nobody_adapts_to_it(name, odd):
    fed = clients(3)
    model = train(name, step(), fed, n_rounds=1)
    y = fed["y"].copy()
    y[4] = odd
    strange = fed.with_column("y", y)
    found = model.log_prob_y_given_x(strange)
    assert found[4] == -np.inf
    assert (found[5:] == model.log_prob_y_given_x(fed)[5:]).all()
    plain, other = model.evaluate(fed), model.evaluate(strange)
    right = model.predict(fed) == y
    np.testing.assert_allclose(other.accuracy * 20, right.reshape(3, 20).sum(axis=1), atol=1e-9)
    assert other.loss[0] > plain.loss[0] + 1
    asked = [model.adapt, Novelty(model, "log_prob_y_given_x").rows]
    for ask in [*asked, model.log_prob_joint] if name == "fedgmm" else asked:
        with pytest.raises(DataError, match=f"column 'y' holds the class {odd} in row 4, but the model knows 0 to 1"):
            ask(strange)


def test_models_whose_loss_is_not_ours_are_not_written_as_if_they_could_be_made_again(tmp_path):
    def own_loss(output, target):
        return cross_entropy(output, target)

    local = LocalSGD(models.linear(D, C), own_loss, lr=0.3, epochs=1, batch_size=8)
    model = train("fedem", local, clients(3), n_rounds=1)
    with pytest.raises(DataError, match="loss must be cross_entropy or logistic"):
        save_personal(tmp_path / "m", model, architecture="linear", arguments={"n_features": D, "n_classes": C})


def named(fed: Federation, ids) -> Federation:
    return Federation(dict(fed.columns), fed.offsets, ids=ids)


def test_clients_named_in_another_way_are_refused_and_none_is_lost():
    fed = clients(3)
    model = train("fedem", step(), fed, n_rounds=2)
    with pytest.raises(DataError, match="'a' is a text, but clients are known by a whole number such as 0"):
        model.adapt(named(clients(1), ["a"]))
    with pytest.raises(DataError, match="'1' is a text"):
        model.predict(fed["x"], client="1")
    texts = train("fedem", step(), named(fed, ["a", "b", "c"]), n_rounds=2)
    with pytest.raises(DataError, match="7 is a whole number, but clients are known by a text such as 'a'"):
        texts.adapt(named(clients(1), [7]))
    more = texts.adapt(named(clients(1), ["longer than before"]))
    assert more.ids.tolist() == ["a", "b", "c", "longer than before"]
    assert more.common().adapt(named(clients(1), [7])).ids.tolist() == [7]


def test_a_long_name_is_no_other_clients_name_cut_short():
    fed = named(two_concepts(2), ["c0", "c1"])
    model = train("ifca", step(1.0), fed, n_rounds=5)
    x = fed["x"][:5]
    own, common = model.predict_proba(x, client="c1"), model.predict_proba(x)
    assert (own != common).any()
    assert (model.predict_proba(x, client="c12") == common).all()


@pytest.mark.parametrize("name", names("personal"))
def test_unseen_and_empty_clients_never_crash_an_evaluation(name):
    fed = clients()
    local = step()
    if name in ("fedrep", "fedper", "fedbabu", "fedbn", "pfedfda"):
        norm = [nn.GroupNorm(1, 4)] if name == "fedbn" else []
        deep = nn.Sequential(nn.Linear(D, 4), *norm, nn.Tanh(), nn.Linear(4, C)).to(torch.float64)
        local = replace(local, model=initialised(deep, 0))
    model = train(name, local, fed, n_rounds=1)
    other = Federation({"x": fed["x"][:30], "y": fed["y"][:30]}, [0, 20, 20, 30], ids=[0, 77, 78])
    table = model.evaluate(other)
    assert np.isfinite(table.accuracy[[0, 2]]).all()
    assert np.isnan(table.accuracy[1])
    adapted = model.adapt(other)
    assert np.isfinite(adapted.evaluate(other).accuracy[[0, 2]]).all()


def test_a_personalised_model_survives_a_file(tmp_path):
    fed = clients()
    model = gmm_of(fed, 2)
    model.save(tmp_path / "m.fed", about={"learners": 2})
    again = Personalised.load(tmp_path / "m.fed", model.method)
    assert again.predict_proba(fed).tobytes() == model.predict_proba(fed).tobytes()
    assert (again.predict(fed["x"][:5], client=3) == model.predict(fed["x"][:5], client=3)).all()
    assert (again.predict_proba(fed["x"][:5]) == again.common().predict_proba(fed["x"][:5])).all()
    with pytest.raises(CheckpointError, match="was made by FedGMM, not by FedEM"):
        Personalised.load(tmp_path / "m.fed", FedEM(step()))


def test_a_file_holds_all_that_says_what_the_gaussians_are(tmp_path):
    fed = clients()
    local = LocalSGD(models.linear(D, C), cross_entropy, lr=0.3, epochs=1, batch_size=8)
    mixture = GaussianMixture(2, covariance=Diagonal(), bound=4.0, regularisation=0.2, rounds=3).fit(fed)
    model = train(FedGMM(local, mixture, 2), local, fed, n_rounds=2)
    save_personal(tmp_path / "m", model, architecture="linear", arguments={"n_features": D, "n_classes": C})
    again = load_personal(tmp_path / "m")
    assert (again.method.mixture.bound, again.method.mixture.regularisation) == (4.0, 0.2)
    assert again.log_prob_x(fed).tobytes() == model.log_prob_x(fed).tobytes()  # some rows are longer than the bound


def test_shares_survive_a_restart(tmp_path):
    fed = clients()
    method = FedGMM(step(), GaussianMixture(2).fit(fed), 2)
    engine, fresh = Local(fed), Local(fed)
    for r in fs.rounds(method, engine, n_rounds=3):
        r.save(tmp_path / "run")
    for _ in fs.rounds(method, fresh, n_rounds=3, resume=tmp_path / "run"):
        pass
    assert fresh.kept()["shares"].flat.tobytes() == engine.kept()["shares"].flat.tobytes()


def test_gaussians_may_be_of_a_projection_or_an_embedding():
    fed = clients()
    projected = with_projection(fed, fs.Moments().fit(fed), 2)
    centred = fed["x"] - fed["x"].mean(axis=0)
    u, s, _ = np.linalg.svd(centred, full_matrices=False)
    np.testing.assert_allclose(np.abs(projected["z"]), np.abs(u[:, :2] * s[:2]), atol=1e-8)
    local = LocalSGD(models.mlp(D, 5, C), cross_entropy, lr=0.1, epochs=1, batch_size=8)
    state = {f"model.{n}": p for n, p in local.parameters().items()}
    embedded = with_embedding(fed, local, state)
    assert embedded["z"].shape == (fed.n_rows, 5)
    assert with_embedding(fed.take([]), local, state)["z"].shape == (0, 5)
    for data in (projected, embedded):
        mixture = GaussianMixture(2, column="z", regularisation=1e-3, rounds=3).fit(data)
        done = train(FedGMM(local, mixture, 2), local, data, n_rounds=2)
        assert np.isfinite(done.log_prob_x(data)).all()
    with pytest.raises(DataError, match="n must be from 1 to the 3 features, not 4"):
        with_projection(fed, fs.Moments().fit(fed), 4)


def test_bad_settings_are_refused():
    fed = clients()
    with pytest.raises(DataError, match="mixture must be a fitted GaussianMixture"):
        FedGMM(step(), GaussianMixture(2)).start(0)
    for options in ({"scatter": "within_clients"}, {"weighting": "clients"}):
        with pytest.raises(DataError, match="must have scatter='all' and weighting='rows', not"):
            FedGMM(step(), GaussianMixture(2, rounds=1, **options).fit(fed))
    with pytest.raises(DataError, match="method must be one of fedavg, fedprox"):
        train("nonsense", step(), fed, n_rounds=1)
    with pytest.raises(DataError, match="n_learners must be a whole number of at least 1, not 0"):
        FedEM(step(), 0)
    with pytest.raises(DataError, match="the state is of another model"):
        FedEM(step()).log_probs({"model.other": np.zeros((3, 1)), "weights": np.ones(3) / 3}, fed)
    with pytest.raises(DataError, match="densities are FedGMM's"):
        train("fedem", step(), fed, n_rounds=1).log_prob_x(fed)


@pytest.mark.parametrize("name", ["local", "ditto", "pfedme", "fedrep", "clustered"])
def test_a_model_of_a_clients_own_that_runs_away_is_refused_by_name(name):
    fed = two_concepts()
    x = fed["x"].copy()
    x[fed.offsets[3]] = np.nan
    deep = nn.Sequential(nn.Linear(D, 4), nn.Tanh(), nn.Linear(4, C)).to(torch.float64)
    local = replace(step(1.0), model=initialised(deep, 0))
    with pytest.raises(fs.EngineError, match=r"round 0: client 3 has NaN or infinity in '.*' of its own model: look"):
        train(name, local, Federation({"x": x, "y": fed["y"]}, fed.offsets), n_rounds=1)


@pytest.mark.parametrize("name", ["fedem", "ifca", "clustered"])
def test_a_class_that_no_learner_knows_is_refused_in_training(name):
    fed = two_concepts()
    with pytest.raises(DataError, match="column 'y' holds a class that the model has no output for"):
        train(name, step(), fed.with_column("y", fed["y"] + 7), n_rounds=1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FedEM("2"), "local must be a LocalSGD, not a str"),
        (lambda: IFCA("2"), "local must be a LocalSGD, not a str"),
        (lambda: FedEM(nn.Linear(D, C)), "local must be a LocalSGD, not a Linear"),
        (lambda: FedEM(step(), "2"), "n_learners must be a whole number of at least 1, not '2'"),
        (lambda: IFCA(step(), "2"), "n_learners must be a whole number of at least 1, not '2'"),
        (lambda: FedEM(step(), 1.5), "n_learners must be a whole number of at least 1, not 1.5"),
        (lambda: FedEM(step(), initial="foo"), "initial must be 'given' or 'seed', not 'foo'"),
        (lambda: ClusteredFL("2"), "local must be a LocalSGD, not a str"),
        (lambda: ClusteredFL(step(), "2"), "n_clusters must be a whole number of at least 1, not '2'"),
        (lambda: ClusteredFL(step(), projection=2.5), "projection must be a whole number of at least 1, not 2.5"),
        (lambda: ClusteredFL(step(), small=float("nan")), "small must be a number, not nan"),
        (lambda: ClusteredFL(step(), large=-1), "small and large must be at least 0, not 0.4 and -1"),
        (lambda: PFedMe(step(), strength="a"), "strength must be a number, not 'a'"),
        (lambda: PFedMe(step(), repeats=1.5), "repeats must be a whole number of at least 1, not 1.5"),
        (lambda: Ditto(step(), strength="a"), "strength must be a number, not 'a'"),
        (lambda: LocalOnly(3), "local must be a LocalSGD, not a int"),
        (lambda: FedRep(step(), initial="foo"), "initial must be 'given' or 'seed', not 'foo'"),
    ],
)
def test_methods_refuse_what_they_cannot_use_when_they_are_made(make, message):
    with pytest.raises(DataError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_learners": "2"}, "n_learners must be a whole number of at least 1, not '2'"),
        ({"warm": 1.5}, "warm must be a whole number of at least 0, not 1.5"),
        ({"coupling": "1"}, "coupling must be a number above 0 and at most 1, not '1'"),
    ],
)
def test_fedgmm_refuses_what_it_cannot_use_when_it_is_made(options, message):
    mixture = GaussianMixture(2, rounds=1).fit(clients())
    with pytest.raises(DataError, match=message):
        FedGMM(step(), mixture, **options)


def test_training_refuses_what_it_cannot_use_before_it_begins(monkeypatch):
    monkeypatch.setattr(FedEM, "step", lambda *_: pytest.fail("a client trained"))
    fed = clients(2)
    given = {"method": "fedem", "local": step(), "data": fed, "n_rounds": 1}
    regression = fed.with_column("y", fed["x"][:, 0])
    for changed, message in (
        ({"data": dict(fed.columns)}, "data must be a Federation or an engine such as Local, not a dict"),
        ({"n_rounds": 1.5}, "n_rounds must be a whole number of at least 0, not 1.5"),
        ({"n_rounds": "1"}, "n_rounds must be a whole number of at least 0, not '1'"),
        ({"finish_rounds": 0.5}, "finish_rounds must be a whole number of at least 0, not 0.5"),
        ({"local": nn.Linear(D, C)}, "local must be a LocalSGD, not a Linear"),
        ({"method": 3}, "method must be a name or a computation, not of type int"),
        ({"data": regression}, "column 'y' must hold classes, whole numbers, not float64"),
        ({"data": regression, "method": FedEM(step())}, "column 'y' must hold classes, whole numbers, not float64"),
        ({"data": fed.select(["x"])}, "there is no column 'y'"),
    ):
        with pytest.raises(DataError, match=message):
            train(**{**given, **changed})
    with pytest.raises(DataError, match=r"n_rounds must be a whole number of at least 0, not 1\.5"):
        fs.rounds(FedEM(step()), fed, n_rounds=1.5)


# -- names of classes --------------------------------------------------------------------------------------------------

TREES = ("ash", "birch", "cedar")


def trees(n: int = 4, rows: int = 40, seed: int = 0, **options) -> Federation:
    """Three kinds of trees far apart from one another; the class is where x lies."""
    kind = np.arange(n * rows) % 3
    x = np.random.default_rng(seed).normal(size=(n * rows, D)) + 8.0 * np.eye(3)[kind]
    return Federation({"x": x, "y": np.array(TREES)[kind]}, np.arange(n + 1) * rows, **options)


def renumbered(fed: Federation, names) -> Federation:
    """The same rows and labels, numbered by the order of these names."""
    labels = np.array(fed.names["y"])[fed["y"]]
    return fed.with_column("y", [names.index(label) for label in labels], names=names)


def of_three(name: str, fed: Federation, **options) -> Personalised:
    local = LocalSGD(models.linear(D, 3), cross_entropy, lr=0.3, epochs=2, batch_size=8)
    method = FedGMM(local, GaussianMixture(3, rounds=5).fit(fed), 3, warm=0) if name == "fedgmm" else name
    return train(method, local, fed, n_rounds=4, **options)


@pytest.mark.parametrize("name", ["fedem", "ifca", "fedgmm", "local", "clustered"])
def test_classes_are_matched_by_name_where_model_and_data_have_names(name):
    model, new = of_three(name, trees()), trees(2, seed=1, ids=[50, 51])
    assert model.names == TREES
    other = renumbered(new, ["cedar", "yew", "birch", "ash"])  # no row is of a yew
    some = new.where(new["y"] > 0)
    fewer = renumbered(some, ["birch", "cedar"])
    for plain, same in ((new, other), (some, fewer)):
        assert (plain["y"] != same["y"]).any()
        once, again = model.adapt(plain), model.adapt(same)
        assert once.evaluate(plain).accuracy.min() > 0.9
        for made in (model, model.common(), once):
            assert (made.evaluate(same).loss == made.evaluate(plain).loss).all()
        assert (model.log_prob_y_given_x(same) == model.log_prob_y_given_x(plain)).all()
        assert again.names == TREES
        assert all(again.kept[n].flat.tobytes() == once.kept[n].flat.tobytes() for n in once.kept)
    if name == "fedgmm":
        assert (model.log_prob_joint(other) == model.log_prob_joint(new)).all()


def test_a_name_that_the_model_does_not_know_is_refused_where_labels_count():
    model = of_three("fedgmm", trees())
    odd = trees(1, rows=6, ids=[50])
    odd = odd.with_column("y", [2, 1, 0, 2, 1, 3], names=["cedar", "birch", "ash", "yew"])
    label = Novelty(model, "log_prob_y_given_x").rows
    for ask in (model.evaluate, model.adapt, model.log_prob_y_given_x, model.log_prob_joint, label):
        with pytest.raises(DataError, match="holds 'yew' in row 5, but the model knows 'ash', 'birch', 'cedar': drop"):
            ask(odd)
    assert model.predict(odd).tolist() == [0, 1, 2, 0, 1, 2]  # features are enough for that


def test_without_names_on_both_sides_classes_are_numbers():
    fed = trees()
    bare = Federation({"x": fed["x"], "y": fed["y"]}, fed.offsets)
    turned = renumbered(fed, ["cedar", "birch", "ash"])
    named_model, bare_model = of_three("fedem", fed), of_three("fedem", bare)
    assert bare_model.names is None
    assert named_model.evaluate(bare).accuracy.min() > 0.9
    assert bare_model.evaluate(turned).accuracy.max() < 0.5
    missing = turned.with_column("y", np.where(np.arange(fed.n_rows) == 0, -1, turned["y"]), names=turned.names["y"])
    assert named_model.evaluate(missing).accuracy[0] == pytest.approx(named_model.evaluate(fed).accuracy[0] - 1 / 40)


def test_clients_that_no_round_drew_do_not_cost_the_names():
    assert of_three("local", trees(), sampler=fs.FixedSize(2)).names == TREES


def test_names_of_classes_survive_a_file_and_older_files_have_none(tmp_path):
    model, other = of_three("fedem", trees()), renumbered(trees(), ["cedar", "birch", "ash"])
    save_personal(tmp_path / "m", model, architecture="linear", arguments={"n_features": D, "n_classes": 3})
    again = load_personal(tmp_path / "m")
    assert again.names == TREES
    assert (again.evaluate(other).loss == model.evaluate(other).loss).all()
    adapted, about = load(tmp_path / "m").adapt(other)
    assert about["accuracy_before"] > 0.9
    adapted.save(tmp_path / "more")
    assert load_personal(tmp_path / "more").names == TREES
    arrays, header = checkpoint.read(tmp_path / "m")
    del header["names"]
    checkpoint.write(tmp_path / "old", arrays, header)
    assert load_personal(tmp_path / "old").names is None


# -- what a file must say ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"foo": 1}, "arguments must make a linear, but {'foo': 1} does not: .*unexpected keyword argument 'foo'"),
        ({"n_features": "3", "n_classes": 3}, "arguments must make a linear"),
        (
            {"n_features": D + 2, "n_classes": 3},
            r"float32\[3, 5\] as parameter '1.weight', the model has .*\[3, 3\]",
        ),
        ({"n_features": np.int64(D), "n_classes": 3}, "arguments must be what JSON can say: .*int64"),
        ([D, 3], "arguments must be a mapping of names to values, not a list"),
    ],
)
def test_arguments_that_do_not_make_the_model_are_refused_before_anything_is_written(tmp_path, arguments, message):
    with pytest.raises(DataError, match=message) as caught:
        save_personal(tmp_path / "m", of_three("fedem", trees()), architecture="linear", arguments=arguments)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_another_architecture_or_type_of_numbers_is_not_written_either(tmp_path):
    for method, architecture, message in (
        (of_three("fedem", trees()), "mlp", "mlp of .* has float32.* as parameter '1.weight', the model has float32"),
        (
            train("fedem", step(), clients(2), n_rounds=1),
            "linear",
            "has nothing as parameter 'weight', the model",
        ),
    ):
        with pytest.raises(DataError, match=message):
            save_personal(
                tmp_path / "m", method, architecture=architecture, arguments={"n_features": D, "n_classes": 3}
            )
    double = replace(step(), model=models.linear(D, C).to(torch.float64))
    with pytest.raises(DataError, match=r"has float32\[2, 3\] as parameter '1.weight', the model has float64\[2, 3\]"):
        save_personal(
            tmp_path / "m",
            train("fedem", double, clients(2), n_rounds=1),
            architecture="linear",
            arguments={"n_features": D, "n_classes": C},
        )
    with pytest.raises(DataError, match="about must be what JSON can say"):
        of_three("fedem", trees()).save(tmp_path / "m", about={"what": np.int64(1)})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"foo": 1}, "cannot be made again: arguments must make a linear"),
        ({"n_features": D + 2, "n_classes": 3}, "cannot be made again: arguments must make the model that was trained"),
        (None, "is no personalised model that can be made again from its file alone"),
    ],
)
def test_files_whose_arguments_do_not_make_the_model_are_refused(tmp_path, arguments, message):
    save_personal(
        tmp_path / "m",
        of_three("fedem", trees()),
        architecture="linear",
        arguments={"n_features": D, "n_classes": 3},
    )
    arrays, header = checkpoint.read(tmp_path / "m")
    header["about"]["arguments"] = arguments
    if arguments is None:
        del header["about"]["arguments"]
    checkpoint.write(tmp_path / "bad", arrays, header)
    with pytest.raises(CheckpointError, match=message) as caught:
        load_personal(tmp_path / "bad")
    assert "\n" not in str(caught.value)


# -- rows that are no numbers, steps of adapting -----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["fedem", "ifca", "local", "fedgmm"])
@pytest.mark.parametrize("bad", [np.nan, -np.inf])
def test_features_that_are_not_finite_are_refused_by_column_and_row(name, bad):
    fed = clients(3)
    model = train(name, step(), fed, n_rounds=1)
    x = fed["x"].copy()
    x[23, 1] = bad
    broken = fed.with_column("x", x)
    asked = [model.adapt, model.evaluate, model.predict, model.predict_proba, model.log_prob_y_given_x]
    asked += [Novelty(model, "confidence").rows, Novelty(model, "log_prob_y_given_x").rows]
    for ask in asked:
        with pytest.raises(DataError, match="column 'x' holds NaN or infinity in row 23"):
            ask(broken)
    for client in (None, 1):
        with pytest.raises(DataError, match="column 'x' holds NaN or infinity in row 23"):
            model.predict(x, client=client)


def test_adapting_makes_as_many_steps_as_it_is_told():
    fed, new = clients(6), named(clients(2, seed=5), [50, 51])
    em = train("fedem", step(), fed, n_rounds=3)
    for model in (em, gmm_of(fed, 3)):
        shares = [model.adapt(new, rounds=r).kept["shares"].flat for r in (1, 20, None)]
        assert (shares[0] != shares[1]).any()
        assert (shares[1] == shares[2]).all()
    found = em.method.step(em.state, new, Key(0))[1]["shares"]  # one step is the E-step of a round
    np.testing.assert_allclose(em.adapt(new, rounds=1).kept["shares"].flat[6:], found, atol=1e-12)
    chosen = train("ifca", step(), fed, n_rounds=1)
    assert (chosen.adapt(new, rounds=3).kept["shares"].flat == chosen.adapt(new).kept["shares"].flat).all()
    with pytest.raises(DataError, match=r"rounds must be a whole number of at least 1, not 1\.5"):
        em.adapt(new, rounds=1.5)
    with pytest.raises(DataError, match="LocalOnly has no EM steps: leave out rounds=3"):
        train("local", step(), fed, n_rounds=1).adapt(new, rounds=3)


@pytest.mark.parametrize("changes", [{"names": 5}, {"about": [1]}, {"about": {"arguments": [1]}}, {"method": None}])
def test_a_file_that_says_what_none_says_is_refused_in_one_line(tmp_path, changes):
    linear = LocalSGD(models.linear(D, C), cross_entropy, lr=1.0, epochs=1, batch_size=8)
    model = train("fedem", linear, two_concepts(), n_rounds=1)
    save_personal(tmp_path / "m", model, architecture="linear", arguments={"n_features": D, "n_classes": C})
    arrays, header = checkpoint.read(tmp_path / "m")
    about = changes.get("about")
    changed = {**changes, "about": {**header["about"], **about}} if isinstance(about, dict) else changes
    checkpoint.write(tmp_path / "m", arrays, {**header, **changed})
    with pytest.raises(CheckpointError) as error:
        load_personal(tmp_path / "m")
    assert "\n" not in str(error.value)


def test_targets_of_several_numbers_are_no_classes():
    fed = two_concepts()
    with pytest.raises(DataError, match=r"column 'y' must hold classes, whole numbers, not int64 of shape \[2\] a row"):
        train("fedem", step(), fed.with_column("y", np.stack([fed["y"]] * 2, axis=1)), n_rounds=1)


def test_the_gaussians_that_fedgmm_begins_with_show_their_rounds(capsys):
    fed = Federation({"x": np.eye(4), "y": [0, 1, 1, 0]}, [0, 2, 4])
    step = LocalSGD(models.linear(4, 2), cross_entropy, lr=1.0, epochs=1, batch_size=2)
    train("fedgmm", step, fed, n_rounds=1, progress=True)
    shown = capsys.readouterr().err
    assert shown.index("GaussianMixture") < shown.index("FedGMM")
    train("fedgmm", step, fed, n_rounds=1, progress=False)
    assert capsys.readouterr().err == ""

"""What comes out of training: every client's result, sweeps, and files."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedscape import DataError, Federation, FixedSize, Gaussian, rounds
from fedscape.core.sampling import marked
from fedscape.learning import (
    Adam,
    ClientAccuracy,
    FedAvg,
    LocalSGD,
    Setting,
    Sweep,
    cross_entropy,
    evaluate,
    grid,
    load_model,
    measure_strategies,
    models,
    module_of,
    save_model,
    squared_error,
    standardising,
    sweep,
)
from fedscape.learning.device import Device
from fedscape.learning.halving import _Later
from fedscape.learning.trainer import trainer_of
from fedscape.sketches.selection import KeyedCoin


def federation(sizes, *, seed=0, d=4, n_classes=3) -> Federation:
    rng = np.random.default_rng(seed)
    offsets = np.concatenate(([0], np.cumsum(np.array(sizes, dtype=int))))
    x = rng.normal(size=(offsets[-1], d))
    return Federation({"x": x, "y": x[:, :n_classes].argmax(axis=1)}, offsets)


def local_step(**changed) -> LocalSGD:
    given = {"lr": 0.2, "epochs": 1, "batch_size": 3, **changed}
    return LocalSGD(models.linear(4, 3, seed=1).double(), cross_entropy, **given)


# -- evaluation --------------------------------------------------------------------------------------------------------


def test_evaluation_is_that_of_each_client_alone_and_names_both_averages():
    fed, local = federation([4, 0, 7, 1, 30]), local_step()
    state = FedAvg(local).start(0)
    found = evaluate(local, state, fed, threads=2)
    model = module_of(local.model, state)
    for i in range(len(fed)):
        one = fed.take([i])
        if one.n_rows == 0:
            assert np.isnan([found.loss[i], found.accuracy[i]]).all()
            continue
        output, y = model(torch.tensor(one["x"])).detach(), torch.tensor(one["y"])
        assert found.loss[i] == pytest.approx(float(cross_entropy(output, y).mean()))
        assert found.accuracy[i] == pytest.approx(float((output.argmax(1) == y).double().mean()))
    known, said = found.rows > 0, found.summary()
    assert said["accuracy_of_clients"] == pytest.approx(found.accuracy[known].mean())
    assert said["accuracy_pooled"] == pytest.approx(np.average(found.accuracy[known], weights=found.rows[known]))
    assert said["accuracy_worst_decile"] == pytest.approx(found.accuracy[known].min())
    assert said["loss_worst_decile"] == pytest.approx(found.loss[known].max())
    assert said["accuracy_p50"] == pytest.approx(np.median(found.accuracy[known]))
    assert said["accuracy_spread"] == pytest.approx(found.accuracy[known].std())
    assert set(found.table()) == {"client", "rows", "loss", "accuracy"}
    assert "accuracy_pooled" in repr(found)


def test_metrics_of_a_round_are_those_of_evaluation():
    fed, local = federation([4, 0, 7, 1]), local_step()
    (done,) = rounds(FedAvg(local), fed, n_rounds=1)
    found = evaluate(local, FedAvg(local).start(0), fed).summary()
    share = float(done.metrics["with_rows"])
    assert share == 0.75
    assert float(done.metrics["loss"]) / share == pytest.approx(found["loss_of_clients"])
    assert float(done.metrics["accuracy"]) / share == pytest.approx(found["accuracy_of_clients"])


def test_regression_has_a_loss_and_no_accuracy():
    fed = federation([3, 2]).with_column("y", np.arange(5.0))
    local = LocalSGD(models.linear(4, 1), squared_error, lr=0.1, epochs=1, batch_size=2)
    found = evaluate(local, FedAvg(local).start(0), fed)
    assert found.accuracy is None
    assert "accuracy_pooled" not in found.summary()
    assert set(FedAvg(local).measure(FedAvg(local).start(0), fed)) == {"loss", "with_rows"}
    with pytest.raises(DataError, match="holds no classes"):
        ClientAccuracy(local).step(FedAvg(local).start(0), fed, None)


def test_a_histogram_of_clients_says_what_the_table_says():
    fed, local = federation([4, 0, 7, 1, 9, 5]), local_step()
    state = FedAvg(local).start(0)
    (done,) = rounds(ClientAccuracy(local, bins=5), fed, n_rounds=1, state=state)
    found = evaluate(local, state, fed)
    right = np.rint(found.accuracy * found.rows)[found.rows > 0].astype(int)
    bins = [min(5 * hits // rows, 4) for hits, rows in zip(right, found.rows[found.rows > 0], strict=True)]
    assert done.state["histogram"].tolist() == np.bincount(bins, minlength=5).tolist()
    assert done.state["correct"] / done.state["rows"] == pytest.approx(found.summary()["accuracy_pooled"])


def test_evaluation_of_nobody_and_of_a_foreign_state_is_refused():
    local = local_step()
    with pytest.raises(DataError, match="must have a client to evaluate"):
        evaluate(local, FedAvg(local).start(0), federation([]))
    with pytest.raises(DataError, match=r"holds no model\.<parameter>"):
        evaluate(local, {"w": np.zeros(2)}, federation([2]))


# -- sweeps ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["sequential", "vmap"])
@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
def test_a_sweep_is_its_runs_one_by_one(strategy, optimiser):
    fed = federation([4, 0, 7, 1, 5])
    local = local_step(strategy=strategy, optimiser=optimiser)
    settings = grid(lr=[0.05, 0.3], proximal=[0.0, 0.4], seeds=[2, 3])
    made = Sweep(local, settings, server=Adam(0.05), initial="seed")
    *_, last = rounds(made, fed, n_rounds=3)
    for place, s in enumerate(settings):
        one = FedAvg(replace(local, lr=s.lr, proximal=s.proximal), server=Adam(0.05), initial="seed")
        *_, alone = rounds(one, fed, n_rounds=3, seed=s.seed)
        for name, values in alone.state.items():
            np.testing.assert_allclose(made.state_of(last.state, place)[name], values, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(last.metrics["loss"][place], alone.metrics["loss"], rtol=1e-9)


@pytest.mark.parametrize("lr", [0.0, 0.7])
def test_a_schedule_holds_for_all_settings_whatever_the_rate_it_was_given_with(lr):
    fed, local = federation([4, 3]), local_step(lr=lr, schedule=lambda index: 0.5**index)
    *_, both = rounds(Sweep(local, [Setting(lr=0.2)]), fed, n_rounds=3)
    *_, alone = rounds(FedAvg(replace(local, lr=0.2)), fed, n_rounds=3)
    np.testing.assert_allclose(both.state["model.1.weight"][0], alone.state["model.1.weight"], rtol=1e-9, atol=1e-12)


def test_a_factor_on_the_server_is_a_server_rate():
    fed, local = federation([4, 3]), local_step()
    *_, both = rounds(Sweep(local, [Setting(lr=0.2, server=0.5)], server=Adam(0.1)), fed, n_rounds=3)
    *_, alone = rounds(FedAvg(local, server=Adam(0.05)), fed, n_rounds=3)
    np.testing.assert_allclose(both.state["model.1.weight"][0], alone.state["model.1.weight"], rtol=1e-9, atol=1e-12)


def test_halving_drops_the_worse_and_the_rest_end_as_if_never_stopped():
    fed, held_out = federation([6] * 20), federation([6] * 10, seed=1)
    settings = grid(lr=[0.001, 0.01, 0.1, 1.0])
    kwargs = {"n_rounds": 8, "validation": held_out, "sampler": FixedSize(5), "seed": 3}
    all_of_them = sweep(local_step(), fed, settings, **kwargs)
    halved = sweep(local_step(), fed, settings, rungs=3, keep=0.5, **kwargs)
    assert [t.rounds for t in halved] == [8, 4, 2, 2]
    assert [t.loss for t in all_of_them] == sorted(t.loss for t in all_of_them)
    (same,) = (t for t in all_of_them if t.setting == halved[0].setting)
    for name, values in halved[0].state.items():
        np.testing.assert_allclose(values, same.state[name], rtol=1e-9, atol=1e-12)
    assert "loss=" in repr(halved[0])


@pytest.mark.parametrize("settings", [grid(lr=[0.001, 0.01, 0.1, 1.0]), grid(lr=[0.1]), grid(lr=[0.1, 1e200])])
def test_weights_of_a_sweep_cross_to_the_host_where_somebody_looks(settings, tmp_path, monkeypatch):
    """On a device that keeps the state: a pretended one, as here the tensors are in host memory anyway."""
    fed, held_out, crossed = federation([6] * 20), federation([6] * 10, seed=1), []
    kwargs = {"n_rounds": 8, "validation": held_out, "sampler": FixedSize(5), "seed": 3, "rungs": 2, "keep": 0.5}
    kwargs |= {"server": Adam(0.05), "initial": "seed"}
    plain = sweep(local_step(), fed, settings, **kwargs)
    monkeypatch.setattr(Device, "holds", True)
    fetched = Device.fetched
    monkeypatch.setattr(
        Device, "fetched", lambda self, t: crossed.append({n: len(v) for n, v in t.items()}) or fetched(self, t)
    )
    each_round = sweep(local_step(), fed, settings, **kwargs, checkpoint=tmp_path / "sweep")
    often, crossed[:] = [n for n in crossed if n], []
    at_the_end = sweep(local_step(), fed, settings, **kwargs)
    seldom = [n for n in crossed if n]
    assert len(often) == 8  # rounds
    assert len(seldom) == 2  # rungs
    assert set(seldom[0]) == set(often[0])
    assert {n: sum(each[n] for each in seldom) for n in seldom[0]} == dict.fromkeys(often[0], len(settings))  # once
    for a, b, c in zip(plain, each_round, at_the_end, strict=True):
        assert a.setting == b.setting == c.setting
        assert a.diverged == b.diverged == c.diverged
        assert {n: v.tobytes() for n, v in a.state.items()} == {n: v.tobytes() for n, v in c.state.items()}
        assert {n: v.tobytes() for n, v in b.state.items()} == {n: v.tobytes() for n, v in c.state.items()}


def test_arrays_that_did_not_cross_are_nan_for_whoever_looks(monkeypatch):
    monkeypatch.setattr(Device, "holds", True)
    device = Device(local_step())
    state = device.unseen({"a": torch.ones(2, 3), "one": torch.full((1, 1), 5.0), "n": torch.tensor([4])})
    assert np.isnan(state["a"]).all()
    assert state["a"].shape == (2, 3)
    assert state["n"].tolist() == [0]
    assert device.known_finite({"a": state["a"], "one": state["one"]})
    assert torch.equal(device.tensor("a", state["a"]), torch.ones(2, 3))
    seen = device.seen({**state, "other": np.zeros(2)})
    assert seen["a"].tolist() == [[1.0] * 3] * 2
    assert seen["one"].tolist() == [[5.0]]
    assert seen["n"].tolist() == [4]
    assert seen["other"].tolist() == [0.0, 0.0]
    assert not Device(local_step()).known_finite({"a": state["a"]})


def test_a_wrong_sweep_is_refused():
    with pytest.raises(DataError, match="at least one Setting"):
        Sweep(local_step(), [])
    with pytest.raises(DataError, match="numbers of at least 0"):
        Setting(lr=-1.0)
    with pytest.raises(DataError, match="keep above 0"):
        sweep(local_step(), federation([2]), grid(lr=[0.1]), n_rounds=1, validation=federation([2]), keep=0.0)


# -- files -------------------------------------------------------------------------------------------------------------


def test_rounds_of_a_sweep_that_begin_later_are_accounted_for_like_the_sampler_they_follow():
    privacy = Gaussian(clip=1.0, multiplier=2.0)
    later = privacy.entries(_Later(FixedSize(2), 4), 9)["sum"]
    assert (later["relation"], later["multiplier"]) == ("replace-one", 1.0)
    assert marked(_Later(KeyedCoin(np.ones(5), total=5.0, size=2), 4), "reads_data")


def test_a_saved_model_predicts_as_the_state_does(tmp_path):
    local = local_step()
    *_, last = rounds(FedAvg(local, server=Adam(0.1)), federation([4, 5]), n_rounds=2)
    save_model(tmp_path / "m.safetensors", local.model, last.state, about={"rounds": 2})
    x = torch.ones(2, 4, dtype=torch.float64)
    again = load_model(tmp_path / "m.safetensors", local.model)
    assert torch.equal(again(x), module_of(local.model, last.state)(x))
    assert not torch.equal(again(x), local.model(x))


def test_a_torn_missing_or_foreign_file_is_refused(tmp_path):
    local = local_step()
    path = tmp_path / "m.safetensors"
    save_model(path, local.model, FedAvg(local).start(0))
    with pytest.raises(DataError, match=r"is of another model: '1\.\w+' is"):
        load_model(path, models.linear(5, 3))
    with pytest.raises(DataError, match="it lacks 3"):
        load_model(path, models.mlp(4, 3, 3))
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(DataError, match="no whole safetensors file"):
        load_model(path, local.model)
    with pytest.raises(DataError, match="cannot be read"):
        load_model(tmp_path / "none", local.model)


def test_strategies_are_timed_and_the_choice_needs_no_clock():
    times = measure_strategies(local_step(), federation([2, 3]), repeats=1)
    assert set(times) == {"sequential", "vmap", "stacked"}
    chosen = {"linear": models.linear(4, 3), "mlp": models.mlp(), "cnn": models.cnn((1, 8, 8), 3)}
    found = {
        n: trainer_of(LocalSGD(m, cross_entropy, lr=0.1, epochs=1, batch_size=2)).strategy for n, m in chosen.items()
    }
    assert found == {"linear": "stacked", "mlp": "stacked", "cnn": "sequential"}
    stops = {
        n: LocalSGD(m, cross_entropy, lr=0.1, epochs=1, batch_size=2, early_stopping=0.1) for n, m in chosen.items()
    }
    assert {n: trainer_of(s).strategy for n, s in stops.items()} == {
        "linear": "vmap",
        "mlp": "sequential",
        "cnn": "sequential",
    }
    with pytest.raises(DataError, match="repeats must be at least 1"):
        measure_strategies(local_step(), federation([2]), repeats=0)


def test_a_setting_that_diverges_stops_alone_and_comes_last():
    fed = federation([6, 8, 5], d=3, n_classes=2)
    local = LocalSGD(models.mlp(3, 4, 2), squared, lr=1.0, epochs=2, batch_size=2)
    trials = sweep(local, fed, [Setting(lr=1e6), Setting(lr=0.05)], n_rounds=4, validation=fed)
    alone = sweep(local, fed, [Setting(lr=0.05)], n_rounds=4, validation=fed)
    assert [(t.setting.lr, t.diverged) for t in trials] == [(0.05, False), (1e6, True)]
    assert trials[0].loss == pytest.approx(alone[0].loss, abs=1e-6)
    assert trials[1].loss == float("inf")
    assert all(np.isfinite(v).all() for v in trials[1].state.values())


def squared(output, target):
    return (output.sum(dim=1) - target).square()


def test_standardised_inputs_travel_with_the_saved_model(tmp_path):
    rng = np.random.default_rng(0)
    x = np.stack([rng.normal(50, 10, 60), np.full(60, 7.0)], axis=1)
    fed = Federation({"x": x, "y": (x[:, 0] > 50).astype(int)}, [0, 20, 60])
    model = standardising(models.linear(2, 2), fed)
    assert torch.allclose(model[0](torch.tensor(x))[:, 0].std(unbiased=False), torch.tensor(1.0, dtype=torch.float64))
    local = LocalSGD(model, cross_entropy, lr=0.5, epochs=2, batch_size=5)
    *_, last = rounds(FedAvg(local), fed, n_rounds=5)
    save_model(tmp_path / "m.safetensors", model, last.state)
    again = load_model(tmp_path / "m.safetensors", standardising(models.linear(2, 2), fed.take([0])))
    right = (again(torch.tensor(x, dtype=torch.float32)).argmax(dim=1).numpy() == fed["y"]).mean()
    assert right == pytest.approx(evaluate(local, last.state, fed).summary()["accuracy_pooled"])
    assert right > 0.9
    pixels = Federation({"x": np.array([[0], [255]], np.uint8)}, [0, 2])
    assert standardising(models.linear(1, 2), pixels)[0](torch.tensor([[1.0]])).tolist() == [[1.0]]


@pytest.mark.parametrize("strategy", ["sequential", "vmap"])
def test_a_class_without_an_output_is_one_clear_error(strategy):
    fed = Federation({"x": np.eye(3), "y": [0, 1, 7]}, [0, 1, 3])
    local = LocalSGD(models.linear(3, 2), cross_entropy, lr=0.1, epochs=1, batch_size=2, strategy=strategy)
    with pytest.raises(DataError, match="'y' holds a class that the model has no output for"):
        list(rounds(FedAvg(local), fed, n_rounds=1, measure=0))
    with pytest.raises(DataError, match="'y' holds a class that the model has no output for"):
        evaluate(local, FedAvg(local).start(0), fed)


def test_a_sweep_without_rows_to_compare_on_is_refused_before_it_trains():
    fed = Federation({"x": np.ones((2, 4)), "y": [0, 1]}, [0, 1, 2])
    step = LocalSGD(models.mlp(4, 5, 2), cross_entropy, lr=0.1, epochs=1, batch_size=2)
    with pytest.raises(DataError, match="validation must have rows to compare settings on, it has none"):
        sweep(step, fed, [Setting(lr=0.1)], n_rounds=1, validation=fed.where(fed["y"] > 5))

"""TensorBoard reads what was written; an Optuna study is told what a training and a sweep found."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from fedscape import DataError, FedAvg, Federation, Histogram, LocalSGD, rounds
from fedscape.core.history import History
from fedscape.errors import MissingExtraError
from fedscape.learning import Board, MLflow, Sink, WandB, ask_and_sweep, cross_entropy, follow, models, training

optuna = pytest.importorskip("optuna")
accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")


def data():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 3)).astype(np.float32)
    return Federation({"x": x, "y": (x[:, 0] > 0).astype(int)}, [0, 20, 40, 60])


def step(lr):
    return LocalSGD(models.linear(3, 2), cross_entropy, lr=lr, epochs=1, batch_size=10)


def scalars(folder):
    found = accumulator.EventAccumulator(str(folder), size_guidance={"tensors": 0})
    found.Reload()
    return {tag: [(e.step, float(np.asarray(e.tensor_proto.float_val)[0])) for e in found.Tensors(tag)]
            for tag in found.Tags()["tensors"]}  # fmt: skip


def test_a_board_holds_every_number_of_the_table(tmp_path):
    with Board(tmp_path) as board:
        for _, _, table in training(FedAvg(step(0.5)), data(), test=data(), n_rounds=4, every=2):
            board.write(table[-1:])
    seen = scalars(tmp_path)
    assert [at for at, _ in seen["loss_pooled"]] == [2, 4]
    assert seen["loss_pooled"][-1][1] == pytest.approx(table[-1]["loss_pooled"], rel=1e-6)
    assert "round" not in seen


def test_a_board_takes_a_history_and_refuses_rows_without_a_round(tmp_path):
    history = History()
    for r in rounds(Histogram(2), data(), n_rounds=2):
        history.add(r)
    with Board(tmp_path) as board:
        assert board.write(history) == 10
        assert board.write([{"round": 1, "name": "text", "nothing": None}]) == 0
        with pytest.raises(DataError, match="a row needs 'round' to have a place on the board; it has loss"):
            board.write([{"loss": 1.0}])
    assert scalars(tmp_path)["clients"] == [(0, 3.0), (1, 3.0)]


def study(**settings):
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0), **settings)


def test_a_study_is_told_every_evaluation_and_prunes():
    rates, fed = iter([0.5, 1e-6]), data()

    def objective(trial):
        return follow(trial, training(FedAvg(step(next(rates))), fed, test=fed, n_rounds=4))

    made = study(pruner=optuna.pruners.MedianPruner(n_startup_trials=1, n_warmup_steps=0))
    made.optimize(objective, n_trials=2)
    good, bad = made.trials
    assert sorted(good.intermediate_values) == [1, 2, 3, 4]
    assert good.value == good.intermediate_values[4]
    assert bad.state == optuna.trial.TrialState.PRUNED
    assert len(bad.intermediate_values) < 4
    with pytest.raises(DataError, match="metric must be a column of the table, not 'f1'"):
        follow(made.ask(), training(FedAvg(step(0.5)), fed, test=fed, n_rounds=1), metric="f1")


def test_a_sweep_asks_for_settings_and_tells_how_they_did():
    made, fed = study(), data()
    space = {"lr": optuna.distributions.FloatDistribution(0.01, 1.0, log=True)}
    tried = ask_and_sweep(made, space, step(1.0), fed, n_settings=6, n_rounds=6, rungs=2, validation=fed)
    states = [trial.state.name for trial in made.trials]
    assert sorted(set(states)) == ["COMPLETE", "PRUNED"]
    assert made.best_value == tried[0].loss
    assert made.best_params["lr"] == tried[0].setting.lr
    with pytest.raises(DataError, match="space must name lr, and may name proximal, server and seed"):
        ask_and_sweep(made, {"momentum": None}, step(1.0), fed, n_settings=1, n_rounds=1, validation=fed)


def test_mlflow_reads_the_rows_that_were_written(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = (tmp_path / "runs").as_uri()
    rows = [{"round": 1, "loss": 0.5, "says": "text"}, {"round": 3, "loss": 0.25, "accuracy": 1}]
    with MLflow(uri, settings={"lr": 0.1}) as board:
        assert board.write(rows) == 3
    client = mlflow.MlflowClient(tracking_uri=uri)
    run = client.get_run(board.run_id)
    assert (run.info.status, run.data.params) == ("FINISHED", {"lr": "0.1"})
    assert [(m.step, m.value) for m in client.get_metric_history(board.run_id, "loss")] == [(1, 0.5), (3, 0.25)]
    with pytest.raises(RuntimeError), MLflow(uri) as broken:
        raise RuntimeError
    assert client.get_run(broken.run_id).info.status == "FAILED"
    assert client.get_run(broken.run_id).info.experiment_id == run.info.experiment_id


def test_wandb_keeps_rows_in_the_folder_and_sends_nothing(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    with WandB("fedscape", folder=tmp_path, settings={"lr": 0.1}) as board:
        assert board.write([{"round": 1, "loss": 0.53125}, {"round": 2, "loss": 0.28125}]) == 2
    wandb.teardown()  # its process has written everything then
    (kept,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    content = kept.read_bytes()
    assert b"0.53125" in content
    assert b"0.28125" in content


@pytest.mark.parametrize(
    ("make", "extra"), [(lambda f: MLflow(str(f)), "mlflow"), (lambda f: WandB("p", folder=f), "wandb")]
)
def test_a_tool_that_is_not_installed_is_named(make, extra, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, extra, None)
    with pytest.raises(MissingExtraError, match=rf"needs '{extra}'.*fedscape\[{extra}\]"):
        make(tmp_path)


def test_every_sink_refuses_a_row_without_a_round(tmp_path):
    with Board(tmp_path) as board, pytest.raises(DataError, match="a row needs 'round'"):
        board.write([{"loss": 1.0}])
    with pytest.raises(TypeError, match="Sink must define _put"):
        Sink().write([{"round": 1}])

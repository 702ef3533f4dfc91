"""Other tools that look on: TensorBoard, MLflow and W&B show the numbers of a run, Optuna chooses what to try next.

All are optional and stand outside the loop, which stays the caller's.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from numbers import Real
from typing import Any, Self

from fedscape.core.federation import Federation
from fedscape.core.rounds import Round
from fedscape.core.sampling import Sampler
from fedscape.errors import DataError, require
from fedscape.learning.evaluation import Evaluation
from fedscape.learning.halving import Trial, sweep
from fedscape.learning.local import LocalSGD
from fedscape.learning.server import Mean, Rule
from fedscape.learning.sweeps import Setting

_MEAN = Mean()


class Sink:
    """Where tables of rounds go: `write` takes rows such as those of `training`'s table or a `History`."""

    def write(self, rows: Iterable[Mapping[str, Any]]) -> int:
        """Write rows; how many numbers were written.

        A row's `round` is the step; texts, None and what is no number are left out.
        """
        written = 0
        for row in rows:
            if "round" not in row:
                raise DataError(f"a row needs 'round' to have a place on the board; it has {', '.join(row)}")
            numbers = {k: float(v) for k, v in row.items() if k != "round" and isinstance(v, Real)}
            self._put(int(row["round"]), numbers)
            written += len(numbers)
        self._flush()
        return written

    def _put(self, step: int, numbers: Mapping[str, float]) -> None:
        raise TypeError(f"{type(self).__name__} must define _put(step, numbers)")

    def _flush(self) -> None:
        """Bring what was written to where it is read; most tools do so by themselves."""

    def _close(self, *, failed: bool) -> None:
        """End the run that the tool shows."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._close(failed=kind is not None)


class Board(Sink):
    """Writes tables of rounds as scalars that TensorBoard shows; needs `pip install 'fedscape[log]'`.

    Parameters
    ----------
    folder
        Where the event file goes: `tensorboard --logdir FOLDER` shows it.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, Board(folder) as board:
    ...     board.write([{"round": 1, "loss": 0.5}, {"round": 2, "loss": 0.25}])
    2
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._writer = require("tensorboard.summary", extra="log").Writer(os.fspath(folder))

    def _put(self, step: int, numbers: Mapping[str, float]) -> None:
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, step)

    def _flush(self) -> None:
        self._writer.flush()

    def _close(self, *, failed: bool) -> None:
        self._writer.close()


class MLflow(Sink):
    """Writes tables of rounds as metrics of one MLflow run; needs `pip install mlflow`.

    Parameters
    ----------
    uri
        Where MLflow keeps runs: `sqlite:///runs.db`, a server, or a folder as a URI where MLflow still allows it.
    experiment
        The experiment of the run, made if it is not there.
    settings
        What to keep as the run's parameters, such as the learning rate.
    """

    def __init__(self, uri: str, *, experiment: str = "fedscape", settings: Mapping[str, Any] | None = None) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # it reports its use otherwise
        mlflow = require("mlflow", extra="mlflow")
        self._client = mlflow.MlflowClient(tracking_uri=uri)
        existing = self._client.get_experiment_by_name(experiment)
        number = self._client.create_experiment(experiment) if existing is None else existing.experiment_id
        self.run_id: str = self._client.create_run(number).info.run_id
        for name, value in (settings or {}).items():
            self._client.log_param(self.run_id, name, value)

    def _put(self, step: int, numbers: Mapping[str, float]) -> None:
        for name, value in numbers.items():
            self._client.log_metric(self.run_id, name, value, step=step)

    def _close(self, *, failed: bool) -> None:
        self._client.set_terminated(self.run_id, "FAILED" if failed else "FINISHED")


class WandB(Sink):
    """Writes tables of rounds to a Weights & Biases run; needs `pip install wandb`.

    Parameters
    ----------
    project
        The project of the run.
    folder
        Where W&B keeps its files.
    online
        Whether numbers leave this machine. By default they do not; `wandb sync FOLDER/wandb/offline-*` sends them.
    settings
        What to keep as the run's configuration.
    """

    def __init__(
        self,
        project: str,
        *,
        folder: str | os.PathLike[str],
        online: bool = False,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        mode = "online" if online else "offline"
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # it reports its own errors otherwise, also offline
        wandb = require("wandb", extra="wandb")
        quiet = {"silent": True, "console": "off", "disable_git": True, "disable_code": True}  # the numbers alone
        self._run = wandb.init(
            project=project, dir=os.fspath(folder), mode=mode, config=dict(settings or {}), settings=quiet
        )

    def _put(self, step: int, numbers: Mapping[str, float]) -> None:
        self._run.log(dict(numbers), step=step)

    def _close(self, *, failed: bool) -> None:
        self._run.finish(exit_code=int(failed))


def follow(
    trial: Any, runs: Iterable[tuple[Round, Evaluation, list[dict[str, Any]]]], *, metric: str = "loss_pooled"
) -> float:
    """Report a training to an Optuna trial as it goes on, and stop where the study prunes it; the last value.

    Parameters
    ----------
    trial
        What Optuna gives to an objective.
    runs
        What `training` yields.
    metric
        The column of its table that the study optimises.

    >>> class Patient:
    ...     def report(self, value, step): print(step, value)
    ...     def should_prune(self): return False
    >>> follow(Patient(), [(None, None, [{"round": 5, "loss_pooled": 0.5}])])
    5 0.5
    0.5
    """
    value = float("nan")
    for _, _, table in runs:
        if metric not in table[-1]:
            raise DataError(f"metric must be a column of the table, not {metric!r}: it has {', '.join(table[-1])}")
        value = float(table[-1][metric])
        trial.report(value, table[-1]["round"])
        if trial.should_prune():
            raise require("optuna", extra="tune").TrialPruned(f"after {table[-1]['round']} rounds")
    return value


def ask_and_sweep(
    study: Any,
    space: Mapping[str, Any],
    local: LocalSGD,
    federation: Federation,
    *,
    n_settings: int,
    n_rounds: int,
    validation: Federation,
    rungs: int = 1,
    sampler: Sampler | None = None,
    server: Rule = _MEAN,
    seed: int = 0,
) -> list[Trial]:
    """Ask an Optuna study for settings, train them side by side as one sweep, and tell it how they did.

    The study must minimise: it gets the pooled validation loss. Settings that a rung drops are told as pruned, those
    that diverge as failed.

    Parameters
    ----------
    study
        An Optuna study.
    space
        Optuna distributions of `lr`, `proximal`, `server`, `seed`; lr at least.
    local, federation
        As for `sweep`.
    n_settings
        How many settings to ask for.
    n_rounds, validation, rungs, sampler, server, seed
        As for `sweep`.
    """
    unknown = set(space) - {"lr", "proximal", "server", "seed"}
    if unknown or "lr" not in space:
        raise DataError(f"space must name lr, and may name proximal, server and seed, not {sorted(space)}")
    state = require("optuna", extra="tune").trial.TrialState
    trials = [study.ask(dict(space)) for _ in range(n_settings)]
    settings = [Setting(**trial.params) for trial in trials]
    tried = sweep(
        local,
        federation,
        settings,
        n_rounds=n_rounds,
        validation=validation,
        rungs=rungs,
        sampler=sampler,
        server=server,
        seed=seed,
    )
    trial_of = {id(trial.setting): trial for trial in tried}
    for trial, setting in zip(trials, settings, strict=True):
        done = trial_of[id(setting)]
        if done.diverged:
            study.tell(trial, state=state.FAIL)
            continue
        trial.report(done.loss, done.rounds)
        if done.rounds < n_rounds:
            study.tell(trial, state=state.PRUNED)
        else:
            study.tell(trial, done.loss)
    return tried

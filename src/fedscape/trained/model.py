"""Trained models in use: predict for known and new clients, adapt to new ones, detect novelty.

A model is one file: the method and its network, the arrays that clients keep, and the inputs (`learning/inputs.py`)
that turn a table into arrays. Nothing is unpickled, and no other file is needed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedscape.core.computation import stable_name
from fedscape.core.federation import Federation
from fedscape.core.schedule import cut
from fedscape.errors import CheckpointError, DataError
from fedscape.learning.branches import MeanOfBranches, MultiBranch
from fedscape.learning.cells import missing_in
from fedscape.learning.inputs import Applied, Inputs, as_it_is
from fedscape.learning.layers import Module
from fedscape.learning.local import LocalSGD
from fedscape.personal.files import MAKERS, SETTINGS, Maker, about_model, read_model, with_settings, write_model
from fedscape.personal.methods import Common
from fedscape.personal.novelty import Alarm, Novelty
from fedscape.personal.personalised import Personalised
from fedscape.tabular.saved import FILE, TableModel, is_table_model
from fedscape.temporal.baselines import MinLoss, NearestCentre, SemiCyclic
from fedscape.temporal.branched import Branched
from fedscape.temporal.fedclock import FedClock
from fedscape.temporal.fedtem import FedTEM, FedTEMBySums
from fedscape.temporal.fedtkm import FedTKM
from fedscape.types import Array

MODEL = "model"  # its file in the folder of a run
_BLOCK = 2**14  # rows predicted at once
_TEMPORAL: dict[str, tuple[str, ...]] = {
    "FedClock": ("features", "projections", "abstain", "noise"),
    "FedTEM": ("choice",),
    "FedTEMBySums": ("choice",),
    "FedTKM": (),
    "SemiCyclic": (),
    "MinLoss": (),
    "NearestCentre": ("centres",),
}


def _without_prior(kind: Callable[..., Any]) -> Maker:
    """A maker for a method that no longer needs its temporal prior."""

    def make(local: LocalSGD, settings: Mapping[str, Any], state: Mapping[str, Array]) -> Any:
        return kind(local, None, **settings)

    return make


def _clock(local: LocalSGD, settings: Mapping[str, Any], state: Mapping[str, Array]) -> FedClock:
    """FedClock from a file. Files of before lack the noise of a private one, without which it would predict otherwise.

    Under privacy, and only there, all modes have one scatter.
    """
    scatter = np.asarray(state["score_scatter"])
    if "noise" not in settings and state["branching"] > 0 and (scatter == scatter[:1]).all():
        raise DataError("it was trained privately by a version that did not store the noise: train it again")
    return FedClock(local, None, **settings)


_ALL_MAKERS: dict[str, Maker] = {
    **MAKERS,
    **{kind.__name__: _without_prior(kind) for kind in (FedTEM, FedTEMBySums, FedTKM)},
    "FedClock": _clock,
    **{kind.__name__: with_settings(kind) for kind in (SemiCyclic, MinLoss, NearestCentre)},
}


@dataclass(frozen=True)
class Predicted:
    """Predictions for each row of a table.

    `probabilities` [rows, classes] are NaN where there is no prediction. `known` masks the clients that the model
    knows; it is None if all clients get the same model.
    """

    probabilities: Array
    classes: tuple[str, ...]
    known: Array | None
    applied: Applied

    @property
    def codes(self) -> Array:
        """The index of the most likely class of each row, -1 where there is no prediction."""
        some = ~np.isnan(self.probabilities).any(axis=1)
        return np.where(some, np.nan_to_num(self.probabilities).argmax(axis=1), -1)

    def accuracy(self, target: str) -> tuple[float, int] | None:
        """The share of correct predictions among rows with a label and a prediction, and the number of these rows."""
        if target not in self.applied.rows:
            return None
        codes = self.codes[self.applied.used]
        label, strange = self.applied.rows[target], self.applied.unknown[self.applied.used]
        judged = (codes >= 0) & ((label >= 0) | strange)
        return (float((codes == label)[judged].mean()), int(judged.sum())) if judged.any() else None


@dataclass(frozen=True)
class Trained:
    """A trained model and the inputs that turn tables into arrays.

    Parameters
    ----------
    model
        The method, its last state, and the arrays that clients keep.
    inputs
        Turns a table into arrays.
    about
        The description stored in the file.

    >>> import tempfile
    >>> from fedscape.learning import cross_entropy, models
    >>> from fedscape.methods import train
    >>> fed = Federation({"x": np.eye(4), "y": [0, 1, 1, 0]}, [0, 2, 4])
    >>> step = LocalSGD(models.linear(4, 2), cross_entropy, lr=1.0, epochs=1, batch_size=2)
    >>> made = trained(train("ditto", step, fed, n_rounds=9), "linear", {"n_features": 4, "n_classes": 2})
    >>> made.predict(fed).codes.tolist()
    [0, 1, 1, 0]
    """

    model: Personalised
    inputs: Inputs
    about: Mapping[str, Any]

    @property
    def method(self) -> str:
        """The name of the method, as for `fedscape train`."""
        return str(self.about.get("name") or stable_name(type(self.model.method)))

    @property
    def newcomers(self) -> str | None:
        """The model that an unknown client gets; None if it gets no prediction."""
        served: str | None = self.model.method.newcomers
        return served

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file atomically; only its owner can read it."""
        write_model(path, self.model, self.about)

    def predict(self, table: Federation) -> Predicted:
        """Predict class probabilities for each row, by its client's own model or the model for new clients."""
        applied = self.inputs.apply(table)
        rows = self._aligned(applied.rows)
        valid = self._own_mask(rows)
        served = np.ones(len(rows), dtype=bool) if valid is None or self.newcomers is not None else valid
        state = self.model.ready()
        probabilities = np.full((rows.n_rows, self._n_classes(state, rows)), np.nan)
        for begin, end in cut(rows.sizes, 4096, _BLOCK):
            part = self.model.with_kept(rows.take(slice(begin, end)))
            if part.n_rows:
                logs = self.model.method.log_probs(state, part)
                probabilities[rows.offsets[begin] : rows.offsets[end]] = np.exp(logs)
        probabilities[~served[rows.client_of_row]] = np.nan
        whole = np.full((table.n_rows, probabilities.shape[1]), np.nan)
        whole[applied.used] = probabilities
        classes = self.inputs.classes or tuple(map(str, range(probabilities.shape[1])))
        return Predicted(whole, classes[: probabilities.shape[1]], valid, applied)

    def _n_classes(self, state: Any, rows: Federation) -> int:
        if not rows.n_rows:
            return max(2, len(self.inputs.classes))
        first = rows.where(np.arange(rows.n_rows) == 0)
        return int(self.model.method.log_probs(state, self.model.with_kept(first)).shape[1])

    def _own_mask(self, rows: Federation) -> Array | None:
        """Mask of the clients that have a model of their own; None if the method has one model for all."""
        if isinstance(self.model.method, Common | Branched):
            return None
        lengths = [ragged.lengths for ragged in self.model.kept.values()]
        keeps = np.any(lengths, axis=0) if lengths else np.zeros(len(self.model.ids), dtype=bool)
        return np.isin(rows.ids, self.model.ids[keeps])

    def _aligned(self, rows: Federation) -> Federation:
        """The same clients under the ids of the model: 7 and "7" are one client, whichever type a file has."""
        mine, theirs = self.model.ids, rows.ids
        if not len(mine) or not len(theirs) or (mine.dtype.kind == "U") == (theirs.dtype.kind == "U"):
            return rows
        if mine.dtype.kind == "U":
            return replace_ids(rows, theirs.astype(str))
        numbers = {str(number): number for number in mine.tolist()}
        free = max(numbers.values(), default=0) + 1
        ids = [numbers.get(text, free + i) for i, text in enumerate(theirs.tolist())]
        return replace_ids(rows, np.array(ids, dtype=np.int64))

    def labelled(self, table: Federation) -> tuple[Federation, Applied]:
        """Rows to adapt to or to judge, only labelled ones if there are labels, and how they were derived."""
        applied = self.inputs.apply(table)
        self.inputs.check_labels(table, applied)
        rows = self._aligned(applied.rows)
        target = self.inputs.target
        return (rows.where(rows[target] >= 0) if target in rows else rows), applied

    def adapt(self, table: Federation, *, seed: int = 0) -> tuple[Trained, dict[str, Any]]:
        """Adapt to new clients: return the model with them, and the cost and gain on the rows adapted to."""
        if isinstance(self.model.method, Common | Branched):
            raise DataError(f"{self.method} has one model for all clients: there is nothing to adapt, use predict")
        rows, applied = self.labelled(table)
        adapted = self.model.adapt(rows, seed=seed)
        target = self.inputs.target
        about: dict[str, Any] = {
            "method": self.method,
            "clients": len(rows),
            "labelled": target in rows,
            "numbers_per_client": int(adapted.cost["numbers_per_client"]),
            "seconds": float(adapted.cost["seconds"]),
            "remarks": applied.remarks(),
        }
        if target in rows:
            for name, model in (("before", self.model), ("after", adapted)):
                about[f"accuracy_{name}"] = model.evaluate(rows).summary().get("accuracy_of_clients")
        return replace(self, model=adapted), about

    def novelty(self, familiar: Federation, table: Federation, *, score: str, rate: float) -> dict[str, Any]:
        """Detect new rows and clients of a table, at a rate of false alarms calibrated on `familiar` rows.

        The familiar rows set the threshold and should not be training rows. For typicality half of each client's rows
        estimate the median and only the others set the threshold: rows that influence the median score lower than new
        ones.
        """
        familiar, rows = (self.labelled(part)[0] for part in (familiar, table))
        middle, rest = familiar.split(test=0.5) if score == "typicality" else (familiar, familiar)
        novelty = Novelty(self.model, score).fitted(middle)
        alarm = Alarm.calibrated(novelty.rows(rest), rate=rate)
        scores, clients = novelty.rows(rows), novelty.clients(rows)
        raised = alarm.raised(scores)
        order = np.argsort(-np.nan_to_num(clients, nan=-np.inf), kind="stable")[:10]
        return {
            "score": score,
            "rate": rate,
            "calibrated_on_rows": alarm.n,
            "threshold": alarm.threshold,
            "rows": len(scores),
            "new_rows": int(raised.sum()),
            "share_new": float(raised.mean()) if len(scores) else 0.0,
            "clients": [_client(rows, raised, clients, int(i)) for i in order],
        }


@dataclass(frozen=True)
class TrainedTable:
    """Trees or a GLM from the folder of a run.

    Parameters
    ----------
    model
        The model with what turns a table into its features.

    >>> from fedscape.methods import Columns, train
    >>> from fedscape.tabular.inputs import TableInputs
    >>> fed = Federation({"a": [0.0, 1.0] * 9, "y": [0, 1] * 9}, [0, 8, 18])
    >>> inputs = TableInputs({"a": ()}, "y", ("0", "1"))
    >>> trees = train("trees", Columns(features="x0"), inputs.rows(fed), n_rounds=5).model
    >>> TrainedTable(TableModel("trees", trees, inputs)).predict(fed).codes[:2].tolist()
    [0, 1]
    """

    model: TableModel

    @property
    def method(self) -> str:
        """The name of the method, as for `fedscape train`."""
        return self.model.method

    @classmethod
    def load(cls, path: Path) -> TrainedTable:
        """Read the file, or the one in this folder."""
        return cls(TableModel.load(path / FILE if path.is_dir() else path))

    def predict(self, table: Federation) -> Predicted:
        """Predict class probabilities for each row; the same model for all clients."""
        inputs = self.model.inputs
        if not inputs.classes:
            raise DataError(f"{inputs.target!r} is a number, not a class: use tabular.saved.TableModel.predict")
        missing = [name for name in inputs.columns if name not in table]
        if missing:
            raise DataError(f"the model needs the column {missing[0]!r}, which is not there")
        probabilities = self.model.predict(table)
        rows, unknown = table.select([]), np.zeros(table.n_rows, dtype=bool)
        used = np.asarray(~np.isnan(probabilities).any(axis=1))
        if inputs.target in table:
            codes = inputs.y(table).astype(np.int64)
            unknown = (codes < 0) & ~missing_in(table, inputs.target)
            rows = rows.with_column(inputs.target, codes, names=inputs.classes)
        return Predicted(probabilities, inputs.classes, None, Applied(rows.where(used), used, unknown))


def trained(
    model: Personalised,
    architecture: str,
    arguments: Mapping[str, Any],
    *,
    inputs: Inputs | None = None,
    name: str | None = None,
) -> Trained:
    """Wrap a model for saving and for use on tables; refuse one that a file cannot hold.

    Parameters
    ----------
    model
        The trained model, also of a method with branches.
    architecture, arguments, inputs, name
        As for `save_personal`; the network under the branches.
    """
    network = model.method.local.model
    branches = getattr(network, "branches", network)
    extra = {}
    if isinstance(branches, MultiBranch):
        extra = {"branches": branches.n_branches, "mean": isinstance(network, MeanOfBranches)}
    wrap, settings = _wrap_of(extra), {**SETTINGS, **_TEMPORAL}
    about = about_model(model, architecture, arguments, inputs, name, settings=settings, wrap=wrap)
    local = model.method.local
    model_inputs = inputs or as_it_is(local.features, local.target, model.names or ())
    return Trained(model, model_inputs, {**about, **extra})


def load(path: str | os.PathLike[str]) -> Trained | TrainedTable:
    """Load a model from a file or from the folder of a run; refuse torn, damaged and foreign files in one line."""
    where = Path(path)
    return TrainedTable.load(where) if is_table_model(where) else load_network(where)


def load_network(path: str | os.PathLike[str]) -> Trained:
    """Load a model that is a network; trees and GLMs are refused."""
    where = Path(path)
    if is_table_model(where):
        raise CheckpointError(
            f"{where} holds trees or a GLM, and this takes a network: 'fedscape predict' uses it, and in Python "
            "trained.load"
        )
    if where.is_dir():
        if not (where / MODEL).is_file():
            raise CheckpointError(f"{where} holds no trained model: give the --out folder of 'fedscape train'")
        where = where / MODEL
    model, about = read_model(where, makers=_ALL_MAKERS, wraps=_wrap_of)
    try:
        inputs = Inputs.from_json(about.get("inputs"))
    except DataError as error:
        raise CheckpointError(f"{where}: {error}") from None
    return Trained(model, inputs, about)


def _wrap_of(about: Mapping[str, Any]) -> Callable[[Module], Module] | None:
    """How the method wraps its network: with branches of its last layer."""
    if "branches" not in about:
        return None
    number, mean = int(about["branches"]), bool(about["mean"])

    def wrap(network: Module) -> Module:
        wrapped = MultiBranch(network, n_branches=number)
        return MeanOfBranches(wrapped) if mean else wrapped

    return wrap


def replace_ids(rows: Federation, ids: Array) -> Federation:
    """The same clients under other ids."""
    return Federation(dict(rows.columns), rows.offsets, ids, names=rows.names)


def _client(data: Federation, raised: Array, clients: Array, i: int) -> dict[str, Any]:
    mine = raised[data.offsets[i] : data.offsets[i + 1]]
    some = len(mine) > 0
    return {
        "client": str(data.ids[i]),
        "rows": len(mine),
        "score": float(clients[i]) if some else None,
        "share_new": float(mine.mean()) if some else None,
    }

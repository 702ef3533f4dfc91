"""A trained method with what its clients keep: predictions, densities, new clients, files."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from fedscape import checkpoint
from fedscape.computation import Arrays, frozen
from fedscape.engine import as_ragged
from fedscape.errors import CheckpointError, DataError
from fedscape.federation import Federation
from fedscape.learning.evaluation import Evaluation
from fedscape.personal.fedgmm import FedGMM
from fedscape.personal.learners import check_classes, evaluation, log_probs_of, with_kept_of
from fedscape.ragged import Ragged
from fedscape.random import Array, Key

Rows = Federation | npt.ArrayLike


@dataclass(frozen=True)
class Personalised:
    """A method, its last state, and what each client keeps, by id.

    A client that is not known is served by what the method has for newcomers: the common weights or the common model.

    Parameters
    ----------
    method
        A personalised method, such as FedGMM.
    state
        Its last state.
    ids
        The clients that keep something.
    kept
        What they keep, as `engine.kept()` gives it.

    >>> from fedscape import Local, rounds
    >>> from fedscape.learning import LocalSGD, cross_entropy, models
    >>> from fedscape.personal import FedEM
    >>> engine = Local(Federation({"x": np.eye(4), "y": [0, 1, 1, 0]}, [0, 2, 4]))
    >>> method = FedEM(LocalSGD(models.linear(4, 2), cross_entropy, lr=1.0, epochs=1, batch_size=2), 2)
    >>> for r in rounds(method, engine, n_rounds=20): pass
    >>> Personalised(method, r.state, engine.clients.ids, engine.kept()).predict(np.eye(4), client=0).shape
    (4,)
    """

    method: Any
    state: Mapping[str, Array]
    ids: Array
    kept: Mapping[str, Ragged]
    cost: Mapping[str, float] = field(default_factory=dict)

    def _clients(self, data: Rows, client: Any, column: str) -> Federation:
        if isinstance(data, Federation):
            return with_kept_of(data, self.ids, self.kept)
        x = np.asarray(data)
        if client is None:
            return Federation({column: x}, [0, len(x)])
        fed = Federation({column: x}, [0, len(x)], ids=[client])
        self._check_kind(fed.ids)
        return with_kept_of(fed, self.ids, self.kept)

    def _check_kind(self, ids: Array) -> None:
        """Refuse texts where clients are known by whole numbers, and the other way round: none would be found."""
        if len(ids) and len(self.ids) and (ids.dtype.kind == "U") != (self.ids.dtype.kind == "U"):
            said, known = ("text" if which.dtype.kind == "U" else "whole number" for which in (ids, self.ids))
            raise DataError(
                f"the client {ids[0].item()!r} is a {said}, but clients are known by a {known} such as "
                f"{self.ids[0].item()!r}: name them in the same way"
            )

    def _ready(self) -> Arrays:
        return dict(self.method.prepare(frozen(self.state)))

    def evaluate(self, data: Federation) -> Evaluation:
        """Loss and accuracy of every client under its own model."""
        return evaluation(self.method, self._ready(), self._clients(data, None, ""))

    def predict_proba(self, data: Rows, *, client: Any = None) -> Array:
        """p(class | x) of each row: [rows, classes].

        Parameters
        ----------
        data
            A Federation, whose clients each get their own; or features, [rows, ...].
        client
            Whose model to use for features; by default what newcomers get.
        """
        clients = self._clients(data, client, self.method.local.features)
        return np.asarray(np.exp(self.method.log_probs(self._ready(), clients)))

    def predict(self, data: Rows, *, client: Any = None) -> Array:
        """The most likely class of each row."""
        return np.asarray(self.predict_proba(data, client=client).argmax(axis=1))

    def log_prob_x(self, data: Rows, *, client: Any = None) -> Array:
        """log p(x) of each row, under its client's weights or (features, no client) the common ones: FedGMM only."""
        method = self._gaussian()
        return method.log_prob_x(self._ready(), self._clients(data, client, method.mixture.column))

    def log_prob_y_given_x(self, data: Federation) -> Array:
        """log p(y | x) of each labelled row; minus infinity for a class that the model does not know."""
        logs = self.method.log_probs(self._ready(), self._clients(data, None, ""))
        return log_probs_of(logs, data[self.method.local.target])

    def log_prob_joint(self, data: Federation) -> Array:
        """log p(x, y) of each labelled row: FedGMM only."""
        method = self._gaussian()
        self.check_classes(data)
        return method.log_prob_joint(self._ready(), self._clients(data, None, ""))

    def check_classes(self, data: Federation) -> None:
        """Refuse rows of a class that the model does not know; rows without labels pass."""
        check_classes(self.method, self._ready(), data)

    def common(self) -> Personalised:
        """The same without what clients keep: everyone is a newcomer (the global pi of footnote 3)."""
        return Personalised(self.method, self.state, self.ids[:0], {})

    def _gaussian(self) -> FedGMM:
        if not isinstance(self.method, FedGMM):
            raise DataError(f"{type(self.method).__name__} has no law of x: densities are FedGMM's")
        return self.method

    def adapt(self, data: Federation, *, seed: int = 0) -> Personalised:
        """The same with these clients too, from their own rows; nothing of the method changes and nothing is sent.

        `cost` says how long it took and how many numbers a client came to keep.

        Parameters
        ----------
        data
            New clients; for FedGMM the labels may be missing.
        seed
            For methods that train.
        """
        self._check_kind(data.ids)
        self.check_classes(data)
        began = time.perf_counter()
        made = as_ragged(self.method.adapt(self._ready(), self._clients(data, None, ""), Key(seed)), len(data))
        numbers = sum(int(np.prod(r.flat.shape[1:])) for r in made.values())
        cost = {"seconds": time.perf_counter() - began, "numbers_per_client": numbers, "clients": len(data)}
        old = np.flatnonzero(~np.isin(self.ids, data.ids))
        ids = np.concatenate([self.ids[old], data.ids]) if len(old) else data.ids  # nobody's ids have a kind too
        kept = {}
        for name, new in made.items():
            nothing = Ragged(new.flat[:0], np.zeros(len(old) + 1, dtype=np.int64))
            before = self.kept[name].take(old) if name in self.kept else nothing
            ends = np.concatenate([before.offsets, before.offsets[-1] + new.offsets[1:]])
            kept[name] = Ragged(np.concatenate([before.flat, new.flat]), ends)
        return Personalised(self.method, self.state, ids, kept, cost)

    def save(self, path: str | os.PathLike[str], *, about: Mapping[str, Any] | None = None) -> None:
        """Write state and kept arrays as one file without pickle.

        Parameters
        ----------
        path
            The file.
        about
            Anything JSON can say, for instance how the method is made again.
        """
        arrays = {f"state/{n}": np.asarray(v) for n, v in self.state.items()}
        for name, ragged in self.kept.items():
            arrays[f"kept/{name}/flat"], arrays[f"kept/{name}/offsets"] = ragged
        header = {"kind": "personal", "method": type(self.method).__name__, "about": dict(about or {})}
        checkpoint.write(path, {**arrays, "ids": self.ids}, header, secret=True)  # what clients keep is theirs

    @classmethod
    def load(cls, path: str | os.PathLike[str], method: Any) -> Personalised:
        """Read what `save` wrote for this method; a file of another is refused."""
        arrays, header = checkpoint.read(path)
        if header.get("kind") != "personal":
            raise CheckpointError(f"{os.fspath(path)} is a fedscape file, but not a personalised model")
        if header["method"] != type(method).__name__:
            raise CheckpointError(f"{os.fspath(path)} was made by {header['method']}, not by {type(method).__name__}")
        state = {n.removeprefix("state/"): v for n, v in arrays.items() if n.startswith("state/")}
        names = [n[len("kept/") : -len("/flat")] for n in arrays if n.startswith("kept/") and n.endswith("/flat")]
        kept = {n: Ragged(arrays[f"kept/{n}/flat"], arrays[f"kept/{n}/offsets"]) for n in names}
        return cls(method, state, arrays["ids"], kept)

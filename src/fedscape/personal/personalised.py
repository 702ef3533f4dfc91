"""A trained method with the arrays that its clients keep: predictions, densities, new clients, files."""

from __future__ import annotations

import inspect
import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fedscape.core import checkpoint, codec
from fedscape.core.arrays import Ragged
from fedscape.core.blocks import as_ragged
from fedscape.core.federation import Federation
from fedscape.core.random import Key
from fedscape.core.rounds import frozen
from fedscape.core.validate import all_finite, check_finite, check_whole, codes_by_name
from fedscape.errors import CheckpointError, DataError
from fedscape.learning.adapters import frozen_arrays
from fedscape.learning.evaluation import Evaluation
from fedscape.personal.fedgmm import FedGMM
from fedscape.personal.shared import check_classes, evaluation, log_probs_of, with_kept_of
from fedscape.types import Array, Arrays

Rows = Federation | npt.ArrayLike


@dataclass(frozen=True)
class Personalised:
    """A method, its last state, and the arrays that each client keeps, by id.

    An unknown client gets the method's model for newcomers: the common weights or the common model.

    Parameters
    ----------
    method
        A personalised method, such as FedGMM.
    state
        Its last state.
    ids
        The clients that keep arrays.
    kept
        Their arrays, as returned by `engine.kept()`.
    cost
        Time that `adapt` took, and the number of values that a client keeps.
    names
        Names of the classes, in the order of their numbers. Labels of data with names are matched by name.

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
    names: tuple[str, ...] | None = None

    def _clients(self, data: Rows, client: Any, column: str) -> Federation:
        if isinstance(data, Federation):
            self._check_features(data)
            return with_kept_of(data, self.ids, self.kept)
        x = np.asarray(data)
        fed = Federation({column: x}, [0, len(x)], ids=None if client is None else [client])
        self._check_features(fed)
        if client is None:
            return fed
        self._check_kind(fed.ids)
        return with_kept_of(fed, self.ids, self.kept)

    def _labelled(self, data: Federation) -> Federation:
        """These clients with their kept arrays, and classes numbered as in the model: by name if both have names.

        Rows of a class that the model has no name for are refused.
        """
        column = self.method.local.target
        names = data.names.get(column) if column in data and data[column].dtype.kind in "iu" else None
        if self.names is not None and names is not None and names != self.names and data[column].ndim == 1:
            codes = codes_by_name(data[column], names, self.names)
            unknown = np.flatnonzero((codes < 0) & (data[column] >= 0) & (data[column] < len(names)))
            if len(unknown):
                listed = ", ".join(map(repr, self.names[:5])) + (", ..." if len(self.names) > 5 else "")
                raise DataError(
                    f"column {column!r} holds {names[int(data[column][unknown[0]])]!r} in row {unknown[0]:,}, but the "
                    f"model knows {listed}: drop such rows with where()"
                )
            data = data.with_column(column, codes, names=self.names)
        return self._clients(data, None, "")

    def _check_features(self, clients: Federation) -> None:
        """Refuse features that are not finite: shares and classes computed from them would be meaningless."""
        column = self.method.local.features
        if column in clients and not all_finite(clients[column]):
            check_finite(clients[column], column)

    def _check_kind(self, ids: Array) -> None:
        """Refuse text ids if the model has whole numbers, and the reverse: no client would match."""
        if len(ids) and len(self.ids) and (ids.dtype.kind == "U") != (self.ids.dtype.kind == "U"):
            kind, expected = ("text" if which.dtype.kind == "U" else "whole number" for which in (ids, self.ids))
            raise DataError(
                f"the client {ids[0].item()!r} is a {kind}, but clients are known by a {expected} such as "
                f"{self.ids[0].item()!r}: name them in the same way"
            )

    def ready(self) -> Arrays:
        """The prepared state, as clients use it."""
        return dict(self.method.prepare(frozen(self.state)))

    def with_kept(self, clients: Federation) -> Federation:
        """These clients with their kept arrays; an unknown client keeps nothing."""
        return with_kept_of(clients, self.ids, self.kept)

    def evaluate(self, data: Federation) -> Evaluation:
        """Loss and accuracy of every client under its own model.

        A row of a class that the model does not know counts as wrong, with a loss of -log(1e-12) = 27.63. If model and
        data both name their classes, an unknown name is refused.
        """
        return evaluation(self.method, self.ready(), self._labelled(data))

    def predict_proba(self, data: Rows, *, client: Any = None) -> Array:
        """p(class | x) of each row: [rows, classes].

        Parameters
        ----------
        data
            A Federation, each client with its own model; or features, [rows, ...].
        client
            The client whose model to use for features; by default the model for newcomers.
        """
        clients = self._clients(data, client, self.method.local.features)
        return np.asarray(np.exp(self.method.log_probs(self.ready(), clients)))

    def predict(self, data: Rows, *, client: Any = None) -> Array:
        """The number of the most likely class of each row; `names` has its name."""
        return np.asarray(self.predict_proba(data, client=client).argmax(axis=1))

    def log_prob_x(self, data: Rows, *, client: Any = None) -> Array:
        """log p(x) of each row, under its client's weights or (features, no client) the common ones: FedGMM only."""
        method = self._gaussian()
        return method.log_prob_x(self.ready(), self._clients(data, client, method.mixture.column))

    def log_prob_y_given_x(self, data: Federation) -> Array:
        """log p(y | x) of each labelled row; minus infinity for a class that the model does not know.

        If model and data both name their classes, an unknown name is refused.
        """
        clients = self._labelled(data)
        return log_probs_of(self.method.log_probs(self.ready(), clients), clients[self.method.local.target])

    def log_prob_joint(self, data: Federation) -> Array:
        """log p(x, y) of each labelled row: FedGMM only."""
        method = self._gaussian()
        clients, state = self._labelled(data), self.ready()
        check_classes(method, state, clients)
        return method.log_prob_joint(state, clients)

    def check_classes(self, data: Federation) -> None:
        """Refuse rows of a class that the model does not know; rows without labels pass."""
        check_classes(self.method, self.ready(), self._labelled(data))

    def common(self) -> Personalised:
        """The same without kept arrays: every client is a newcomer (the global pi of footnote 3)."""
        return replace(self, ids=self.ids[:0], kept={}, cost={})

    def _gaussian(self) -> FedGMM:
        if not isinstance(self.method, FedGMM):
            raise DataError(f"{type(self.method).__name__} has no law of x: densities are FedGMM's")
        return self.method

    def adapt(self, data: Federation, *, seed: int = 0, rounds: int | None = None) -> Personalised:
        """Add these clients, from their own rows; the method does not change and nothing is sent.

        `cost` has the time it took and the number of values that a client keeps.

        Parameters
        ----------
        data
            New clients; for FedGMM the labels may be missing.
        seed
            Seed for methods that train.
        rounds
            Number of EM steps of FedEM and FedGMM, by default 20; IFCA needs one and ignores it. Other methods have no
            such steps.
        """
        self._check_kind(data.ids)
        clients, state, options = self._labelled(data), self.ready(), self._options(rounds)
        check_classes(self.method, state, clients)
        began = time.perf_counter()
        adapted = as_ragged(self.method.adapt(state, clients, Key(seed), **options), len(data))
        numbers = sum(int(np.prod(r.flat.shape[1:])) for r in adapted.values())
        cost = {"seconds": time.perf_counter() - began, "numbers_per_client": numbers, "clients": len(data)}
        old = np.flatnonzero(~np.isin(self.ids, data.ids))
        ids = np.concatenate([self.ids[old], data.ids]) if len(old) else data.ids  # an empty id array has a dtype too
        kept = {}
        for name, new in adapted.items():
            nothing = Ragged(new.flat[:0], np.zeros(len(old) + 1, dtype=np.int64))
            before = self.kept[name].take(old) if name in self.kept else nothing
            ends = np.concatenate([before.offsets, before.offsets[-1] + new.offsets[1:]])
            kept[name] = Ragged(np.concatenate([before.flat, new.flat]), ends)
        return replace(self, ids=ids, kept=kept, cost=cost)

    def _options(self, rounds: int | None) -> dict[str, int]:
        if rounds is None:
            return {}
        if "rounds" not in inspect.signature(self.method.adapt).parameters:
            raise DataError(f"{type(self.method).__name__} has no EM steps: leave out rounds={rounds!r}")
        return {"rounds": check_whole("rounds", rounds, least=1)}

    def save(self, path: str | os.PathLike[str], *, about: Mapping[str, Any] | None = None) -> None:
        """Write state and kept arrays as one file without pickle.

        Parameters
        ----------
        path
            The file.
        about
            Any JSON value, for instance how to rebuild the method.
        """
        arrays = {f"state/{n}": np.asarray(v) for n, v in self.state.items()}
        arrays |= codec.plain_of_ragged(self.kept, "kept/")
        arrays |= {f"fixed/{n}": v for n, v in frozen_arrays(self.method.local.model).items()}
        header = {"kind": "personal", "method": type(self.method).__name__, "about": dict(about or {})}
        if self.names is not None:
            header["names"] = list(self.names)
        try:
            json.dumps(header)
        except (TypeError, ValueError) as error:
            raise DataError(f"about must be what JSON can say: {error}; make it numbers, texts and lists") from None
        checkpoint.write(path, {**arrays, "ids": self.ids}, header, secret=True)  # kept arrays are private

    @classmethod
    def load(cls, path: str | os.PathLike[str], method: Any) -> Personalised:
        """Read a file that `save` wrote for this method; refuse the file of another."""
        arrays, header = checkpoint.read(path)
        if header.get("kind") != "personal":
            raise CheckpointError(f"{os.fspath(path)} is a fedscape file, but not a personalised model")
        if header["method"] != type(method).__name__:
            raise CheckpointError(f"{os.fspath(path)} was made by {header['method']}, not by {type(method).__name__}")
        state, kept = codec.prefixed(arrays, "state/"), codec.ragged_of_plain(arrays, "kept/")
        fixed, own = codec.prefixed(arrays, "fixed/"), frozen_arrays(method.local.model)
        if set(fixed) != set(own) or any(not np.array_equal(v, own[n]) for n, v in fixed.items()):
            raise CheckpointError(f"{os.fspath(path)} was trained on other frozen weights than those of the method")
        called = header.get("names")  # older files have none
        return cls(method, state, arrays["ids"], kept, names=None if called is None else tuple(called))

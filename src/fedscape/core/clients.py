"""How clients and their rows are stored: flat columns, offsets, and ids that never change."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from fedscape.core.arrays import Gathered, Ragged, rows_of
from fedscape.core.random import Key, client_keys
from fedscape.core.validate import check_share, checked_columns, checked_ids, is_rising, positions, read_only
from fedscape.errors import DataError, nearest, plural
from fedscape.types import Array


class Clients:
    """Read-only storage of clients and their rows: views and parts, no changes.

    `Federation`, which reads, splits and counts, is what everything else takes. It holds no state beside its parts:
    `keys`, `order` and the index of ids are pure functions of `ids`, computed on first use (functools.cached_property).

    >>> from fedscape import Federation
    >>> fed = Federation({"y": [1, 2, 3]}, [0, 1, 3], ids=["a", "b"])
    >>> isinstance(fed, Clients), fed.n_rows, fed.sizes.tolist()
    (True, 3, [1, 2])
    """

    columns: Mapping[str, Array]
    offsets: Array
    ids: Array
    names: Mapping[str, tuple[str, ...]]
    kept: Mapping[str, Ragged]

    def __init__(
        self,
        columns: Mapping[str, npt.ArrayLike],
        offsets: npt.ArrayLike,
        ids: npt.ArrayLike | None = None,
        *,
        names: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        ends = np.asarray(offsets)
        if ends.ndim != 1 or len(ends) == 0 or ends.dtype.kind not in "iu" or ends[0] != 0 or np.any(np.diff(ends) < 0):
            raise DataError(
                "offsets must be whole numbers that start at 0 and never fall, one more than there are clients"
            )
        ends = ends.astype(np.int64, copy=False)
        stored, checked_names = checked_columns(columns, dict(names or {}))
        for name, values in stored.items():
            if len(values) != ends[-1]:
                raise DataError(f"column {name!r} has {len(values):,} rows, but the offsets end at {ends[-1]:,}")
        who = np.arange(len(ends) - 1) if ids is None else checked_ids(ids)
        if len(who) != len(ends) - 1:
            raise DataError(f"there are {len(who):,} ids, but the offsets describe {len(ends) - 1:,} clients")
        self._set(stored, ends, who, checked_names, {})

    def _set(
        self,
        columns: Mapping[str, Array],
        offsets: Array,
        ids: Array,
        names: Mapping[str, tuple[str, ...]],
        kept: Mapping[str, Ragged],
    ) -> None:
        put = object.__setattr__
        put(self, "columns", MappingProxyType(columns) if isinstance(columns, dict) else columns)
        put(self, "offsets", read_only(offsets))
        put(self, "ids", read_only(ids))
        put(self, "names", names)
        put(self, "kept", kept)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a Federation is immutable: {name!r} cannot be set; with_column() makes a new one")

    def _derive(
        self,
        columns: Mapping[str, Array] | None = None,
        offsets: Array | None = None,
        ids: Array | None = None,
        *,
        names: Mapping[str, tuple[str, ...]] | None = None,
        kept: Mapping[str, Ragged] | None = None,
    ) -> Self:
        """A new object from parts that were validated before."""
        fed = object.__new__(type(self))
        fed._set(
            self.columns if columns is None else columns,
            self.offsets if offsets is None else offsets,
            self.ids if ids is None else ids,
            self.names if names is None else names,
            {} if kept is None else kept,
        )
        return fed

    @classmethod
    def trusted(
        cls, columns: Mapping[str, Array], offsets: Array, ids: Array, names: Mapping[str, tuple[str, ...]]
    ) -> Self:
        """A new object from arrays that were validated when they were written; they are neither read nor copied."""
        fed = object.__new__(cls)
        fed._set(dict(columns), offsets, ids, names, {})
        return fed

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, column: str) -> Array:
        try:
            return self.columns[column]
        except KeyError:
            have = ", ".join(map(repr, self.columns)) or "none"
            raise DataError(
                f"there is no column {column!r}; the columns are: {have}{nearest(column, self.columns)}"
            ) from None

    def __contains__(self, column: object) -> bool:
        return column in self.columns

    def _repr_html_(self) -> str:
        """The columns in a notebook, without rows and ids."""
        from fedscape.display import table

        rows: list[dict[str, Any]] = [
            {"column": name, "type": values.dtype, "shape of a value": " x ".join(map(str, values.shape[1:])) or None}
            for name, values in self.columns.items()
        ]
        for row in rows:
            row["names"] = len(self.names[row["column"]]) if row["column"] in self.names else None
        return table(f"{type(self).__name__}: {plural(len(self), 'client')}, {plural(self.n_rows, 'row')}", rows)

    def __repr__(self) -> str:
        shapes = [f"{n} {v.dtype}{list(v.shape[1:]) if v.ndim > 1 else ''}" for n, v in self.columns.items()]
        listed = [plural(len(self), "client"), plural(self.n_rows, "row"), *(shapes or ["no columns"])]
        return f"Federation({', '.join(listed)})"

    @property
    def n_rows(self) -> int:
        """The number of rows of all clients together."""
        return int(self.offsets[-1])

    @property
    def sizes(self) -> Array:
        """The number of rows of each client."""
        return np.diff(self.offsets)

    @property
    def client_of_row(self) -> Array:
        """The position of the client that owns each row."""
        return np.repeat(np.arange(len(self)), self.sizes)

    @functools.cached_property
    def keys(self) -> Array:
        """The 64-bit key of each client, from its id."""
        return client_keys(self.ids)

    @functools.cached_property
    def order(self) -> Array | None:
        """The positions of the clients in the order of their ids; None where they lie in that order already."""
        return None if is_rising(self.ids) else np.argsort(self.ids)

    @functools.cached_property
    def _index(self) -> dict[Any, int]:
        return {client: position for position, client in enumerate(self.ids.tolist())}

    def positions(self, ids: npt.ArrayLike) -> Array:
        """The positions of these ids; an unknown id is refused.

        >>> from fedscape import Federation
        >>> Federation({}, [0, 0, 0], ids=["a", "b"]).positions(["b"])
        array([1])
        """
        wanted = np.atleast_1d(np.asarray(ids))
        if self.order is None and wanted.dtype.kind in "iU" and wanted.dtype.kind == self.ids.dtype.kind:
            where = np.searchsorted(self.ids, wanted)  # no table of all ids
            if len(self) and (self.ids[np.minimum(where, len(self) - 1)] == wanted).all():
                return where
        try:
            return np.array([self._index[client] for client in wanted.tolist()], dtype=np.int64)
        except KeyError as error:
            raise DataError(f"there is no client {error.args[0]!r} among the {len(self):,} ids") from None

    def fingerprint(self) -> str:
        """A digest of who the clients are and how many rows of what shape they have (not of the values)."""
        digest = hashlib.sha256()
        digest.update(repr([(n, str(v.dtype), v.shape[1:]) for n, v in self.columns.items()]).encode())
        for numbers in (self.offsets, self.keys):
            digest.update(np.ascontiguousarray(numbers).view(np.uint8).data)  # no copy: they may be mapped
        return digest.hexdigest()

    # -- parts ---------------------------------------------------------------------------------------------------------

    def take(self, clients: npt.ArrayLike | slice) -> Self:
        """These clients, by position, mask or slice; other clients' rows are not touched.

        >>> from fedscape import Federation
        >>> Federation({"y": [1, 2, 3]}, [0, 1, 3]).take([1])["y"].tolist()
        [2, 3]
        """
        part = self.borrow(clients)
        object.__setattr__(part, "columns", MappingProxyType({name: part[name] for name in self.columns}))
        return part

    def borrow(self, clients: npt.ArrayLike | slice) -> Self:
        """As `take`, but lazy: a column is copied when it is first read.

        >>> from fedscape import Federation
        >>> Federation({"y": [1, 2, 3]}, [0, 1, 3]).borrow([1])["y"].tolist()
        [2, 3]
        """
        where = clients if isinstance(clients, slice) else positions(clients, len(self))
        rows, offsets = rows_of(self.offsets, where)
        columns = Gathered(self.columns, rows)
        kept = {name: arrays.take(where) for name, arrays in self.kept.items()}
        part = self._derive(columns, offsets, self.ids[where], kept=kept)
        if "keys" in vars(self):  # computed: texts are not hashed again
            vars(part)["keys"] = self.keys[where]
        return part

    def client(self, id: Any) -> Self:  # noqa: A002
        """This one client."""
        return self.take(self.positions([id]))

    def where(self, rows: npt.ArrayLike) -> Self:
        """The same clients with only the rows where this mask holds.

        >>> from fedscape import Federation
        >>> fed = Federation({"t": [1, 5, 9]}, [0, 2, 3])
        >>> fed.where(fed["t"] < 5).sizes
        array([1, 0])
        """
        mask = np.asarray(rows)
        if mask.dtype != bool or mask.shape != (self.n_rows,):
            raise DataError(
                f"where() needs one True or False for each of the {self.n_rows:,} rows, got {mask.dtype}{mask.shape}"
            )
        passed = np.concatenate(([0], np.cumsum(mask)))
        columns = {name: values[mask] for name, values in self.columns.items()}
        return self._derive(columns, passed[self.offsets].astype(np.int64), kept=self.kept)

    def select(self, columns: Sequence[str]) -> Self:
        """Only these columns."""
        return self._derive(
            {name: self[name] for name in columns},
            names={name: value for name, value in self.names.items() if name in columns},
            kept=self.kept,
        )

    def with_kept(self, kept: Mapping[str, Ragged]) -> Self:
        """The same clients, holding what they kept in an earlier round."""
        return self._derive(kept=kept)

    def batches(self, clients: int = 512) -> Iterator[Self]:
        """Consecutive groups of this many clients.

        >>> from fedscape import Federation
        >>> [len(part) for part in Federation({}, [0] * 6).batches(2)]
        [2, 2, 1]
        """
        if clients < 1:
            raise DataError(f"batches() needs at least one client a batch, not {clients}")
        return (self.take(slice(begin, begin + clients)) for begin in range(0, len(self), clients))

    def split(self, *, test: float = 0.2, seed: int = 0) -> tuple[Self, Self]:
        """Split the rows inside each client into train and test.

        A client of n rows gives round(n * test) of them to the test set, but never its only row. Which ones depends
        on (seed, client) alone.

        >>> from fedscape import Federation
        >>> train, test = Federation({"y": range(10)}, [0, 9, 10]).split(test=0.3)
        >>> train.sizes, test.sizes
        (array([6, 1]), array([3, 0]))
        """
        check_share(test)
        wanted = np.minimum(np.floor(self.sizes * test + 0.5).astype(np.int64), np.maximum(self.sizes - 1, 0))
        client = self.client_of_row
        order = np.argsort(client + Key(seed, purpose="split rows").uniform_rows(self), kind="stable")
        chosen = np.zeros(self.n_rows, dtype=bool)
        chosen[order[np.arange(self.n_rows) - self.offsets[client] < wanted[client]]] = True
        return self.where(~chosen), self.where(chosen)

    def split_clients(self, *, test: float = 0.2, seed: int = 0) -> tuple[Self, Self]:
        """Split the clients into train and test: round(clients * test) of them, at least one on each side.

        >>> from fedscape import Federation
        >>> train, test = Federation({"y": range(4)}, [0, 1, 2, 3, 4]).split_clients(test=0.25)
        >>> len(train), len(test)
        (3, 1)
        """
        check_share(test)
        if len(self) < 2:
            raise DataError(f"split_clients() needs at least two clients, there is {len(self)}")
        n_test = min(max(int(len(self) * test + 0.5), 1), len(self) - 1)
        chosen = np.zeros(len(self), dtype=bool)
        chosen[np.argsort(Key(seed, purpose="split clients").uniform(self), kind="stable")[:n_test]] = True
        return self.take(~chosen), self.take(chosen)

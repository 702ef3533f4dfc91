"""The clients and their rows: flat columns, offsets, and ids that never change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from os import PathLike
from typing import Any

import numpy as np
import numpy.typing as npt

from fedscape.core.arrays import group_rows, offsets_of, segment_count, segment_sum
from fedscape.core.clients import Clients
from fedscape.core.validate import (
    Collected,
    check_categories,
    check_dense,
    checked_columns,
    checked_ids,
    codes_between,
    codes_by_name,
    factorise,
    is_sorted,
)
from fedscape.errors import DataError
from fedscape.types import Array


class Federation(Clients):
    """Clients and their rows, immutable.

    The rows of client i are `offsets[i]:offsets[i + 1]` of every column. Clients without rows are normal. A cohort, one
    client, a split, a time window and a simulated population are all Federations.

    Parameters
    ----------
    columns
        Arrays of equal length, one row per record: numbers of any trailing shape, or texts (stored as integer codes,
        their names in `names`).
    offsets
        Where each client's rows begin and end, clients + 1 numbers.
    ids
        One integer or text per client, all different.
    names
        For a column of codes the name of each code; for count vectors the name of each category, its last axis. For a
        column of texts the names that count: any other text has the code -1, as a missing one. Names that are not
        given are collected from the rows, which a private fit refuses (see `declare`).

    >>> fed = Federation.from_arrays({"y": [0, 1, 1, 2]}, clients=["a", "b", "a", "a"])
    >>> fed
    Federation(2 clients, 4 rows, y int64)
    >>> fed.counts("y", n_categories=3).tolist()
    [[1, 1, 1], [0, 1, 0]]
    """

    # -- ways in -------------------------------------------------------------------------------------------------------

    @classmethod
    def from_arrays(
        cls,
        columns: Mapping[str, npt.ArrayLike],
        clients: npt.ArrayLike,
        *,
        ids: npt.ArrayLike | None = None,
        names: Mapping[str, Sequence[str]] | None = None,
    ) -> Federation:
        """Group rows by client.

        Rows that already lie together are not moved, and their clients keep their order; other rows are grouped in one
        pass, and the clients come in the order of their ids. Rows of one client keep their order.

        Parameters
        ----------
        columns
            Arrays of equal length.
        clients
            The client of each row: integers or texts.
        ids
            All clients, where some have no rows; the order of the result.
        names
            Names of the codes of a column.

        >>> Federation.from_arrays({"x": [1.0, 2.0]}, clients=[7, 7], ids=[7, 8]).sizes
        array([2, 0])
        """
        stored, checked_names = checked_columns(columns, dict(names or {}))
        codes, who = factorise(clients, None if ids is None else checked_ids(ids))
        for name, values in stored.items():
            if len(values) != len(codes):
                raise DataError(f"column {name!r} has {len(values):,} rows, but `clients` has {len(codes):,}")
        offsets = offsets_of(np.bincount(codes, minlength=len(who)))
        if not is_sorted(codes):
            order = group_rows(codes, offsets[:-1].copy())
            stored = {name: values[order] for name, values in stored.items()}
        return cls(stored, offsets, who, names=checked_names)

    @classmethod
    def from_clients(cls, clients: Sequence[Any], *, ids: npt.ArrayLike | None = None) -> Federation:
        """One table per client: each a mapping of arrays, a pandas DataFrame, an Arrow table, or an array (column x).

        >>> Federation.from_clients([{"y": [1, 2]}, {"y": []}, {"y": [3]}]).sizes
        array([2, 0, 1])
        """
        from fedscape.formats import stack_clients

        columns, sizes, names = stack_clients(clients)
        return cls(columns, offsets_of(sizes), ids, names=names)

    @classmethod
    def from_frame(
        cls,
        frame: Any,
        *,
        client: str,
        ids: npt.ArrayLike | None = None,
        categorical: Sequence[str] = (),
        numeric: Sequence[str] = (),
        ignore: Sequence[str] = (),
    ) -> Federation:
        """Group the rows of a pandas DataFrame or an Arrow table by the column `client`.

        Texts and categories become integer codes with their names beside them; missing whole numbers become NaN; a
        missing text becomes the code -1.

        Parameters
        ----------
        frame, client, ids
            The table, the column with the client of each row, and all clients if some have no rows.
        categorical
            Columns whose values are classes: they become codes 0, 1, ... with the values as names, -1 where missing.
        numeric
            Columns of texts that are numbers; a text that is none becomes NaN.
        ignore
            Columns to leave out.

        >>> import pyarrow as pa
        >>> table = pa.table({"who": [1, 1, 2], "stars": [5, 3, 5]})
        >>> Federation.from_frame(table, client="who", categorical=["stars"]).names["stars"]
        ('3', '5')
        """
        from fedscape.formats import from_frame
        from fedscape.formats.modelled import overruled

        return overruled(from_frame(frame, client=client, ids=ids), categorical, numeric, ignore)

    @classmethod
    def from_parquet(
        cls,
        path: str | PathLike[str],
        *,
        client: str,
        columns: Sequence[str] | None = None,
        categorical: Sequence[str] = (),
        numeric: Sequence[str] = (),
        ignore: Sequence[str] = (),
    ) -> Federation:
        """Group the rows of a Parquet file, or of a folder of them, by the column `client`, in bounded memory.

        `categorical`, `numeric` and `ignore` are those of `from_frame`.
        """
        from fedscape.formats import from_parquet
        from fedscape.formats.modelled import overruled

        return overruled(from_parquet(path, client=client, columns=columns), categorical, numeric, ignore)

    @classmethod
    def from_csv(
        cls,
        path: str | PathLike[str],
        *,
        client: str,
        columns: Sequence[str] | None = None,
        categorical: Sequence[str] = (),
        numeric: Sequence[str] = (),
        ignore: Sequence[str] = (),
    ) -> Federation:
        """Group the rows of a CSV file by the column `client`.

        `categorical`, `numeric` and `ignore` are those of `from_frame`.
        """
        from fedscape.formats import from_csv
        from fedscape.formats.modelled import overruled

        return overruled(from_csv(path, client=client, columns=columns), categorical, numeric, ignore)

    @classmethod
    def scan(
        cls,
        where: Any,
        *,
        client: str,
        into: str | PathLike[str] | None = None,
        columns: Sequence[str] | None = None,
        filter: Any = None,  # noqa: A002
        connection: Any = None,
        memory: int | None = None,
        overwrite: bool = False,
    ) -> Federation:
        """Group rows that do not fit in memory: they are shuffled to disk and the columns memory-mapped.

        Parameters
        ----------
        where
            Parquet: a file, a folder with or without `key=value` partitions, a glob, a URI; a pyarrow Dataset; or
            anything that streams Arrow, such as a Polars LazyFrame or a DuckDB relation; a table of your own
            (`formats.lake.Batches`); with `connection` (DuckDB, ADBC) a SQL query. Clients without rows are unknown.
        client, columns, filter
            Whose a row is; the columns to read; and a pyarrow expression on the rows of files.
        into, overwrite
            The folder to make, which `load` opens again; by default one that goes with this process.
        memory
            About how many bytes the grouping may take; half a gigabyte by default.

        >>> import pyarrow as pa
        >>> Federation.scan(pa.table({"who": ["b", "a", "b"], "y": [1, 2, 3]}), client="who").client("b")["y"].tolist()
        [1, 3]
        """
        from fedscape.formats.lake import scan, temporary_folder

        folder = temporary_folder() if into is None else into
        how: dict[str, Any] = {"columns": columns, "filter": filter, "connection": connection, "memory": memory}
        scan(where, folder, client=client, overwrite=overwrite, **how)
        return cls.load(folder, verify=False)

    @classmethod
    def concat(cls, parts: Sequence[Federation]) -> Federation:
        """The clients of several Federations, one after the other; ids must differ and columns agree.

        >>> a = Federation({"y": [1]}, [0, 1], ids=["a"])
        >>> Federation.concat([a, Federation({"y": [2]}, [0, 1], ids=["b"])]).ids.tolist()
        ['a', 'b']
        """
        if not parts:
            raise DataError("concat needs at least one Federation, got none")
        first = parts[0]
        for part in parts[1:]:
            if set(part.columns) != set(first.columns) or dict(part.names) != dict(first.names):
                raise DataError(f"concat needs the same columns and names in all parts: {first!r} and {part!r} differ")
        columns = {name: np.concatenate([part[name] for part in parts]) for name in first.columns}
        sizes = np.concatenate([part.sizes for part in parts])
        ids = np.concatenate([part.ids for part in parts])
        collected = {n: v for part in parts for n, v in part.names.items() if isinstance(v, Collected)}
        return cls(columns, offsets_of(sizes), ids, names={**first.names, **collected})

    @classmethod
    def load(cls, path: str | PathLike[str], *, verify: bool = True) -> Federation:
        """Open a folder written by `save`; columns are memory-mapped; `verify` checks every byte."""
        from fedscape.formats import load_folder

        return load_folder(path, verify=verify)

    def save(self, path: str | PathLike[str], *, overwrite: bool = False) -> None:
        """Write a folder of `.npy` columns and one JSON file, whole or not at all."""
        from fedscape.formats import save_folder

        save_folder(self, path, overwrite=overwrite)

    # -- changing ------------------------------------------------------------------------------------------------------

    def with_column(self, name: str, values: npt.ArrayLike, *, names: Sequence[str] | None = None) -> Federation:
        """The same rows with one column added or replaced.

        >>> Federation({"y": [1, 2]}, [0, 2]).with_column("z", [0.5, 0.5])
        Federation(1 client, 2 rows, y int64, z float64)
        """
        stored, checked_names = checked_columns({name: values}, {} if names is None else {name: names})
        if len(stored[name]) != self.n_rows:
            raise DataError(f"column {name!r} has {len(stored[name]):,} rows, the Federation has {self.n_rows:,}")
        others = {n: v for n, v in self.names.items() if n != name}
        return self._derive({**self.columns, **stored}, names={**others, **checked_names}, kept=self.kept)

    def declare(self, column: str, names: Sequence[str]) -> Federation:
        """The same rows with these categories, in this order, whatever rows there are.

        A row of any other category gets the code -1, as if it had none: under privacy such rows are left out, without
        it they are refused, and `where` drops them. Codes without names get these names in their order.

        >>> fed = Federation.from_arrays({"y": ["flu", "rare", "cold"]}, clients=[0, 0, 1])
        >>> fed = fed.declare("y", ["cold", "flu"])
        >>> fed["y"].tolist(), fed.names["y"]
        ([1, -1, 0], ('cold', 'flu'))
        """
        if isinstance(names, str) or len(set(names)) < len(names) or not names:
            raise DataError(f"names must be a list of different texts, at least one, not {names!r}")
        values = self[column]
        if values.ndim > 1:
            return self.with_column(column, values, names=tuple(names))
        if values.dtype.kind not in "biu":
            raise DataError(f"column {column!r} must hold categories to be declared, not {values.dtype}")
        old = self.names.get(column, names)
        return self.with_column(column, codes_by_name(values, old, names).astype(np.int32), names=tuple(names))

    def is_declared(self, column: str) -> bool:
        """Whether the categories of a column were given, as names or as the width of count vectors, not collected.

        >>> fed = Federation.from_arrays({"y": ["flu", "cold"]}, clients=[0, 1])
        >>> fed.is_declared("y"), fed.declare("y", ["cold", "flu"]).is_declared("y")
        (False, True)
        """
        names = self.names.get(column)
        return not isinstance(names, Collected) and (names is not None or self[column].ndim > 1)

    # -- counting ------------------------------------------------------------------------------------------------------

    def categories(self, column: str) -> int:
        """How many categories a column of codes has: its names, or one more than its largest code.

        Values that are no codes 0, 1, 2, ... are refused: `coded` makes codes of them.
        """
        if column in self.names:
            return len(self.names[column])
        values = self[column]
        if values.ndim == 2:
            return int(values.shape[1])
        if not len(values):
            return 0
        finite = values[np.isfinite(values)] if values.dtype.kind == "f" else values
        if values.dtype.kind not in "biuf" or not len(finite):
            raise DataError(f"column {column!r} must hold categories, one a row, not {values.dtype}: see coded()")
        high = int(finite.max())
        if high >= max(2**24, 16 * len(values)):
            raise DataError(
                f"column {column!r} holds {high:,}, and counts of 0 to {high:,} would fill the memory: its values as "
                f"classes are coded({column!r})"
            )
        return high + 1

    def coded(self, column: str) -> Federation:
        """The rows with a value in this column, its values as codes 0, 1, 2, ... whose names are the values.

        What a column is decides `formats.kinds.kind_of`, as for every command: whole numbers of few values, texts and
        truth values are classes; a number is cut into five classes of about as many rows each.

        >>> fed = Federation({"stars": [5, 1, 3, 1]}, [0, 2, 4]).coded("stars")
        >>> fed["stars"].tolist(), fed.names["stars"]
        ([2, 0, 1, 0], ('1', '3', '5'))
        """
        from fedscape.formats.modelled import with_classes

        return with_classes(self, column)[0]

    def counts(self, column: str, n_categories: int | None = None) -> Array:
        """How often each client has each category: [clients, n_categories], int32.

        A column of whole numbers holds one category a row; a two-dimensional one holds count vectors, which are added.

        >>> Federation({"y": [0, 2, 2]}, [0, 1, 3]).counts("y").tolist()
        [[1, 0, 0], [0, 0, 2]]
        """
        n = self.categories(column) if n_categories is None else n_categories
        if n_categories is None and column not in self.names and self[column].ndim == 1:
            check_dense(self[column], n, len(self), column)
        values = check_categories(self[column], n, column)
        if values.ndim == 2:
            sums = self.segment_sum(values)
            if sums.size and sums.max() > np.iinfo(np.int32).max:
                raise DataError(f"column {column!r} has a count of {int(sums.max()):,}: the largest is 2**31 - 1")
            return sums.astype(np.int32)
        return segment_count(values, self.offsets, n)

    def bin(self, column: str, edges: npt.ArrayLike, *, name: str | None = None) -> Federation:
        """Turn numbers into codes: code k where edges[k] <= value < edges[k + 1].

        Parameters
        ----------
        column
            The column of numbers.
        edges
            Rising numbers; -inf and inf are allowed at the ends. A value outside them is refused.
        name
            Where the codes go; by default they replace the column.

        >>> Federation({"income": [10.0, 70.0]}, [0, 2]).bin("income", [0, 50, np.inf])["income"].tolist()
        [0, 1]
        """
        codes, cuts = codes_between(self[column], edges, column)
        labels = [f"[{low:g}, {high:g})" for low, high in pairwise(cuts)]
        return self.with_column(name or column, codes, names=labels)

    def segment_sum(self, values: str | Array) -> Array:
        """Sum over each client's rows: [clients, ...]; whole numbers stay whole, the rest is float64.

        >>> Federation({"x": [1.0, 2.0, 4.0]}, [0, 2, 2, 3]).segment_sum("x")
        array([3., 0., 4.])
        """
        rows = self[values] if isinstance(values, str) else np.asarray(values)
        if len(rows) != self.n_rows:
            raise DataError(f"segment_sum() needs one value for each of the {self.n_rows:,} rows, got {len(rows):,}")
        return segment_sum(rows, self.offsets)

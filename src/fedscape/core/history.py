"""A table of rounds: clients, seconds, bytes and metrics."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedscape.errors import DataError, plural

if TYPE_CHECKING:
    from fedscape.core.rounds import Round


class History:
    """One row per round: round, clients, abandoned, seconds, bytes down and up per client, and the metrics.

    `notes` are sentences about the fit as a whole, such as what a default became; `private` says that its sums were
    noised, and files of it are then for their owner alone.

    >>> from fedscape import Federation, Histogram, rounds
    >>> history = History()
    >>> for r in rounds(Histogram(2), Federation({"y": [0, 1, 1]}, [0, 1, 3]), n_rounds=1):
    ...     history.add(r)
    >>> history["clients"], history["bytes_up"]
    ([2], [16])
    """

    def __init__(self) -> None:
        self._rows: list[dict[str, Any]] = []
        self.notes: list[str] = []
        self.private = False

    def add(self, done: Round) -> None:
        """Append a round."""
        row: dict[str, Any] = {
            "round": done.index,
            "clients": done.clients,
            "abandoned": done.abandoned,
            "seconds": done.seconds,
            "bytes_down": done.bytes_down,
            "bytes_up": done.bytes_up,
            **done.faults,
        }
        for name, values in done.metrics.items():
            if np.ndim(values) == 0:
                row[name] = float(values)
            else:
                row.update({f"{name}.{i}": float(v) for i, v in enumerate(np.ravel(values))})
        self._rows.append(row)
        self.private = self.private or done.run.guard is not None

    def extend(self, rows: Iterable[dict[str, Any]]) -> None:
        """Append rows of another history."""
        self._rows.extend(dict(row) for row in rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (dict(row) for row in self._rows)

    def __getitem__(self, column: str) -> list[Any]:
        if column not in self.columns:
            raise DataError(f"the history has no column {column!r}; it has: {', '.join(self.columns) or 'none yet'}")
        return [row.get(column) for row in self._rows]

    @property
    def columns(self) -> list[str]:
        """The names of the columns, in the order in which they first appeared."""
        return list(dict.fromkeys(name for row in self._rows for name in row))

    def to_arrow(self) -> Any:
        """The table as a `pyarrow.Table`; a metric that was not measured in a round is null there."""
        import pyarrow as pa

        return pa.table({name: self[name] for name in self.columns})

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the table as `.parquet` or `.csv`, whole or not at all; no text of a CSV is a formula."""
        import pyarrow.csv
        import pyarrow.parquet

        from fedscape.core.checkpoint import replace_file
        from fedscape.formats.cells import without_formulas

        table = self.to_arrow()
        ending = Path(path).suffix
        if ending == ".parquet":
            replace_file(path, lambda file: pyarrow.parquet.write_table(table, file), private=self.private)
        elif ending == ".csv":
            shown = without_formulas(table)
            replace_file(path, lambda file: pyarrow.csv.write_csv(shown, file), private=self.private)
        else:
            raise DataError(f"a history is saved as .parquet or .csv, not {ending!r}")

    def _repr_html_(self) -> str:
        """The rounds in a notebook; of many the first and the last."""
        from fedscape.display import table

        return table(f"History: {plural(len(self), 'round')}", self._rows, note=" ".join(self.notes))

    def __repr__(self) -> str:
        return f"History({plural(len(self), 'round')}, {', '.join(self.columns)})"

"""The clients of a mixture, from any kind of input."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse

from fedscape.core.engine import Engine, as_engine
from fedscape.core.federation import Federation
from fedscape.errors import DataError
from fedscape.formats.kinds import as_codes, label_of
from fedscape.types import Array


class Source(NamedTuple):
    """An engine, and how to read its clients' counts."""

    engine: Engine
    column: str
    times: str | None
    n_categories: int
    names: tuple[str, ...] | None
    declared: bool = True  # the number of categories follows from names, a parameter or the shape, not from rows

    @classmethod
    def of(
        cls,
        data: Any,
        column: str,
        count: str | None,
        n_categories: int | None,
        *,
        classes: Sequence[str] | None = None,
    ) -> Source:
        """Read a Federation, an Engine, or counts [clients, C], dense or sparse.

        Values that are not codes 0, 1, 2, ... become codes, with the values as names; `classes` are those of an earlier
        fit, which keep their codes.
        """
        if scipy.sparse.issparse(data):
            return cls(as_engine(_from_sparse(data)), "category", "count", int(data.shape[1]), None)
        if not isinstance(data, Federation) and not hasattr(data, "run"):
            fed = _from_dense(np.asarray(data))
            return cls(as_engine(fed), "counts", None, int(fed["counts"].shape[1]), None)
        if isinstance(data, Federation) and count is None and n_categories is None:
            data = _coded(data, column, classes)
        engine = as_engine(data)
        clients = engine.clients
        local_clients = clients if isinstance(clients, Federation) else None
        if n_categories is None and local_clients is None:
            raise DataError(
                "n_categories must be given where the clients' data cannot be looked at: pass n_categories="
            )
        number = (
            local_clients.categories(column) if n_categories is None and local_clients is not None else n_categories
        )
        if not number or number < 1:
            raise DataError(f"column {column!r} has no categories: it has no rows; pass n_categories=")
        names = local_clients.names.get(column) if local_clients is not None else None
        declared = n_categories is not None or (local_clients is not None and local_clients.is_declared(column))
        return cls(engine, column, count, int(number), names, declared)

    @property
    def clients(self) -> Federation:
        clients = self.engine.clients
        if not isinstance(clients, Federation):
            raise DataError("this needs the clients' own data: pass a Federation or counts, not an engine elsewhere")
        return clients


def _coded(federation: Federation, column: str, classes: Sequence[str] | None) -> Federation:
    """Encode the column as codes with names, unless it holds codes 0, 1, 2, ... or count vectors."""
    values, names = federation[column], federation.names.get(column)
    if values.ndim != 1 or not len(values) or (names is not None and classes in (None, names)):
        return federation
    if classes is None:
        dense = values.dtype.kind in "iu" and values.min() == 0 and int(values.max()) < max(100, 4 * len(values))
        return federation if dense else federation.coded(column)
    codes = as_codes(values, classes, names)
    if (codes < 0).any():
        row = int(np.argmax(codes < 0))
        shown = names[int(values[row])] if names is not None and values[row] >= 0 else label_of(values[row])
        raise DataError(
            f"column {column!r} holds {shown!r} in row {row:,}, which is none of the {len(classes):,} categories that "
            "the mixture was fitted to: drop such rows with where(), or fit again"
        )
    return federation.with_column(column, codes, names=classes)


def _from_dense(counts: Array) -> Federation:
    if counts.ndim != 2 or counts.dtype.kind not in "biuf":
        raise DataError(
            f"counts must be whole numbers [clients, categories], not {counts.dtype}{list(counts.shape)}; "
            "for rows of categories pass a Federation"
        )
    return Federation({"counts": counts}, np.arange(len(counts) + 1))


def _from_sparse(counts: Any) -> Federation:
    rows = scipy.sparse.csr_array(counts)
    rows.sum_duplicates()
    return Federation({"category": rows.indices, "count": rows.data}, rows.indptr.astype(np.int64))

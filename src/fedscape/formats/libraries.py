"""Convert datasets of other libraries: Hugging Face, flwr-datasets and torch.

Reading their objects does not import these libraries.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fedscape.core.arrays import offsets_of
from fedscape.core.federation import Federation
from fedscape.errors import DataError, require
from fedscape.formats.files import one_line
from fedscape.formats.grouping import group, table_source
from fedscape.formats.outgoing import outgoing_batches, outgoing_schema
from fedscape.formats.tables import stack_clients
from fedscape.types import Array


def from_huggingface(dataset: Any, *, client: str, ids: npt.ArrayLike | None = None) -> Federation:
    """Group the rows of a Hugging Face `Dataset` by the client column, through its Arrow table.

    Rows come in the dataset's own order, after `select`, `shuffle` or `filter`. A ClassLabel column keeps its names and
    codes; other types become columns as in `from_frame`.

    Parameters
    ----------
    dataset
        A `datasets.Dataset`: one split, not a DatasetDict and not a stream.
    client
        The client column: integers, texts or a ClassLabel.
    ids
        All clients, where some have no rows; the order of the result.
    """
    table, names = _table_of(dataset)
    return group(table_source(table, "the dataset", names), client=client, ids=ids)


def _table_of(dataset: Any) -> tuple[Any, dict[str, list[str]]]:
    """Return the rows of a Hugging Face dataset as an Arrow table, and the names of its labels."""
    if not all(hasattr(dataset, part) for part in ("with_format", "features", "num_rows")):
        hint = "pick one split, like dataset['train']" if isinstance(dataset, Mapping) else "load it without streaming"
        raise DataError(f"dataset must be a datasets.Dataset, not {type(dataset).__name__}: {hint}")
    table = dataset.with_format("arrow")[:]
    names = {}
    for name, feature in dataset.features.items():
        if type(feature).__name__ == "ClassLabel" and feature.names:
            names[name] = list(feature.names)
            table = table.set_column(table.schema.get_field_index(name), name, _labels(table, name, names[name]))
    return table.replace_schema_metadata(None), names


def _labels(table: Any, name: str, names: list[str]) -> Any:
    """Convert label numbers to a dictionary column; the library marks a missing label with -1."""
    codes = table.column(name).combine_chunks().fill_null(-1).to_numpy(zero_copy_only=False)
    if codes.size and not -1 <= int(codes.min()) <= int(codes.max()) < len(names):
        raise DataError(f"column {name!r} holds the labels {codes.min()} to {codes.max()}, but names {len(names)}")
    places = pa.array(codes.astype(np.int32), mask=codes < 0)
    return pa.DictionaryArray.from_arrays(places, pa.array(names, type=pa.string()))


def to_huggingface(fed: Federation, *, client: str = "client") -> Any:
    """Convert the rows to a Hugging Face `Dataset`; clients without rows are lost.

    Codes become a ClassLabel column. Ready counts stay numbers and lose the names of their categories.

    Parameters
    ----------
    fed
        The rows to convert.
    client
        The name of the column for the client's id.
    """
    datasets = require("datasets", extra="dev")
    schema = outgoing_schema(fed, client)
    table = pa.Table.from_batches(outgoing_batches(fed, schema), schema)
    labelled = {name: labels for name, labels in fed.names.items() if fed.columns[name].ndim == 1 and labels}
    for name in labelled:
        index = table.schema.get_field_index(name)
        table = table.set_column(index, name, pa.array(fed.columns[name].astype(np.int64)))
    try:
        features = datasets.Features.from_arrow_schema(table.schema)
        features.update({name: datasets.ClassLabel(names=list(labels)) for name, labels in labelled.items()})
        return datasets.Dataset(datasets.table.InMemoryTable(table), info=datasets.DatasetInfo(features=features))
    except (ValueError, TypeError, KeyError, pa.ArrowException) as error:
        raise DataError(f"the columns {list(fed.columns)} cannot become a Dataset: {one_line(error)}") from error


def from_flower(federated_dataset: Any, split: str) -> Federation:
    """Read every partition of one split of a `flwr_datasets.FederatedDataset`; the ids are the partition numbers.

    Partitions are loaded from the split's partitioner, because `FederatedDataset.load_partition` reports each call
    as telemetry.

    Parameters
    ----------
    federated_dataset
        The FederatedDataset. If its data is not loaded yet, it is loaded now, from its own source.
    split
        The split to read; it must have a partitioner.
    """
    partitioners = federated_dataset.partitioners
    if split not in partitioners:
        raise DataError(f"there is no partitioner for the split {split!r}, only for {sorted(partitioners)}")
    partitioner = partitioners[split]
    tables: list[Any] = []
    names: dict[str, list[str]] = {}
    for number in range(int(partitioner.num_partitions)):
        table, names = _table_of(partitioner.load_partition(number))
        tables.append(table)
    columns, sizes, texts = stack_clients(tables, names=names)
    return Federation(columns, offsets_of(sizes), names=texts)


def from_torch(dataset: Any, *, clients: npt.ArrayLike, ids: npt.ArrayLike | None = None) -> Federation:
    """Group the items of a map-style torch `Dataset` by client: pairs (x, y), mappings, or single values (x).

    Any object with a length and items works. Tensors, images and numbers become arrays. Every item must have the
    shape and dtype of the first.

    Parameters
    ----------
    dataset
        The dataset.
    clients
        The client of each item: whole numbers or texts.
    ids
        All clients, where some have no rows; the order of the result.

    >>> pairs = [([0.0, 1.0], 1), ([2.0, 3.0], 0), ([4.0, 5.0], 1)]
    >>> from_torch(pairs, clients=["b", "a", "b"])["y"].tolist()
    [0, 1, 1]
    """
    try:
        n_rows = len(dataset)
    except (TypeError, NotImplementedError):
        raise DataError(f"dataset must have a length and items; {type(dataset).__name__} is a stream") from None
    columns: dict[str, Array] = {}
    for row in range(n_rows):
        values = {name: _item(value, name, row) for name, value in _fields(dataset[row], row).items()}
        if row == 0:
            columns = {name: _column_like(value, n_rows) for name, value in values.items()}
        if values.keys() != columns.keys():
            raise DataError(f"item {row} has the fields {sorted(values)}, item 0 has {sorted(columns)}")
        for name, value in values.items():
            _put(columns[name], value, name, row)
    return Federation.from_arrays(columns, clients, ids=ids)


def _fields(item: Any, row: int) -> dict[str, Any]:
    if isinstance(item, Mapping):
        return dict(item)
    if not isinstance(item, tuple):
        return {"x": item}
    if not 1 <= len(item) <= 2:
        raise DataError(f"item {row} is a tuple of {len(item)}: return (x, y), or a mapping that names the fields")
    return dict(zip(("x", "y"), item, strict=False))


def _item(value: Any, name: str, row: int) -> Array:
    try:
        array = np.asarray(value)
    except (ValueError, TypeError, RuntimeError) as error:
        raise DataError(f"{name!r} of item {row} cannot become an array: {one_line(error)}") from error
    if array.dtype.kind not in "biufmMU" or (array.dtype.kind == "U" and array.ndim):
        raise DataError(f"{name!r} of item {row} must be numbers or one text, not {type(value).__name__}")
    return array


def _column_like(value: Array, n_rows: int) -> Array:
    return np.empty((n_rows, *value.shape), dtype=object if value.dtype.kind == "U" else value.dtype)


def _put(column: Array, value: Array, name: str, row: int) -> None:
    texts = column.dtype.kind == "O"
    fits = (value.dtype.kind == "U") if texts else np.can_cast(value.dtype, column.dtype, "safe")
    if value.shape != column.shape[1:] or not fits:
        held = "text" if texts else column.dtype
        raise DataError(
            f"{name!r} of item {row} is {value.dtype}{list(value.shape)}, that of item 0 is {held}"
            f"{list(column.shape[1:])}: give all items one shape and type"
        )
    column[row] = value.item() if texts else value

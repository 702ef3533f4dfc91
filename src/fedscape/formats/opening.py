"""Open a file of any supported format and group its rows: Parquet, CSV, JSON lines, NPZ; Excel is refused."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from fedscape.core.federation import Federation
from fedscape.errors import DataError
from fedscape.formats.dialect import ALWAYS_ALLOWED, MOST_EXPANSION, find_dialect, open_bytes
from fedscape.formats.files import Name, reading
from fedscape.formats.grouping import Source, group, keyed, read_clients, table_source
from fedscape.formats.parquet import from_parquet, parquet_source
from fedscape.formats.tables import csv_source
from fedscape.types import Array

_PACKED = (".gz", ".bz2", ".zst", ".lz4")
_TEXTS = (".csv", ".tsv", ".tab")
_LINES = (".jsonl", ".ndjson")
_NOT_READ = {
    (".xlsx", ".xls", ".xlsm", ".ods"): "a spreadsheet: save the sheet as CSV (UTF-8), or in Python "
    "pandas.read_excel(...).to_parquet(...)",
    (".zip", ".7z", ".tar", ".tgz", ".rar"): "an archive: unpack it and name the file inside",
    (".pkl", ".pickle", ".joblib"): "a pickle, which can run any code when it is read: save it as Parquet or CSV",
    (".sav", ".dta", ".sas7bdat", ".xpt"): "a file of SPSS, Stata or SAS: in Python pandas.read_spss, read_stata or "
    "read_sas(...).to_parquet(...)",
    (".txt", ".dat"): "a text file: where it is a table, call it .csv (the separator is detected)",
    (".db", ".sqlite", ".sqlite3", ".duckdb"): "a database: export the table as CSV or Parquet",
    (".h5", ".hdf5", ".feather", ".arrow", ".orc", ".avro"): "of a format that is not read: save it as Parquet",
}


def ending_of(path: Name) -> str:
    """The ending that names the format, without that of the compression.

    >>> ending_of("events.CSV.gz")
    '.csv'
    """
    name = os.fspath(path).lower()
    for packed in _PACKED:
        name = name.removesuffix(packed)
    return Path(name).suffix


def can_open(path: Name) -> bool:
    """Whether `open_rows` reads this file or folder."""
    place = Path(path)
    if place.is_dir():
        return any(place.glob("*.parquet")) or any(place.glob("*.csv"))
    if ending_of(place) == ".json":
        with reading(place, "JSON file"), place.open("rb") as file:
            return file.read(64).lstrip()[:1] == b"["
    return ending_of(place) in (".parquet", ".npz", *_TEXTS, *_LINES)


def check_readable(path: Name) -> None:
    """Refuse a known but unsupported format, with the remedy."""
    ending = Path(os.fspath(path).lower()).suffix
    for endings, what in _NOT_READ.items():
        if ending in endings:
            raise DataError(f"{os.fspath(path)} is {what}")


def open_rows(
    path: Name, *, client: str, ignore: Sequence[str] = (), rows: str | None = None
) -> tuple[Federation, Source | None]:
    """Group the rows of a file or folder by the client column; also return the rows as a source, in the file's order.

    Parameters
    ----------
    path
        Parquet, CSV, TSV, JSON lines or a JSON list of objects (each also compressed), or NPZ; or a folder of Parquet
        or CSV files.
    client
        The client column.
    ignore
        Columns that are not read.
    rows
        Name of an extra column with the row number in the file, from 0.
    """
    file = Path(path)
    kind = ending_of(file)
    if kind == ".parquet" or (file.is_dir() and any(file.glob("*.parquet"))):
        # only footers, for the column names
        source = parquet_source(path, client=client, columns=[])
        return from_parquet(path, client=client, columns=_but(source, client, ignore), rows=rows), source
    if kind == ".npz":
        return _from_npz(file, client, ignore, rows), None
    if kind in _LINES or kind == ".json":
        source = _json_source(file, lines=kind in _LINES)
    else:
        source = csv_source(path, client=client)
    return group(source, client=client, columns=_but(source, client, ignore), rows=rows), source


def _but(source: Source, client: str, ignore: Sequence[str]) -> list[str] | None:
    if not ignore:
        return None
    one, whose, parts = keyed(source, client)
    names = list(one.schema.names)
    for name in ignore:
        if name not in names or name == whose:
            what = "the client column" if name in (whose, *parts) else "no column"
            raise DataError(f"--ignore names {name!r}, which is {what} of {source.what}")
    return [name for name in names if name not in ignore and name != whose]


def file_rows(source: Source, federation: Federation, client: str, rows: Sequence[int]) -> list[int]:
    """Rows of the file, from 1, for these rows of the Federation: grouping keeps the order within each client."""
    codes, values = read_clients(*keyed(source, client)[:2])
    code_of = {value: code for code, value in enumerate(values)}
    parts = []
    for row in rows:
        owner = int(np.searchsorted(federation.offsets, row, side="right")) - 1
        mine = np.flatnonzero(codes == code_of[federation.ids[owner].item()])
        parts.append(int(mine[row - int(federation.offsets[owner])]) + 1)
    return parts


def _json_source(path: Path, *, lines: bool) -> Source:
    from pyarrow import json as arrow_json

    if find_dialect(path, "JSON file").size == 0:
        raise DataError(f"{path} is empty")
    with reading(path, "file of JSON lines" if lines else "JSON list"):
        if lines:
            with open_bytes(path) as stream:
                table = arrow_json.read_json(stream)
        else:
            with open_bytes(path) as stream:
                content = json.loads(stream.read())
            if not all(isinstance(row, dict) for row in content):
                raise DataError(f"{path} is a JSON list of other things than objects: give each row as an object")
            table = pa.Table.from_pylist(content)
    return table_source(table, os.fspath(path))


def _from_npz(path: Path, client: str, ignore: Sequence[str], rows: str | None) -> Federation:
    with reading(path, "NPZ file"):
        with zipfile.ZipFile(path) as archive:
            size = sum(entry.file_size for entry in archive.infolist())
        if size > max(ALWAYS_ALLOWED, MOST_EXPANSION * path.stat().st_size):
            raise DataError(f"{path} declares {size:,} bytes, too many for its length: it is damaged")
        with np.load(path, allow_pickle=False) as file:
            arrays: dict[str, Array] = {name: file[name] for name in file.files if name not in ignore}
    if client not in arrays:
        have = ", ".join(map(repr, list(arrays)[:20])) or "none"
        raise DataError(
            f"{path} has no array {client!r}; its arrays are {have}; name the client column with --client (client=)"
        )
    who = arrays.pop(client)
    if rows is not None:
        arrays[rows] = np.arange(len(who))
    return Federation.from_arrays(arrays, who)

"""Data by name or by path: whatever a command line or a script has in hand."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedscape import formats
from fedscape.datasets.loading import load, names
from fedscape.errors import DataError
from fedscape.federation import Federation
from fedscape.formats.kinds import Overrules
from fedscape.formats.reading import Reading, read_columns


def read(source: str | os.PathLike[str], *, client: str | None = None, rows: str | None = None) -> Federation:
    """The Federation of this name, file or folder.

    Parameters
    ----------
    source
        A name of `names()`; a folder written by `Federation.save`; a `.parquet`, `.csv` or LEAF `.json` file, or a
        folder of them.
    client
        For Parquet and CSV: the column that says whose a row is, or several with commas between; by default the one
        called "client".
    rows
        A name for a further column: which row of the table a row is, from 0.

    >>> read("femnist-labels").sizes.sum()
    np.int64(3597)
    """
    text, path = os.fspath(source), Path(source)
    if text in names():
        return _numbered(load(text), rows)
    if (path / "federation.json").is_file():
        return _numbered(formats.load_folder(path), rows)
    if not path.exists():
        load(text)  # says which names are near
    whose = "client" if client is None else client
    if path.suffix == ".parquet" or (path.is_dir() and any(path.glob("*.parquet"))):
        return formats.from_parquet(path, client=whose, rows=rows)
    if path.suffix == ".csv" or (path.is_dir() and any(path.glob("*.csv"))):
        return formats.from_csv(path, client=whose, rows=rows)
    if path.suffix == ".json" or (path.is_dir() and any(path.glob("*.json"))):
        return _numbered(formats.from_leaf(path), rows)
    raise DataError(
        f"{text} is no data this version can read: give a .parquet, .csv or LEAF .json file, or a saved folder"
    )


def _numbered(federation: Federation, rows: str | None) -> Federation:
    return federation if rows is None else federation.with_column(rows, np.arange(federation.n_rows))


def read_table(
    source: str | os.PathLike[str],
    *,
    client: str | None = None,
    target: str | None = None,
    features: Sequence[str] | None = None,
    overrules: Overrules | None = None,
) -> tuple[Federation, Reading]:
    """The Federation of this name, file or folder, and how its columns were read: kinds, findings, features.

    Parameters
    ----------
    source, client
        As for `read`.
    target
        The column that is predicted or modelled.
    features
        The columns to use as features; by default all that can be one.
    overrules
        What columns are, against what their values suggest.

    >>> federation, reading = read_table("acs-mini", target="race")
    >>> reading["race"].kind
    'class'
    """
    federation = read(source, client=client)
    reading = read_columns(federation, target=target, features=features, overrules=overrules)
    return federation.select([kind.name for kind in reading.columns]), reading


def write(federation: Federation, target: str | os.PathLike[str], *, overwrite: bool = False) -> None:
    """Write a Federation in the format its ending names: .parquet, .csv, .json (LEAF), or fedscape's own folder.

    Parameters
    ----------
    federation
        What to write.
    target
        Where; an ending that is none of these makes a folder.
    overwrite
        Whether something that is there already is replaced.
    """
    ending = Path(target).suffix
    if ending == ".parquet":
        formats.to_parquet(federation, target, overwrite=overwrite)
    elif ending == ".csv":
        formats.to_csv(federation, target, overwrite=overwrite)
    elif ending == ".json":
        formats.to_leaf(federation, target, overwrite=overwrite)
    else:
        formats.save_folder(federation, target, overwrite=overwrite)

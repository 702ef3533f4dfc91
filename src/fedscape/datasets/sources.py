"""Read data by name or by path."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedscape import formats
from fedscape.core.engine import Engine
from fedscape.core.federation import Federation
from fedscape.datasets import some
from fedscape.datasets.loading import load, names
from fedscape.errors import DataError
from fedscape.formats.findings import Finding
from fedscape.formats.kinds import Overrules
from fedscape.formats.reading import Reading, read_columns


def read(source: str | os.PathLike[str], *, client: str | None = None, rows: str | None = None) -> Federation:
    """Read the Federation of this name, file or folder.

    Parameters
    ----------
    source
        A name of `names()`; a folder written by `Federation.save`; a `.parquet`, `.csv`, `.tsv`, `.jsonl`, `.npz` or
        LEAF `.json` file, texts also compressed; or a folder of Parquet, CSV or LEAF files.
    client
        For tables: the client column, or several separated by commas; by default "client".
    rows
        Name of an extra column with the row number in the table, from 0.

    >>> read("femnist-labels").sizes.sum()
    np.int64(3597)
    """
    text, path = os.fspath(source), Path(source)
    if text in names():
        return _numbered(load(text), rows)
    if (path / "federation.json").is_file():
        return _numbered(formats.load_folder(path), rows)
    if not path.exists() and "://" not in text:
        _check_name(text, path)
    _check_no_study(text, path)
    from fedscape.formats.opening import can_open, check_readable, open_rows

    check_readable(path)
    if can_open(path):
        return open_rows(path, client=client or "client", rows=rows)[0]
    if path.suffix == ".json" or (path.is_dir() and any(path.glob("*.json"))):
        return _numbered(formats.from_leaf(path), rows)
    if "://" in text or (path.is_dir() and any(path.glob("**/*.parquet"))):
        whose = f"--client {client or 'client'}"
        raise DataError(
            f"{text} is a lake, with its files in folders: group its rows once, fedscape data group {text} grouped "
            f"{whose}, and name grouped"
        )
    raise DataError(
        f"{text} is no data this version can read: give a .parquet, .csv, .tsv, .jsonl, .npz or LEAF .json file, or a "
        "saved folder"
    )


def _check_name(text: str, path: Path) -> None:
    """Refuse a text that is neither a file nor a data set, and suggest similar names."""
    if not path.suffix and path.name == text:
        load(text)
    beside = [each.name for each in path.parent.iterdir()] if path.parent.is_dir() else []
    near = difflib.get_close_matches(path.name, beside, n=1)
    hint = f"did you mean {path.with_name(near[0])}?" if near else "check its name and folder"
    raise DataError(f"there is no file {text}: {hint}")


def _check_no_study(text: str, path: Path) -> None:
    """Refuse the folder that a study wrote, or its result: it is no data."""
    folder = path if path.is_dir() else path.parent
    if (path == folder or path.name == "result.json") and all(
        (folder / name).is_file() for name in ("result.json", "report.html")
    ):
        raise DataError(
            f"{text} is a finished study, not data: open {folder / 'report.html'}, or name the data that were studied; "
            f"'fedscape compare' and 'fedscape check --against' take its folder {folder}"
        )


def _numbered(federation: Federation, rows: str | None) -> Federation:
    return federation if rows is None else federation.with_column(rows, np.arange(federation.n_rows))


def read_table(
    source: str | os.PathLike[str],
    *,
    client: str | None = None,
    target: str | Sequence[str] | None = None,
    features: Sequence[str] | None = None,
    overrules: Overrules | None = None,
    sample: int | None = None,
    engine_for: Callable[[Federation], Engine] | None = None,
) -> tuple[Federation, Reading]:
    """Read a name, file or folder: the Federation, and how its columns were read (kinds, findings, features).

    Parameters
    ----------
    source, client
        As for `read`.
    target
        The column to predict or model; of several names, the first that exists.
    features
        The columns to use as features; by default all usable ones.
    overrules
        Column kinds set by hand.
    sample, engine_for
        A seed: of a federation with more than 20 million rows, or 8 GiB, some clients are read, chosen by it and drawn
        on the engine that `engine_for` makes; a finding says so. By default all are read.

    >>> federation, reading = read_table("acs-mini", target="race")
    >>> reading["race"].kind
    'class'
    """
    from fedscape.formats.opening import can_open, check_readable, file_rows, open_rows

    rules, rows = overrules or Overrules(), None
    if os.fspath(source) in names() or not Path(source).exists() or not can_open(source):
        federation = read(source, client=client)
    else:
        check_readable(source)
        federation, rows = open_rows(source, client=client or "client", ignore=rules.ignore)
        rules = replace(rules, ignore=())
    remark = None
    if sample is not None:
        large = federation.n_rows > some.most_rows(federation)
        engine = engine_for(federation) if engine_for is not None and large else None
        federation, remark = some.some_rows(federation, seed=sample, draw=getattr(engine, "draw", None))
    if target is not None and not isinstance(target, str):
        target = next((name for name in target if name in federation), None)
    reading = read_columns(federation, target=target, features=features, overrules=rules)
    findings = list(reading.findings)
    if rows is not None and any(each.row is not None for each in findings):
        places = [each.row for each in findings if each.row is not None]
        behind = dict(zip(places, file_rows(rows, federation, client or "client", places), strict=True))
        findings = [each if each.row is None else replace(each, row=behind[each.row]) for each in findings]
    else:
        findings = [each if each.row is None else replace(each, row=each.row + 1) for each in findings]
    findings += [Finding("dialect", "", remark) for remark in (rows.remarks if rows is not None else ())]
    findings += [Finding("sample", "", remark)] if remark is not None else []
    kept = federation.select([kind.name for kind in reading.columns])
    return kept, replace(reading, findings=tuple(findings))


ENDINGS = (".parquet", ".csv", ".json")  # of files that `write` can write; any other target is a folder


def write(federation: Federation, target: str | os.PathLike[str], *, overwrite: bool = False) -> None:
    """Write a Federation in the format its ending names: .parquet, .csv, .json (LEAF), or fedscape's own folder.

    Parameters
    ----------
    federation
        The Federation to write.
    target
        The path; any other ending creates a folder.
    overwrite
        Whether to replace an existing file or folder.
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

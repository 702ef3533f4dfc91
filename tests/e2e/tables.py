"""Tables as people have them: four whole ones with every common fault, and fifty small nasty ones.

`NASTY` and `WHOLE` map a name to a function that takes a folder and returns the path of the file it wrote. All are
functions of a fixed seed. In the nasty ones the client column is `client`, the label `label`, the features `a` and `b`.
"""

from __future__ import annotations

import bz2
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

Maker = Callable[[Path], Path]
NASTY: dict[str, Maker] = {}
CLIENTS, ROWS = 20, 8  # fidelity compares no fewer clients


# -- the four whole tables ---------------------------------------------------------------------------------------------


def census(folder: Path) -> Path:
    """Persons by state and area: codes, a survey weight, an id, text in a number column, an infinite income, a leak."""
    rng = np.random.default_rng(24)
    n = 3000
    state = rng.integers(0, 6, n)
    age = rng.integers(18, 90, n)
    codes = np.sort(rng.choice(np.arange(10, 9900), 60, replace=False))
    job = rng.choice(60, n, p=rng.dirichlet(np.full(60, 0.5)))
    hours = np.clip(rng.normal(38, 9, n), 1, 99).round(1)
    score = 0.05 * (age - 50) + 0.08 * (hours - 38) + 1.5 * np.sin(job) + 0.5 * (state - 2.5) + rng.normal(0, 0.7, n)
    high = (score > 0).astype(int)
    income = np.exp(10 + 0.2 * score + rng.normal(0, 0.6, n)).round(2)
    cells = [f"{v:.2f}" for v in income]
    cells[412] = "n/a (refused)"
    cells[977] = "inf"
    cells[1203] = "1e300"
    weight = rng.integers(8, 900, n)
    lines = ["SERIALNO,ST,AGE,OCCP,HOURS,INCOME,PWGTP,COUNTRY,AGE2,BRACKET,label"]
    for i in range(n):
        bracket = "over" if high[i] else "under"
        hour = "" if i % 29 == 0 else f"{hours[i]}"
        lines.append(
            f"2024{i:07d},{state[i]},{age[i]},{codes[job[i]]},{hour},{cells[i]},{weight[i]},US,{age[i]},{bracket},{high[i]}"
        )
    return _text(folder / "census.csv", lines)


def ratings(folder: Path) -> Path:
    """Stars 1 to 5 of users for films: ids that repeat, a time of day, an index column, one user with one rating."""
    rng = np.random.default_rng(25)
    n, users, films = 2400, 60, 150
    user = np.concatenate(([0], 1 + rng.integers(0, users - 1, n - 1)))
    film = rng.integers(0, films, n)
    taste = rng.normal(0, 0.6, users)[user] + rng.normal(0, 0.6, films)[film]
    length = rng.normal(105, 18, n).round(0)
    stars = np.clip(np.round(3.4 + taste + 0.01 * (length - 105) + rng.normal(0, 0.6, n)), 1, 5).astype(int)
    when = np.datetime64("2024-01-01") + rng.integers(0, 400 * 86400, n).astype("timedelta64[s]")
    table = pa.table(
        {
            "user_id": user + 10**9,
            "film_id": film,
            "stars": stars,
            "minutes": pa.array(np.where(np.arange(n) % 40 == 3, np.nan, length), from_pandas=True),
            "rated_at": pa.array(when),
            "genre": rng.choice(["drama", "comedy", "horror", "news"], n),
            "__index_level_0__": np.arange(n),
        }
    )
    pq.write_table(table, folder / "ratings.parquet")
    return folder / "ratings.parquet"


def forum(folder: Path) -> Path:
    """Posts by author: semicolons, Latin-1, decimal commas, free text, a boolean label with gaps, one-post authors."""
    rng = np.random.default_rng(26)
    words = ["grüße", "müll", "schön", "das", "ist", "nicht", "gut", "ärger", "heute", "forum"]
    n = 1200
    author = np.where(np.arange(n) < 30, np.arange(n) + 1000, rng.integers(0, 40, n))
    length = rng.gamma(2.0, 20.0, n)
    hour = rng.integers(0, 24, n)
    spam = (length < 25) ^ (rng.random(n) < 0.1)
    lines = ["post;verfasser;stunde;länge;text;gelöscht"]
    for i in range(n):
        text = " ".join(rng.choice(words, 8))
        flag = "" if i % 50 == 7 else ("true" if spam[i] else "false")
        lines.append(f"{i + 1};u{author[i]:04d};{hour[i]};{f'{length[i]:.1f}'.replace('.', ',')};{text};{flag}")
    (folder / "forum.csv").write_bytes(("\n".join(lines) + "\n").encode("latin-1"))
    return folder / "forum.csv"


def clinic(folder: Path) -> Path:
    """Patients of five clinics: 0 to 4 as diagnosis, "?" as missing, a dose only one clinic knows, a constant."""
    rng = np.random.default_rng(27)
    n = 900
    place = rng.choice(["Basel", "Lyon", "Oslo", "Rom", "Wien"], n, p=[0.4, 0.3, 0.15, 0.1, 0.05])
    age = np.clip(rng.normal(58, 12, n), 18, 95).round(0)
    pressure = rng.normal(131, 17, n).round(0)
    risk = 0.06 * (age - 58) + 0.03 * (pressure - 131) + rng.normal(0, 0.8, n)
    grade = np.clip(np.floor(risk + 1.2), 0, 4).astype(int)
    lines = ["patient,clinic,age,pressure,sugar,dose,unit,treated,grade"]
    for i in range(n):
        sugar = "?" if rng.random() < 0.15 else f"{rng.normal(5.6, 0.8):.2f}"
        dose = f"{rng.normal(10, 1):.1f}" if place[i] == "Oslo" else ""
        treated = int(grade[i] > 0)
        lines.append(
            f"{place[i][:2]}-{i:05d},{place[i]},{age[i]:g},{pressure[i]:g},{sugar},{dose},mg,{treated},{grade[i]}"
        )
    return _text(folder / "clinic.csv", lines)


WHOLE: dict[str, Maker] = {"census": census, "ratings": ratings, "forum": forum, "clinic": clinic}


# -- fifty nasty ones --------------------------------------------------------------------------------------------------


def _plain(clients: int = CLIENTS, rows: int = ROWS) -> dict[str, Any]:
    """A sound table, one column of which each nasty one spoils."""
    rng = np.random.default_rng(1)
    n = clients * rows
    a, b = rng.normal(size=n).round(4), rng.normal(2.0, 3.0, n).round(4)
    label = (a + 0.2 * rng.normal(size=n) > 0).astype(np.int64)
    return {"client": np.repeat([f"c{i:02d}" for i in range(clients)], rows), "a": a, "b": b, "label": label}


def _text(path: Path, lines: list[str], ending: str = "\n") -> Path:
    path.write_text(ending.join(lines) + ending, newline="")
    return path


def _lines(columns: dict[str, Any], separator: str = ",") -> list[str]:
    rows = zip(*columns.values(), strict=True)
    return [separator.join(columns), *(separator.join("" if v is None else str(v) for v in row) for row in rows)]


def nasty(name: str) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    """Add a Parquet file of the columns that a function returns."""

    def add(make: Callable[[], Any]) -> Callable[[], Any]:
        def write(folder: Path) -> Path:
            path = folder / f"{name.replace(' ', '_')}.parquet"
            made = make()
            pq.write_table(made if isinstance(made, pa.Table) else pa.table(made), path)
            return path

        NASTY[name] = write
        return make

    return add


def nasty_file(name: str, ending: str) -> Callable[[Callable[[Path], Any]], Callable[[Path], Any]]:
    """Add a file that a function writes to the path it is given."""

    def add(make: Callable[[Path], Any]) -> Callable[[Path], Any]:
        def write(folder: Path) -> Path:
            path = folder / (name.replace(" ", "_") + ending)
            make(path)
            return path

        NASTY[name] = write
        return make

    return add


def _with_label(name: str, change: Callable[[np.ndarray[Any, Any]], Any]) -> None:
    def make() -> dict[str, Any]:
        columns = _plain()
        return {**columns, "label": change(columns["label"])}

    nasty(name)(make)


def _every(values: Any, step: int, other: Any) -> list[Any]:
    return [other if i % step == 3 else v for i, v in enumerate(np.asarray(values).tolist())]


_with_label("boolean labels", lambda y: y.astype(bool))
_with_label("boolean labels with gaps", lambda y: pa.array(_every(y.astype(bool), 9, None)))
_with_label("labels with NaN", lambda y: np.array(_every(y.astype(float), 9, np.nan)))
_with_label("labels of whole numbers with gaps", lambda y: pa.array(_every(y, 9, None)))
_with_label("labels 1 to 5", lambda y: np.arange(len(y)) % 5 + 1)
_with_label("labels of a billion", lambda y: y + 10**9)
_with_label("labels far apart", lambda y: y * 10**12 + 7)
_with_label("negative labels", lambda y: y * 2 - 1)
_with_label("labels with decimals", lambda y: np.arange(len(y)) % 9 * 0.5 + 1)
_with_label("a number as label", lambda y: np.random.default_rng(2).normal(size=len(y)))
_with_label("an infinite label", lambda y: np.array(_every(y.astype(float), 50, np.inf)))
_with_label("one class", lambda y: np.zeros_like(y))
_with_label("no label at all", lambda y: pa.array([None] * len(y), type=pa.int64()))
_with_label("null labels", lambda y: pa.nulls(len(y)))
_with_label("timestamps as labels", lambda y: np.datetime64("2024-01-01", "s") + y.astype("timedelta64[D]"))
_with_label("dates as labels", lambda y: pa.array(np.datetime64("2024-01-01") + y.astype("timedelta64[D]")))
_with_label("text labels", lambda y: np.where(y == 1, "yes", "no"))
_with_label("text labels with gaps", lambda y: pa.array(_every(np.where(y == 1, "yes", "no"), 9, None)))
_with_label("categories as labels", lambda y: pa.array(np.where(y == 1, "yes", "no")).dictionary_encode())
_with_label("a label of its own in every row", lambda y: np.arange(len(y)) * 37 + 5)
_with_label("a class of one row", lambda y: np.where(np.arange(len(y)) == 5, 2, y))
_with_label("decimal type labels", lambda y: pa.array(y).cast(pa.decimal128(22, 2)))
_with_label("times of day as labels", lambda y: pa.array(y.astype(np.int32)).cast(pa.time32("s")))
_with_label("lists as labels", lambda y: pa.array([[v] * (1 + v) for v in y.tolist()]))
_with_label("bytes as labels", lambda y: pa.array([str(v).encode() for v in y.tolist()]))


@nasty("two thousand classes")
def _() -> Any:
    columns = _plain(20, 200)
    return {**columns, "label": np.random.default_rng(3).permutation(np.arange(4_000) % 2_000)}


@nasty("one row a client")
def _() -> Any:
    columns = _plain(240, 1)
    return {**columns, "client": [f"c{i:04d}" for i in range(240)]}


@nasty("one client")
def _() -> Any:
    return {**_plain(), "client": ["c00"] * (CLIENTS * ROWS)}


@nasty("one row")
def _() -> Any:
    return {name: values[:1] for name, values in _plain().items()}


@nasty("no rows")
def _() -> Any:
    return {name: values[:0] for name, values in _plain().items()}


@nasty("no columns but the client")
def _() -> Any:
    return {"client": _plain()["client"]}


@nasty("clients with gaps")
def _() -> Any:
    columns = _plain()
    return {**columns, "client": pa.array(_every(columns["client"], 17, None))}


@nasty("clients as decimals")
def _() -> Any:
    columns = _plain()
    return {**columns, "client": np.repeat(np.arange(CLIENTS) + 0.5, ROWS)}


@nasty("whole clients as decimals with gaps")
def _() -> Any:
    columns = _plain()
    return {**columns, "client": pa.array(_every(np.repeat(np.arange(CLIENTS) * 1.0, ROWS), 17, None))}


@nasty("boolean clients")
def _() -> Any:
    columns = _plain()
    return {**columns, "client": np.arange(CLIENTS * ROWS) % 2 == 0}


@nasty("features with NaN and infinity")
def _() -> Any:
    columns = _plain()
    a = columns["a"].copy()
    a[3], a[40], a[77] = np.nan, np.inf, -np.inf
    return {**columns, "a": a}


@nasty("an outlier of 1e300")
def _() -> Any:
    columns = _plain()
    a = columns["a"].copy()
    a[40] = 1e300
    return {**columns, "a": a}


@nasty("empty features")
def _() -> Any:
    columns = _plain()
    return {**columns, "a": pa.nulls(CLIENTS * ROWS), "b": pa.nulls(CLIENTS * ROWS, pa.float64())}


@nasty("constant and duplicate features")
def _() -> Any:
    columns = _plain()
    return {**columns, "b": np.full(CLIENTS * ROWS, 7), "a again": columns["a"]}


@nasty("a feature that is the label")
def _() -> Any:
    columns = _plain()
    return {**columns, "b": columns["label"]}


@nasty("dates as features")
def _() -> Any:
    columns = _plain()
    return {**columns, "b": np.datetime64("2024-01-01", "s") + np.arange(CLIENTS * ROWS).astype("timedelta64[h]")}


@nasty("features of different lengths")
def _() -> Any:
    columns = _plain()
    return {**columns, "b": pa.array([[1.0] * (1 + i % 3) for i in range(CLIENTS * ROWS)])}


@nasty("structs as features")
def _() -> Any:
    columns = _plain()
    return {**columns, "b": pa.array([{"u": i} for i in range(CLIENTS * ROWS)])}


@nasty("duplicated names")
def _() -> Any:
    columns = _plain()
    arrays = [pa.array(columns[name]) for name in ("client", "a", "b", "label")]
    return pa.Table.from_arrays([*arrays, arrays[1]], names=["client", "a", "b", "label", "a"])


@nasty("an index column")
def _() -> Any:
    return {"__index_level_0__": np.arange(CLIENTS * ROWS), **_plain()}


@nasty("names with spaces and signs")
def _() -> Any:
    columns = _plain()
    return {**columns, "b, or not b?": columns["b"], "[bold]x[/bold]": columns["a"], "<script>": columns["a"]}


@nasty_file("semicolons", ".csv")
def _(path: Path) -> None:
    _text(path, _lines(_plain(), ";"))


@nasty_file("decimal commas", ".csv")
def _(path: Path) -> None:
    columns = {name: [str(v).replace(".", ",") for v in values.tolist()] for name, values in _plain().items()}
    _text(path, _lines(columns, ";"))


@nasty_file("points between thousands", ".csv")
def _(path: Path) -> None:
    columns = _plain()
    grouped = [f"{1e6 * v:,.2f}".translate(str.maketrans(",.", ".,")) for v in columns["a"].tolist()]
    _text(path, _lines({**columns, "a": grouped}, ";"))


@nasty_file("money and dates as texts", ".csv")
def _(path: Path) -> None:
    columns = _plain()
    money = [f'"${1000 * abs(v):,.2f}"' for v in columns["a"].tolist()]
    days = [f"{j % 28 + 1:02d}.{j % 12 + 1:02d}.2024 {j % 24:02d}:00" for j in range(CLIENTS * ROWS)]
    _text(path, _lines({**columns, "a": money, "b": days}))


@nasty_file("Latin-1", ".csv")
def _(path: Path) -> None:
    columns = _plain()
    lines = _lines({**columns, "ort": ["Zürich", "Malmö"] * (CLIENTS * ROWS // 2)})
    path.write_bytes("\n".join(lines).encode("latin-1"))


@nasty_file("UTF-16", ".csv")
def _(path: Path) -> None:
    path.write_bytes("\r\n".join(_lines(_plain())).encode("utf-16"))


@nasty_file("byte order mark", ".csv")
def _(path: Path) -> None:
    path.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(_lines(_plain())).encode())


@nasty_file("tabs", ".tsv")
def _(path: Path) -> None:
    _text(path, _lines(_plain(), "\t"))


@nasty_file("compressed", ".csv.gz")
def _(path: Path) -> None:
    path.write_bytes(gzip.compress("\n".join(_lines(_plain())).encode(), mtime=0))


@nasty_file("compressed twice as small", ".csv.bz2")
def _(path: Path) -> None:
    path.write_bytes(bz2.compress("\n".join(_lines(_plain())).encode()))


@nasty_file("compressed and torn", ".csv.gz")
def _(path: Path) -> None:
    path.write_bytes(gzip.compress("\n".join(_lines(_plain())).encode(), mtime=0)[:-40])


@nasty_file("arrays", ".npz")
def _(path: Path) -> None:
    np.savez(path, **_plain())


@nasty_file("arrays with objects", ".npz")
def _(path: Path) -> None:
    np.savez(path, **{**_plain(), "b": np.array([{}] * (CLIENTS * ROWS), dtype=object)})


@nasty_file("JSON lines", ".jsonl")
def _(path: Path) -> None:
    columns = {name: values.tolist() for name, values in _plain().items()}
    rows = zip(*columns.values(), strict=True)
    _text(path, [json.dumps(dict(zip(columns, row, strict=True))) for row in rows])


@nasty_file("a JSON list", ".json")
def _(path: Path) -> None:
    columns = {name: values.tolist() for name, values in _plain().items()}
    rows = zip(*columns.values(), strict=True)
    path.write_text(json.dumps([dict(zip(columns, row, strict=True)) for row in rows]))


@nasty_file("Excel", ".xlsx")
def _(path: Path) -> None:
    path.write_bytes(b"PK\x03\x04" + bytes(200))


@nasty_file("Excel called CSV", ".csv")
def _(path: Path) -> None:
    path.write_bytes(b"PK\x03\x04" + bytes(200))


@nasty_file("an empty file", ".csv")
def _(path: Path) -> None:
    path.write_bytes(b"")


@nasty_file("only a header", ".csv")
def _(path: Path) -> None:
    _text(path, ["client,a,b,label"])


@nasty_file("no header", ".csv")
def _(path: Path) -> None:
    _text(path, _lines(_plain())[1:])


@nasty_file("mixed types", ".csv")
def _(path: Path) -> None:
    columns = _plain()
    _text(path, _lines({**columns, "b": _every(columns["b"], 2, "many")}))


@nasty_file("one text in a number column", ".csv")
def _(path: Path) -> None:
    columns = _plain()
    a = columns["a"].tolist()
    a[57] = "unknown"
    _text(path, _lines({**columns, "a": a}))


@nasty_file("ids of 10^25", ".csv")
def _(path: Path) -> None:
    columns = _plain()
    _text(path, _lines({**columns, "b": [10**25 + i for i in range(CLIENTS * ROWS)]}))


@nasty_file("an index column without a name", ".csv")
def _(path: Path) -> None:
    _text(path, _lines({"": range(CLIENTS * ROWS), **_plain()}))


@nasty_file("lines of different lengths", ".csv")
def _(path: Path) -> None:
    lines = _lines(_plain())
    lines[57] += ",1,2"
    _text(path, lines)


@nasty_file("duplicated names in a header", ".csv")
def _(path: Path) -> None:
    lines = _lines(_plain())
    _text(path, ["client,a,a,label", *lines[1:]])


@nasty_file("quoted line ends", ".csv")
def _(path: Path) -> None:
    columns = _plain()
    _text(path, _lines({**columns, "remark": ['"two\nlines, and a comma"'] * (CLIENTS * ROWS)}))

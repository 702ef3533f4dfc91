"""How long, and in how much memory: load and group a Parquet file, take clients from a saved folder; pandas beside it.

Every job runs in a process of its own, so that its peak memory (VmHWM, the interpreter included) is its own.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from table import arguments, report

MIB = 2**20


def status(key: str) -> int:
    """A line of /proc/self/status, in bytes; 0 where there is none."""
    file = Path("/proc/self/status")
    found = re.search(rf"{key}:\s+(\d+) kB", file.read_text()) if file.exists() else None
    return int(found[1]) * 1024 if found else 0


def read_from_disk() -> int:
    """Bytes that this process caused to be read from the disk; 0 where the system does not say."""
    file = Path("/proc/self/io")
    found = re.search(r"read_bytes: (\d+)", file.read_text()) if file.exists() else None
    return int(found[1]) if found else 0


def make(folder: Path, n_rows: int, seed: int) -> dict[str, Any]:
    """Rows in no order, 100 a client: a whole-number client, a float64, an int32 and one of 62 texts."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(seed)
    labels = pa.array([f"label {i:02d}" for i in range(62)])
    part = min(n_rows, 1_000_000)
    writer: Any = None
    for _ in range(n_rows // part):
        columns = {
            "client": rng.integers(0, n_rows // 100, part),
            "amount": rng.normal(size=part),
            "item": rng.integers(0, 10_000, part, dtype=np.int32),
            "label": labels.take(pa.array(rng.integers(0, 62, part))),
        }
        table = pa.table(columns)
        writer = writer or pq.ParquetWriter(folder / "rows.parquet", table.schema)
        writer.write_table(table)
    writer.close()
    return {"file": (folder / "rows.parquet").stat().st_size}


def load(folder: Path) -> dict[str, Any]:
    """from_parquet, then the sum of a column per client, to compare with pandas."""
    import fedscape.formats.parquet  # noqa: F401  (importing is not what is timed)
    from fedscape.core.federation import Federation

    begin = time.perf_counter()
    fed = Federation.from_parquet(folder / "rows.parquet", client="client")
    took, peak = time.perf_counter() - begin, status("VmHWM")
    np.save(folder / "sums-fedscape.npy", fed.segment_sum("amount"))
    begin = time.perf_counter()
    fed.save(folder / "saved")
    saved = time.perf_counter() - begin
    return {"seconds": took, "peak": peak, "columns": sum(v.nbytes for v in fed.columns.values()), "save": saved}


def group(folder: Path) -> dict[str, Any]:
    """The rows in memory, grouped by from_frame, then a walk over the block of every client."""
    import pyarrow.parquet as pq

    import fedscape.formats.tables  # noqa: F401
    from fedscape.core.federation import Federation

    table = pq.read_table(folder / "rows.parquet")
    begin = time.perf_counter()
    fed = Federation.from_frame(table, client="client")
    grouped = time.perf_counter() - begin
    begin, amount, ends = time.perf_counter(), fed["amount"], fed.offsets.tolist()
    largest = max(amount[a:b].max() for a, b in pairwise(ends) if b > a)
    return {"group": grouped, "walk": time.perf_counter() - begin, "largest": float(largest)}


def pandas(folder: Path) -> dict[str, Any]:
    """The same jobs in pandas: read, find the rows of each group, move them together, and walk over the groups."""
    import pandas as pd

    begin = time.perf_counter()
    frame = pd.read_parquet(folder / "rows.parquet")
    read = time.perf_counter() - begin
    begin = time.perf_counter()
    groups = frame.groupby("client")
    found = groups.indices
    numbered = time.perf_counter() - begin
    blocks = frame.take(np.concatenate(list(found.values())))
    grouped, peak = time.perf_counter() - begin, status("VmHWM")
    assert len(blocks) == len(frame)
    begin, amount = time.perf_counter(), frame["amount"].to_numpy()
    largest = max(amount[rows].max() for rows in found.values())
    walked = time.perf_counter() - begin
    sums = groups["amount"].sum().to_numpy()
    gap = float(np.abs(np.load(folder / "sums-fedscape.npy") - sums).max())
    times = {"seconds": read + grouped, "numbered": numbered, "group": grouped, "walk": walked}
    return times | {"peak": peak, "largest": largest, "gap": gap}


def take(folder: Path) -> dict[str, Any]:
    """1,000 clients of the saved folder, whose files were first put out of the system's cache."""
    import fedscape.formats.folder  # noqa: F401
    from fedscape.core.federation import Federation

    for file in (folder / "saved").iterdir():
        handle = os.open(file, os.O_RDONLY)
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(handle)
    begin = time.perf_counter()
    fed = Federation.load(folder / "saved", verify=False)
    opened, disk, memory = time.perf_counter() - begin, read_from_disk(), status("VmRSS")
    chosen = np.sort(np.random.default_rng(1).choice(len(fed), min(1_000, len(fed) // 2), replace=False))
    begin = time.perf_counter()
    part = fed.take(chosen)
    took = time.perf_counter() - begin
    rows = sum(values.nbytes for values in part.columns.values())
    grown = status("VmRSS") - memory
    return {"open": opened, "seconds": took, "rows": rows, "disk": read_from_disk() - disk, "memory": grown}


def run(job: str, folder: Path, args: Any) -> dict[str, Any]:
    """One job in a process of its own."""
    command = [sys.executable, __file__, "--job", job, "--folder", str(folder), "--rows", str(args.rows)]
    done = subprocess.run([*command, "--seed", str(args.seed)], check=True, stdout=subprocess.PIPE, text=True)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def tabulate(fed: dict[str, Any], peer: dict[str, Any], taken: dict[str, Any]) -> list[dict[str, Any]]:
    size = fed["columns"]
    return [
        {
            "job": "read Parquet and group",
            "seconds": fed["seconds"],
            "pandas seconds": peer["seconds"],
            "time / pandas": fed["seconds"] / peer["seconds"],
            "peak MiB": fed["peak"] / MIB,
            "peak / columns": fed["peak"] / size,
            "pandas peak / columns": peer["peak"] / size,
        },
        {
            "job": "group a table in memory",
            "seconds": fed["group"],
            "pandas seconds": peer["group"],
            "time / pandas": fed["group"] / peer["group"],
        },
        {
            "job": "the same; pandas: row numbers alone",
            "seconds": fed["group"],
            "pandas seconds": peer["numbered"],
            "time / pandas": fed["group"] / peer["numbered"],
        },
        {
            "job": "walk over the clients",
            "seconds": fed["walk"],
            "pandas seconds": peer["walk"],
            "time / pandas": fed["walk"] / peer["walk"],
        },
        {"job": "save a folder", "seconds": fed["save"]},
        {"job": "open the folder", "seconds": taken["open"]},
        {
            "job": "take 1,000 clients of it",
            "seconds": taken["seconds"],
            "rows MiB": taken["rows"] / MIB,
            "read from disk MiB": taken["disk"] / MIB,
            "memory grown MiB": taken["memory"] / MIB,
            "read / columns": taken["disk"] / size,
        },
    ]


def main() -> None:
    args = arguments(__doc__, job="", folder="", rows=0)
    args.rows = args.rows or (200_000 if args.quick else 20_000_000)
    if args.job == "make":
        print(json.dumps(make(Path(args.folder), args.rows, args.seed)))
        return
    if args.job:
        print(json.dumps({"load": load, "group": group, "pandas": pandas, "take": take}[args.job](Path(args.folder))))
        return
    with tempfile.TemporaryDirectory(dir=args.folder or None) as place:
        made = run("make", Path(place), args)
        fed = run("load", Path(place), args) | run("group", Path(place), args)
        taken, peer = run("take", Path(place), args), run("pandas", Path(place), args)
    assert peer["largest"] == fed["largest"]
    note = (
        f"{args.rows:,} rows of {args.rows // 100:,} clients; Parquet file {made['file'] / MIB:,.0f} MiB, columns "
        f"{fed['columns'] / MIB:,.0f} MiB; pandas {version('pandas')}: groupby().indices, then take(); the "
        f"sums per client agree to {peer['gap']:.1e}"
    )
    report("federation", tabulate(fed, peer, taken), note=note)


if __name__ == "__main__":
    main()

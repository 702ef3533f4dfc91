"""How long does a study of a large file take, and how much memory?

A Parquet file of unsorted rows, written in pieces: a text client column, a text label of 12 values whose shares differ
by client, six numbers (one with gaps) that lean on the label, a text of three values, an id of its own in every row and
a free text. `fedscape study` runs on it in a process of its own, whose peak memory is the system's figure.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from table import arguments, report

LABELS = 12
PIECE = 500_000


def write(path: Path, rows: int, clients: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    weight = rng.lognormal(0, 1, clients)
    shares = np.cumsum(rng.dirichlet(np.full(LABELS, 0.7), clients), axis=1)
    centres = rng.normal(size=(LABELS, 6))
    writer = None
    for begin in range(0, rows, PIECE):
        n = min(PIECE, rows - begin)
        who = rng.choice(clients, n, p=weight / weight.sum())
        label = (rng.random(n)[:, None] > shares[who]).sum(axis=1).clip(max=LABELS - 1)
        x = centres[label] + 1.5 * rng.normal(size=(n, 6))
        x[rng.random(n) < 0.02, 5] = np.nan
        columns = {
            "user": pa.array(np.char.add("u", who.astype(str))),
            "label": pa.array(np.char.add("class ", label.astype(str))),
            **{f"f{j}": pa.array(x[:, j], from_pandas=True) for j in range(6)},
            "plan": pa.array(np.array(["free", "basic", "full"])[rng.integers(0, 3, n)]),
            "event": pa.array(np.arange(begin, begin + n)),
            "note": pa.array(np.char.add("note ", rng.integers(0, 5_000, n).astype(str))),
        }
        table = pa.table(columns)
        writer = writer or pq.ParquetWriter(path, table.schema)
        writer.write_table(table)
    assert writer is not None
    writer.close()


def studied(path: Path, folder: Path, more: list[str]) -> tuple[float, float, dict[str, float]]:
    """Seconds, peak GiB and the seconds of each section."""
    command = [sys.executable, "-m", "fedscape", "study", str(path), "--client", "user", "--column", "label"]
    begin = time.perf_counter()
    process = subprocess.Popen([*command, "--quiet", "--out", str(folder), *more], stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"the study ended with status {status}")
    return time.perf_counter() - begin, used.ru_maxrss / 2**20, json.loads((folder / "seconds.json").read_text())


def main() -> None:
    args = arguments(__doc__, rows="200000,1000000,5000000", clients=20_000)
    sizes = [20_000] if args.quick else [int(n) for n in args.rows.split(",")]
    rows = []
    for n in sizes:
        with tempfile.TemporaryDirectory() as place:
            path, clients = Path(place) / "events.parquet", min(args.clients, n // 100)
            write(path, n, clients, args.seed)
            more = ["--rounds", "2", "--seeds", "1"] if args.quick else []
            seconds, peak, parts = studied(path, Path(place) / "study", more)
            about = {"rows": n, "clients": clients, "file, MB": path.stat().st_size / 1e6, "s": seconds}
            rows.append({**about, "peak, GiB": peak, "s before the sections": seconds - sum(parts.values()), **parts})
            print(rows[-1], flush=True)
    report("study_scale", rows)


if __name__ == "__main__":
    main()

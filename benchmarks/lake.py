"""What does it cost to group more rows than fit in memory by their client, in seconds and in memory?

A Parquet folder of so many rows (`--rows`) with `--clients` clients in random order is grouped by `Federation.scan`
and, where it fits, by `Federation.from_parquet`; each in a process of its own, whose peak memory is the system's.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from table import arguments, report

CHILD = """
import json, resource, sys, time
import fedscape as fs
import pyarrow, fedscape.formats.lake, fedscape.formats.shuffle, fedscape.formats.parquet
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
begin = time.perf_counter()
how, source, folder, memory = sys.argv[1:]
if how == "scan":
    fed = fs.Federation.scan(source, client="who", into=folder, memory=int(memory))
else:
    fed = fs.Federation.from_parquet(source, client="who")
took = time.perf_counter() - begin
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps([len(fed), fed.n_rows, took, (after - before) / 1024, after / 1024]))
"""


def main() -> None:
    args = arguments(__doc__, rows=20_000_000, clients=1_000_000, memory=2**28)
    n_rows, n_clients = (200_000, 10_000) if args.quick else (args.rows, args.clients)
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        lake = Path(folder) / "lake"
        size = write(lake, n_rows, n_clients)
        for how in ("scan", "from_parquet"):
            target = str(Path(folder) / "grouped")
            call = [sys.executable, "-c", CHILD, how, str(lake), target, str(args.memory)]
            done = subprocess.run(call, check=True, capture_output=True, text=True, env=dict(os.environ)).stdout
            clients, rows, took, added, peak = json.loads(done)
            lines.append(
                {
                    "how": how,
                    "clients": clients,
                    "rows": rows,
                    "Parquet, MB": size / 2**20,
                    "seconds": took,
                    "M rows a second": rows / took / 1e6,
                    "memory added, MB": added,
                    "peak, MB": peak,
                }
            )
    report("lake", lines, note=f"memory={args.memory / 2**20:.0f} MB for the parts of a scan")


def write(lake: Path, n_rows: int, n_clients: int) -> int:
    """Files of a million rows: a client, a class, two numbers and a text."""
    lake.mkdir()
    rng = np.random.default_rng(0)
    words = np.array([f"product {j}" for j in range(1000)])
    for number, begin in enumerate(range(0, n_rows, 10**6)):
        n = min(10**6, n_rows - begin)
        rows = pa.table(
            {
                "who": rng.integers(0, n_clients, n),
                "y": rng.integers(0, 10, n).astype(np.int32),
                "a": rng.normal(size=n).astype(np.float32),
                "b": rng.normal(size=n),
                "word": pa.array(words[rng.integers(0, 1000, n)]),
            }
        )
        pq.write_table(rows, lake / f"{number:05d}.parquet")
    return sum(path.stat().st_size for path in lake.iterdir())


if __name__ == "__main__":
    main()

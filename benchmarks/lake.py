"""What does it cost to group more rows than fit in memory by their client, in seconds and in memory?

A Parquet folder of so many rows (`--rows`) with `--clients` clients in random order is grouped by `Federation.scan`
and, up to `--whole` rows, by `Federation.from_parquet`; and, where they are installed, sorted by client by DuckDB (with
a limit of 1.5 GB) and Polars (in its streaming engine) into a Parquet file. Each runs in a process of its own, whose
peak memory is the system's, files that it maps included; none may take more than `--limit` bytes of its own. CPU
seconds are those of the process: a busy machine blurs them less than the clock.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from table import arguments, report

CHILD = """
import json, resource, sys, time
peak = lambda: next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
how, source, folder, memory, limit = sys.argv[1:]
resource.setrlimit(resource.RLIMIT_DATA, (int(limit), resource.RLIM_INFINITY))
if how == "scan":
    from fedscape.formats.lake import scan
elif how == "from_parquet":
    import fedscape as fs, fedscape.formats.parquet
elif how == "DuckDB":
    import duckdb
else:
    import polars
before, began, used = peak(), time.perf_counter(), time.process_time()
if how == "scan":
    scan(source, folder, client="who", memory=int(memory))
elif how == "from_parquet":
    fs.Federation.from_parquet(source, client="who")
elif how == "DuckDB":
    connection = duckdb.connect()
    connection.execute("SET enable_progress_bar = false")
    connection.sql(f"SET memory_limit = '1500MB'; SET temp_directory = '{folder}.tmp'")
    connection.sql(f"COPY (SELECT * FROM '{source}/*.parquet' ORDER BY who) TO '{folder}' (FORMAT parquet)")
else:
    polars.scan_parquet(source).sort("who").sink_parquet(folder)
took, cpu, after = time.perf_counter() - began, time.process_time() - used, peak()
print(json.dumps([took, cpu, (after - before) / 1024, after / 1024]))
"""
PEERS = {"DuckDB": "duckdb", "Polars": "polars"}


def main() -> None:
    sizes = {"rows": 20_000_000, "clients": 1_000_000, "whole": 50_000_000}
    args = arguments(__doc__, **sizes, memory=2**29, limit=8 * 2**30, lake="")
    n_rows, n_clients = (200_000, 10_000) if args.quick else (args.rows, args.clients)
    contestants = ["scan", *(["from_parquet"] if n_rows <= args.whole else [])]
    contestants += [name for name, package in PEERS.items() if find_spec(package)]
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        lake = Path(args.lake or folder) / "lake"  # `--lake`: a folder in which it is made, and stays
        size = write(lake, n_rows, n_clients)
        for how in contestants:
            target = Path(folder) / "grouped"
            call = [sys.executable, "-c", CHILD, how, str(lake), str(target), str(args.memory), str(args.limit)]
            run = subprocess.run(call, capture_output=True, text=True, env=dict(os.environ))
            done = json.loads(run.stdout.splitlines()[-1]) if run.returncode == 0 else None
            if done is None:
                print(run.stderr, file=sys.stderr)
            lines.append(
                {
                    "how": how,
                    "clients": n_clients,
                    "rows": n_rows,
                    "Parquet, MB": size / 2**20,
                    "seconds": f"failed within {args.limit / 2**30:.0f} GB" if done is None else done[0],
                    "CPU seconds": None if done is None else done[1],
                    "memory added, MB": None if done is None else done[2],
                    "peak, MB": None if done is None else done[3],
                }
            )
            print(lines[-1], file=sys.stderr, flush=True)
            shutil.rmtree(target, ignore_errors=True)
            target.unlink(missing_ok=True)
    given = f"memory={args.memory / 2**20:.0f} MB for a scan, at most {args.limit / 2**30:.0f} GB for each"
    busy = f"load average at the end {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    name = "lake" if n_rows <= args.whole else f"lake_{n_rows // 10**6}m"
    report(name, lines, note=f"{given}; {busy}")


def write(lake: Path, n_rows: int, n_clients: int) -> int:
    """Files of a million rows: a client, a class, two numbers and a text."""
    if lake.exists():
        return sum(path.stat().st_size for path in lake.iterdir())
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

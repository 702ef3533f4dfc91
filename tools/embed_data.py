"""Rebuild the embedded data files: FEDSCAPE_DATA=folder python tools/embed_data.py [target].

Reads the cut files in the folder `small` and writes them as the package stores them: no pickled objects, no time
stamps, no metadata. The same input gives the same bytes with the same versions of NumPy, Arrow and zlib.
"""

from __future__ import annotations

import gzip
import json
import os
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

TARGET = Path(__file__).resolve().parents[1] / "src" / "fedscape" / "datasets" / "data"
LIMIT = 2_500_000  # bytes of all embedded files together

ARRAYS = {
    "femnist_mini.npz": ("femnist_small.npz", ("x", "y", "client", "writers")),
    "femnist_labels.npz": ("femnist_counts.npz", ("counts", "writers")),
    "acs_histograms.npz": (
        "acs_pums_2024_counts.npz",
        ("race", "race_client", "income", "income_client", "income_edges"),
    ),
}
TABLES = {"acs_mini.parquet": "acs_pums_small.parquet", "flights_mini.parquet": "flights_small.parquet"}
TEXTS = {"shakespeare_mini.json.gz": "shakespeare_small.json.gz"}


def embed(source: Path, target: Path) -> list[Path]:
    """Write every embedded file into `target` and return their paths."""
    target.mkdir(parents=True, exist_ok=True)
    for name, (cut, keys) in ARRAYS.items():
        with np.load(source / cut, allow_pickle=False) as stored:
            np.savez_compressed(target / name, **{key: stored[key] for key in keys})
    for name, cut in TABLES.items():
        table = pq.read_table(source / cut).replace_schema_metadata(None)
        pq.write_table(table, target / name, compression="zstd", compression_level=19, store_schema=True)
    for name, cut in TEXTS.items():
        with gzip.open(source / cut, "rt", encoding="utf-8") as stream:
            roles = json.load(stream)
        text = json.dumps(roles, ensure_ascii=False, separators=(",", ":"))
        (target / name).write_bytes(gzip.compress(text.encode(), compresslevel=9, mtime=0))
    return [target / name for name in (*ARRAYS, *TABLES, *TEXTS)]


def main() -> None:
    folder = os.environ.get("FEDSCAPE_DATA")
    if not folder:
        sys.exit("set FEDSCAPE_DATA to the folder that holds the data")
    written = embed(Path(folder) / "small", Path(sys.argv[1]) if len(sys.argv) > 1 else TARGET)
    sizes = {path.name: path.stat().st_size for path in written}
    for name, size in sizes.items():
        sys.stdout.write(f"{size:>10,}  {name}\n")
    sys.stdout.write(f"{sum(sizes.values()):>10,}  in all\n")
    if sum(sizes.values()) > LIMIT:
        sys.exit(f"the embedded files have {sum(sizes.values()):,} bytes, more than the {LIMIT:,} allowed: cut more")


if __name__ == "__main__":
    main()

"""Damaged files: a reader gives a Federation or one DataError of one line, whatever the bytes.

Each format runs in a child process, so that a crash or a burst of memory inside a parser is seen and not suffered. The
number of damaged files per format is the environment variable FEDSCAPE_FUZZ.
"""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedscape.core.federation import Federation
from fedscape.errors import DataError
from fedscape.formats import from_csv, from_leaf, from_parquet, load_folder, save_folder, to_csv, to_leaf, to_parquet
from fedscape.formats.parquet import ALWAYS_ALLOWED

CASES = int(os.environ.get("FEDSCAPE_FUZZ", "150"))
MOST_MEMORY = 2**28  # bytes a reader of these small files may have touched, whatever they declare
PARQUET_OPTIONS = [
    {"compression": "zstd"},
    {"compression": "none"},
    {"compression": "none", "use_dictionary": False},
    {"compression": "gzip", "data_page_version": "2.0", "row_group_size": 50},
    {"compression": "snappy", "use_dictionary": False, "column_encoding": {"n": "DELTA_BINARY_PACKED"}},
    {"compression": "none", "use_dictionary": False, "column_encoding": {"t": "DELTA_BYTE_ARRAY"}},
]


def sample() -> Federation:
    rng = np.random.default_rng(0)
    columns = {
        "x": rng.normal(size=(300, 2)).astype(np.float32),
        "n": rng.integers(0, 9, 300),
        "t": rng.integers(-1, 4, 300).astype(np.int32),
    }
    return Federation(columns, [0, 100, 100, 180, 300], ids=["a", "b", "c", "d"], names={"t": ["p", "q", "r", "s"]})


def damage(content: bytes, draw: random.Random) -> bytes:
    """Flip bits, cut, splice from elsewhere, overwrite at random, flip near the end, or replace all."""
    out = bytearray(content)
    kind = draw.choice(["flip", "flip the end", "cut", "splice", "overwrite", "replace"])
    if kind in ("flip", "flip the end"):
        first = 0 if kind == "flip" else len(out) * 2 // 3
        for _ in range(draw.randint(1, 3)):
            out[draw.randrange(first, len(out))] ^= 1 << draw.randrange(8)
    elif kind == "cut":
        del out[draw.randrange(len(out)) :]
    elif kind == "splice":
        here, there, size = draw.randrange(len(out)), draw.randrange(len(out)), draw.randint(1, 60)
        out[here : here + size] = out[there : there + size]
    elif kind == "overwrite":
        here = draw.randrange(len(out))
        out[here : here + draw.randint(1, 20)] = draw.randbytes(draw.randint(1, 20))
    else:
        out[4:-4] = draw.randbytes(draw.randrange(200))
    return bytes(out)


def attempts(kind: str, place: Path, cases: int) -> Iterator[str]:
    """Read damaged files of one kind, and say of each how it ended: 'read', 'refused' or what is wrong."""
    fed = sample()
    bases = prepare(kind, fed, place)
    for case in range(cases):
        print(case, flush=True)  # noqa: T201  (how the parent knows which file ended the process)
        draw = random.Random(f"{kind} {case}")
        target = draw.choice(bases)
        content = target.read_bytes()
        target.write_bytes(damage(content, draw))
        try:
            found = read(kind, target, verify=draw.random() < 0.5)
        except DataError as error:
            yield "refused" if "\n" not in str(error) else f"case {case}: more than one line: {error}"
        except BaseException as error:
            yield f"case {case}: {type(error).__name__}: {error}"
        else:
            changed = kind == "folder" and found is not None and not equal(found, fed)
            yield f"case {case}: damage that the checksums missed" if changed else "read"
        target.write_bytes(content)


def prepare(kind: str, fed: Federation, place: Path) -> list[Path]:
    """Sound files of this kind, to be damaged one at a time."""
    if kind == "folder":
        save_folder(fed, place / "f")
        return sorted((place / "f").iterdir())
    if kind == "leaf":
        to_leaf(fed, place / "a.json")
        return [place / "a.json"]
    if kind == "csv":
        to_csv(fed.select(["n", "t"]), place / "a.csv")
        return [place / "a.csv"]
    to_parquet(fed, place / "own.parquet")
    table = pq.read_table(place / "own.parquet")
    for number, options in enumerate(PARQUET_OPTIONS):
        pq.write_table(table, place / f"{number}.parquet", **options)
    return sorted(place.glob("*.parquet"))


def read(kind: str, target: Path, *, verify: bool) -> Federation | None:
    """Read the file with every value in it; of a folder that was not verified, nothing is promised about the values."""
    if kind == "folder":
        fed = load_folder(target.parent, verify=verify)
        for values in fed.columns.values():
            values.tobytes()
        return fed if verify else None
    if kind == "leaf":
        return from_leaf(target)
    return from_csv(target, client="client") if kind == "csv" else from_parquet(target, client="client")


def equal(a: Federation, b: Federation) -> bool:
    same = a.ids.tolist() == b.ids.tolist() and a.offsets.tolist() == b.offsets.tolist()
    same = same and dict(a.names) == dict(b.names) and list(a.columns) == list(b.columns)
    return same and all(a[name].tobytes() == b[name].tobytes() for name in a.columns)


def peak() -> int:
    """The most memory this process has used; getrusage() would count the parent's, which made the child."""
    status = Path("/proc/self/status")
    found = re.search(r"VmHWM:\s+(\d+) kB", status.read_text()) if status.exists() else None
    return int(found[1]) * 1024 if found else 0


def main(kind: str, cases: int) -> None:
    before = peak()
    with tempfile.TemporaryDirectory() as place:
        ends = list(attempts(kind, Path(place), cases))
    report = {
        "read": ends.count("read"),
        "refused": ends.count("refused"),
        "wrong": [end for end in ends if end not in ("read", "refused")][:20],
        "touched": peak() - before,
        "reserved": pa.default_memory_pool().max_memory(),
    }
    print(json.dumps(report))  # noqa: T201


@pytest.mark.parametrize("kind", ["parquet", "leaf", "folder", "csv"])
def test_a_damaged_file_gives_a_federation_or_one_line_and_takes_no_more_memory_than_the_limit(kind: str) -> None:
    run = [sys.executable, __file__, kind, str(CASES)]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    last = done.stdout.strip().splitlines()[-1] if done.stdout.strip() else "nothing"
    assert done.returncode == 0, f"the reader died (code {done.returncode}) over case {last}: {done.stderr[-2000:]}"
    report = json.loads(last)
    assert report["wrong"] == []
    assert report["read"] + report["refused"] == CASES
    assert report["refused"] > CASES // 3
    assert report["touched"] < MOST_MEMORY
    assert report["reserved"] < ALWAYS_ALLOWED


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))

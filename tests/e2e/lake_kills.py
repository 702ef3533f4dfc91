"""Scans that replace a folder, killed at random moments: its name has the old folder or the new one. By hand.

python -m pytest -n 0 tests/e2e/lake_kills.py
"""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import signal
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedscape import DataError, Federation

SECONDS = 60.0


def in_a_child(work, *arguments, **how):
    """Start the work in a process of its own; nothing here has started a thread before the first."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work(*arguments, **how)
            code = 0
        finally:
            os._exit(code)
    return child


def done(child):
    return os.waitpid(child, 0)[1]


def digest(folder):
    fed = Federation.load(folder)
    content = hashlib.sha256(fed.fingerprint().encode())
    for name in fed.columns:
        content.update(np.ascontiguousarray(fed[name]).tobytes())
    return content.hexdigest()


def note(folder, path):
    path.write_text(digest(folder))


def lake(folder, seed):
    folder.mkdir()
    rng = np.random.default_rng(seed)
    for number in range(4):
        who = rng.integers(0, 5000, 100_000)
        rows = {"who": [f"u{v}" for v in who] if seed else who, "y": rng.integers(0, 9, 100_000)}
        pq.write_table(pa.table(rows), folder / f"{number}.parquet", row_group_size=20_000)
    return folder


@pytest.mark.parametrize("memory", [2**20, 2**24])
def test_a_scan_that_is_killed_leaves_the_old_folder_or_the_new_one(tmp_path, memory):
    lakes = [lake(tmp_path / f"lake-{seed}", seed) for seed in (0, 1)]
    whole, seconds = [], []
    for each in lakes:
        began = time.perf_counter()
        assert done(in_a_child(Federation.scan, each, client="who", into=tmp_path / "whole", memory=memory)) == 0
        seconds.append(time.perf_counter() - began)
        assert done(in_a_child(note, tmp_path / "whole", tmp_path / "digest")) == 0
        whole.append((tmp_path / "digest").read_text())
        shutil.rmtree(tmp_path / "whole")
    target, last, rng, kills = tmp_path / "out" / "grouped", whole[0], random.Random(memory), 0
    target.parent.mkdir()
    how = {"client": "who", "into": target, "memory": memory, "overwrite": True}
    assert done(in_a_child(Federation.scan, lakes[0], **how)) == 0
    end = time.time() + SECONDS
    while time.time() < end:
        number = rng.randrange(2)
        child = in_a_child(Federation.scan, lakes[number], **how)
        time.sleep(1.2 * seconds[number] * rng.random())
        os.kill(child, signal.SIGKILL)
        kills += os.WIFSIGNALED(done(child))
        assert done(in_a_child(note, target, tmp_path / "digest")) == 0
        assert (tmp_path / "digest").read_text() in (whole[number], last)
        last = (tmp_path / "digest").read_text()
        for draft in set(target.parent.iterdir()) - {target}:
            if not (draft / "federation.json").exists():  # else one that had its name, or was about to get it
                with pytest.raises(DataError, match="is not a saved Federation"):
                    Federation.load(draft)
            shutil.rmtree(draft)
    assert kills > 2

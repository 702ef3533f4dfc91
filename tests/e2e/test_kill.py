"""SIGKILL at random moments: a resumed run gives the same bytes, repeats its noise, and the ledger never under-counts.

FEDSCAPE_KILLS sets how many kills; benchmarks/killed_runs.py makes a table with 20 and 50.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

KILLS = int(os.environ.get("FEDSCAPE_KILLS", "4"))
SCRIPT = Path(__file__).with_name("killed_run.py")
ROUNDS = 40


def start(folder: Path, mode: str) -> subprocess.Popen[str]:
    call = [sys.executable, "-W", "ignore", str(SCRIPT), str(folder), mode, str(ROUNDS)]
    return subprocess.Popen(call, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=_heed_ctrl_c)


def _heed_ctrl_c() -> None:
    """A shell has what it starts in the background, as these tests may be, ignore Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def finish(folder: Path, mode: str) -> str:
    done = start(folder, mode)
    out, err = done.communicate(timeout=600)
    assert done.returncode == 0, err
    return out.strip()


def kill_at_random(folder: Path, mode: str, rng: random.Random, how: int = signal.SIGKILL) -> bool:
    """Kill a while after its first output of this life; False where it had ended before."""
    running = start(folder, mode)
    published = folder / "published.txt"
    before = published.stat().st_size if published.exists() else 0
    deadline = time.monotonic() + 300
    while running.poll() is None and time.monotonic() < deadline:
        if published.exists() and published.stat().st_size > before:
            break
        time.sleep(0.002)
    time.sleep(rng.uniform(0, 0.03))
    running.send_signal(how)
    running.communicate()
    return running.returncode == -how


def lives(tmp_path: Path, mode: str, seed: int) -> Iterator[tuple[Path, str | None]]:
    """Folders of a run after each of KILLS kills, with what it printed where it came to its end."""
    rng, kills, run = random.Random(seed), 0, 0
    while kills < KILLS:
        folder = tmp_path / f"{mode} {run}"
        folder.mkdir(exist_ok=True)
        killed = kill_at_random(folder, mode, rng)
        kills += killed
        if killed and kills < KILLS and rng.random() < 0.8:
            yield folder, None  # killed, and soon to be killed again
        else:
            yield folder, finish(folder, mode)
            run += 1


def test_a_killed_run_resumes_to_the_same_bytes(tmp_path):
    (tmp_path / "whole").mkdir()
    expected = finish(tmp_path / "whole", "plain")
    ends = [printed for _, printed in lives(tmp_path, "plain", 1) if printed is not None]
    assert ends
    assert set(ends) == {expected}


def test_ctrl_c_in_the_middle_of_a_round_leaves_a_run_that_goes_on(tmp_path):
    (tmp_path / "whole").mkdir()
    expected, rng = finish(tmp_path / "whole", "plain"), random.Random(3)
    for number in range(20):  # on a full machine a run may come to its end before it is stopped
        folder = tmp_path / f"stopped {number}"
        folder.mkdir()
        if kill_at_random(folder, "plain", rng, signal.SIGINT):
            break
    else:
        raise AssertionError("twenty runs came to their end before they were stopped")
    assert finish(folder, "plain") == expected


def test_a_killed_private_run_repeats_its_noise_and_every_release_is_in_the_ledger_once(tmp_path):
    for folder, printed in lives(tmp_path, "private", 2):
        check(folder, complete=printed is not None)


def check(folder: Path, *, complete: bool) -> None:
    published: dict[int, set[str]] = {}
    for line in (folder / "published.txt").read_text().splitlines():
        index, _, value = line.partition(" ")
        if value:
            published.setdefault(int(index), set()).add(value)
    assert all(len(values) == 1 for values in published.values()), "a round was released with two different noises"
    lines = [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()]
    releases = [(line["round"], line["digest"]) for line in lines if line["kind"] == "release"]
    assert len(releases) == len(set(releases)), "a release was counted twice"
    assert {index for index, _ in releases} >= set(published), "something was published that is not in the ledger"
    if complete:
        assert sorted(index for index, _ in releases) == list(range(ROUNDS))

"""A ledger that is swapped, lost, or used from many threads and processes at once."""

from __future__ import annotations

import json
import subprocess
import sys
import threading

import pytest

from fedscape import All, Federation, Gaussian, Histogram, Ledger, PrivacyError, rounds

ENTRY = Gaussian(clip=1.0, multiplier=5.0).entries(All(), 10)["sum"]
FED = Federation({"y": [0, 1, 1]}, [0, 1, 3])


def private_rounds(ledger, resume=None):
    how = {"n_rounds": 4, "privacy": Gaussian(clip=1.0, multiplier=5.0), "ledger": ledger, "resume": resume}
    return rounds(Histogram(2), FED, **how)


def release_many(ledger, run, number):
    ledger.reserve(run, {"sum": ENTRY}, number)
    for t in range(number):
        ledger.release(run, t, "sum", "d")


def run_threads(*works):
    """Run each in a thread; a thread that hangs or fails fails the test."""
    failures = []

    def guarded(work):
        try:
            work()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert not any(thread.is_alive() for thread in threads), "a thread hangs"
    assert failures == []


def test_two_ledgers_of_one_budget_are_two_ledgers_before_any_release(tmp_path):
    one, other = Ledger(tmp_path / "a", epsilon=1.0), Ledger(tmp_path / "b", epsilon=1.0)
    one.check_anchor(one.anchor())
    for ledger in (other, Ledger(epsilon=1.0)):
        with pytest.raises(PrivacyError, match=f"has the id {ledger.id}, the checkpoint was written with {one.id}"):
            ledger.check_anchor(one.anchor())


def test_a_run_does_not_go_on_with_a_fresh_ledger_in_place_of_its_own(tmp_path):
    path = tmp_path / "l"
    next(private_rounds(Ledger(path, epsilon=2.0, delta=1e-5))).save(tmp_path / "run")
    path.unlink()
    fresh = Ledger(path, epsilon=2.0, delta=1e-5)
    with pytest.raises(PrivacyError, match="this is another ledger; bring back the file that the run began with"):
        private_rounds(fresh, tmp_path / "run")
    release_many(fresh, "padding", 5)  # as long as the old one, and longer
    with pytest.raises(PrivacyError, match="this is another ledger"):
        private_rounds(fresh, tmp_path / "run")


def test_a_checkpoint_of_a_time_without_ids_is_refused():
    ledger = Ledger(epsilon=1.0)
    anchor = {name: value for name, value in ledger.anchor().items() if name != "id"}
    with pytest.raises(PrivacyError, match="was written with None: this is another ledger"):
        ledger.check_anchor(anchor)


def test_a_ledger_of_the_first_format_gets_one_line(tmp_path):
    path = tmp_path / "l"
    first = {"line": 0, "before": "", "kind": "open", "format": 1, "epsilon": 1.0, "delta": 1e-6}
    from fedscape.privacy.ledger import _checksum

    path.write_text(json.dumps({**first, "sum": _checksum(first)}) + "\n")
    with pytest.raises(
        PrivacyError, match=r"no ledger of format 2 \(its format: 1\).* with what is left of its budget$"
    ):
        Ledger(path)


def test_a_ledger_that_is_swapped_or_lost_while_in_use_is_noticed(tmp_path):
    path, other = tmp_path / "l", tmp_path / "other"
    ledger = Ledger(path, epsilon=1.0)
    Ledger(other, epsilon=1.0)
    other.rename(path)
    with pytest.raises(PrivacyError, match=f"was replaced by another file .* the id {ledger.id}"):
        ledger.reserve("r", {"sum": ENTRY}, 1)
    path.unlink()
    with pytest.raises(PrivacyError, match="cannot be opened: No such file"):
        ledger.reserve("r", {"sum": ENTRY}, 1)
    assert not path.exists()


@pytest.mark.parametrize("kind", ["file", "memory"])
def test_threads_share_one_ledger(tmp_path, kind):
    ledger = Ledger(tmp_path / "l" if kind == "file" else None)
    run_threads(*(lambda run=f"run {i}": release_many(ledger, run, 20) for i in range(6)))
    lines = ledger.entries() if kind == "memory" else Ledger(tmp_path / "l").entries()
    assert [line["line"] for line in lines] == list(range(1 + 6 * 21))
    assert sum(line["kind"] == "release" for line in lines) == 120


def test_ledgers_share_one_file_in_threads_and_processes(tmp_path):
    code = (
        "import json, sys, threading; from fedscape import Ledger\n"
        "path, name, entry = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])\n"
        "def work(run):\n"
        "    ledger = Ledger(path)\n"
        "    ledger.reserve(run, {'sum': entry}, 20)\n"
        "    for t in range(20): ledger.release(run, t, 'sum', 'd')\n"
        "threads = [threading.Thread(target=work, args=(name + str(i),)) for i in range(2)]\n"
        "for thread in threads: thread.start()\n"
        "for thread in threads: thread.join()\n"
    )
    command = [sys.executable, "-W", "ignore", "-c", code, str(tmp_path / "l")]
    running = [subprocess.Popen([*command, name, json.dumps(ENTRY)]) for name in "ab"]
    assert [process.wait(timeout=60) for process in running] == [0, 0]
    lines = Ledger(tmp_path / "l").entries()
    assert sum(line["kind"] == "release" for line in lines) == 80
    assert len({line["run"] for line in lines[1:]}) == 4


def test_a_ledger_can_be_read_while_the_same_thread_holds_it(tmp_path):
    """As a signal handler does that prints what was spent."""
    ledger = Ledger(tmp_path / "l", epsilon=5.0)

    def work():
        with ledger._locked():
            ledger.spent()
            release_many(ledger, "r", 2)
            ledger.spent()

    run_threads(work)
    assert len(Ledger(tmp_path / "l").entries()) == 4

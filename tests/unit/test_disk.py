"""What systems do differently with files: locks, folders, open files, names and texts."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import fedscape
from fedscape import disk
from fedscape.engines import limits

ROOT = Path(fedscape.__file__).parent
ORACLES = Path(__file__).parents[1] / "oracles"

WINDOWS = (
    f"import sys\nsys.path.insert(0, {str(ORACLES)!r})\nfrom other_systems import pretend_windows\npretend_windows()\n"
)
SPEND = """
import fedscape as fs
from fedscape.privacy import Ledger
fed = fs.Federation({"y": [0, 1, 1, 2]}, [0, 1, 2, 4], ids=["a", "b", "c"])
def spend():
    privacy = fs.Gaussian(clip=1.0, multiplier=8.0, unit="client")
    ledger = Ledger(sys.argv[1], epsilon=50, delta=1e-6)
    fs.Histogram(3).fit(fed, column="y", privacy=privacy, ledger=ledger)
    return len(ledger.entries())
"""


def run(code: str, *arguments: str | Path) -> str:
    call = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(call, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("system", ["", WINDOWS], ids=["posix", "windows"])
def test_a_lock_is_waited_for_and_let_go(system, tmp_path):
    code = f"""{system}
import os, sys, threading, time
from fedscape import disk
path, order = sys.argv[1], []
def work(name):
    handle = disk.open_private(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
    for _ in range(20):
        with disk.locked(handle):
            before = os.fstat(handle).st_size
            os.write(handle, name)
            time.sleep(0.0005)
            assert disk.read_at(handle, 99, before) == name
    os.close(handle)
threads = [threading.Thread(target=work, args=(name,)) for name in (b"first\\n", b"other\\n", b"third\\n")]
[thread.start() for thread in threads], [thread.join() for thread in threads]
print(os.path.getsize(path))
"""
    assert int(run(code, tmp_path / "file")) == 3 * 20 * 6
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600


def test_a_lock_of_a_killed_process_is_free(tmp_path):
    code = (
        "import os, sys\nfrom fedscape import disk\nhandle = disk.open_private(sys.argv[1], os.O_RDWR | os.O_CREAT)\n"
    )
    code += "with disk.locked(handle):\n    os._exit(0)\n"
    run(code, tmp_path / "lock")
    handle = disk.open_private(tmp_path / "lock", os.O_RDWR)
    with disk.locked(handle):
        pass
    os.close(handle)


def test_private_fits_of_two_processes_share_a_ledger_on_windows(tmp_path):
    code = f"{WINDOWS}{SPEND}\nprint(max(spend() for _ in range(3)))"
    path = tmp_path / "ledger.jsonl"
    with ThreadPoolExecutor(2) as pool:
        counts = list(pool.map(lambda _: int(run(code, path)), range(2)))
    assert max(counts) == len(fedscape.Ledger(path, epsilon=50, delta=1e-6).entries()) == 1 + 6 * 2
    assert b"\r" not in path.read_bytes()


def test_checkpoints_and_folders_are_replaced_on_windows_and_have_the_same_bytes(tmp_path):
    code = """
import sys
import fedscape as fs
from pathlib import Path
fed = fs.Federation({"y": [0, 1, 1, 2, 0]}, [0, 1, 2, 5], ids=["ä", "b", "c"])
folder = Path(sys.argv[1])
for overwrite in (False, True):
    fed.save(folder / "fed", overwrite=overwrite)
again = fs.Federation.load(folder / "fed")
run = fs.rounds(fs.Histogram(3), fs.Local(again), n_rounds=2, seed=0)
for result in run:
    result.save(folder / "run.fsc") if hasattr(result, "save") else None
print(again.ids, sorted(p.name for p in folder.rglob("*")))
"""
    (tmp_path / "posix").mkdir()
    (tmp_path / "windows").mkdir()
    texts = [run(code, tmp_path / "posix"), run(WINDOWS + code, tmp_path / "windows")]
    assert texts[0] == texts[1]
    for file in sorted((tmp_path / "posix").rglob("*")):
        other = tmp_path / "windows" / file.relative_to(tmp_path / "posix")
        assert file.is_dir() or file.read_bytes() == other.read_bytes()


def test_a_system_without_proc_has_no_bound_and_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "resource", None)
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: (_ for _ in ()).throw(FileNotFoundError()))
    assert limits.allocated() is None
    with limits.bounded(10):
        assert len(bytearray(10**6)) == 10**6


def test_every_text_file_names_its_encoding():
    """Without it Windows reads and writes the code page of the country."""
    for path in ROOT.rglob("*.py"):
        for call in (n for n in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(n, ast.Call)):
            name = getattr(call.func, "attr", getattr(call.func, "id", ""))
            said = any(k.arg == "encoding" for k in call.keywords)
            said |= any(isinstance(a, ast.Constant) and a.value == "utf-8" for a in call.args)
            if name in ("read_text", "write_text"):
                assert said, f"{path.name}:{call.lineno} {name} without encoding"
            modes = [a.value for a in call.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
            if (name == "open" and isinstance(call.func, ast.Name)) or name == "fdopen":
                assert said or any("b" in mode for mode in modes), f"{path.name}:{call.lineno} {name} without encoding"


def test_only_one_module_knows_how_systems_differ():
    for path in ROOT.rglob("*.py"):
        assert not re.search(r"\b(fcntl|msvcrt)\b", path.read_text("utf-8")) or path.name == "disk.py", path


def test_no_process_is_forked():
    for path in ROOT.rglob("*.py"):
        text = path.read_text("utf-8")
        assert "os.fork" not in text, path
        assert "multiprocessing" not in text or "spawn" in text, path

"""The command line as processes: `ok` and `refused` fork one that has imported torch, `started` begins one anew."""

from __future__ import annotations

import atexit
import functools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SECONDS = 600  # no test should need them; a full machine may
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}

Done = subprocess.CompletedProcess[str]


@functools.cache
def _warm() -> subprocess.Popen[str] | None:
    """The process to fork; None where that cannot be done, and each command is begun anew."""
    if sys.platform != "linux":
        return None
    call = [sys.executable, "-W", "ignore", str(Path(__file__).with_name("warm.py"))]
    environment = {**os.environ, **_ONE_THREAD}  # threads of a BLAS would not survive the fork
    made = subprocess.Popen(call, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    atexit.register(made.communicate)
    assert made.stdout is not None
    return made if made.stdout.readline() == "ready\n" else None


def _forked(server: subprocess.Popen[str], folder: Path | None, env: dict[str, str], **what: Any) -> Done:
    with tempfile.TemporaryDirectory() as said:
        out, err = Path(said) / "out", Path(said) / "err"
        call = {"folder": str(folder or Path.cwd()), "environment": {**os.environ, **env}, "seconds": SECONDS}
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write(json.dumps({**call, **what, "out": str(out), "err": str(err)}) + "\n")
        server.stdin.flush()
        code = int(server.stdout.readline())
        return Done([], code, *(path.read_text() if path.exists() else "" for path in (out, err)))


def _begun(folder: Path | None, env: dict[str, str], *call: str) -> Done:
    command = [sys.executable, "-W", "ignore", *call]
    environment = {name: value for name, value in os.environ.items() if name not in _ONE_THREAD} | env
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment, timeout=SECONDS)


def python(code: str, folder: Path) -> Done:
    """Run code in a folder."""
    server = _warm()
    return _begun(folder, {}, "-c", code) if server is None else _forked(server, folder, {}, code=code)


def fedscape(*arguments: object, folder: Path | None = None, **env: str) -> Done:
    """Run a command, in a process that need not import torch."""
    server, given = _warm(), [str(a) for a in arguments]
    if server is None:
        return _begun(folder, env, "-m", "fedscape", *given)
    return _forked(server, folder, env, arguments=given)


def begun(*arguments: object, **env: str) -> Done:
    """Run a command in a process of its own from the beginning."""
    return _begun(None, env, "-m", "fedscape", *map(str, arguments))


def ok(*arguments: object, **env: str) -> str:
    done = fedscape(*arguments, **env)
    assert done.returncode == 0, done.stderr
    return done.stdout


def started(*arguments: object, **env: str) -> str:
    """As `ok`, but `begun`: other hashes of texts, own imports, threads by default. Every command has such a test."""
    done = begun(*arguments, **env)
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextmanager
def serving(*arguments: object) -> Iterator[subprocess.Popen[str]]:
    """A command that runs until it is stopped, in a process of its own from the beginning."""
    command = [sys.executable, "-W", "ignore", "-u", "-m", "fedscape", *map(str, arguments)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=SECONDS)


def refused(code: int, *arguments: object, **env: str) -> str:
    done = fedscape(*arguments, **env)
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    return done.stderr

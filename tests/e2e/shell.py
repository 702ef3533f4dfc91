"""The command line as a real process."""

from __future__ import annotations

import os
import subprocess
import sys


def fedscape(*arguments: object, **env: str) -> subprocess.CompletedProcess[str]:
    call = [sys.executable, "-W", "ignore", "-m", "fedscape", *map(str, arguments)]
    return subprocess.run(call, capture_output=True, text=True, env={**os.environ, **env}, timeout=300)


def ok(*arguments: object, **env: str) -> str:
    done = fedscape(*arguments, **env)
    assert done.returncode == 0, done.stderr
    return done.stdout


def refused(code: int, *arguments: object, **env: str) -> str:
    done = fedscape(*arguments, **env)
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    return done.stderr

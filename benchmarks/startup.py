"""How long after `fedscape` is anything shown on a terminal, and how long until the command is done?

Each command is started anew on a terminal of its own (a pty); the median of some starts. A file that has been read
before is in the memory of the machine, as for whoever uses a command twice.
"""

from __future__ import annotations

import os
import pty
import select
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from table import arguments, report

MOST = 1.5  # seconds until something is shown
COMMANDS: dict[str, list[str]] = {
    "--help": ["--help"],
    "data info": ["data", "info"],
    "doctor": ["doctor"],
    "explain": ["explain", "fedavg"],
    "describe": ["describe", "femnist-mini", "--column", "y"],
    "fit": ["fit", "acs-race", "--components", "1", "--rounds", "3"],
    "sketch build": ["sketch", "build", "femnist-mini", "--out", "{folder}/s", "--force"],
    "privacy calibrate": ["privacy", "calibrate", "--epsilon", "1", "--rounds", "10"],
    "regress": [
        *["regress", "flights-mini", "--column", "arr_delay", "--features", "dep_delay", "--components", "1"],
        *["--rounds", "2"],
    ],
    "train": ["train", "femnist-mini", "--model", "linear", "--rounds", "1"],
    "train --method fedem": ["train", "femnist-mini", "--model", "linear", "--rounds", "1", "--method", "fedem"],
    "sweep": ["sweep", "femnist-mini", "--model", "linear", "--rounds", "1", "--lr", "0.1"],
    "study": ["study", "acs-race", "--out", "{folder}/study", "--force"],
}
QUICK = ("--help", "describe", "fit", "train")


def first_output(command: list[str]) -> tuple[float, float]:
    """Seconds until a command on a terminal shows anything, and until it is done."""
    ours, theirs = pty.openpty()
    began = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-m", "fedscape", *command], stdout=theirs, stderr=theirs)
    os.close(theirs)
    shown = 0.0
    while True:
        select.select([ours], [], [])
        try:
            if not os.read(ours, 65536):
                break
        except OSError:  # Linux: nobody holds the other end
            break
        shown = shown or time.perf_counter() - began
    os.close(ours)
    if process.wait() != 0:
        raise SystemExit(f"fedscape {' '.join(command)} ended with {process.returncode}")
    return shown, time.perf_counter() - began


def main() -> None:
    asked = arguments(__doc__, starts=3)
    names = QUICK if asked.quick else tuple(COMMANDS)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            call = [word.format(folder=Path(folder)) for word in COMMANDS[name]]
            shown, done = zip(*(first_output(call) for _ in range(1 if asked.quick else asked.starts)), strict=True)
            rows.append({"command": name, "first output, s": statistics.median(shown), "done, s": max(done)})
    slowest = max(row["first output, s"] for row in rows)
    report("startup", rows, note=f"The slowest first output took {slowest:.2f} s; at most {MOST} s are promised.")


if __name__ == "__main__":
    main()

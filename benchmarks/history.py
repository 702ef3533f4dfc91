"""How did speed move over commits? `python benchmarks/history.py COMMIT ...` runs the quick speed benchmarks of each.

Each runs in a worktree of its own with the sources of that commit, one after the other on this machine. It adds a line
to `results/history/NAME.jsonl` with commit, date, machine and value. `make results` adds the values of the full runs in
`results/` and draws `pages/plots/history_NAME.svg` from the quick ones. Without commits it runs the one checked out.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import plots
from table import RESULTS, cell, origin

ROOT, HISTORY = Path(__file__).parents[1], RESULTS / "history"
#: The row and the column of each benchmark that history keeps, and what they say. Ratios to a rival in the same run do
#: not move with the load of the machine; times do.
KEPT: dict[str, tuple[dict[str, str], str, str]] = {
    "mdm_speed": (
        {"what": "fedscape, exact", "threads": "1"},
        "times faster",
        "A round of the mixture: times faster than vectorised SciPy in the same process",
    ),
    "gaussian_speed": (
        {"what": "fedscape, common weights", "clients": "1,000", "threads": "1"},
        "times faster",
        "A round of a Gaussian mixture: times faster than scikit-learn in the same process",
    ),
    "rounds": (
        {"computation": "Histogram, sums", "threads": "1"},
        "us per client",
        "An engine's round of a histogram, microseconds per client (the largest federation of the run)",
    ),
    "startup": ({"command": "--help"}, "first output, s", "Seconds until fedscape --help prints its first line"),
}


def entry(name: str, content: dict[str, Any], **about: str) -> dict[str, Any] | None:
    """The line of a result, or None if it has no such row or does not say its commit."""
    where, column, _ = KEPT[name]
    about = {**{key: content[key] for key in ("date", "commit", "machine") if key in content}, **about}
    fits = [row for row in content["rows"] if all(cell(row.get(c, "")) == v for c, v in where.items())]
    if not fits or column not in fits[-1] or "commit" not in about:
        return None
    return {**about, "quick": "--quick" in content["command"], "column": column, "value": fits[-1][column]}


def lines(name: str, content: str | None = None) -> list[dict[str, Any]]:
    """What history has of a benchmark, oldest first."""
    path = HISTORY / f"{name}.jsonl"
    text = content if content is not None else path.read_text() if path.is_file() else ""
    return [json.loads(line) for line in text.splitlines()]


def recorded() -> dict[Path, str]:
    """The files of history with the full runs of `results/` in them."""
    files = {}
    for name in KEPT:
        path = RESULTS / f"{name}.json"
        new = entry(name, json.loads(path.read_text())) if path.is_file() else None
        known = lines(name)
        kept = known if new is None or new in known else [*known, new]
        if kept:
            files[HISTORY / f"{name}.jsonl"] = "".join(json.dumps(line) + "\n" for line in kept)
    return files


def drawn(folder: Path, files: dict[Path, str]) -> dict[Path, str]:
    """A plot of the quick runs of each benchmark."""
    plotted = {}
    for name, (_, _, title) in KEPT.items():
        points = [
            (line["commit"], line["value"])
            for line in lines(name, files.get(HISTORY / f"{name}.jsonl", ""))
            if line["quick"]
        ]
        if len(points) > 1:
            plotted[folder / f"history_{name}.svg"] = plots.line(points, title=title)
    return plotted


def run(commit: str, name: str) -> dict[str, Any] | None:
    """The line of one benchmark at one commit, from its own sources in a worktree."""
    git = ["git", "-C", str(ROOT)]
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        subprocess.run([*git, "worktree", "add", "--quiet", "--detach", str(tree), commit], check=True)
        try:
            script = tree / "benchmarks" / f"{name}.py"
            if not script.is_file():
                return None
            environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1"}
            call = [sys.executable, f"benchmarks/{name}.py", "--quick"]
            done = subprocess.run(call, cwd=tree, env=environment, capture_output=True, text=True, check=False)
            results = tree / "benchmarks" / "results"
            old = done.returncode == 0 and not (results / "quick" / f"{name}.json").is_file()  # one folder for all then
            made = results / f"{name}.json" if old else results / "quick" / f"{name}.json"
            if done.returncode or not made.is_file():
                print(f"{commit} {name}: no result: {done.stderr.strip().splitlines()[-1:]}")
                return None
            day, short = subprocess.run(
                [*git, "show", "-s", "--format=%as %h", commit], capture_output=True, text=True, check=True
            ).stdout.split()
            return entry(name, json.loads(made.read_text()), date=day, commit=short, machine=origin()["machine"])
        finally:
            subprocess.run([*git, "worktree", "remove", "--force", str(tree)], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commits", nargs="*", default=["HEAD"])
    parser.add_argument("--only", default=",".join(KEPT), help="names of benchmarks, with commas between them")
    parser.add_argument("--quick", action="store_true", help="only say what would run")
    args = parser.parse_args()
    for commit in args.commits:
        for name in args.only.split(","):
            if args.quick:
                print(f"{commit}: benchmarks/{name}.py --quick")
                continue
            new = run(commit, name)
            if new is not None:
                HISTORY.mkdir(parents=True, exist_ok=True)
                with (HISTORY / f"{name}.jsonl").open("a") as file:
                    file.write(json.dumps(new) + "\n")
                print(json.dumps(new))


if __name__ == "__main__":
    main()

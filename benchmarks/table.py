"""What all benchmarks share: arguments, one table on the screen, one JSON file that says how it was made."""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import re
import shlex
import statistics
import subprocess
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).with_name("results")


def arguments(doc: str | None, **extra: Any) -> argparse.Namespace:
    """`--quick`, `--seed`, and what the benchmark adds as name=default."""
    parser = argparse.ArgumentParser(description=doc)
    parser.add_argument("--quick", action="store_true", help="a small version that ends within a minute")
    parser.add_argument("--seed", type=int, default=0)
    for name, default in extra.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default)
    return parser.parse_args()


def report(name: str, rows: list[dict[str, Any]], *, note: str = "", cells: Sequence[dict[str, Any]] = ()) -> None:
    """Print the rows as a Markdown table and write them to results/NAME.json, quick ones to results/quick/.

    Rows that sum up cells, which may be of other days and machines, are dated as these are.
    """
    print(markdown(rows))
    if note:
        print(f"\n{note}")
    write(name, rows, note=note, cells=cells)


def report_each(name: str, rows: Iterable[dict[str, Any]], *, note: str = "", out: str = "") -> None:
    """`report`, with each row printed and written as it comes, so that a run that is stopped leaves what it had.

    Rows are also added to the file `out`, if any; those of earlier runs in it come first. There each row says as its
    "origin" how it was made, as the `cells` of `report` do.
    """
    lines = without_origin(rows_of(out)) if out and Path(out).exists() else []
    for row in rows:
        print({k: round(v, 5) if isinstance(v, float) else v for k, v in row.items()}, flush=True)
        lines.append(row)
        if out:
            with open(out, "a") as file:
                made = {**row, "origin": {**origin(), "versions": versions()}}
                file.write(json.dumps(made, default=float) + "\n")
        write(name, lines, note=note)
    report(name, lines, note=note)


def rows_of(file: str | Path) -> list[dict[str, Any]]:
    """The rows of a file with one in each line."""
    return [json.loads(line) for line in Path(file).read_text().splitlines()]


def without_origin(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name != "origin"} for row in rows]


def write(name: str, rows: list[dict[str, Any]], *, note: str = "", cells: Sequence[dict[str, Any]] = ()) -> None:
    """Write results/NAME.json."""
    folder = RESULTS / "quick" if "--quick" in sys.argv else RESULTS  # the repository has results/ itself
    folder.mkdir(parents=True, exist_ok=True)
    content = {"name": name, "command": shlex.join(sys.argv), **origin_of(cells), "rows": rows, "note": note}
    (folder / f"{name}.json").write_text(json.dumps(content, indent=1, default=float) + "\n")


def origin() -> dict[str, str]:
    """Where and when a result is made: the date, the commit ("+" if sources differ from it) and the machine."""
    commit = _git("rev-parse", "--short", "HEAD") or os.environ.get("COMMIT", "unknown")  # sources without a repository
    if _git("status", "--porcelain", "--untracked-files=no", "--", "src", str(Path(sys.argv[0]).resolve())):
        commit += "+"
    return {"date": datetime.now(UTC).date().isoformat(), "commit": commit, "machine": _machine()}


def versions() -> dict[str, str]:
    """Of python and the packages that results depend on."""
    packages = ("fedscape", "numpy", "scipy", "numba", "pyarrow", "torch")
    about = {"python": platform.python_version(), "machine": platform.machine()}
    return about | {package: _version(package) for package in packages}


def origin_of(cells: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """`origin` and `versions` as these cells say them, each different one once; those of now if there are no cells."""
    if not cells:
        return {**origin(), "versions": versions()}
    parts = [cell.get("origin", {}) for cell in cells]
    return {
        **{what: _different([part.get(what, "unknown") for part in parts]) for what in ("date", "commit", "machine")},
        "versions": {n: _different([part.get("versions", {}).get(n, "unknown") for part in parts]) for n in versions()},
    }


def _different(values: Sequence[str]) -> str:
    return ", ".join(sorted(set(values)))


def markdown(rows: list[dict[str, Any]]) -> str:
    """The rows as a Markdown table."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    lines = [f"| {' | '.join(columns)} |", f"|{'|'.join(' --- ' for _ in columns)}|"]
    return "\n".join([*lines, *(f"| {' | '.join(cell(row.get(c, '')) for c in columns)} |" for row in rows)])


def half_width(values: Sequence[float]) -> float:
    """Half of the 95% interval of the mean by Student's t; NaN for fewer than two values."""
    from scipy.special import stdtrit

    if len(values) < 2:
        return math.nan
    return float(stdtrit(len(values) - 1, 0.975)) * statistics.stdev(values) / math.sqrt(len(values))


def mean_and_half(values: Sequence[float]) -> str:
    """The mean, with `half_width` where there is one."""
    mean = f"{statistics.fmean(values):.3f}"
    return mean if len(values) < 2 else f"{mean} ± {half_width(values):.3f}"


def _git(*words: str) -> str:
    call = ["git", "-C", str(RESULTS.parents[1]), *words]
    try:
        return subprocess.run(call, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def _machine() -> str:
    """Cores and model of the processor, and the GPU if torch is loaded and sees one."""
    try:
        model = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        model = None
    name = model.group(1) if model else platform.processor() or platform.machine()
    torch = sys.modules.get("torch")
    gpu = f", {torch.cuda.get_device_name()}" if torch is not None and torch.cuda.is_available() else ""
    return f"{os.cpu_count()} x {name}, {platform.system()}{gpu}"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def cell(value: Any) -> str:
    """A value as the tables show it."""
    if isinstance(value, bool) or not isinstance(value, float):
        return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"

"""What all benchmarks share: arguments, one table on the screen, one JSON file with versions."""

from __future__ import annotations

import argparse
import json
import platform
import sys
from contextlib import suppress
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


def report(name: str, rows: list[dict[str, Any]], *, note: str = "") -> None:
    """Print the rows as a Markdown table and write them to results/NAME.json."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    print(f"| {' | '.join(columns)} |")
    print(f"|{'|'.join(' --- ' for _ in columns)}|")
    for row in rows:
        print(f"| {' | '.join(_text(row.get(column, '')) for column in columns)} |")
    if note:
        print(f"\n{note}")
    RESULTS.mkdir(exist_ok=True)
    versions = {}
    for package in ("fedscape", "numpy", "scipy", "numba", "pyarrow"):
        with suppress(PackageNotFoundError):  # a machine for training has few of them
            versions[package] = version(package)
    about = {"python": platform.python_version(), "machine": platform.machine(), **versions}
    content = {"name": name, "command": " ".join(sys.argv), "versions": about, "rows": rows, "note": note}
    (RESULTS / f"{name}.json").write_text(json.dumps(content, indent=1, default=float) + "\n")


def _text(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, float):
        return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"

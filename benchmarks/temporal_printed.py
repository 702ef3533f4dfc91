"""What do FedTEM, FedTKM and SCSGD gain over vanilla training as printed, and with each mend? (FedTEM paper, Figure 2)

Tables from the cells that `temporal.py` wrote: `--cells FOLDER`. First make them, on one core in half an hour (several
calls go on where the last one stopped):

    python benchmarks/temporal.py --prepare FOLDER
    python benchmarks/temporal.py --data FOLDER --out CELLS --only femnist,powers --workers 1 --minutes 30 \\
        --methods vanilla,fedtem-printed,fedtem,fedtkm,fedtkm-constant,scsgd,scsgd-first-half

`--quick` makes its own, of a few rounds.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from table import arguments, half_width, report
from temporal import Cell, found, load, run

TITLES = {
    "vanilla": "vanilla",
    "fedtem-printed": "FedTEM as printed",
    "fedtem": "FedTEM, scatter of all rows",
    "fedtkm": "FedTKM, eta by (27)",
    "fedtkm-constant": "FedTKM, eta constant",
    "scsgd-first-half": "SCSGD, first half",
    "scsgd": "SCSGD, around the peak",
}


def accuracies(rows: list[dict[str, Any]], table: str) -> dict[tuple[str, str], dict[int, dict[str, Any]]]:
    """By (shift, method) and seed."""
    found_: dict[tuple[str, str], dict[int, dict[str, Any]]] = {}
    for row in (r for r in rows if r["table"] == table and "error" not in r):
        found_.setdefault((row["label"], row["method"]), {})[row["seed"]] = row
    return found_


def compared(rows: list[dict[str, Any]], table: str) -> list[dict[str, Any]]:
    """Accuracy with the right branches in brackets, and the paired difference to vanilla, by shift."""
    cells = accuracies(rows, table)
    shifts = list(dict.fromkeys(shift for shift, _ in cells))
    lines = []
    for shift in shifts:
        base = cells.get((shift, "vanilla"), {})
        for method, title in TITLES.items():
            mine = cells.get((shift, method), {})
            if not mine:
                continue
            values = [one["accuracy per batch"] for one in mine.values()]
            line: dict[str, Any] = {"shift": shift, "method": title, "seeds": len(mine)}
            line["accuracy"] = f"{np.mean(values):.1f}"
            right = [one["right branch"] for one in mine.values() if "right branch" in one]
            line["right branch"] = f"{np.mean(right):.0f}" if right else ""
            both = sorted(set(mine) & set(base)) if method != "vanilla" else []
            gains = [mine[s]["accuracy per batch"] - base[s]["accuracy per batch"] for s in both]
            line["minus vanilla"] = f"{np.mean(gains):+.1f} ± {half_width(gains):.1f}" if len(gains) > 1 else ""
            lines.append(line)
    return lines


def main() -> None:
    args = arguments(__doc__, cells="")
    if args.quick:
        job = load("femnist", quick=True)
        cells = [Cell("femnist", "linear p=1", name, "linear:p=1,T=8", rounds=9, period=8) for name in list(TITLES)[:3]]
        began = time.time()
        rows = [{**vars(cell), **run(cell, job)} for cell in cells]
        report("temporal_printed_quick", compared(rows, "femnist"), note=f"{time.time() - began:.0f} s")
        return
    rows = found(Path(args.cells or tempfile.gettempdir()))
    how = "FEMNIST, dense network, T = 64, 513 rounds, cohorts of 10; 95% t intervals of paired differences"
    for table in ("femnist", "powers", "long"):
        if lines := compared(rows, table):
            report(
                f"temporal_printed_{table}",
                lines,
                note=how.replace("T = 64, 513", "T = 256, 2,049") if table == "long" else how,
            )
            print()


if __name__ == "__main__":
    main()

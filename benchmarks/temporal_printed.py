"""What do FedTEM, FedTKM and SCSGD gain over vanilla training as printed, and with each mend? (FedTEM paper, Figure 2)

Tables from the cells that `temporal.py` wrote: `--cells FOLDER`. First make them, on one core in half an hour (several
calls go on where the last one stopped):

    python benchmarks/temporal.py --prepare FOLDER
    python benchmarks/temporal.py --data FOLDER --out CELLS --only femnist,powers --workers 1 --minutes 30 \\
        --methods vanilla,fedtem-printed,fedtem,fedtkm,fedtkm-constant,scsgd,scsgd-first-half

"powers" are the seven p of Figures 2 and 9, for which `--methods` also names single, no-shift and no-shift-single. The
ablations of Figures 3 to 6 and 8 to 10 come from `--only ablation --rounds 257` in the same way; `--figures 8,9` makes
a table of these alone.

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


def by_power(shift: str) -> tuple[float, str]:
    """Order of "linear p=0.5": by p, then by curve; "no shift" comes first."""
    return (float(shift.split("p=")[1]) if "p=" in shift else 0.0), shift


def compared(rows: list[dict[str, Any]], table: str) -> list[dict[str, Any]]:
    """Accuracy with the right branches in brackets, and the paired difference to vanilla, by shift."""
    cells = accuracies(rows, table)
    shifts = sorted({shift for shift, _ in cells}, key=by_power)
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


#: Of each ablation: the figure, what differs, its cell (label, method, unit), and the cell that it is compared with.
Ablation = tuple[str, str, tuple[str, str, str], tuple[str, str, str]]
PRINTED = "fedtem-printed"


def ablations() -> list[Ablation]:
    def at(label: str, method: str = PRINTED, unit: str = "batch") -> tuple[str, str, str]:
        return label, method, unit

    lines: list[Ablation] = []
    for shift in ("linear p=1", "cosine p=1"):
        for prior in ("linear", "cosine", "soft"):
            one, other = (at(f"Figure 3: {shift}, prior {name}") for name in (prior, "none"))
            lines.append(("3", f"{shift}: prior {prior} for none (EM only)", one, other))
    base = at("Figure 3: linear p=1, prior linear")
    for method in (PRINTED, "fedtkm", "vanilla"):
        for unit in ("batch", "client"):
            one, other = (at("Figure 4: choice per", method, name) for name in (unit, "sample"))
            lines.append(("4", f"{TITLES[method]}: a branch a {unit} for a row", one, other))
    none = at("Figure 5: lambda=0.0 epsilon=0.0")
    lines.append(("5", "lambda 0.5, epsilon 0.1 for none", base, none))
    for values in ("lambda=0.1 epsilon=0.1", "lambda=0.5 epsilon=0.5"):
        lines.append(
            ("5", f"{values.replace('=', ' ').replace(' e', ', e')} for none", at(f"Figure 5: {values}"), none)
        )
    lines.append(("6", "MLE sampled for MLE greedy", at("Figure 6: mle sampled"), base))
    lines.append(("6", "posterior greedy for MLE greedy", at("Figure 6: posterior greedy"), base))
    both = at("Figure 6: posterior sampled"), at("Figure 6: posterior greedy")
    lines.append(("6", "posterior sampled for posterior greedy", *both))
    for p in ("0.25", "1", "4"):
        usual = base if p == "1" else at(f"Figure 8: T=64 p={p}")
        for period in (16, 128):
            lines.append(("8", f"T = {period} for 64, p = {p}", at(f"Figure 8: T={period} p={p}"), usual))
    two, still = at("Figure 4: choice per", "vanilla"), at("Figure 9: branches", "no-shift")
    lines.append(("9", "vanilla, p = 1: one branch for two", at("Figure 9: branches", "single"), two))
    lines.append(("9", "p = 1: FedTEM for one branch", base, at("Figure 9: branches", "single")))
    for p in ("0.25", "4"):
        label = f"Figure 9: branches, p={p}"
        lines.append(("9", f"vanilla, p = {p}: one branch for two", at(label, "single"), at(label, "vanilla")))
        lines.append(("9", f"p = {p}: FedTEM for one branch", at(f"Figure 8: T=64 p={p}"), at(label, "single")))
    lines.append(("9", "no shift: one branch for two", at("Figure 9: branches", "no-shift-single"), still))
    for most in (10, 20, 40):
        label = f"Figure 10: at most {most} rows"
        mine = at(label) if most < 40 else at("Figure 3: cosine p=1, prior linear")
        lines.append(("10", f"at most {most} rows: FedTEM for vanilla", mine, at(label, "vanilla")))
        level = at(label, "no-shift") if most < 40 else still
        lines.append(("10", f"at most {most} rows: FedTEM for no shift", mine, level))
    return lines


def ablation_rows(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Both accuracies, and their paired difference by seed."""
    cells = accuracies(rows, "ablation")

    def values(where: tuple[str, str, str]) -> dict[int, float]:
        label, method, unit = where
        return {seed: row[f"accuracy per {unit}"] for seed, row in cells.get((label, method), {}).items()}

    made = []
    for figure, what, one, other in ablations():
        mine, theirs = values(one), values(other)
        both = sorted(set(mine) & set(theirs))
        if not both:
            continue
        gains = [mine[s] - theirs[s] for s in both]
        row = {"figure": figure, "what, for what": what, "seeds": len(both)}
        row |= {
            "accuracy": f"{np.mean([mine[s] for s in both]):.1f}",
            "of the other": f"{np.mean([theirs[s] for s in both]):.1f}",
        }
        each = ", ".join(f"{gain:+.1f}" for gain in gains)
        made.append(
            {**row, "difference": each if len(gains) < 3 else f"{np.mean(gains):+.1f} ± {half_width(gains):.1f}"}
        )
    return made


def branch_rows(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Figure 9 over the seven p: one branch for two under vanilla training, FedTEM for one branch, paired by seed."""
    cells = accuracies(rows, "powers")

    def values(shift: str, method: str) -> dict[int, float]:
        return {seed: row["accuracy per batch"] for seed, row in cells.get((shift, method), {}).items()}

    def gain(one: dict[int, float], other: dict[int, float]) -> str:
        both = [one[s] - other[s] for s in sorted(set(one) & set(other))]
        return f"{np.mean(both):+.1f} ± {half_width(both):.1f}" if len(both) > 1 else ""

    lines = []
    for shift in sorted({shift for shift, method in cells if "single" in method}, key=by_power):
        still = shift == "no shift"
        two, one = (
            values(shift, "no-shift" if still else "vanilla"),
            values(shift, "no-shift-single" if still else "single"),
        )
        tem = values(shift, "fedtem-printed")
        line: dict[str, Any] = {"shift": shift, "seeds": len(set(one) & set(two))}
        for title, each in (("two branches", two), ("one branch", one), ("FedTEM as printed", tem)):
            line[title] = f"{np.mean(list(each.values())):.1f}" if each else ""
        lines.append({**line, "one for two": gain(one, two), "FedTEM for one": gain(tem, one)})
    return lines


def main() -> None:
    args = arguments(__doc__, cells="", figures="")
    if args.quick:
        job = load("femnist", quick=True)
        cells = [Cell("femnist", "linear p=1", name, "linear:p=1,T=8", rounds=9, period=8) for name in list(TITLES)[:3]]
        began = time.time()
        rows = [{**vars(cell), **run(cell, job)} for cell in cells]
        report("temporal_printed_quick", compared(rows, "femnist"), note=f"{time.time() - began:.0f} s")
        return
    rows = found(Path(args.cells or tempfile.gettempdir()))
    asked = args.figures.split(",")
    if lines := [line for line in ablation_rows(rows) if args.figures == "" or line["figure"] in asked]:
        how = f"FEMNIST, dense network, {rows[0]['rounds']} rounds, cohorts of 10, FedTEM as printed; differences "
        report(
            "_".join(["temporal_ablations", *filter(None, asked)]),
            lines,
            note=f"{how}paired by seed, from three seeds on with 95% t intervals; linear, p = 1, T = 64 unless said",
        )
        print()
    how = "FEMNIST, dense network, T = 64, 513 rounds, cohorts of 10; 95% t intervals of paired differences"
    for table in ("femnist", "powers", "long"):
        if lines := compared(rows, table):
            report(
                f"temporal_printed_{table}",
                lines,
                note=how.replace("T = 64, 513", "T = 256, 2,049") if table == "long" else how,
            )
            print()
    if lines := branch_rows(rows):
        report("temporal_printed_branches", lines, note=how)


if __name__ == "__main__":
    main()

"""Small figures of the papers from results/ and the data: `python benchmarks/paper_figures.py` writes SVG to results/.

MDM Figure 8 (how many rows a census region has), FedHLCR Figure 3 (b) as printed and mended, FedTEM Figures 2 (over p)
and 7 (the curves).
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from table import RESULTS, arguments


def drawn(name: str, title: str, curves: dict[str, tuple[Any, Any]], *, folder: Path, **axes: Any) -> None:
    """One plot of curves (x, y) as an SVG file that is the same for the same numbers."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = name
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(4.5, 3))
    for label, (x, y) in curves.items():
        axis.plot(x, y, marker="o" if len(x) < 20 else None, label=label)
    axis.set(title=title, **axes)
    axis.legend(fontsize=7)
    figure.tight_layout()
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / f"{name}.svg", metadata={"Date": None})
    plt.close(figure)


def rows_of(name: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((RESULTS / f"{name}.json").read_text())["rows"]
    return rows


def figure8(folder: Path, *, quick: bool) -> None:
    from fedscape import datasets

    sizes = datasets.load("acs-mini" if quick else "acs-race").sizes
    counts, edges = np.histogram(sizes, bins=40)
    axes = {"xlabel": "rows of a region", "ylabel": "regions"}
    drawn("mdm_figure8", f"{len(sizes):,} census regions", {"regions": (edges[:-1], counts)}, folder=folder, **axes)


def figure3b(folder: Path) -> None:
    rows = rows_of("as_printed_figure3b")
    gamma = [row["gamma"] for row in rows]
    curves = {
        name: (gamma, [float(row[name].split()[0]) for row in rows]) for name in rows[0] if name.startswith("sigma")
    }
    axes = {"xlabel": "gamma", "ylabel": "MSE / sigma^2", "yscale": "log"}
    drawn("hlcr_figure3b", "FedHLCR, 15% of agents", curves, folder=folder, **axes)


def figure2(folder: Path) -> None:
    rows = [row for row in rows_of("temporal_printed_powers") if row["shift"].startswith("linear")]
    curves = {}
    for method in dict.fromkeys(row["method"] for row in rows):
        mine = sorted(
            (float(re.sub(r".*p=", "", r["shift"])), float(r["accuracy"])) for r in rows if r["method"] == method
        )
        curves[method] = tuple(zip(*mine, strict=True))
    axes = {"xlabel": "p of the linear curve", "ylabel": "accuracy, %", "xscale": "log"}
    drawn("temporal_figure2", "FEMNIST, T = 64", curves, folder=folder, **axes)


def figure7(folder: Path) -> None:
    from fedscape.temporal import Cosine, Linear

    t = np.arange(0, 512, 4)
    for name, kind in (("linear", Linear), ("cosine", Cosine)):
        curves = {f"p = {p:g}": (t, [kind(256, p)(float(x)) for x in t]) for p in (0.1, 0.25, 0.5, 1, 2, 4, 10)}
        drawn(f"temporal_figure7_{name}", f"{name} curve", curves, folder=folder, xlabel="round", ylabel="share of day")


def main() -> None:
    args = arguments(__doc__)
    folder = RESULTS / "quick" if args.quick else RESULTS
    figure8(folder, quick=args.quick)
    figure3b(folder)
    figure2(folder)
    figure7(folder)
    print(*sorted(path.name for path in folder.glob("*.svg")))


if __name__ == "__main__":
    main()

"""The four reports of the front page and its picture: `python tools/reports.py [handwriting census hospitals shop]`.

Writes `docs/reports/NAME.html` (to be shared: no ids, no rows per client) and, from the handwriting,
`docs/images/front.png`. Hospitals and shop are read from the folder that FEDSCAPE_DATA names.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[1]
REPORTS = ROOT / "docs" / "reports"


def handwriting(_folder: Path) -> list[str]:
    return ["femnist-mini"]


def census(_folder: Path) -> list[str]:
    return ["acs-mini"]


def hospitals(folder: Path) -> list[str]:
    """Heart disease in four hospitals, as a class: any disease or none."""
    import pandas as pd

    table = pd.read_csv(_data() / "hospitals" / "heart_disease.csv")
    table["disease"] = (table.pop("target") > 0).map({True: "yes", False: "no"})
    table.to_csv(folder / "heart.csv", index=False)
    return [str(folder / "heart.csv"), "--client", "hospital", "--column", "disease"]


def shop(folder: Path) -> list[str]:
    """The 40 commonest products of a shop's customers, from quantity, price, hour and weekday."""
    import pandas as pd

    lines = pd.read_parquet(_data() / "online_retail" / "online_retail_ii.parquet")
    lines = lines[lines.customer.notna() & (lines.quantity > 0) & (lines.price > 0)]
    common = lines.description.value_counts().index[:40]
    lines = lines[lines.description.isin(common)]
    columns = {
        "customer": lines.customer,
        "product": lines.description,
        "quantity": lines.quantity,
        "price": lines.price,
    }
    table = pd.DataFrame(columns | {"hour": lines.time.dt.hour, "weekday": lines.time.dt.day_name()})
    table.to_csv(folder / "shop.csv", index=False)
    return [str(folder / "shop.csv"), "--client", "customer", "--column", "product"]


STUDIES: dict[str, Callable[[Path], list[str]]] = {
    "handwriting": handwriting,
    "census": census,
    "hospitals": hospitals,
    "shop": shop,
}


def picture(folder: Path) -> None:
    """The map of clients by kind beside the methods with their intervals and the verdict."""
    from matplotlib.figure import Figure

    from fedscape.report.plots import COLOURS, MARKS
    from fedscape.studies import Study

    result = Study.load(folder).result
    about = result["measure"]["map"]
    points = about["features" if "features" in about else "labels"]["points"]
    figure = Figure(figsize=(12, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.25))
    for number, kind in enumerate(sorted(set(about["kind"]))):
        mine = [point for point, k in zip(points, about["kind"], strict=True) if k == kind and point[0] is not None]
        look = {
            "color": COLOURS[number % 6],
            "marker": MARKS[number % 6],
            "s": 60,
            "label": f"kind {kind}",
            "alpha": 0.85,
        }
        left.scatter([p[0] for p in mine], [p[1] for p in mine], **look)
    left.set_aspect("equal")
    left.set_xticks([])
    left.set_yticks([])
    left.set_title("clients; near each other: like data")
    left.legend(frameon=False)
    rows = sorted(result["learn"]["true"], key=lambda row: row["accuracy"]["value"])
    values = [row["accuracy"]["value"] for row in rows]
    wide = [[v - row["accuracy"]["low"] for v, row in zip(values, rows, strict=True)]]
    wide += [[row["accuracy"]["high"] - v for v, row in zip(values, rows, strict=True)]]
    right.errorbar(values, range(len(rows)), xerr=wide, fmt="o", color=COLOURS[0], capsize=3)
    right.set_yticks(range(len(rows)), [row["called"] for row in rows])
    right.set_xlabel("accuracy on held-out rows, 95% interval")
    right.set_title(result["advise"][0]["text"], fontsize=10, wrap=True)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(ROOT / "docs" / "images" / "front.png", dpi=100)


def main() -> None:
    REPORTS.mkdir(exist_ok=True)
    for name in sys.argv[1:] or STUDIES:
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch)
            call = ["study", *STUDIES[name](folder), "--out", str(folder / "study")]
            subprocess.run([sys.executable, "-m", "fedscape", *call], check=True)
            (REPORTS / f"{name}.html").write_bytes((folder / "study" / "report.html").read_bytes())
            if name == "handwriting":
                picture(folder / "study")


def _data() -> Path:
    return Path(os.environ["FEDSCAPE_DATA"])


if __name__ == "__main__":
    main()

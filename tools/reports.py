"""The four reports of the front page and its picture: `python tools/reports.py [handwriting census hospitals shop]`.

Writes `docs/reports/NAME.html` (to be shared: no ids, no rows per client) and NAME.txt, the answers that are printed.
From the handwriting it also makes `docs/images/front*.png` and the printed lines of README. Hospitals and shop are read
from the folder that FEDSCAPE_DATA names.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedscape.report.plots import COLOURS, MARKS
from fedscape.studies import Study

ROOT = Path(__file__).parents[1]
REPORTS = ROOT / "docs" / "reports"
PAPER, INK = "#0d1117", "#e6edf3"  # of a dark page
DARK = {
    **{f"{part}.facecolor": PAPER for part in ("figure", "axes", "savefig")},
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), INK),
}
LIGHTER = ("#56B4E9", "#F0883E", "#2FC79A", "#E2A3C7", "#E0B84C", "#8CC8EE")  # COLOURS, for a dark page


def handwriting(_folder: Path) -> list[str]:
    return ["femnist-mini"]


def census(folder: Path) -> list[str]:
    """Who earns more than 50,000 dollars, over the working adults of 1,024 regions: the task ACSIncome."""
    import pandas as pd

    people = pd.read_parquet(_data() / "acs_pums" / "acs_pums_2024_st01-29.parquet")
    people = people[(people.AGEP > 16) & (people.PINCP > 100) & (people.WKHP > 0)]
    people["income"] = (people.PINCP > 50_000).map({True: "above 50,000", False: "below"})
    columns = ["ST", "PUMA", "AGEP", "SEX", "RAC1P", "SCHL", "MAR", "COW", "WKHP", "income"]
    people[columns].to_parquet(folder / "census.parquet", index=False)
    call = [str(folder / "census.parquet"), "--client", "ST,PUMA", "--column", "income"]
    return [*call, "--categorical", "SEX,RAC1P,MAR,COW"]


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


def picture(result: Mapping[str, Any]) -> None:
    """The map of clients by kind and the methods with their intervals and the verdict.

    Side by side or, for phones, one above the other; for light and for dark pages.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    for name, size in (("front", (10, 4.4)), ("front-narrow", (5, 8.4))):
        for end, colours, look in (("", COLOURS, {}), ("-dark", LIGHTER, DARK)):
            with rc_context({"font.size": 12, **look}):
                figure = _drawn(Figure(figsize=size, layout="constrained"), result, colours)
                figure.savefig(ROOT / "docs" / "images" / f"{name}{end}.png", dpi=120)


def _drawn(figure: Any, result: Mapping[str, Any], colours: Sequence[str]) -> Any:
    width, height = figure.get_size_inches()
    shape: dict[str, Any] = {"ncols": 2, "width_ratios": (1, 1.25)} if width > height else {"nrows": 2}
    left, right = figure.subplots(**shape)
    _clients(left, result["measure"]["map"], colours)
    rows = sorted(result["learn"]["true"], key=lambda row: row["accuracy"]["value"])
    for at, row in enumerate(rows):
        about = row["accuracy"]
        known = [about[end] if about[end] is not None else about["value"] for end in ("low", "high")]
        right.plot(known, [at, at], color=colours[0], linewidth=2)
        right.plot(about["value"], at, "o", color=colours[0])
        right.annotate(
            f"{about['value']:.0%}", (about["value"], at), xytext=(0, 6), textcoords="offset points", ha="center"
        )
    right.set_ylim(-0.6, len(rows) - 0.2)
    right.set_yticks(range(len(rows)), [row["called"] for row in rows])
    if width < height:  # no room beside the axis: above the line that they name
        right.set_yticks([])
        for at, row in enumerate(rows):
            aside = (6, 0) if row["accuracy"]["value"] > 0.3 else (60, 0)  # past a point at the left
            right.annotate(
                row["called"],
                (0, at),
                xytext=aside,
                xycoords=("axes fraction", "data"),
                textcoords="offset points",
                va="center",
            )
    right.xaxis.set_major_formatter("{x:.0%}")
    right.set_xlabel(
        "accuracy on held-out rows, 95% intervals of each\nalone (in the report they are simultaneous)", fontsize=10
    )
    verdict = next(item["answer"] for item in result["advise"] if item["question"] == "Which method?")
    advised = verdict.partition(", tied")[0]  # all tied with it would not fit
    right.set_title(f"Which method? {advised}", fontsize=14, loc="left")
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def _clients(axes: Any, about: Mapping[str, Any], colours: Sequence[str]) -> None:
    points = about["features" if "features" in about else "labels"]["points"]
    for number, kind in enumerate(sorted(set(about["kind"]))):
        mine = [point for point, k in zip(points, about["kind"], strict=True) if k == kind and point[0] is not None]
        look: dict[str, Any] = {"color": colours[number % 6], "marker": MARKS[number % 6], "s": 60, "alpha": 0.85}
        axes.scatter([p[0] for p in mine], [p[1] for p in mine], label=f"kind {kind}", **look)
    axes.set_aspect("equal", adjustable="datalim")
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_title("Clients: near means alike", fontsize=14, loc="left")
    axes.legend(frameon=False, ncols=2, loc="upper center", bbox_to_anchor=(0.5, 0), handletextpad=0, columnspacing=1)


def printed(lines: list[str]) -> None:
    """Put the end of what a study prints into README."""
    readme = ROOT / "README.md"
    block = "```text\n" + "\n".join(lines) + "\n```\n"
    readme.write_text(re.sub(r"```text\n.*?```\n", lambda _: block, readme.read_text(), count=1, flags=re.DOTALL))


def main() -> None:
    REPORTS.mkdir(exist_ok=True)
    for name in sys.argv[1:] or STUDIES:
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch)
            call = ["study", *STUDIES[name](folder), "--quiet"]
            done = subprocess.run(
                [sys.executable, "-m", "fedscape", *call], cwd=folder, stdout=subprocess.PIPE, check=True
            )
            result = Study.load(folder / "study").result
            lines = done.stdout.decode().splitlines()[-len(result["advise"]) - 2 :]
            (REPORTS / f"{name}.html").write_bytes((folder / "study" / "report.html").read_bytes())
            (REPORTS / f"{name}.txt").write_text("\n".join(lines[:-1]) + "\n")
            if name == "handwriting":
                picture(result)
                printed(lines)
        print(f"docs/reports/{name}.html", *lines, sep="\n")


def _data() -> Path:
    return Path(os.environ["FEDSCAPE_DATA"])


if __name__ == "__main__":
    main()

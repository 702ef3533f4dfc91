"""What a study prints: tables, its answers with their reasons, and a summary of a line each."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from textwrap import shorten
from typing import Any

import typer

from fedscape.cli.show import pairs, table
from fedscape.display import called_in, decimals
from fedscape.errors import plural


def for_people(result: Mapping[str, Any], seconds: Mapping[str, float], folder: Path) -> None:
    """Print a result: what was measured, the tournament, the answers with reasons, and the summary."""
    about = result["describe"]
    pairs(
        f"{result['about']['source']}: {result['about']['column']}",
        {
            "clients": about["clients"],
            "rows": about["rows"],
            "rows per client, median": round(about["rows_per_client"]["median"]),
            "categories": len(about["categories"]["names"]),
            "missing values": sum(column["missing"] for column in about["columns"]),
        },
    )
    _measured(result["measure"])
    for kind in result["model"]["components"]:
        typer.echo(kind["words"])
    if "learn" in result:
        _tournament(result["learn"])
    if "numbers" in result:
        _numbers_table(result["numbers"])
    for item in result["advise"]:
        typer.secho(f"\n{item['question']} {item['answer']}", bold=True)
        typer.echo(f"  {item['text']}")
    for note in result["notes"]:
        typer.echo(f"\nnote: {note}")
    typer.echo("\n" + "\n".join(summary(result)))
    typer.echo(f"{folder / 'report.html'}: the report, after {sum(seconds.values()):.0f} s")


#: Questions whose answer is an estimate: the summary shows the first interval of their reasons.
ESTIMATED = ("Which method?", "Is personalisation worth it?", "Is federation worth it?", "For whom does it fail?")
INTERVAL = re.compile(r"[-+]?[\d.,]+%?(?: points)? \[[-+]?\d[^\]]*\]")


def summary(result: Mapping[str, Any]) -> list[str]:
    """The end of what a study prints: what was studied, and each question with its answer, a line each."""
    about = result["describe"]
    answers = [shorten(item["answer"], 36, placeholder=" ...") for item in result["advise"]]
    wide, width = max(len(item["question"]) for item in result["advise"]), max(map(len, answers))
    lines = [
        f"{result['about']['source']}: {result['about']['column']}, "
        f"{about['clients']:,} clients, {about['rows']:,} rows; intervals of 95%"
    ]
    for item, answer in zip(result["advise"], answers, strict=True):
        shown = INTERVAL.search(item["text"]) if item["question"] in ESTIMATED else None
        lines.append(f"{item['question']:{wide}}  {answer:{width}}  {shown.group() if shown else ''}".rstrip())
    return lines


def _measured(measured: Mapping[str, Any]) -> None:
    shown = {"labels": "labels", "features": "features", "quantity": "sizes (Gini)"}
    rows = [[title, *_few(measured[name])] for name, title in shown.items() if "value" in measured.get(name, {})]
    by_labels = measured.get("features", {}).get("by_labels", {})
    if "value" in by_labels:
        rows.insert(2, ["features, part explained by labels", *_few(by_labels)])
    table("how much clients differ (0: alike, 1: nothing in common)", ["in", "value", "95% interval"], rows)


def _few(about: Mapping[str, Any]) -> list[str]:
    """A number and its interval, to two digits where they are small."""
    return _numbers(about, decimals([about["value"]]))


def _numbers(about: Mapping[str, Any], digits: int = 3) -> list[str]:
    if about["low"] is None and about["high"] is None:
        return [f"{round(about['value'], digits) + 0.0:.{digits}f}", "no interval"]
    # adding 0.0 turns -0.0 into 0.0
    ends = ["?" if about[end] is None else f"{round(about[end], digits) + 0.0:.{digits}f}" for end in ("low", "high")]
    return [f"{round(about['value'], digits) + 0.0:.{digits}f}", f"{ends[0]} to {ends[1]}"]


def _tournament(learn: Mapping[str, Any]) -> None:
    predicted = {row["method"]: row for row in learn["simulated"]}
    rows = []
    for row in sorted(learn["true"], key=lambda row: -(row["accuracy"]["value"] or 0)):
        gain = "" if row["gain"] is None else "{} ({})".format(*_numbers(row["gain"]))
        guess = predicted[row["method"]]["accuracy"]["value"]
        worst = "{} ({})".format(*_numbers(row["worst"]))
        rows.append([called_in(learn, row), *_numbers(row["accuracy"]), gain, worst, f"{guess:.3f}"])
    last = "worst site" if learn["sites"] else "worst tenth"
    names = ["method", "accuracy", "95% interval", "gain over FedAvg", last, "simulated clients"]
    table(", ".join(plural(learn[f"{what}s"], what) for what in ("client", "round", "seed")), names, rows)


def _numbers_table(about: Mapping[str, Any]) -> None:
    rows = []
    for row in sorted(about["true"], key=lambda row: -(row["r2"]["value"] or 0)):
        gain = "" if row["gain"] is None else "{} ({})".format(*_numbers(row["gain"]))
        errors = [f"{row[what]['value']:.4g} ({row[what]['low']:.4g} to {row[what]['high']:.4g})"
                  for what in ("rmse", "mae")]  # fmt: skip
        rows.append([called_in(about, row), *_numbers(row["r2"]), *errors, gain])
    names = ["method", "R2", "95% interval", "RMSE", "MAE", "gain over linear"]
    table(", ".join(plural(about[f"{what}s"], what) for what in ("client", "seed")), names, rows)

"""The result of a study, its tables and its report."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedscape.core.checkpoint import replace_file
from fedscape.errors import DataError
from fedscape.studies.schema import FORMAT, Result, Time
from fedscape.studies.schema_learn import Interval, Joining, Seconds, Standing
from fedscape.studies.schema_numbers import Numbers
from fedscape.studies.schema_presence import Presence
from fedscape.studies.validate import misfit


@dataclass(frozen=True)
class Study:
    """A finished study: `result` by section, ready for JSON, and the `seconds` of each section.

    >>> Study({"advise": [{"question": "Do clients differ?", "text": "Not measurably: 0.0 [-0.1, 0.1]."}]})
    Do clients differ?
      Not measurably: 0.0 [-0.1, 0.1].
    """

    result: Result
    seconds: Mapping[str, float] = field(default_factory=dict)

    def __repr__(self) -> str:
        return "\n".join(f"{item['question']}\n  {item['text']}" for item in self.result.get("advise", []))

    def tables(self) -> dict[str, list[dict[str, Any]]]:
        """The tables of the result by name, one dict per row."""
        return tables(self.result)

    def html(self) -> str:
        """The report as one self-contained page."""
        from fedscape.report import render

        return render(self.result, self.tables())

    @property
    def _private(self) -> bool:
        return "census" in self.result.get("model", {})

    def _repr_html_(self) -> str:
        from fedscape.report import summary

        return summary(self.result)

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write result.json, report.html, tables/*.parquet and seconds.json into a folder, and return it.

        All but seconds.json are the same bytes for the same inputs and seed. Files of a study with a private count are
        readable by their owner only.
        """
        target = Path(folder)
        try:
            (target / "tables").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DataError(f"{folder} cannot be created: {error.strerror}") from None
        _write(target / "result.json", json.dumps(self.result, indent=1, allow_nan=False) + "\n", private=self._private)
        _write(target / "seconds.json", json.dumps(dict(self.seconds), indent=1) + "\n", private=self._private)
        self.render_into(target)
        tables = self.tables()
        for old in (target / "tables").glob("*.parquet"):  # of an older study; they may name clients
            if old.stem not in tables:
                old.unlink()
        for name, rows in tables.items():
            _write_table(target / "tables" / f"{name}.parquet", rows, private=self._private)
        return target

    def render_into(self, folder: str | os.PathLike[str]) -> Path:
        """Write report.html into a folder, and return its path."""
        path = Path(folder) / "report.html"
        _write(path, self.html(), private=self._private)
        return path

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Study:
        """Read the result.json of a folder that `save` wrote."""
        path = Path(folder) / "result.json" if Path(folder).is_dir() else Path(folder)
        if not path.is_file():
            raise DataError(f"no study in {folder}: 'fedscape study --out {folder}' writes one")
        try:
            result = json.loads(path.read_text("utf-8"))
        except ValueError:
            raise DataError(f"{path} is not the result of a study: give the folder of 'fedscape study'") from None
        if not isinstance(result, dict) or result.get("format") != FORMAT:
            raise DataError(f"{path} is not the result of a study of format {FORMAT}: run the study again")
        if problem := misfit(result):
            raise DataError(f"{path} is not the result of a study: {problem}; run the study again")
        return cls(result)  # type: ignore[arg-type]


def tables(result: Result) -> dict[str, list[dict[str, Any]]]:
    """The tables of a result by name: categories, kinds, fidelity, methods, cohorts, advice, time if there
    are dates, presence, protocols and participation if there are times, and clients if shown.
    """
    categories = result["describe"]["categories"]
    columns = zip(*(categories[k] for k in ("names", "rows", "clients", "mean_share")), strict=True)
    by_name = {
        "categories": [dict(zip(("category", "rows", "clients", "mean_share"), row, strict=True)) for row in columns],
        "kinds": [
            {
                "kind": kind["kind"],
                **_spread("share", kind["share"]),
                "mean_size": kind["size"],
                "category": name,
                "mean": mean,
            }
            for kind in result["model"]["components"]
            for name, mean in zip(result["model"]["names"], kind["means"], strict=True)
        ],
        "advice": [dict(item) for item in result["advise"]],
    }
    if "simulate" in result:
        compared = (("mixture", result["simulate"]["mixture"]), ("iid", result["simulate"]["iid"]))
        by_name["fidelity"] = [
            {"clients": clients, "measure": name, **value}
            for clients, about in compared
            for name, value in about.items()
            if isinstance(value, Mapping) and "value" in value
        ]
    if "learn" in result:
        standings = {"true": result["learn"]["true"], "simulated": result["learn"]["simulated"]}
        by_name["methods"] = [row for which, rows in standings.items() for row in _methods(rows, which)]
        if "joining" in result["learn"]:
            by_name["sites"] = _sites(result["learn"]["joining"])
        by_name["cohorts"] = [
            {"clients": row["clients"], "round": number, "accuracy": accuracy}
            for row in result["learn"]["cohorts"]
            for number, accuracy in row["curve"]
        ]
        by_name["costs"] = [
            {
                **{k: ", ".join(v) if isinstance(v, list) else v for k, v in row.items() if k != "seconds"},
                **_spread("seconds", row["seconds"]),
            }
            for row in result["learn"]["costs"]
        ]
    if "time" in result:
        by_name["time"] = _periods(result["time"])
    if "presence" in result:
        by_name |= _presence(result["presence"])
    if "numbers" in result:
        by_name |= _numbers(result["numbers"])
    if "clients" in result:
        by_name["clients"] = [dict(row) for row in result["clients"]]
    return by_name


def _presence(about: Presence) -> dict[str, list[dict[str, Any]]]:
    """Who is there by hour; with training in virtual time also its protocols, and the part that each kind has."""
    kinds = about.get("kinds", {})
    by_name = {
        "presence": [
            {**row, **{f"kind {kind}": own["shares"][row["hour"]] for kind, own in kinds.items()}}
            for row in about["hours"]
        ]
    }
    if "training" not in about:
        return by_name
    training = about["training"]
    by_name["protocols"] = [
        {
            "protocol": row["name"],
            **_spread("hours", row["hours"]),
            **{key: row[key] for key in ("reached", "device_hours", "wasted_hours")},
        }
        for row in training["protocols"]
    ]
    by_name["participation"] = [
        {
            **{key: part[key] for key in ("kind", "clients", "never", "rare")},
            **_spread("ratio", part["ratio"]),
            **_spread("gap", part["gap"]),
        }
        for part in training["parts"]
    ]
    return by_name


def _periods(time: Time) -> list[dict[str, Any]]:
    return [
        {
            "start": start,
            "rows": time["rows"][i],
            "clients": time["clients"][i],
            **{f"clients of kind {kind}": line[i] for kind, line in time["kinds"].items()},
            **{f"share of {curve['name']}": curve["shares"][i] for curve in time["categories"]},
        }
        for i, start in enumerate(time["starts"])
    ]


def _sites(joining: Joining) -> list[dict[str, Any]]:
    return [
        {
            "site": row["site"],
            "size": row["size"],
            **_spread("alone", row["alone"]),
            **_spread("joined", row["joined"]),
            **_spread("gain", row["gain"]),
            "verdict": row["verdict"],
        }
        for row in joining["rows"]
    ]


def _numbers(about: Numbers) -> dict[str, list[dict[str, Any]]]:
    """The tables of a number's models."""
    none = Interval(value=None, low=None, high=None)
    methods = [
        {
            "method": row["called"],
            **_spread("r2", row["r2"]),
            **_spread("rmse", row["rmse"]),
            **_spread("mae", row["mae"]),
            **_spread("gain", row["gain"] or none),
            **_spread("worst_mae", row["worst"]),
            "setting": row["setting"],
        }
        for row in about["true"]
    ]
    costs = [{**cost, "revealed": ", ".join(cost["revealed"])} for cost in about["costs"]]
    tables = {"methods": methods, "costs": costs}
    return tables | {"sites": _sites(about["joining"])} if "joining" in about else tables


def _methods(standings: Sequence[Standing], which: str) -> list[dict[str, Any]]:
    rows = []
    for row in standings:
        gain = row["gain"] or Interval(value=None, low=None, high=None)
        numbers = {**_spread("accuracy", row["accuracy"]), **_spread("gain", gain), **_spread("worst", row["worst"])}
        numbers |= {"worst_seen": row["worst"]["seen"], "worst_if_equal": row["worst"].get("equal")}
        rows.append({"clients": which, "method": row["called"], **numbers, "seeds": row["seeds"]})
    return rows


def _spread(name: str, about: Interval | Seconds) -> dict[str, Any]:
    return {name: about["value"], f"{name}_low": about["low"], f"{name}_high": about["high"]}


def _write(path: Path, text: str, *, private: bool) -> None:
    replace_file(path, lambda file: file.write(text.encode()), private=private)


def _write_table(path: Path, rows: list[dict[str, Any]], *, private: bool) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = list(dict.fromkeys(name for row in rows for name in row))
    table = pa.table({name: pa.array([row.get(name) for row in rows]) for name in columns})
    replace_file(path, lambda file: pq.write_table(table, file), private=private)

"""A study that is made to be shared: no id, no rare name, no value of a single row and no size of a single client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import fedscape as fs
from fedscape import Federation
from fedscape.studies import Study

N = 31
NEEDLES = ("needle-id", "needle-rare", "needle-two", "needle-job", "98765.43", "31337", "13371337", "1999-09-09")


def sizes() -> np.ndarray:
    """Each client has a size of its own, and one class alone, so that its norm is its size."""
    return np.sort(np.random.default_rng(1).choice(np.arange(61, 399, 2), N, replace=False))


@cache
def studied() -> Study:
    rng, n = np.random.default_rng(0), int(sizes().sum())
    y = np.repeat(np.array(["cat", "dog", "fox"])[np.arange(N) % 3], sizes()).astype(object)
    y[[5, -1, -2]] = "needle-rare", "needle-two", "needle-two"
    number, job, code = (
        rng.normal(size=n).round(3),
        rng.choice(["cook", "nurse"], n).astype(object),
        rng.integers(0, 400, n),
    )
    number[7], number[8], job[100], code[3] = 98765.4321, -31337.5, "needle-job", 13371337
    when = np.datetime64("2024-01-01", "s") + rng.integers(0, 60 * 86400, n).astype("timedelta64[s]")
    when[9] = np.datetime64("1999-09-09T03:33:33")
    columns = {"y": y.astype(str), "number": number, "job": job.astype(str), "code": code, "when": when}
    ends, ids = np.concatenate(([0], np.cumsum(sizes()))), [f"needle-id{i}" for i in range(N)]
    return fs.study(Federation(columns, ends, ids), column="y", rounds=1, seeds=1, progress=False)


def numbers(value: Any, where: str = "") -> Iterator[tuple[str, float]]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from numbers(inner, f"{where}.{name}")
    elif isinstance(value, list):
        for inner in value:
            yield from numbers(inner, where)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield where, float(value)


def test_no_file_has_an_id_a_rare_name_or_a_value_of_one_row(tmp_path):
    studied().save(tmp_path)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) > 5
    for path in files:
        rows = json.dumps(pq.read_table(path).to_pylist()) if path.suffix == ".parquet" else path.read_text()
        assert not [needle for needle in NEEDLES if needle in rows], path.name
    assert not [needle for needle in NEEDLES if needle in studied()._repr_html_()]


def test_no_number_is_the_size_of_a_client():
    """The median of an odd number of clients was one, and so was the clip that the price of privacy was told for."""
    told = {where: value for where, value in numbers(dict(studied().result)) if ".edges" not in where}
    near = {where for where, value in told.items() if np.abs(value - sizes()).min() < 1e-6}
    assert not {where for where in near if "rows_per_client" in where or "clip" in where}, near


@pytest.mark.parametrize("share", [0.0, 0.25, 0.5, 0.9, 1.0])
def test_a_quantile_of_clients_is_a_mean_of_five(share):
    from fedscape.studies.intervals import around

    values = sizes().astype(float)
    assert np.sort(values)[0] < around(values, share) < np.sort(values)[-1]
    assert abs(around(values, share) * 5 - round(around(values, share) * 5)) < 1e-9

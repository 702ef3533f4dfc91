"""Cutting clients and comparing them, as real processes."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from shell import ok, refused, started

from fedscape import MixtureOfDirichletMultinomials, datasets


def population(folder) -> None:
    counts = np.random.default_rng(0).multinomial(20, np.random.default_rng(0).dirichlet([2, 1, 1], 100))
    MixtureOfDirichletMultinomials(1).fit(counts, progress=False).save(folder / "population.json")


def test_simulate_cuts_clients_that_fidelity_finds_alike(tmp_path):
    population(tmp_path)
    rows = {"y": np.arange(3000) % 3, "x": np.arange(3000.0)}
    pq.write_table(pa.table(rows), tmp_path / "rows.parquet")
    options = ["--population", tmp_path / "population.json", "--clients", 50]
    done = json.loads(ok("simulate", tmp_path / "rows.parquet", *options, "--out", tmp_path / "a", "--json"))
    assert done["clients"] == 50
    assert done["feasibility"].startswith("enough rows")
    assert "50" in started(
        "simulate", tmp_path / "rows.parquet", *options, "--seed", 1, "--out", tmp_path / "b.parquet"
    )
    one, two = datasets.read(tmp_path / "a"), datasets.read(tmp_path / "b.parquet")
    assert len(np.unique(one["x"])) == one.n_rows
    assert len(two) == 50
    found = json.loads(ok("fidelity", tmp_path / "a", tmp_path / "b.parquet", "--json"))
    assert 0.2 < found["auc"]["value"] < 0.8
    assert "not represented" in started("fidelity", tmp_path / "a", tmp_path / "b.parquet")
    ok("simulate", tmp_path / "rows.parquet", *options, "--policy", "independent", "--out", tmp_path / "c")
    assert len(datasets.read(tmp_path / "c")) == 50
    assert "already exists" in refused(2, "simulate", tmp_path / "rows.parquet", *options, "--out", tmp_path / "a")


def test_too_few_rows_and_bad_files_are_one_line(tmp_path):
    population(tmp_path)
    pq.write_table(pa.table({"y": [0, 1, 2] * 20}), tmp_path / "rows.parquet")
    options = ["--population", tmp_path / "population.json", "--clients", 50]
    said = refused(2, "simulate", tmp_path / "rows.parquet", *options)
    assert "category 0 has 20 rows, the plan needs" in said
    assert said.count("\n") == 1
    assert "no rows" not in ok("simulate", tmp_path / "rows.parquet", *options, "--policy", "scale")
    told = ("simulate", tmp_path / "rows.parquet", *options, "--engine", "ray")
    assert "give --policy independent and --out FOLDER" in refused(2, *told)
    assert "policy must be one of" in refused(2, "simulate", tmp_path / "rows.parquet", *options, "--policy", "no")
    assert "there is no" in refused(2, "simulate", tmp_path / "none.parquet", *options)
    refused(2, "simulate", tmp_path / "rows.parquet", "--population", tmp_path / "rows.parquet")
    assert "needs 20 clients" in refused(2, "fidelity", "flights-mini", "flights-mini", "--column", "origin")

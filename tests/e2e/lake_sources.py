"""Scan real sources: an S3 server, DuckDB and Polars. By hand: they are no dependencies.

pip install --target EXTRA 'moto[server]' duckdb polars adbc-driver-sqlite
PYTHONPATH=src:EXTRA python -m pytest -n 0 tests/e2e/lake_sources.py
"""

from __future__ import annotations

import subprocess
import sys
import urllib.request

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from shell import ok, refused

from fedscape import DataError, Federation


def table(rows=50_000):
    rng = np.random.default_rng(0)
    return pa.table(
        {
            "who": [f"u{v}" for v in rng.integers(0, 900, rows)],
            "y": rng.integers(0, 5, rows),
            "year": rng.integers(2020, 2024, rows),
            "unused": rng.normal(size=rows),
        }
    )


def same(scanned, rows):
    whole = Federation.from_frame(rows, client="who")
    whole = whole.take(np.argsort(whole.ids))
    assert scanned.ids.tolist() == whole.ids.tolist()
    assert scanned.sizes.tolist() == whole.sizes.tolist()
    for client in (0, len(whole) - 1):
        assert sorted(scanned.take([client])["y"].tolist()) == sorted(whole.take([client])["y"].tolist())


@pytest.fixture(scope="module")
def s3(tmp_path_factory):
    pytest.importorskip("moto")
    log = (tmp_path_factory.mktemp("moto") / "log").open("w+")
    server = subprocess.Popen([sys.executable, "-m", "moto.server", "-p", "0"], stderr=log, stdout=log)
    try:
        where = None
        for _ in range(600):
            if server.poll() is not None:
                raise RuntimeError("moto ended")
            log.seek(0)
            found = [line.split()[-1] for line in log.read().splitlines() if "Running on http" in line]
            if found:
                where = found[0]
                break
            subprocess.run(["sleep", "0.1"], check=True)
        assert where is not None
        urllib.request.urlopen(where, timeout=30).close()
        yield where
    finally:
        server.kill()
        server.wait()
        log.close()


def test_s3(s3, monkeypatch, tmp_path):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "none")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "none")
    host = s3.removeprefix("http://")
    system = pafs.S3FileSystem(endpoint_override=host, scheme="http", allow_bucket_creation=True, region="us-east-1")
    system.create_dir("lake")
    rows = table()
    ds.write_dataset(
        rows, "lake/t", filesystem=system, format="parquet", partitioning=["year"], partitioning_flavor="hive"
    )
    where = "?endpoint_override=" + host.replace(":", "%3A") + "&scheme=http&region=us-east-1"
    same(Federation.scan(f"s3://lake/t{where}", client="who"), rows)
    late = Federation.scan(f"s3://lake/t{where}", client="who", columns=["y"], filter=ds.field("year") >= 2022)
    same(late, rows.filter(ds.field("year") >= 2022))
    assert set(late.columns) == {"y"}
    ok(
        "data",
        "group",
        f"s3://lake/t{where}",
        tmp_path / "grouped",
        "--client",
        "who",
        "--engine",
        "ray",
        "--workers",
        2,
    )
    same(Federation.load(tmp_path / "grouped"), rows)
    with pytest.raises(DataError, match="there is no file or folder s3://nowhere"):
        Federation.scan(f"s3://nowhere/t{where}", client="who")


def test_duckdb(tmp_path):
    duckdb = pytest.importorskip("duckdb")
    rows = table()
    connection = duckdb.connect(str(tmp_path / "lake.duckdb"))
    connection.execute("create table t as select * from rows")
    same(Federation.scan(connection.table("t"), client="who", columns=["y"]), rows)
    late = connection.table("t").filter("year >= 2022")
    same(Federation.scan(late, client="who"), rows.filter(ds.field("year") >= 2022))
    same(
        Federation.scan("from t where year >= 2022;", client="who", connection=connection),
        rows.filter(ds.field("year") >= 2022),
    )
    with pytest.raises(DataError, match="the query fails"):
        Federation.scan("select * from no_table", client="who", connection=connection)
    connection.close()
    by_command = ("data", "group", "from t where year >= 2022", tmp_path / "late", "--client", "who")
    ok(*by_command, "--sql", tmp_path / "lake.duckdb")
    same(Federation.load(tmp_path / "late"), rows.filter(ds.field("year") >= 2022))
    assert "there is no database" in refused(2, *by_command, "--force", "--sql", tmp_path / "nowhere.duckdb")


def test_polars(tmp_path):
    polars = pytest.importorskip("polars")
    rows = table()
    pq.write_table(rows, tmp_path / "rows.parquet", row_group_size=5_000)
    lazy = polars.scan_parquet(tmp_path / "rows.parquet")
    same(Federation.scan(lazy, client="who", columns=["y"]), rows)
    same(Federation.scan(lazy.filter(polars.col("year") >= 2022), client="who"), rows.filter(ds.field("year") >= 2022))
    same(Federation.scan(lazy.collect(), client="who"), rows)


def test_adbc():
    driver = pytest.importorskip("adbc_driver_sqlite.dbapi")
    rows = table(5_000)
    with driver.connect() as connection, connection.cursor() as cursor:
        cursor.adbc_ingest("t", rows)
        same(Federation.scan("select * from t", client="who", columns=["y"], connection=connection), rows)

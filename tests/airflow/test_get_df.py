"""Rows of a table in a task: frames of every kind, limits, changes, stores."""

from __future__ import annotations

import datetime as dt
import json
import os
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from airflow.sdk.exceptions import AirflowOptionalProviderFeatureException

from airflow_delta.exceptions import DeltaIllegalArgumentException, DeltaIllegalStateException, ReadLimitException
from airflow_delta.hooks.delta import DeltaHook
from airflow_delta.table.operations.rewrite.delete import plan_delete
from airflow_delta.table.operations.rewrite.update import plan_update
from airflow_delta.table.stage.plan_create import plan_create
from support import readers
from support.table import Table

ROWS = (
    "SELECT id, concat('p', id % 3) AS p, IF(id % 4 = 0, NULL, 9007199254740993 + id) AS big, id * 1.5BD AS d, "
    "named_struct('a', int(id)) AS s, timestamp'2024-01-01 00:00:00Z' AS t FROM range({}, {}, 1, 1)"
)


@pytest.fixture(scope="module")
def hook() -> DeltaHook:
    return DeltaHook()


@pytest.fixture(scope="module")
def table(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Table:
    """A table with column mapping, deletion vectors and recorded changes: rows inserted, deleted and updated."""
    configuration = {
        "delta.enableDeletionVectors": "true",
        "delta.enableChangeDataFeed": "true",
        "delta.columnMapping.mode": "name",
    }
    table = Table(tmp_path_factory.mktemp("frames") / "ta ble", spark)
    columns = "id BIGINT, p STRING, big BIGINT, d DECIMAL(23, 1), s STRUCT<a: INT>, t TIMESTAMP"
    table.run(plan_create, schema=columns, partition_by=["p"], properties=configuration)
    table.write(ROWS.format(0, 20))
    table.run(plan_delete, predicate="id IN (1, 2, 5)")
    table.run(plan_update, predicate="id = 7", set={"d": "0.5BD"})
    table.write(ROWS.format(20, 30))
    table.write(ROWS.format(0, 2), mode="overwrite", replace_where="p = 'p0' OR p = 'p1'")
    return table


def comparable(rows: list[dict[str, Any]]) -> list[str]:
    return readers._comparable(rows)


def rows_of(df: Any) -> list[dict[str, Any]]:
    """Return the rows of a DataFrame, whose session is in UTC."""
    rows = [row.asDict(recursive=True) for row in df.collect()]
    moments = ("t", "_commit_timestamp")
    return [{name: v.replace(tzinfo=dt.UTC) if name in moments else v for name, v in row.items()} for row in rows]


@pytest.mark.spark
@pytest.mark.parametrize("version", [0, 1, 2, 3, 4, 5])
def test_the_rows_of_every_version_are_those_of_other_readers_and_of_spark(hook, table, spark, version):
    found = hook.get_df(table.uri, version=version)
    assert isinstance(found, pa.Table)
    expected = readers.READERS["Polars"](table.uri, version).to_pylist()
    assert comparable(found.to_pylist()) == comparable(expected)
    # DuckDB returns null for a mapped partition column.
    others = readers.READERS["DuckDB"](table.uri, version).drop_columns("p").to_pylist()
    assert comparable(found.drop_columns("p").to_pylist()) == comparable(others)
    with_spark = hook.get_df(table.uri, version=version, df_type="spark", spark=spark)
    assert comparable(rows_of(with_spark)) == comparable(expected)
    where, columns = "p <> 'p2' AND id < 100", ["s", "id"]
    some = hook.get_df(table.uri, version=version, where=where, columns=columns)
    assert some.column_names == columns
    kept = [{name: row[name] for name in columns} for row in expected if row["p"] != "p2" and row["id"] < 100]
    assert comparable(some.to_pylist()) == comparable(kept)
    with_spark = hook.get_df(table.uri, version=version, df_type="spark", where=where, columns=columns)
    assert with_spark.columns == columns
    assert comparable(rows_of(with_spark)) == comparable(kept)


@pytest.mark.spark
def test_frames(hook, table):
    expected = {row["id"]: row for row in hook.get_df(table.uri).to_pylist()}
    pandas = hook.get_df(table.uri, df_type="pandas")
    assert {row["id"]: row["big"] for row in pandas.to_dict("records")} == {key: row["big"] for key, row in expected.items()}
    assert str(pandas["t"].dtype) == "datetime64[us, UTC]"
    polars = hook.get_df(table.uri, df_type="polars")
    assert {row["id"]: row for row in polars.to_dicts()} == expected
    assert type(next(iter(expected.values()))["d"]) is Decimal
    empty = hook.get_df(table.uri, where="id < 0", df_type="pandas")
    assert list(empty.columns) == ["id", "p", "big", "d", "s", "t"]
    assert empty.empty


@pytest.mark.spark
def test_changes_are_those_that_spark_reads(hook, table, spark):
    for bounds in ({"starting_version": 0}, {"starting_version": 2, "ending_version": 3}, {"starting_version": 4}):
        found = hook.read_changes(table.uri, **bounds)
        assert found.column_names[-3:] == ["_change_type", "_commit_version", "_commit_timestamp"]
        expected = hook.read_changes(table.uri, **bounds, df_type="spark", spark=spark)
        rows = rows_of(expected)
        assert len(found) == len(rows) > 0
        assert comparable(found.to_pylist()) == comparable(rows)
    versions = hook.read_changes(table.uri, starting_version=0).column("_commit_version").to_pylist()
    assert versions == sorted(versions)
    columns = ["id", "_change_type"]
    deleted = hook.read_changes(table.uri, starting_version=2, ending_version=3, where="_change_type = 'delete'", columns=columns)
    assert sorted(deleted.to_pylist(), key=str) == [{"id": key, "_change_type": "delete"} for key in (1, 2, 5)]
    updated = hook.read_changes(
        table.uri, starting_version=0, where="d = 0.5 AND _commit_version = 3", columns=["d", "_change_type"]
    )
    assert updated.to_pylist() == [{"d": Decimal("0.5"), "_change_type": "update_postimage"}]
    # A time without a zone is in UTC, whatever the session's zone.
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        late = {"starting_version": 0, "where": "t > '2023-12-31 20:00:00'", "columns": ["ID"]}
        expected = [row.asDict() for row in hook.read_changes(table.uri, **late, df_type="spark").collect()]
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)
    found = hook.read_changes(table.uri, **late).to_pylist()
    assert comparable(found) == comparable(expected) != []
    for df_type in ("arrow", "spark"):
        with pytest.raises(DeltaIllegalArgumentException, match=r"no column 'idd'.*Did you mean id"):
            hook.read_changes(table.uri, starting_version=0, columns=["idd"], df_type=df_type)
    with pytest.raises(ReadLimitException, match="would return 20 rows, and limit is 19"):
        hook.read_changes(table.uri, starting_version=1, ending_version=1, limit=19)
    with pytest.raises(ReadLimitException, match="would return more than 1 rows"):
        hook.read_changes(table.uri, starting_version=3, ending_version=3, limit=1)
    assert hook.read_changes(table.uri, starting_version=5, where="id < 0", df_type="polars").is_empty()


def test_the_limit_is_one_million_rows_unless_told_otherwise(hook, tmp_path):
    import deltalake

    path = str(tmp_path / "table")
    deltalake.write_deltalake(path, pa.table({"id": pa.array(range(1_000_001))}))
    with pytest.raises(ReadLimitException, match="version 0 would return 1,000,001 rows, and limit is 1,000,000"):
        hook.get_df(path)
    assert len(hook.get_df(path, limit=None)) == 1_000_001
    assert len(hook.get_df(path, where="id >= 5")) == 999_996
    with pytest.raises(DeltaIllegalStateException, match="did not record changes"):
        hook.read_changes(path, starting_version=0)


def test_what_a_frame_needs_is_said_before_anything_is_read(hook, tmp_path, monkeypatch):
    with pytest.raises(DeltaIllegalArgumentException, match="df_type must be one of arrow, pandas, polars, spark, got 'dask'"):
        hook.get_df(str(tmp_path), df_type="dask")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for df_type, package in (("pandas", "pandas"), ("polars", "polars"), ("spark", "pyspark")):
        with pytest.raises(AirflowOptionalProviderFeatureException, match=f"needs the package {package}, .*pip install"):
            hook.get_df(str(tmp_path), df_type=df_type)


@pytest.mark.slow
def test_spark_needs_a_session(hook, tmp_path):
    import deltalake

    path = str(tmp_path / "table")
    deltalake.write_deltalake(path, pa.table({"id": pa.array([1])}))
    code = (
        "from airflow_delta.hooks.delta import DeltaHook\n"
        f"try:\n    DeltaHook().get_df({path!r}, df_type='spark')\nexcept Exception as error:\n    print('said', error)\n"
        f"import sys\nprint(DeltaHook().get_df({path!r}).num_rows, 'polars' in sys.modules)"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "provider")}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True, timeout=120)
    assert "There is no Spark session to read table" in done.stdout
    assert done.stdout.endswith("1 False\n")


@pytest.mark.s3
def test_on_an_object_store(s3_lake):
    import deltalake

    hook = DeltaHook("lake")
    options = {**hook.storage_options("s3://lake/t"), "aws_allow_http": "true"}
    days = [dt.date(2024, 1, 1 + i % 3) for i in range(1000)]
    rows = pa.table({"id": pa.array(range(1000)), "day": pa.array(days), "text": pa.array(["x" * 500] * 1000)})
    deltalake.write_deltalake("s3://lake/t", rows, partition_by=["day"], storage_options=options)
    found = hook.get_df("t", where="day = '2024-01-02' AND id >= 500", columns=["id", "day"])
    assert sorted(found.column("id").to_pylist()) == [i for i in range(500, 1000) if i % 3 == 1]
    assert comparable(hook.get_df("t").to_pylist()) == comparable(rows.to_pylist())
    assert json.loads(hook.get_df("t", columns=["text"], df_type="pandas").head(1).to_json())["text"]["0"] == "x" * 500

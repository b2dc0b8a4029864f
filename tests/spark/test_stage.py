"""Staging DataFrames with real Spark: types, checks row by row, and what the session looks like afterwards."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from airflow_delta.contract.request import StageRequest
from airflow_delta.exceptions import InvariantViolationException, ReplaceWhereMismatchException, SchemaMismatchException
from airflow_delta.spark import stage_dataframe
from airflow_delta.spark.older_spark import IS_OLDER

pytestmark = pytest.mark.spark


def schema(*fields: tuple[str, object, bool]) -> str:
    return json.dumps(
        {"type": "struct", "fields": [{"name": n, "type": t, "nullable": null, "metadata": {}} for n, t, null in fields]}
    )


TABLE = schema(("id", "integer", False), ("name", "string", True), ("amount", "decimal(5,2)", True))


def request(tmp_path: Path, **changes: object) -> StageRequest:
    base = StageRequest(
        transaction_id="t1",
        table=f"file://{tmp_path}",
        read_version=0,
        stage="s",
        task_id="s",
        attempt="1-a",
        directory="staged/t1/s/1-a",
        schema_string=TABLE,
    )
    return replace(base, **changes)


def rows(tmp_path: Path, report, *, copied: bool = False) -> list[dict]:
    names = report.copied_directories if copied else report.directories
    return [
        row
        for name in names
        for file in sorted((tmp_path / "staged/t1/s/1-a" / name).rglob("*.parquet"))
        for row in pq.ParquetFile(file).read().to_pylist()
    ]


def test_columns_get_the_tables_order_names_and_types(spark, tmp_path):
    df = spark.sql("SELECT 'x' AS NAME, 1S AS Id, 2Y AS amount")
    report = stage_dataframe(spark, df, request(tmp_path))
    written = rows(tmp_path, report)
    assert list(written[0]) == ["id", "name", "amount"]
    assert written == [{"id": 1, "name": "x", "amount": pytest.approx(2)}]
    assert json.loads(report.schema_string) == json.loads(TABLE)


@pytest.mark.parametrize(
    ("select", "says"),
    [
        ("SELECT 1 AS id, 5 AS other", "column other (int) is not in the table"),
        ("SELECT 1 AS id, array('a') AS name", "column name: expected string, got array<string>"),
        (
            "SELECT '1' AS id",
            "expected int, got string. Cast the column (CAST(id AS INT) in SQL), or overwrite with overwrite_schema=True.",
        ),
        ("SELECT 1 AS id, 2 AS ID", "occurs twice"),
        ("SELECT 1 AS id, true AS amount", "column amount: expected decimal(5,2), got boolean"),
        (
            "SELECT 1L AS id",
            "expected int, got bigint. Values could be lost: cast the column (CAST(id AS INT) in SQL), or overwrite with",
        ),
        ("SELECT 1L AS id", "widens the column in an existing table with delta.enableTypeWidening"),
        ("SELECT 60.5D AS id", "column id: expected int, got double"),
        ("SELECT 1 AS id, 1 AS amount", "column amount: expected decimal(5,2), got int"),
        ("SELECT 1 AS id, 1.125 AS amount", "column amount: expected decimal(5,2), got decimal(4,3)"),
        ("SELECT 1 AS id, now() AS name", "cast the column (CAST(name AS STRING) in SQL)"),
    ],
)
def test_a_dataframe_that_does_not_fit_is_refused_before_it_runs(spark, tmp_path, select, says):
    with pytest.raises(SchemaMismatchException) as caught:
        stage_dataframe(spark, spark.sql(select), request(tmp_path))
    assert says in str(caught.value)
    assert "version 0" in str(caught.value)
    assert not (tmp_path / "staged").exists()


@pytest.mark.parametrize("select", ["SELECT CAST(NULL AS INT) AS id", "SELECT id FROM VALUES (1), (NULL) AS t(id)"])
def test_a_null_in_a_not_null_column_names_the_column(spark, tmp_path, select):
    with pytest.raises(InvariantViolationException, match="NOT NULL column id would get a null"):
        stage_dataframe(spark, spark.sql(select), request(tmp_path))


def test_a_missing_not_null_column_is_refused(spark, tmp_path):
    with pytest.raises(InvariantViolationException, match="lacks the NOT NULL column id"):
        stage_dataframe(spark, spark.sql("SELECT 'x' AS name"), request(tmp_path))


def test_not_null_inside_a_struct_is_checked_where_the_struct_is_there(spark, tmp_path):
    inner = {"type": "struct", "fields": [{"name": "k", "type": "integer", "nullable": False, "metadata": {}}]}
    wanted = request(tmp_path, schema_string=schema(("id", "integer", True), ("s", inner, True)))
    df = spark.sql("SELECT 1 AS id, CAST(NULL AS STRUCT<k: INT>) AS s")
    assert rows(tmp_path, stage_dataframe(spark, df, wanted)) == [{"id": 1, "s": None}]
    with pytest.raises(InvariantViolationException, match=r"NOT NULL column s\.k"):
        stage_dataframe(spark, spark.sql("SELECT 1 AS id, named_struct('k', CAST(NULL AS INT)) AS s"), wanted)


def test_merge_schema_adds_columns_at_the_end_also_inside_structs_and_lists(spark, tmp_path):
    inner = {"type": "struct", "fields": [{"name": "a", "type": "long", "nullable": True, "metadata": {}}]}
    items = {"type": "array", "elementType": inner, "containsNull": True}
    wanted = request(tmp_path, schema_string=schema(("id", "integer", True), ("items", items, True)), merge_schema=True)
    df = spark.sql("SELECT array(named_struct('b', 'new', 'A', 1)) AS items, 7 AS `c.d`, 1 AS id")
    report = stage_dataframe(spark, df, wanted)
    assert rows(tmp_path, report) == [{"id": 1, "items": [{"a": 1, "b": "new"}], "c.d": 7}]


@pytest.mark.parametrize(
    ("select", "says"),
    [
        ("SELECT 1 AS id, NULL AS new", "untyped nulls"),
        ("SELECT 1 AS id, 2 AS `a b`", "rename it"),
        ("SELECT 1 AS id, INTERVAL '1' DAY AS i", "cannot store"),
    ],
)
def test_new_columns_that_a_table_cannot_have_are_refused(spark, tmp_path, select, says):
    with pytest.raises(SchemaMismatchException, match=says):
        stage_dataframe(spark, spark.sql(select), request(tmp_path, merge_schema=True))


@pytest.mark.parametrize("value", ["9Y", "NULL"])
def test_a_row_outside_replace_where_is_refused(spark, tmp_path, value):
    wanted = request(tmp_path, mode="overwrite", replace_where="amount < 5")
    df = spark.sql(f"SELECT * FROM VALUES (1, 'a', 1Y), (2, 'b', {value}) AS t(id, name, amount)")
    shown = r"9\.00" if value == "9Y" else "null"
    said = rf'does not satisfy replaceWhere \(amount < 5\).*; the row has the values: {{"amount":{shown}}} \(table'
    with pytest.raises(ReplaceWhereMismatchException, match=said):
        stage_dataframe(spark, df, wanted)


def test_rows_that_a_join_drops_are_not_checked(spark, tmp_path):
    """A check that the optimiser pushed below the join would fail on them."""
    wanted = request(tmp_path, mode="overwrite", replace_where="id > 1")
    left = spark.sql("SELECT id, name FROM VALUES (1, 'a'), (2, 'b') AS t(id, name)")
    right = spark.sql("SELECT id, amount FROM VALUES (2, 2Y) AS t(id, amount)")
    assert [row["id"] for row in rows(tmp_path, stage_dataframe(spark, left.join(right, "id"), wanted))] == [2]


def test_another_error_of_the_job_stays_what_it_is(spark, tmp_path):
    df = spark.sql("SELECT CAST(raise_error('mine') AS INT) AS id")
    with pytest.raises(Exception, match="mine") as caught:
        stage_dataframe(spark, df, request(tmp_path))
    assert type(caught.value).__module__.startswith("py4j" if IS_OLDER else "pyspark")


def test_timestamps_are_microseconds_and_the_session_is_left_as_it_was(spark, tmp_path):
    key = "spark.sql.parquet.outputTimestampType"
    spark.conf.set(key, "INT96")
    try:
        df = spark.sql("SELECT 1 AS id, TIMESTAMP'2024-06-01 12:00:00' AS at")
        report = stage_dataframe(spark, df, request(tmp_path, schema_string=None))
        assert spark.conf.get(key) == "INT96"
    finally:
        spark.conf.unset(key)
    stage_dataframe(spark, df, request(tmp_path, schema_string=None))
    assert spark.conf.get(key, None) is None
    [file] = (tmp_path / "staged/t1/s/1-a" / report.directories[0]).glob("*.parquet")
    assert pq.ParquetFile(file).schema.column(1).physical_type == "INT64"
    assert rows(tmp_path, report)[0]["at"] == datetime(2024, 6, 1, 10, tzinfo=UTC)


def test_timestamp_partitions_are_named_in_utc_even_in_the_hour_that_comes_twice(spark, tmp_path):
    df = spark.sql("SELECT id, timestamp_micros(m) AS at FROM VALUES (1, 1729987200000000), (2, 1729990800000001) AS t(id, m)")
    stage_dataframe(spark, df, request(tmp_path, schema_string=None, partition_columns=("at",)))
    names = sorted(path.name for path in tmp_path.rglob("at=*"))
    assert names == ["at=2024-10-27 00%3A00%3A00", "at=2024-10-27 01%3A00%3A00.000001"]


def test_writer_options_reach_spark(spark, tmp_path):
    wanted = request(tmp_path, options={"maxRecordsPerFile": "1", "compression": "gzip"}, schema_string=None)
    stage_dataframe(spark, spark.range(3).coalesce(1), wanted)
    files = list(tmp_path.rglob("*.parquet"))
    assert len(files) == 3
    assert pq.ParquetFile(files[0]).metadata.row_group(0).column(0).compression == "GZIP"


def test_two_executions_of_one_attempt_do_not_mix(spark, tmp_path):
    """A cluster manager may start a driver twice; each reports only what it wrote."""
    first = stage_dataframe(spark, spark.sql("SELECT 1 AS id"), request(tmp_path))
    second = stage_dataframe(spark, spark.sql("SELECT 2 AS id"), request(tmp_path))
    assert [row["id"] for row in rows(tmp_path, first)] == [1]
    assert [row["id"] for row in rows(tmp_path, second)] == [2]

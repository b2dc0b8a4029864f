"""Variants: Delta Spark runs each statement on one copy of a table, we on the other; each reads the other's, and DuckDB both."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_delta.contract.changes import AddColumns, Column
from airflow_delta.contract.merge import when_matched_update, when_not_matched_insert
from airflow_delta.exceptions import DeltaAnalysisException, DeltaError
from airflow_delta.table.operations.merge.plan import plan_merge
from airflow_delta.table.operations.optimize.plan import plan_optimize
from airflow_delta.table.operations.rewrite.delete import plan_delete
from airflow_delta.table.operations.rewrite.update import plan_update
from airflow_delta.table.stage.plan_alter import plan_alter
from airflow_delta.table.stage.plan_create import plan_create
from delta_spark.support import assert_same_state, delta_rows, sql_name
from support import readers
from support.table import Table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLUMNS = "id BIGINT, p STRING, v VARIANT, s STRUCT<w: VARIANT, x: INT>, l ARRAY<VARIANT>"
ROWS = """SELECT id, CASE WHEN id % 2 = 0 THEN 'a' END AS p,
    CASE WHEN id % 3 < 2 THEN parse_json(concat('{{"n":', id, ',"l":[1,null],"t":"x"}}')) END AS v,
    named_struct('w', parse_json(CAST(id AS STRING)), 'x', CAST(id AS INT)) AS s,
    array(parse_json('"e"'), NULL) AS l FROM range({}, {}, 1, 1)"""
SOURCE = """SELECT id, 'a' AS p, parse_json('{"m":[true]}') AS v, named_struct('w', parse_json('1.5'), 'x', 0) AS s,
    array(parse_json('null')) AS l FROM VALUES (2L), (40L) AS t(id)"""
TABLES: dict[str, Mapping[str, str]] = {
    "copy on write, feed": {"delta.enableDeletionVectors": "false", "delta.enableChangeDataFeed": "true"},
    "deletion vectors, mapped": {
        "delta.enableDeletionVectors": "true",
        "delta.columnMapping.mode": "name",
        "delta.enableChangeDataFeed": "true",
    },
    "mapped by id, row tracking": {
        "delta.enableDeletionVectors": "false",
        "delta.columnMapping.mode": "id",
        "delta.enableRowTracking": "true",
    },
}
CLAUSES = [when_matched_update(), when_not_matched_insert()]
STATEMENTS: list[tuple[str, Any, dict[str, Any]]] = [
    (
        "UPDATE {t} SET v = parse_json('[7]'), s.w = v WHERE variant_get(v, '$.n', 'bigint') = 4",
        plan_update,
        {"set": {"v": "parse_json('[7]')", "s.w": "v"}, "predicate": "variant_get(v, '$.n', 'bigint') = 4"},
    ),
    (
        f"MERGE INTO {{t}} target USING ({SOURCE}) source ON target.id = source.id "
        "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *",
        plan_merge,
        {"source": SOURCE, "condition": "target.id = source.id", "clauses": CLAUSES},
    ),
    ("DELETE FROM {t} WHERE is_variant_null(l[0]) AND id > 10", plan_delete, {"predicate": "is_variant_null(l[0]) AND id > 10"}),
    ("DELETE FROM {t} WHERE v IS NULL AND p = 'a'", plan_delete, {"predicate": "v IS NULL AND p = 'a'"}),
    ("OPTIMIZE {t}", plan_optimize, {}),
]


def properties(given: Mapping[str, str]) -> str:
    return ", ".join(f"'{key}'='{value}'" for key, value in given.items())


@pytest.mark.parametrize("name", TABLES)
def test_each_operation_beside_delta_spark(delta: SparkSession, tmp_path: Path, name: str) -> None:
    ours, theirs = Table(tmp_path / "ours", delta), tmp_path / "theirs"
    delta.sql(
        f"CREATE TABLE {sql_name(theirs)} ({COLUMNS}) USING DELTA PARTITIONED BY (p) TBLPROPERTIES ({properties(TABLES[name])})"
    )
    delta.sql(f"INSERT INTO {sql_name(theirs)} {ROWS.format(0, 12)}")
    shutil.copytree(theirs, ours.path)
    delta.sql(f"INSERT INTO {sql_name(theirs)} {ROWS.format(12, 16)}")
    ours.write(ROWS.format(12, 16))
    assert delta_rows(delta, ours.path) == delta_rows(delta, theirs)
    assert null_counts(ours.path) == null_counts(theirs)
    for sql, plan, arguments in STATEMENTS:
        delta.sql(sql.replace("{t}", sql_name(theirs)))
        ours.run(plan, **arguments)
        assert delta_rows(delta, ours.path) == delta_rows(delta, theirs) != [], sql
    assert_same_state(ours.log(), delta, ours.path)
    if "delta.enableChangeDataFeed" in TABLES[name]:
        assert changes(delta, ours.path) == changes(delta, theirs)
    delta.sql(f"INSERT INTO {sql_name(ours.path)} {ROWS.format(50, 52)}")
    assert_same_state(ours.log(), delta, ours.path)


def changes(delta: SparkSession, path: Path) -> list[str]:
    feed = delta.read.format("delta").option("readChangeFeed", "true").option("startingVersion", 2).load(str(path))
    rows = feed.selectExpr("id", "CAST(v AS STRING)", "CAST(s.w AS STRING)", "_change_type", "_commit_version").collect()
    return sorted(map(repr, rows))


def null_counts(path: Path) -> list[str]:
    """Return the counts of nulls of all files; those of lists may be unknown to us."""
    table = Table(path)
    lists = {field.physical_name for field in table.log().update().schema.fields if field.name == "l"}
    stats = [json.loads(file.stats) for file in table.log().update().add_files()]
    return sorted(repr(sorted((k, v) for k, v in found["nullCount"].items() if k not in lists)) for found in stats)


def test_a_table_of_ours_for_every_reader(delta: SparkSession, tmp_path: Path) -> None:
    """CREATE, ALTER and a stage here; Delta Spark and DuckDB read it, also from a checkpoint of ours."""
    table = Table(tmp_path / "table", delta)
    handle = table.begin()
    table.publish(handle, plan_create(table.view(handle), schema="id BIGINT, v VARIANT"))
    handle = table.begin()
    table.publish(handle, plan_alter(table.view(handle), [AddColumns([Column("w", "VARIANT")])]))
    table.write("""SELECT id, parse_json(concat('{"n":', id, '}')) AS v, CAST(NULL AS VARIANT) AS w FROM range(0, 3, 1, 1)""")
    table.log().checkpoint()
    expected = [(n, f'{{"n":{n}}}', None) for n in range(3)]
    found = delta.sql(f"SELECT id, CAST(v AS STRING), CAST(w AS STRING) FROM {sql_name(table.path)} ORDER BY id").collect()
    assert [tuple(row) for row in found] == expected
    assert_same_state(table.log(), delta, table.path)
    as_text = ", ".join(f"CASE WHEN {name} IS NOT NULL THEN CAST({name} AS JSON)::VARCHAR END" for name in ("v", "w"))
    query = f"SELECT id, {as_text} FROM delta_scan(?) ORDER BY id"  # DuckDB casts a NULL of these to the JSON null
    assert readers._duckdb().execute(query, [table.uri]).fetchall() == expected


# A table, a statement of Delta Spark, and the same here.
REFUSED: dict[str, tuple[str, str, Any]] = {
    "partitioned": (
        "",
        "CREATE TABLE {t} (id INT, v VARIANT) USING delta PARTITIONED BY (v)",
        lambda table: define(table, schema="id INT, v VARIANT", partition_by=["v"]),
    ),
    "clustered": (
        "",
        "CREATE TABLE {t} (id INT, v VARIANT) USING delta CLUSTER BY (v)",
        lambda table: define(table, schema="id INT, v VARIANT", cluster_by=["v"]),
    ),
    "compared in a MERGE": (
        "id INT, v VARIANT",
        "MERGE INTO {t} t USING (SELECT 1 AS id, parse_json('1') AS v) s ON t.v = s.v WHEN MATCHED THEN UPDATE SET id = 2",
        lambda table: table.run(
            plan_merge,
            source="SELECT 1 AS id, parse_json('1') AS v",
            condition="target.v = source.v",
            clauses=[when_matched_update({"id": "2"})],
        ),
    ),
    "compared in a DELETE": (
        "id INT, v VARIANT",
        "DELETE FROM {t} WHERE v = parse_json('1')",
        lambda table: table.run(plan_delete, predicate="v = parse_json('1')"),
    ),
    "a struct as a variant": (
        "id INT, v VARIANT",
        "UPDATE {t} SET v = named_struct('a', 1)",
        lambda table: table.run(plan_update, set={"v": "named_struct('a', 1)"}),
    ),
    "a map as a variant": (
        "id INT, v VARIANT",
        "UPDATE {t} SET v = map('a', 1)",
        lambda table: table.run(plan_update, set={"v": "map('a', 1)"}),
    ),
    "a variant as a number that it is not": (
        "id INT, v VARIANT",
        "UPDATE {t} SET id = parse_json('\"x\"')",
        lambda table: table.run(plan_update, set={"id": "parse_json('\"x\"')"}),
    ),
}


# What UPDATE sets in the first row, in the second and so on.
CASTS = {
    "v": ["'{\"a\": 1}'", "1", "1.5", "array(1, NULL)"],
    "x": ["v", "parse_json('{\"a\": [1]}')", "parse_json('\"text\"')", "parse_json('null')"],
    "t": ["parse_json('7')", "parse_json('\"8\"')", "parse_json('1.9')", "parse_json('null')"],
    "s": ["named_struct('w', 5, 'x', parse_json('6'))", 'parse_json(\'{"w": 1, "x": 2, "y": 3}\')', "NULL", "s"],
    "l": ["array('a', NULL)", "parse_json('[1, null]')", "NULL", "array(l[0], v)"],
}


def test_an_update_casts_to_and_from_variants_as_delta_spark_does(delta: SparkSession, tmp_path: Path) -> None:
    ours, theirs = Table(tmp_path / "ours", delta), tmp_path / "theirs"
    columns = "id BIGINT, v VARIANT, x STRING, t INT, s STRUCT<w: VARIANT, x: INT>, l ARRAY<VARIANT>"
    delta.sql(f"CREATE TABLE {sql_name(theirs)} ({columns}) USING DELTA")
    rows = "SELECT id, parse_json('{\"b\": 0}'), 'x', 0, NULL, array(parse_json('true')) FROM range(0, 5, 1, 1)"
    delta.sql(f"INSERT INTO {sql_name(theirs)} {rows}")
    shutil.copytree(theirs, ours.path)
    for number, values in enumerate(zip(*CASTS.values(), strict=True)):
        given = dict(zip(CASTS, values, strict=True))
        sets = ", ".join(f"{column} = {text}" for column, text in given.items())
        delta.sql(f"UPDATE {sql_name(theirs)} SET {sets} WHERE id = {number}")
        ours.run(plan_update, set=given, predicate=f"id = {number}")
    source = "SELECT 4L AS id, 'text' AS a, parse_json('9') AS b"
    delta.sql(f"MERGE INTO {sql_name(theirs)} t USING ({source}) s ON t.id = s.id WHEN MATCHED THEN UPDATE SET v = s.a, t = s.b")
    clauses = [when_matched_update({"v": "source.a", "t": "source.b"})]
    ours.run(plan_merge, source=source, condition="target.id = source.id", clauses=clauses)
    assert delta_rows(delta, ours.path) == delta_rows(delta, theirs)


def define(table: Table, **options: Any) -> None:
    plan_create(table.view(table.begin()), **options)


@pytest.mark.parametrize("name", REFUSED)
def test_what_delta_spark_refuses_is_refused(delta: SparkSession, tmp_path: Path, name: str) -> None:
    columns, statement, ours = REFUSED[name]
    table = Table(tmp_path / "table", delta)
    if columns:
        delta.sql(f"CREATE TABLE {sql_name(table.path)} ({columns}) USING delta")
        delta.sql(f"INSERT INTO {sql_name(table.path)} SELECT 1, parse_json('1')")
    other = tmp_path / "other"
    if columns:
        shutil.copytree(table.path, other)
    with pytest.raises(Exception, match=r"(?i)variant"):
        delta.sql(statement.format(t=sql_name(other)))
    with pytest.raises(Exception, match=r"(?i)variant"):
        ours(table)


def test_shredded_files_of_others_are_read_and_written_again_whole(delta: SparkSession, tmp_path: Path) -> None:
    """Delta Spark has shredded; once its property is off, we write the table, and the files that we write are whole."""
    table = Table(tmp_path / "table", delta)
    on = "delta.enableVariantShredding"
    delta.sql(f"CREATE TABLE {sql_name(table.path)} (id BIGINT, v VARIANT) USING delta TBLPROPERTIES ('{on}'='true')")
    rows = "SELECT id, parse_json(concat('{\"n\":', id, '}')) AS v FROM range(0, 50, 1, 1)"
    delta.sql(f"INSERT INTO {sql_name(table.path)} {rows}")
    with pytest.raises(DeltaError, match="writes variants whole, not shredded"):
        table.begin()
    delta.sql(f"ALTER TABLE {sql_name(table.path)} SET TBLPROPERTIES ('{on}'='false')")
    table.run(plan_delete, predicate="variant_get(v, '$.n', 'bigint') < 10")
    found = delta.sql(f"SELECT id, CAST(v AS STRING) FROM {sql_name(table.path)} ORDER BY id").collect()
    assert [tuple(row) for row in found] == [(n, f'{{"n":{n}}}') for n in range(10, 50)]
    assert_same_state(table.log(), delta, table.path)


def test_files_of_a_job_that_shreds_are_refused(delta: SparkSession, tmp_path: Path) -> None:
    """Spark shreds by default: finished files of a plain Spark are looked at."""
    table = Table(tmp_path / "table", delta)
    handle = table.begin()
    rows = delta.sql("SELECT id, parse_json(concat('{\"n\":', id, '}')) AS v FROM range(0, 50, 1, 1)")
    rows.write.parquet(f"{handle.staging_path}/shredded")
    with pytest.raises(DeltaAnalysisException, match="column v is a shredded variant"):
        table.stage_files(handle, path="shredded")
    rows.write.option("spark.sql.variant.inferShreddingSchema", "false").parquet(f"{handle.staging_path}/whole")
    table.publish(handle, table.stage_files(handle, path="whole"))
    assert len(delta_rows(delta, table.path)) == 50

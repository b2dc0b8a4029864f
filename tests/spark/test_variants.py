"""Variants on a Spark without Delta: every operation keeps them, files hold them whole, DuckDB reads them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from airflow_delta.contract.changes import AddConstraint, RenameColumn
from airflow_delta.contract.merge import when_matched_update, when_not_matched_insert
from airflow_delta.contract.payloads import StagedWrite
from airflow_delta.exceptions import ConstraintViolationException, SchemaMismatchException
from airflow_delta.log.data_files.leaf_columns import leaf_paths
from airflow_delta.spark.changes import read_change_plan
from airflow_delta.spark.older_spark import IS_OLDER
from airflow_delta.spark.read import read_scan_plan
from airflow_delta.spark.run_operation import run_operation
from airflow_delta.streaming import DeltaBatchSink
from airflow_delta.table.changes.plan import plan_changes
from airflow_delta.table.effects.diff import published_diff
from airflow_delta.table.operations.merge.plan import plan_merge
from airflow_delta.table.operations.optimize.plan import plan_optimize
from airflow_delta.table.operations.rewrite.delete import plan_delete
from airflow_delta.table.operations.rewrite.update import plan_update
from airflow_delta.table.read.read_table import read_table
from airflow_delta.table.stage.plan_alter import plan_alter
from airflow_delta.table.stage.plan_create import plan_create
from airflow_delta.table.stage.scan import plan_scan
from airflow_delta.table.stage.view import view_of
from support import readers
from support.table import Table

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(IS_OLDER, reason="Spark 3.5 has no variants: test_older_spark.py has what it says of them"),
]

ROWS = """SELECT id, CASE WHEN id % 3 < 2 THEN parse_json(concat('{"n":', id, ',"l":[1,null]}')) END AS v,
    named_struct('w', parse_json(CAST(id AS STRING)), 'x', 'x') AS s, array(parse_json('"e"'), NULL) AS l
    FROM range(0, 6, 1, 1)"""
TABLES = {
    "plain": {},
    "feed": {"delta.enableChangeDataFeed": "true"},
    "mapped by name, deletion vectors": {"delta.columnMapping.mode": "name", "delta.enableDeletionVectors": "true"},
    "mapped by id": {"delta.columnMapping.mode": "id"},
}
SHREDDING = {
    "spark.sql.variant.writeShredding.enabled": "true",
    "spark.sql.variant.inferShreddingSchema": "true",
}


@contextmanager
def shredding(spark: Any) -> Iterator[None]:
    """A session that shreds, as that of an author may."""
    for key, value in SHREDDING.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key in SHREDDING:
            spark.conf.unset(key)


def texts(table: Table) -> dict[int, tuple[str | None, ...]]:
    """Return the variants of each row as JSON, as a stage reads them."""
    df = read_scan_plan(table.spark, plan_scan(view_of(table.log(), table.begin())))
    found = df.selectExpr("id", "CAST(v AS STRING)", "CAST(s.w AS STRING)", "CAST(l[0] AS STRING)", "CAST(get(l, 1) AS STRING)")
    return {row[0]: tuple(row[1:]) for row in found.collect()}


def value(number: int) -> str:
    return f'{{"l":[1,null],"n":{number}}}'


EXPECTED = {n: (value(n) if n % 3 < 2 else None, str(n), "e", None) for n in range(6)}


def assert_whole(table: Table) -> None:
    """Check the files of the table, change data among them: nothing but metadata and value."""
    files = [path for path in table.path.rglob("*.parquet") if "_delta_log" not in path.parts]
    names = {name for file in files for path in leaf_paths(pq.read_metadata(file)) for name in path}
    assert {"metadata", "value"} <= names
    assert "typed_value" not in names


def stats(table: Table) -> list[dict[str, Any]]:
    return [json.loads(file.stats) for file in table.log().update().add_files()]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in ("plain", "mapped by id") else ()) for name in TABLES]
)
def test_every_operation_keeps_variants_and_writes_them_whole(spark: Any, table: Table, name: str) -> None:
    with shredding(spark):
        table.write(ROWS, begin={"configuration": TABLES[name]})
        assert texts(table) == EXPECTED
        [counted] = stats(table)
        physical = {f.name: f.physical_name for f in table.log().snapshot.schema.fields}
        assert counted["nullCount"][physical["v"]] == 2
        assert list(counted["minValues"]) == [physical["id"], physical["s"]]
        assert list(counted["minValues"][physical["s"]].values()) == ["x"]
        table.run(plan_update, set={"v": "parse_json('[7]')", "s.w": "v"}, predicate="variant_get(v, '$.n', 'bigint') = 4")
        expected = {**EXPECTED, 4: ("[7]", value(4), "e", None)}
        assert texts(table) == expected
        source = """SELECT id, parse_json('"m"') AS v, named_struct('w', parse_json('1.5'), 'x', 'y') AS s,
            array(parse_json('null')) AS l FROM VALUES (1L), (9L) AS t(id)"""
        clauses = [when_matched_update(), when_not_matched_insert()]
        merge(table, source, clauses)
        merged = ("m", "1.5", None, None)  # Spark casts the JSON null to NULL
        expected |= {1: merged, 9: merged}
        assert texts(table) == expected
        table.run(plan_delete, predicate="is_variant_null(l[0]) AND id = 9")
        del expected[9]
        assert texts(table) == expected
        table.write(ROWS.replace("range(0, 6", "range(20, 22"))
        expected |= {n: (value(n) if n % 3 < 2 else None, str(n), "e", None) for n in (20, 21)}
        table.run(plan_optimize)
        assert texts(table) == expected
        assert_whole(table)
    if name == "feed":
        changes = read_change_plan(spark, plan_changes(table.log(), starting_version=1, ending_version=1))
        found = changes.selectExpr("_change_type", "CAST(v AS STRING)").collect()
        assert sorted(map(tuple, found)) == [("update_postimage", "[7]"), ("update_preimage", value(4))]


def merge(table: Table, source: str, clauses: Any, condition: str = "target.id = source.id", **options: Any) -> None:
    handle = table.begin()
    staged = table.operate(handle, plan_merge, source=source, condition=condition, clauses=clauses, **options)
    table.publish(handle, staged)


def test_the_worker_reads_the_other_columns(table: Table) -> None:
    table.write(ROWS)
    assert read_table(table.log(), columns=["id"], where="id > 3").to_table().to_pylist() == [{"id": 4}, {"id": 5}]
    diff = published_diff(table.log())
    assert (diff.exact, diff.added, diff.added_rows[0], diff.unread) == (True, 6, {"id": 0}, ("v", "s", "l"))


def test_defaults_maps_and_new_names(table: Table) -> None:
    handle = table.begin()
    columns = """id BIGINT, v VARIANT DEFAULT parse_json('{"a":1}'), m MAP<STRING, VARIANT>,
        g BOOLEAN GENERATED ALWAYS AS (v IS NULL)"""
    features = {"delta.columnMapping.mode": "name", "delta.feature.allowColumnDefaults": "supported"}
    table.publish(handle, plan_create(table.view(handle), schema=columns, properties=features))
    table.write("SELECT 1L AS id, map('k', parse_json('[1]'), 'n', NULL) AS m")
    handle = table.begin()
    table.publish(handle, plan_alter(table.view(handle), [RenameColumn("m", "notes")]))
    table.write("SELECT 2L AS id, CAST(NULL AS VARIANT) AS v")
    source = "SELECT 3L AS id, map('k', parse_json('2')) AS notes, parse_json('null') AS v, parse_json('true') AS extra"
    merge(table, source, [when_not_matched_insert()], merge_schema=True)
    table.run(plan_update, set={"notes": "map_concat(notes, map('u', v))"}, predicate="id = 1")
    df = read_scan_plan(table.spark, plan_scan(view_of(table.log(), table.begin())))
    rows = df.selectExpr("id", "CAST(v AS STRING)", "v IS NULL", "to_json(notes)", "g", "CAST(extra AS STRING)").orderBy("id")
    assert [tuple(row) for row in rows.collect()] == [
        (1, '{"a":1}', False, '{"k":[1],"n":null,"u":{"a":1}}', False, None),
        (2, None, True, None, True, None),
        (3, None, False, '{"k":2}', False, "true"),
    ]
    assert_whole(table)


def test_a_stream(spark: Any, table: Table, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "0.json").write_text('{"n": 1}\n{"n": "x"}\n')
    df = spark.readStream.text(str(source)).selectExpr("parse_json(value) AS v", "CAST(length(value) AS BIGINT) AS id")
    with shredding(spark):
        writer = df.writeStream.foreachBatch(DeltaBatchSink(table.uri)).trigger(availableNow=True)
        writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination()
    rows = read_scan_plan(spark, plan_scan(view_of(table.log(), table.begin()))).selectExpr("CAST(v AS STRING)", "id").collect()
    assert sorted(map(tuple, rows)) == [('{"n":"x"}', 10), ('{"n":1}', 8)]
    assert_whole(table)


def test_duckdb_reads_what_a_stage_has_written(table: Table) -> None:
    table.write(ROWS)
    with readers._plainly_named(table.uri) as path:
        found = readers._duckdb().execute("SELECT id, CAST(v AS JSON)::VARCHAR FROM delta_scan(?) ORDER BY id", [path]).fetchall()
    assert {row[0]: row[1] and json.loads(row[1]) for row in found} == {
        n: (text and json.loads(text)) for n, (text, *_) in EXPECTED.items()
    }


def test_conditions_and_values_that_spark_or_we_refuse(table: Table) -> None:
    table.write(ROWS)
    clauses = [when_matched_update({"v": "source.v"})]
    with pytest.raises(Exception, match=r"(?i)variant"):
        merge(table, "SELECT 1L AS id, parse_json('1') AS v", clauses, "target.v = source.v")
    with pytest.raises(Exception, match=r"(?i)variant"):
        table.run(plan_delete, predicate="v = parse_json('1')")
    with pytest.raises(SchemaMismatchException, match=r"which Spark does not cast to it\. Spark makes variants: parse_json"):
        table.run(plan_update, set={"v": "named_struct('a', 1)"}, predicate="id = 1")
    with pytest.raises(SchemaMismatchException, match=r"sets v to is struct<a:int>.*Spark makes variants: parse_json"):
        merge(table, "SELECT 1L AS id, named_struct('a', 1) AS v", clauses)
    with pytest.raises(SchemaMismatchException, match=r"id holds a variant that does not fit into bigint \(INVALID_VARIANT_CAST"):
        table.run(plan_update, set={"id": "v"}, predicate="id = 1")
    with pytest.raises(SchemaMismatchException, match="expected variant, got string"):
        table.write("SELECT 1L AS id, '{}' AS v")
    with pytest.raises(SchemaMismatchException, match="cannot partition a table"):
        Table(table.path.parent / "other", table.spark).write(ROWS, begin={"partition_by": ["v"]})
    assert table.versions() == [0]


def test_updates_cast_to_and_from_variants(table: Table) -> None:
    """As in Delta Spark, text is a variant of that text, whatever it looks like; a JSON null in a variant is null."""
    table.write(ROWS)
    table.run(plan_update, set={"v": "'{}'", "s.x": "parse_json('[1]')", "l": "array(5)"}, predicate="id = 1")
    table.run(plan_update, set={"v": "array(id)", "s": "named_struct('w', 1.5, 'x', parse_json('null'))"}, predicate="id = 2")
    merge(table, "SELECT 3L AS id, true AS v", [when_matched_update({"v": "source.v"})])
    changed = {1: ("{}", "1", "5", None), 2: ("[2]", "1.5", "e", None), 3: ("true", "3", "e", None)}
    assert texts(table) == {**EXPECTED, **changed}
    df = read_scan_plan(table.spark, plan_scan(view_of(table.log(), table.begin())))
    kinds = df.selectExpr("id", "s.x", "schema_of_variant(v)").where("id IN (1, 2, 3)").orderBy("id")
    assert [tuple(row) for row in kinds.collect()] == [(1, "[1]", "STRING"), (2, None, "ARRAY<BIGINT>"), (3, "x", "BOOLEAN")]


def test_constraints_over_variants_are_spark_s(table: Table) -> None:
    table.write(ROWS)
    handle = table.begin()
    planned = plan_alter(
        table.view(handle, task_id="alter"), [AddConstraint("numbered", "v IS NULL OR variant_get(v, '$.n', 'bigint') < 10")]
    )
    assert not isinstance(planned, StagedWrite)  # Spark looks at the rows
    table.publish(handle, planned.collect(planned.request, run_operation(table.spark, planned.request)))
    table.write(ROWS.replace("range(0, 6", "range(9, 10"))
    with pytest.raises(ConstraintViolationException, match=r'numbered .*"n":12'):
        table.write(ROWS.replace("range(0, 6", "range(12, 13"))
    with pytest.raises(ConstraintViolationException, match="numbered"):
        table.run(plan_update, set={"v": "parse_json('{\"n\": 10}')"}, predicate="id = 1")
    assert set(texts(table)) == {*EXPECTED, 9}

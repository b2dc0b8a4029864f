"""Options of a write on a plain Spark: tables made by stages, rows replaced by a condition, sizes of files, rewrites."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from airflow_delta.contract.payloads import DeclaredReads, StagedWrite
from airflow_delta.exceptions import (
    ConstraintViolationException,
    DeltaIllegalArgumentException,
    DeltaIllegalStateException,
    DeltaTableAlreadyExistsException,
    StageConflictException,
)
from airflow_delta.table.operations.rewrite.delete import plan_delete
from airflow_delta.table.stage.plan_create import plan_create
from airflow_delta.table.stage.write.plan import plan_stage
from support.table import Table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

ROWS = "SELECT /*+ COALESCE(1) */ CAST(id AS INT) AS id, CAST(id % 2 AS INT) AS p, 'old' AS v FROM range(6)"


def created(table: Table, handle: Any, columns: str, **options: Any) -> StagedWrite:
    staged = plan_create(table.view(handle, task_id="create"), schema=columns, **options)
    return StagedWrite.from_dict(json.loads(json.dumps(staged.to_dict())))


def read(table: Table) -> list[tuple[Any, ...]]:
    """Return the rows as a stage of a new transaction reads them."""
    return table.read(table.begin())


def test_create_and_write_in_one_version(table: Table) -> None:
    columns = "id BIGINT GENERATED ALWAYS AS IDENTITY, x INT, y INT GENERATED ALWAYS AS (x + 1), v INT DEFAULT 7, `p q` TIMESTAMP"
    properties = {"delta.feature.allowColumnDefaults": "supported", "delta.columnMapping.mode": "name"}
    handle = table.begin()
    staged = created(table, handle, columns, partition_by=["p q"], properties=properties)
    rows = "SELECT 1 AS x, TIMESTAMP'2024-10-27 00:30:00Z' AS `p q`"
    with pytest.raises(ConstraintViolationException):
        table.stage(handle, f"SELECT *, 5 AS y FROM ({rows})", after=[staged])
    one = table.stage(handle, rows, after=[staged])
    result = table.publish(handle, staged, one)
    assert (result.version, result.operation, result.num_records) == (0, "CREATE TABLE AS SELECT", 1)
    assert [row[:4] for row in read(table)] == [(1, 1, 2, 7)]
    assert '"delta.identity.highWaterMark":1' in table.actions(0)["metaData"][0]["schemaString"]
    # Rows are replaced by what they are equal to, a timestamp in a partition among it.
    table.write(
        "SELECT 9 AS x, TIMESTAMP'2024-10-27 00:30:00Z' AS `p q`", mode="overwrite", replace_using=["p q"], optimize_write=True
    )
    assert [row[1] for row in read(table)] == [9]


def test_replace_and_write_in_one_version(table: Table) -> None:
    table.write(ROWS, begin={"partition_by": ["p"]})
    handle = table.begin()
    staged = created(table, handle, "a INT, b STRING", mode="replace")
    one = table.stage(handle, "SELECT 1 AS a, 'x' AS b UNION ALL SELECT 2, 'y'", task_id="one", after=[staged])
    two = table.stage(
        handle, "SELECT 2 AS a, 'z' AS b", task_id="two", mode="overwrite", replace_using=["a"], after=[staged, one]
    )
    with pytest.raises(StageConflictException, match="not among"):
        table.publish(handle, staged, two)
    result = table.publish(handle, staged, one, two)
    assert (result.operation, result.num_removed_files) == ("REPLACE TABLE AS SELECT", 2)
    assert read(table) == [(1, "x"), (2, "z")]
    assert table.rows() == [(1, "x"), (2, "z")]


def test_as_select_is_refused_where_a_table_is(table: Table) -> None:
    table.write(ROWS, create="create", partition_by=["P"])
    assert table.actions(0)["metaData"][0]["partitionColumns"] == ["p"]
    handle = table.begin()
    with pytest.raises(DeltaTableAlreadyExistsException):
        plan_stage(table.view(handle), create="create")
    for options in (
        {"create": "create_if_not_exists"},
        {"create": "replace", "mode": "overwrite"},
        {"create": "replace", "merge_schema": True},
        {"cluster_by": ["id"]},
        {"replace_using": ["id"]},
        {"replace_using": ["id"], "replace_on": "t.id = s.id", "mode": "overwrite"},
        {"replace_using": ["nope"], "mode": "overwrite"},
        {"replace_on": "t.nope = s.id", "mode": "overwrite"},
        {"replace_on": "t.id = s.id AND rand() < 0.5", "mode": "overwrite"},
        {"replace_using": ["id"], "mode": "overwrite", "replace_where": "p = 1"},
        {"data_change": False, "merge_schema": True},
        {"data_change": False, "mode": "overwrite", "replace_where": "id = 1"},
    ):
        with pytest.raises(DeltaIllegalArgumentException):
            plan_stage(table.view(handle), **options)
    with pytest.raises(DeltaIllegalArgumentException, match="optimize_write"):
        table.stage_files(handle, optimize_write=True)


@pytest.mark.slow
def test_replace_on(table: Table) -> None:
    table.write(ROWS, begin={"partition_by": ["p"]})
    handle = table.begin()
    one = table.stage(handle, ROWS, task_id="one", mode="overwrite", replace_on="t.id = s.id")
    two = table.stage(handle, ROWS, task_id="two")
    with pytest.raises(StageConflictException):  # the one would replace rows of the other, which has read the whole table
        table.publish(handle, one, replace(two, reads=DeclaredReads(whole_table=True)))
    result = table.write("SELECT 1 AS id, 1 AS p, 'new' AS v", mode="overwrite", replace_on="t.id <= s.id AND t.p = s.p")
    assert (result.num_removed_files, result.is_blind_append) == (1, False)
    assert read(table) == [(0, 0, "old"), (1, 1, "new"), (2, 0, "old"), (3, 1, "old"), (4, 0, "old"), (5, 1, "old")]
    parameters = table.info(1)["operationParameters"]
    assert (parameters["mode"], parameters["replaceOnCond"]) == ("Overwrite", "t.id <= s.id AND t.p = s.p")
    metrics = table.info(1)["operationMetrics"]
    assert (metrics["numOutputRows"], metrics["numCopiedRows"], metrics["numDeletedRows"]) == ("3", "2", "1")
    table.write("SELECT 7 AS id, 1 AS p, 'new' AS v", mode="overwrite", replace_using=["id"])
    assert len(read(table)) == 7
    assert "remove" not in table.actions(2)


@pytest.mark.slow
@pytest.mark.parametrize("properties", [{}, {"delta.enableDeletionVectors": "true", "delta.columnMapping.mode": "name"}])
def test_rows_are_replaced_on_top_of_deleted_ones(table: Table, properties: dict[str, str]) -> None:
    table.write(ROWS, begin={"configuration": properties})
    handle = table.begin()
    deleted = table.operate(handle, plan_delete, task_id="delete", predicate="id = 2")
    where = {"mode": "overwrite", "replace_where": "id <= 1"}
    one = table.stage(handle, "SELECT 0 AS id, 0 AS p, 'one' AS v", task_id="one", after=[deleted], **where)
    on = {"mode": "overwrite", "replace_on": "t.id = s.id"}
    two = table.stage(handle, "SELECT 4 AS id, 0 AS p, 'two' AS v", task_id="two", after=[deleted, one], **on)
    more = table.operate(handle, plan_delete, task_id="more", predicate="id = 5", after=[deleted, one, two])
    with pytest.raises(StageConflictException, match="not among"):
        table.publish(handle, one, two, more)
    result = table.publish(handle, more, two, one, deleted)
    assert read(table) == [(0, 0, "one"), (3, 1, "old"), (4, 0, "two")]
    commit = table.actions(result.version)
    assert len(commit["remove"]) == 1  # that of the first write: nothing that was only staged
    assert len({add["path"] for add in commit["add"]}) == len(commit["add"])


def test_file_sizes(table: Table, spark: SparkSession) -> None:
    rows = spark.range(0, 40_000, 1, 8).selectExpr("id", "CAST(id % 3 AS INT) AS p", "sha2(CAST(id AS STRING), 256) AS v")
    begin = {
        "partition_by": ["p"],
        "configuration": {"delta.autoOptimize.optimizeWrite": "true", "delta.targetFileSize": "300kb"},
    }
    before = spark.conf.get("spark.sql.adaptive.advisoryPartitionSizeInBytes")
    result = table.write(rows, begin=begin)
    # 40000 rows of some 80 bytes: about 1 MB a partition, as much as a file may come from.
    assert 3 <= result.num_files <= 6
    assert spark.conf.get("spark.sql.adaptive.advisoryPartitionSizeInBytes") == before
    assert table.write(rows, optimize_write=False).num_files == 24
    assert table.write(rows, options={"maxRecordsPerFile": "5000"}).num_files >= 9
    sizes = [json.loads(add["stats"])["numRecords"] for add in table.actions(2)["add"]]
    assert max(sizes) <= 5000


def test_no_data_change(table: Table) -> None:
    table.write(ROWS, begin={"partition_by": ["p"]})
    table.write(ROWS, mode="dynamic", data_change=False)
    commit = table.actions(1)
    assert {a["dataChange"] for kind in ("add", "remove") for a in commit[kind]} == {False}
    assert len(commit["remove"]) == 2


def test_columns_that_stay_keep_their_names_when_the_schema_is_replaced(table: Table) -> None:
    """With the change data feed on, Delta refuses only what drops, renames or retypes a column."""
    both = {"delta.columnMapping.mode": "name", "delta.enableChangeDataFeed": "true"}
    handle = table.begin()
    table.publish(handle, created(table, handle, "id INT, v STRING", properties=both))
    before = {field.name: field.metadata for field in table.log().update().schema.fields}
    table.write("SELECT 'a' AS v, 1 AS x, 1 AS id", mode="overwrite", overwrite_schema=True)
    after = {field.name: field.metadata for field in table.log().update().schema.fields}
    assert list(after) == ["v", "x", "id"]
    assert {name: after[name] for name in before} == before
    assert read(table) == [("a", 1, 1)]
    table.write("SELECT 'b' AS v, 2 AS x, 2 AS id", create="create_or_replace", properties=both)
    assert {field.name: field.metadata for field in table.log().update().schema.fields} == after
    with pytest.raises(DeltaIllegalStateException, match="DELTA_BLOCK_COLUMN_MAPPING_AND_CDC_OPERATION"):
        table.write("SELECT 'b' AS v", mode="overwrite", overwrite_schema=True)

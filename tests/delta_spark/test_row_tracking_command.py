"""Row tracking switched on for a table with files, beside Delta Spark's own backfill; row ids as Delta Spark reads them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from airflow_delta.contract.merge import when_matched_delete, when_matched_update, when_not_matched_insert
from airflow_delta.table.operations.merge.plan import plan_merge
from airflow_delta.table.operations.rewrite.delete import plan_delete
from airflow_delta.table.operations.rewrite.update import plan_update
from airflow_delta.table.operations.row_tracking import enable_row_tracking
from delta_spark.support import assert_same_state, delta_log, sql_name
from support.table import Table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

INFO = ("operation", "operationParameters", "operationMetrics", "readVersion", "isolationLevel", "isBlindAppend")
ENABLE = "ALTER TABLE {t} SET TBLPROPERTIES ('delta.enableRowTracking' = 'true')"


@pytest.fixture
def small_batches(delta: SparkSession) -> Iterator[None]:
    keys = [f"spark.databricks.delta.{name}.maxNumFiles" for name in ("backfill", "rowTracking.backfill")]
    for key in keys:
        delta.conf.set(key, "2")
    yield
    for key in keys:
        delta.conf.unset(key)


def without_row_tracking(delta: SparkSession, path: Path) -> Table:
    """Three files, one with a deletion vector, of a table that does not track rows."""
    name = sql_name(path)
    delta.sql(f"CREATE TABLE {name} (id LONG, v INT) USING delta TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")
    for start in (0, 10, 20):
        delta.sql(f"INSERT INTO {name} SELECT id, 1 FROM range({start}, {start + 10}, 1, 1)")
    delta.sql(f"DELETE FROM {name} WHERE id IN (12, 15)")
    return Table(path, delta)


def row_ids(delta: SparkSession, table: Table) -> dict[int, tuple[int, int]]:
    """Row id and row commit version by key, as Delta Spark reads them."""
    delta_log(delta, table.path)
    read = delta.sql(f"SELECT id, _metadata.row_id, _metadata.row_commit_version FROM {sql_name(table.path)}")
    found = {row[0]: (row[1], row[2]) for row in read.collect()}
    ids = [row_id for row_id, _version in found.values()]
    assert None not in ids
    assert len(set(ids)) == len(ids)
    return found


def commits(table: Table, first: int) -> list[Any]:
    """What must be alike of the commits from a version on, in their order; in which order files get ids is up to the engine."""
    found: list[Any] = []
    for version in table.versions()[first:]:
        for line in table.lines(version):
            ((kind, value),) = line.items()
            if kind == "commitInfo":
                info = {name: value.get(name) for name in INFO}
                if "newProtocol" in info["operationParameters"]:
                    info["operationParameters"] = in_order(json.loads(info["operationParameters"]["newProtocol"]))
                found.append((kind, info, value.get("tags")))
            elif kind == "protocol":
                found.append((kind, in_order(value)))
            elif kind == "add":
                ids = value["baseRowId"], value["defaultRowCommitVersion"]
                found.append((kind, ids, value["dataChange"], json.loads(value["stats"])["numRecords"]))
            elif kind == "metaData":
                names = [key for key in value["configuration"] if key.startswith("delta.rowTracking.materialized")]
                rest = {key: text for key, text in value["configuration"].items() if key not in names}
                found.append((kind, value["schemaString"], rest, sorted(names)))
            elif kind == "domainMetadata":
                mark = json.loads(value["configuration"])["rowIdHighWaterMark"]
                found.append((kind, value["domain"], mark, value["removed"]))
            else:
                found.append((kind, value))
    return found


def in_order(protocol: dict[str, Any]) -> dict[str, Any]:
    return {key: sorted(value) if isinstance(value, list) else value for key, value in protocol.items()}


def test_the_commits_are_those_of_delta(delta: SparkSession, tmp_path: Path, small_batches: None) -> None:
    theirs = without_row_tracking(delta, tmp_path / "theirs")
    first = len(theirs.versions())
    ours = Table(tmp_path / "ours", delta)
    shutil.copytree(theirs.path, ours.path)
    delta.sql(ENABLE.format(t=sql_name(theirs.path)))
    result = enable_row_tracking(ours.log(), max_files=2)
    assert (result.version, result.operation) == (first + 3, "SET TBLPROPERTIES")
    for mine, other in zip(commits(ours, first), commits(theirs, first), strict=True):
        assert mine == other
    ids = row_ids(delta, ours)
    assert ids.keys() == row_ids(delta, theirs).keys()
    assert_same_state(ours.log(), delta, ours.path)
    assert enable_row_tracking(ours.log()).attempts == 0
    delta.sql(f"UPDATE {sql_name(ours.path)} SET v = 2 WHERE id = 3")
    assert row_ids(delta, ours)[3][0] == ids[3][0]


def test_while_others_write(delta: SparkSession, tmp_path: Path) -> None:
    """An append, a DELETE that marks rows, an OPTIMIZE and an UPDATE by Delta Spark, each right before a commit of ours."""
    table = without_row_tracking(delta, tmp_path / "table")
    name = sql_name(table.path)
    log = table.log()
    update = log.update
    statements = [
        f"INSERT INTO {name} SELECT id, 3 FROM range(30, 35, 1, 1)",
        f"DELETE FROM {name} WHERE id IN (3, 32)",
        f"OPTIMIZE {name}",
        f"UPDATE {name} SET v = 4 WHERE id = 21",
    ]

    def raced() -> Any:
        snapshot = update()
        if statements:
            delta_log(delta, table.path)
            delta.sql(statements.pop(0))
        return snapshot

    log.update = raced  # type: ignore[method-assign]
    enable_row_tracking(log, max_files=1)
    assert not statements
    found = row_ids(delta, table)
    assert sorted(found) == sorted({*range(35)} - {3, 12, 15, 32})
    assert_same_state(table.log(), delta, table.path)
    delta.sql(f"UPDATE {name} SET v = 5 WHERE id = 8")
    now = row_ids(delta, table)
    assert {key: ids[0] for key, ids in now.items()} == {key: ids[0] for key, ids in found.items()}


STABLE = {
    "copy on write": {},
    "change data feed": {"delta.enableChangeDataFeed": "true"},
    "deletion vectors, column mapping": {"delta.enableDeletionVectors": "true", "delta.columnMapping.mode": "name"},
    "column mapping by id": {"delta.columnMapping.mode": "id"},
}


@pytest.mark.parametrize("name", STABLE)
def test_rows_keep_their_ids(delta: SparkSession, tmp_path: Path, name: str) -> None:
    """Delta Spark reads the same id for each key after UPDATE, MERGE, DELETE and OPTIMIZE; the version only of changed rows."""
    table = Table(tmp_path / "table", delta)
    given = {"delta.enableRowTracking": "true", "delta.enableDeletionVectors": "false", **STABLE[name]}
    properties = ", ".join(f"'{key}' = '{value}'" for key, value in given.items())
    sql = sql_name(table.path)
    delta.sql(f"CREATE TABLE {sql} (id LONG, v INT, p STRING) USING delta PARTITIONED BY (p) TBLPROPERTIES ({properties})")
    for start in (0, 10):
        delta.sql(f"INSERT INTO {sql} SELECT id, 1, 'a b' FROM range({start}, {start + 10}, 1, 1)")
    delta.sql(f"DELETE FROM {sql} WHERE id = 1")

    def check(changed: set[int], gone: set[int], new: set[int], before: dict[int, tuple[int, int]]) -> dict[int, tuple[int, int]]:
        now, version = row_ids(delta, table), table.versions()[-1]
        assert now.keys() == before.keys() - gone | new
        for key, (row_id, row_version) in now.items():
            if key in new:
                assert (row_id > max(old for old, _ in before.values()), row_version) == (True, version)
            else:
                assert (row_id, row_version) == (before[key][0], version if key in changed else before[key][1])
        return now

    ids = row_ids(delta, table)
    table.run(plan_update, set={"v": "v + 1"}, predicate="id IN (2, 13)")
    ids = check({2, 13}, set(), set(), ids)
    assert table.info(table.versions()[-1])["tags"]["delta.rowTracking.preserved"] == "true"
    clauses = [
        when_matched_update({"v": "source.v"}, "source.v = 7"),
        when_matched_delete(),
        when_not_matched_insert(),
    ]
    source = "SELECT * FROM VALUES (3L, 7, 'a b'), (4L, 8, 'a b'), (14L, 7, 'a b'), (50L, 7, 'c') AS t(id, v, p)"
    table.run(plan_merge, source=source, condition="target.id = source.id", clauses=clauses)
    ids = check({3, 14}, {4}, {50}, ids)
    assert table.info(table.versions()[-1])["tags"]["delta.rowTracking.preserved"] == "true"
    source = "SELECT 15L AS id, 9 AS v, 'd' AS p"
    table.run(plan_merge, source=source, condition="target.id = source.id", clauses=[when_matched_update()])
    ids = check({15}, set(), set(), ids)  # to another partition
    table.run(plan_delete, predicate="id IN (5, 16)")
    ids = check(set(), {5, 16}, set(), ids)
    table.run(plan_update, set={"v": "0"})
    ids = check(set(ids), set(), set(), ids)
    delta.sql(f"OPTIMIZE {sql}")
    assert row_ids(delta, table) == ids
    table.run(plan_update, set={"v": "3"}, predicate="id = 6")
    ids = check({6}, set(), set(), ids)
    delta.sql(f"MERGE INTO {sql} t USING (SELECT 7L AS id) s ON t.id = s.id WHEN MATCHED THEN UPDATE SET v = 9")
    check({7}, set(), set(), ids)
    assert_same_state(table.log(), delta, table.path)
    if "delta.enableChangeDataFeed" in given:
        changes = delta.sql(f"SELECT * FROM table_changes_by_path('{table.path}', 4)")
        assert changes.columns == ["id", "v", "p", "_change_type", "_commit_version", "_commit_timestamp"]
        for path in (table.path / "staged").rglob("*-change-*/**/*.parquet"):
            assert not [column for column in pq.read_schema(path).names if column.startswith("_row-")]

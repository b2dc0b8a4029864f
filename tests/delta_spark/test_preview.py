"""Previews of open transactions: every engine reads in one what it reads in the table after the commit, and none writes to it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake

from airflow_delta.contract.merge import when_matched_delete, when_matched_update, when_not_matched_insert
from airflow_delta.contract.payloads import StagedWrite, TransactionHandle
from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.log import DeltaLog
from airflow_delta.table.operations.merge.plan import plan_merge
from airflow_delta.table.operations.rewrite.delete import plan_delete
from airflow_delta.table.operations.rewrite.update import plan_update
from airflow_delta.table.preview.changes_preview import preview_changes
from airflow_delta.table.preview.table_preview import Preview, preview_table
from airflow_delta.table.read.read_table import read_table
from delta_spark.support import sql_name
from support import readers
from support.table import Table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLUMNS = "id BIGINT, v INT, s STRUCT<x: INT, y: STRING>, ts TIMESTAMP, p STRING, d DATE"
ROWS = """SELECT id, CAST(CASE WHEN id % 10 = 9 THEN NULL ELSE id * 2 END AS INT) AS v,
    named_struct('x', CAST(id AS INT), 'y', concat('y', id)) AS s,
    timestampadd(HOUR, CAST(id AS INT), TIMESTAMP'2024-03-31 00:30:00') AS ts,
    CASE WHEN id % 4 = 0 THEN 'a b/c%20=ü:+?' WHEN id % 4 = 1 THEN 'b' WHEN id % 4 = 2 THEN '' END AS p,
    CASE WHEN id % 3 = 0 THEN DATE'2026-11-26' END AS d FROM range({}, {}, 1, 1)"""

TABLES: dict[str, Mapping[str, str]] = {
    "copy on write": {"delta.enableDeletionVectors": "false"},
    "deletion vectors, column mapping": {"delta.enableDeletionVectors": "true", "delta.columnMapping.mode": "name"},
    "what a log can have": {
        "delta.enableDeletionVectors": "true",
        "delta.checkpointPolicy": "v2",
        "delta.enableRowTracking": "true",
        "delta.enableInCommitTimestamps": "true",
        "delta.enableChangeDataFeed": "true",
        "delta.checkpointInterval": "2",
    },
}

Stage = Callable[[Table, TransactionHandle], StagedWrite]


def write(first: int, last: int, **options: Any) -> Stage:
    return lambda table, handle: table.stage(handle, ROWS.format(first, last), **options)


def operate(plan: Callable[..., Any], **arguments: Any) -> Stage:
    return lambda table, handle: table.operate(handle, plan, **arguments)


STAGES: dict[str, Stage] = {
    "append": write(100, 110),
    "delete": operate(plan_delete, predicate="id % 7 = 1 AND v > 10"),
    "update": operate(plan_update, set={"v": "v + 1", "p": "concat(p, '!')"}, predicate="id < 12"),
    "merge": operate(
        plan_merge,
        source=ROWS.format(5, 25),
        condition="source.id = target.id AND target.v > 14",
        clauses=[when_matched_delete("source.id % 2 = 0"), when_matched_update(), when_not_matched_insert()],
    ),
    "overwrite of a partition": lambda table, handle: table.stage(
        handle, f"SELECT * FROM ({ROWS.format(200, 240)}) WHERE p = 'b'", mode="overwrite", replace_where="p = 'b'"
    ),
    "delete of a partition": operate(plan_delete, predicate="p IS NULL"),
    "overwrite": write(300, 320, mode="overwrite"),
}


def delta_rs(path: str) -> pa.Table:
    return pa.table(QueryBuilder().register("t", DeltaTable(path)).execute("SELECT * FROM t").read_all())


def ours(path: str) -> pa.Table:
    return read_table(DeltaLog.for_table(path)).to_table()


def engines(delta: SparkSession) -> dict[str, Callable[[str], pa.Table]]:
    found = {
        "Delta Spark": lambda path: delta.read.format("delta").load(path).toArrow(),
        "delta-rs": delta_rs,
        "DuckDB": lambda path: readers.READERS["DuckDB"](path, None),
        "Polars": lambda path: readers.READERS["Polars"](path, None),
        "this provider": ours,
    }
    return found if readers.HAS_DUCKDB else {name: read for name, read in found.items() if name != "DuckDB"}


def seen(delta: SparkSession, path: str) -> dict[str, list[str]]:
    """Return the rows as each engine reads them."""
    return {name: readers._comparable(read(path).to_pylist()) for name, read in engines(delta).items()}


def preview(table: Table, handle: TransactionHandle, *staged: StagedWrite) -> Preview:
    return preview_table(table.log(), handle, staged)


@pytest.mark.parametrize("name", TABLES)
def test_rows_are_those_of_the_commit(delta: SparkSession, table: Table, name: str) -> None:
    properties = ", ".join(f"'{key}'='{value}'" for key, value in TABLES[name].items())
    delta.sql(f"CREATE TABLE {sql_name(table.path)} ({COLUMNS}) USING DELTA PARTITIONED BY (p, d) TBLPROPERTIES ({properties})")
    delta.sql(f"ALTER TABLE {sql_name(table.path)} ADD CONSTRAINT positive CHECK (id >= 0)")
    delta.sql(f"INSERT INTO {sql_name(table.path)} {ROWS.format(0, 30)}")
    for what, stage in STAGES.items():
        before = readers._comparable(ours(table.uri).to_pylist())
        handle = table.begin()
        staged = stage(table, handle)
        found = preview(table, handle, staged)
        previewed = seen(delta, found.path)
        shown = DeltaLog.for_table(found.path).update()
        assert shown.version == found.version
        assert readers._comparable(ours(table.uri).to_pylist()) == before, what
        assert table.publish(handle, staged).version == found.version
        after = readers._comparable(ours(table.uri).to_pylist())
        assert after != before, what
        for engine, read in engines(delta).items():  # an engine that misreads the table may misread the preview in the same way
            assert previewed[engine] in (after, readers._comparable(read(table.uri).to_pylist())), (what, engine)
        committed = table.log().update()
        assert shown.metadata.configuration == committed.metadata.configuration
        assert shown.metadata.schema_string == committed.metadata.schema_string
        assert shown.metadata.id != committed.metadata.id
        assert shown.protocol.min_reader_version == committed.protocol.min_reader_version
        assert (shown.num_files, found.num_files) == (committed.num_files, committed.num_files)


CHANGES = ("append", "delete", "update", "merge", "delete of a partition", "overwrite")


@pytest.mark.parametrize("vectors", ["false", "true"])
def test_changed_rows_are_those_of_the_feed(delta: SparkSession, table: Table, vectors: str) -> None:
    properties = f"'delta.enableChangeDataFeed'='true', 'delta.enableDeletionVectors'='{vectors}'"
    delta.sql(f"CREATE TABLE {sql_name(table.path)} ({COLUMNS}) USING DELTA PARTITIONED BY (p, d) TBLPROPERTIES ({properties})")
    delta.sql(f"INSERT INTO {sql_name(table.path)} {ROWS.format(0, 30)}")
    for what in CHANGES:
        handle = table.begin()
        staged = STAGES[what](table, handle)
        found = preview_changes(table.log(), handle, [staged])
        previewed = seen(delta, found.path)
        version = table.publish(handle, staged).version
        feed = delta.read.format("delta").option("readChangeFeed", "true").option("startingVersion", version)
        rows = feed.load(table.uri).drop("_commit_version", "_commit_timestamp").toArrow()
        assert previewed == dict.fromkeys(engines(delta), readers._comparable(rows.to_pylist())), what
        assert sum((found.changes or {}).values()) == rows.num_rows, what


def test_changed_rows_without_a_feed(delta: SparkSession, table: Table) -> None:
    """Copies of rows in rewritten files cancel out."""
    delta.sql(f"CREATE TABLE {sql_name(table.path)} ({COLUMNS}) USING DELTA")
    delta.sql(f"INSERT INTO {sql_name(table.path)} {ROWS.format(0, 30)}")
    for what in CHANGES:
        before = Counter(readers._comparable(ours(table.uri).to_pylist()))
        handle = table.begin()
        staged = STAGES[what](table, handle)
        found = preview_changes(table.log(), handle, [staged])
        table.publish(handle, staged)
        after = Counter(readers._comparable(ours(table.uri).to_pylist()))
        kinds: dict[str, Counter[str]] = {"insert": Counter(), "delete": Counter()}
        for row in ours(found.path).to_pylist():
            kinds[row.pop("_change_type")].update(readers._comparable([row]))
        assert before - kinds["delete"] + kinds["insert"] == after, what
        if what in ("append", "delete", "delete of a partition"):
            assert (kinds["insert"], kinds["delete"]) == (after - before, before - after), what


def test_a_table_that_the_commit_creates(delta: SparkSession, table: Table) -> None:
    handle = table.begin(partition_by=["p"], configuration={"delta.columnMapping.mode": "name"})
    staged = table.stage(handle, ROWS.format(0, 9))
    found = preview(table, handle, staged)
    assert found.version == 0
    previewed = seen(delta, found.path)
    assert not (table.path / "_delta_log").exists()
    table.publish(handle, staged)
    assert previewed == seen(delta, table.uri)


def test_several_stages(delta: SparkSession, table: Table) -> None:
    table.write(ROWS.format(0, 30), begin={"configuration": {"delta.enableDeletionVectors": "true"}})
    handle = table.begin()
    first = table.stage(handle, ROWS.format(50, 60), task_id="first")
    second = table.operate(handle, plan_delete, predicate="id % 5 = 0", task_id="second", after=[first])
    found = preview(table, handle, first, second)
    previewed = seen(delta, found.path)
    table.publish(handle, first, second)
    assert previewed == seen(delta, table.uri)


def test_no_engine_writes_to_it(delta: SparkSession, table: Table) -> None:
    table.write(ROWS.format(0, 30))
    handle = table.begin()
    path = preview(table, handle, table.stage(handle, ROWS.format(30, 40))).path
    log = {file: file.read_bytes() for file in Path(path, "_delta_log").iterdir()}
    name = sql_name(Path(path))
    for statement in (
        f"INSERT INTO {name} {ROWS.format(1, 2)}",
        f"DELETE FROM {name} WHERE id = 1",
        f"UPDATE {name} SET v = 1",
        f"OPTIMIZE {name}",
        f"VACUUM {name} RETAIN 0 HOURS",
        f"ALTER TABLE {name} SET TBLPROPERTIES ('user.x' = '1')",
    ):
        with pytest.raises(Exception, match=r"DELTA_UNSUPPORTED_FEATURES_FOR_WRITE.*airflowPreview"):
            delta.sql(statement)
    with pytest.raises(Exception, match="airflowPreview"):
        write_deltalake(path, pa.table({"id": [1]}), mode="append", schema_mode="merge")
    with pytest.raises(Exception, match="airflowPreview"):
        DeltaTable(path).delete("id = 1")
    with pytest.raises(DeltaIllegalArgumentException, match="is the preview of a transaction, which cannot be written to"):
        Table(Path(path), delta).begin()
    assert {file: file.read_bytes() for file in Path(path, "_delta_log").iterdir()} == log

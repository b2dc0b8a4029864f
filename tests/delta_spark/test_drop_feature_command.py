"""DROP FEATURE, ours and Delta Spark's on copies of the same tables: the same commits, and every version stays readable."""

from __future__ import annotations

import json
import os
import shutil
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from airflow_delta.exceptions import FeatureDropConflictException, FeatureDropWaitException
from airflow_delta.spark.run_operation import run_operation
from airflow_delta.table.operations.drop_feature.run import drop_feature, remove_column_mapping
from delta_spark.support import assert_same_state, delta_log, rows_of, sql_name
from support.table import Table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_delta.contract.payloads import CommitResult

HOUR = 60 * 60 * 1000
INFO = ("operation", "operationParameters", "readVersion", "isolationLevel", "isBlindAppend")
IDENTITY: dict[str, Any] = {"task_id": "drop", "map_index": -1}


def drop(table: Table, feature: str, **options: Any) -> CommitResult:
    identity = {**IDENTITY, "attempt": f"attempt-{time.monotonic_ns()}"}
    return drop_feature(table.log(), feature, partial(run_operation, table.spark), identity=identity, **options)


def made(delta: SparkSession, path: Path, columns: str, properties: dict[str, str], *statements: str) -> Table:
    listed = ", ".join(f"'{key}' = '{value}'" for key, value in properties.items())
    delta.sql(f"CREATE TABLE {sql_name(path)} ({columns}) USING delta TBLPROPERTIES ({listed})")
    for statement in statements:
        delta.sql(statement.format(t=sql_name(path)))
    return Table(path, delta)


def copy_of(table: Table, path: Path) -> Table:
    shutil.copytree(table.path, path)
    return Table(path, table.spark)


def commits(table: Table, first: int) -> list[Any]:
    """What must be alike of the commits from a version on: file names, sizes and times are not."""
    found: list[Any] = []
    for version in table.versions()[first:]:
        lines = []
        for line in table.lines(version):
            ((kind, value),) = line.items()
            if kind == "commitInfo":
                lines.append((kind, {name: value.get(name) for name in INFO}))
            elif kind == "protocol":
                lines.append((kind, {key: sorted(v) if isinstance(v, list) else v for key, v in value.items()}))
            elif kind == "metaData":
                lines.append((kind, value["schemaString"], value["configuration"], value["partitionColumns"]))
            elif kind == "add":
                parts, rows = value["partitionValues"], json.loads(value["stats"])["numRecords"]
                lines.append((kind, value["dataChange"], sorted(parts.items()), rows, "deletionVector" in value))
            elif kind == "remove":
                lines.append((kind, value["dataChange"], "deletionVector" in value, "size" in value))
            else:
                lines.append((kind, value))
        found.append(sorted(lines, key=repr))
    return found


def versions_as_read(delta: SparkSession, table: Table) -> dict[int, list[str]]:
    """The rows of every version, as Delta Spark reads them."""
    delta_log(delta, table.path)
    name = sql_name(table.path)
    return {version: rows_of(delta.sql(f"SELECT * FROM {name} VERSION AS OF {version}")) for version in table.versions()}


def check_usable(delta: SparkSession, table: Table, before: dict[int, list[str]]) -> None:
    """Delta Spark reads every version as before, the newest has the rows of the last one, and Delta Spark goes on."""
    now = versions_as_read(delta, table)
    assert {version: now[version] for version in before if version in now} == {v: r for v, r in before.items() if v in now}
    newest = before[max(before)]
    assert now[max(now)] == newest
    assert_same_state(table.log(), delta, table.path)
    assert DeltaTable(table.uri).to_pyarrow_table().num_rows == len(newest)
    delta.sql(f"INSERT INTO {sql_name(table.path)} SELECT * FROM {sql_name(table.path)} LIMIT 1")
    assert len(rows_of(delta.sql(f"SELECT * FROM {sql_name(table.path)}"))) == len(newest) + 1


def vectors(delta: SparkSession, path: Path) -> Table:
    return made(
        delta,
        path,
        "id LONG, v STRING",
        {"delta.enableDeletionVectors": "true"},
        "INSERT INTO {t} SELECT id, 'a' FROM range(0, 10, 1, 1)",
        "INSERT INTO {t} SELECT id, 'b' FROM range(10, 20, 1, 1)",
        "DELETE FROM {t} WHERE id IN (2, 3)",
        "DELETE FROM {t} WHERE id = 12",
    )


def widened(delta: SparkSession, path: Path) -> Table:
    return made(
        delta,
        path,
        "id INT, d DECIMAL(5, 2), s STRUCT<x: SHORT>, l ARRAY<INT>",
        {"delta.enableTypeWidening": "true"},
        "INSERT INTO {t} VALUES (1, 1.5, named_struct('x', 1S), array(1))",
        "ALTER TABLE {t} ALTER COLUMN id TYPE LONG",
        "ALTER TABLE {t} ALTER COLUMN d TYPE DECIMAL(7, 3)",
        "ALTER TABLE {t} ALTER COLUMN s.x TYPE INT",
        "ALTER TABLE {t} ALTER COLUMN l.element TYPE LONG",
        "INSERT INTO {t} VALUES (5000000000, 1234.567, named_struct('x', 70000), array(5000000000))",
    )


def mapped(delta: SparkSession, path: Path) -> Table:
    delta.sql(
        f"CREATE TABLE {sql_name(path)} (id LONG, p STRING, gone INT, s STRUCT<x: INT>) USING delta PARTITIONED BY (p) "
        "TBLPROPERTIES ('delta.columnMapping.mode' = 'name', 'delta.enableDeletionVectors' = 'false')"
    )
    name = sql_name(path)
    delta.sql(f"INSERT INTO {name} SELECT id, 'a b', 1, named_struct('x', 1) FROM range(0, 5, 1, 1)")
    delta.sql(f"INSERT INTO {name} SELECT id, NULL, 1, NULL FROM range(5, 9, 1, 1)")
    delta.sql(f"ALTER TABLE {name} RENAME COLUMN id TO key")
    delta.sql(f"ALTER TABLE {name} RENAME COLUMN p TO part")
    delta.sql(f"ALTER TABLE {name} RENAME COLUMN s.x TO y")
    delta.sql(f"ALTER TABLE {name} DROP COLUMN gone")
    return Table(path, delta)


def with_v2(delta: SparkSession, path: Path) -> Table:
    table = made(delta, path, "id LONG", {"delta.checkpointPolicy": "v2"}, "INSERT INTO {t} SELECT id FROM range(0, 10, 1, 1)")
    delta_log(delta, path).checkpoint()
    return table


def with_vacuum_check(delta: SparkSession, path: Path) -> Table:
    properties = {"delta.feature.vacuumProtocolCheck": "supported"}
    return made(delta, path, "id LONG", properties, "INSERT INTO {t} SELECT id FROM range(0, 10, 1, 1)")


def with_timestamps(delta: SparkSession, path: Path) -> Table:
    insert = "INSERT INTO {t} SELECT id FROM range(0, 10, 1, 1)"
    enable = "ALTER TABLE {t} SET TBLPROPERTIES ('delta.enableInCommitTimestamps' = 'true')"
    return made(delta, path, "id LONG", {"delta.enableDeletionVectors": "false"}, insert, enable, insert)


def with_row_ids(delta: SparkSession, path: Path) -> Table:
    insert = "INSERT INTO {t} SELECT id FROM range(0, 10, 1, 1)"
    return made(delta, path, "id LONG", {"delta.enableRowTracking": "true"}, insert, insert)


TABLES = {
    "deletionVectors": vectors,
    "typeWidening": widened,
    "columnMapping": mapped,
    "v2Checkpoint": with_v2,
    "vacuumProtocolCheck": with_vacuum_check,
    "inCommitTimestamp": with_timestamps,
    "rowTracking": with_row_ids,
}


@pytest.mark.parametrize("feature", TABLES)
def test_the_commits_are_those_of_delta(delta: SparkSession, tmp_path: Path, feature: str) -> None:
    theirs = TABLES[feature](delta, tmp_path / "theirs")
    first, before = len(theirs.versions()), versions_as_read(delta, theirs)
    ours = copy_of(theirs, tmp_path / "ours")
    delta.sql(f"ALTER TABLE {sql_name(theirs.path)} DROP FEATURE {feature}")
    result = drop(ours, feature)
    assert result.operation == "DROP FEATURE"
    for mine, other in zip(commits(ours, first), commits(theirs, first), strict=True):
        assert mine == other
    protocol = ours.log().update().protocol
    assert feature not in (protocol.writer_features or ())
    checkpoints = {path.name for path in (ours.path / "_delta_log").glob("*.checkpoint*.parquet")}
    if feature in ("inCommitTimestamp", "rowTracking"):
        assert not checkpoints
    else:
        assert protocol.min_reader_version == 1
        assert {int(name.split(".")[0]) for name in checkpoints} >= {result.version - n for n in range(4)}
        key = "delta.requireCheckpointProtectionBeforeVersion"
        assert ours.log().update().metadata.configuration[key] == str(result.version)
    check_usable(delta, ours, before)
    assert drop(ours, feature).attempts == 0, "a rerun finds that it is done"


def clustered(delta: SparkSession, path: Path) -> Table:
    """Mapped by id, clustered, with row tracking, change data, an identity and a generated column, and deletion vectors."""
    name = sql_name(path)
    properties = {
        "delta.columnMapping.mode": "id",
        "delta.enableRowTracking": "true",
        "delta.enableChangeDataFeed": "true",
        "delta.enableDeletionVectors": "true",
    }
    listed = ", ".join(f"'{key}' = '{value}'" for key, value in properties.items())
    delta.sql(
        f"CREATE TABLE {name} (k LONG GENERATED ALWAYS AS IDENTITY, a INT, b INT GENERATED ALWAYS AS (a + 1), s STRUCT<x: INT>) "
        f"USING delta CLUSTER BY (a, s.x) TBLPROPERTIES ({listed})"
    )
    for start in (0, 10):
        delta.sql(f"INSERT INTO {name} (a, s) SELECT id, named_struct('x', id) FROM range({start}, {start + 10}, 1, 1)")
    delta.sql(f"ALTER TABLE {name} RENAME COLUMN s.x TO y")
    delta.sql(f"ALTER TABLE {name} ADD COLUMNS (c STRING)")
    delta.sql(f"INSERT INTO {name} (a, s, c) VALUES (100, NULL, 'c')")
    delta.sql(f"DELETE FROM {name} WHERE a IN (3, 100)")
    return Table(path, delta)


def test_plain_names_for_every_feature(delta: SparkSession, tmp_path: Path) -> None:
    """Rows, row ids, clustering columns, identity and generated columns stay."""
    table = clustered(delta, tmp_path / "table")
    name = sql_name(table.path)
    select = f"SELECT *, _metadata.row_id, _metadata.row_commit_version FROM {name}"
    before, versions = rows_of(delta.sql(select)), versions_as_read(delta, table)
    identity = {**IDENTITY, "attempt": "attempt-1"}
    result = remove_column_mapping(table.log(), partial(run_operation, delta), identity=identity)
    assert table.info(result.version)["operation"] == "REMOVE COLUMN MAPPING"
    metrics = table.info(result.version)["operationMetrics"]
    assert {key: metrics[key] for key in ("numRewrittenFiles", "numCopiedRows", "numDeletionVectorsRemoved")} == {
        "numRewrittenFiles": "2",
        "numCopiedRows": "19",
        "numDeletionVectorsRemoved": "1",
    }
    delta_log(delta, table.path)
    assert rows_of(delta.sql(select)) == before
    assert [row["clusteringColumns"] for row in delta.sql(f"DESCRIBE DETAIL {name}").collect()] == [["a", "s.y"]]
    assert not any("cdc" in line for line in table.lines(result.version))
    delta.sql(f"INSERT INTO {name} (a, c) VALUES (7, 'd')")
    ((key, generated),) = [tuple(row) for row in delta.sql(f"SELECT k, b FROM {name} WHERE c = 'd'").collect()]
    assert (key > 20, generated) == (True, 8)
    delta.sql(f"OPTIMIZE {name}")
    now = versions_as_read(delta, table)
    assert {version: now[version] for version in versions} == versions
    assert_same_state(table.log(), delta, table.path)
    drop(table, "columnMapping")
    assert "columnMapping" not in (table.log().update().protocol.writer_features or ())


def test_column_mapping_conflicts_with_an_append(delta: SparkSession, tmp_path: Path) -> None:
    """A file with physical names that comes in between is not lost: the rewrite starts over."""
    table = mapped(delta, tmp_path / "table")
    raced: list[str] = []

    def on_spark(request: Any) -> Any:
        if not raced:
            raced.append("append")
            delta_log(delta, table.path)
            delta.sql(f"INSERT INTO {sql_name(table.path)} VALUES (50, 'new', named_struct('y', 5))")
        return run_operation(delta, request)

    remove_column_mapping(table.log(), on_spark, identity={**IDENTITY, "attempt": "attempt-1"})
    delta_log(delta, table.path)
    rows = {row["key"]: (row["part"], row["s"]) for row in delta.sql(f"SELECT * FROM {sql_name(table.path)}").collect()}
    assert len(rows) == 10
    assert (rows[50][0], rows[50][1]["y"]) == ("new", 5)
    assert_same_state(table.log(), delta, table.path)


def in_hours(hours: float) -> Any:
    return lambda: int(time.time() * 1000 + hours * HOUR)


def test_truncated_history(delta: SparkSession, tmp_path: Path) -> None:
    """With the clock 25 hours ahead nothing of the feature is left: protocol (1, 2), no protection, Delta Spark goes on."""
    table = mapped(delta, tmp_path / "table")
    before = versions_as_read(delta, table)
    with pytest.raises(FeatureDropWaitException):
        drop(table, "columnMapping", truncate_history=True)
    with pytest.raises(FeatureDropWaitException, match="HISTORICAL_VERSIONS_EXIST"):
        drop(table, "columnMapping", truncate_history=True)
    drop(table, "columnMapping", truncate_history=True, clock=in_hours(25))
    protocol = table.log().update().protocol
    assert (protocol.min_reader_version, "checkpointProtection" in (protocol.writer_features or ())) == (1, False)
    assert table.versions()[0] > max(before)
    check_usable(delta, table, before)


def test_delta_finishes_what_we_began(delta: SparkSession, tmp_path: Path) -> None:
    """Our first run and Delta's second, a day later by the times of the files."""
    table = mapped(delta, tmp_path / "table")
    with pytest.raises(FeatureDropWaitException):
        drop(table, "columnMapping", truncate_history=True)
    past = time.time() - 25 * 60 * 60
    for path in (table.path / "_delta_log").rglob("*"):
        os.utime(path, (past, past))
    delta_log(delta, table.path)
    delta.sql(f"ALTER TABLE {sql_name(table.path)} DROP FEATURE columnMapping TRUNCATE HISTORY")
    assert "columnMapping" not in (table.log().update().protocol.writer_features or ())


def test_a_delete_between_the_steps(delta: SparkSession, tmp_path: Path) -> None:
    """Delta Spark switches vectors on again and deletes rows before the last step; the next run removes those, too."""
    table = vectors(delta, tmp_path / "table")
    name, log = sql_name(table.path), table.log()
    write, written = log.checkpoint, 0

    def raced(snapshot: Any) -> None:
        nonlocal written
        write(snapshot)
        written += 1
        if written == 3:
            delta_log(delta, table.path)
            delta.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")
            delta.sql(f"DELETE FROM {name} WHERE id = 15")

    log.checkpoint = raced  # type: ignore[method-assign]
    with pytest.raises(FeatureDropConflictException, match="enableDeletionVectors"):
        drop_feature(log, "deletionVectors", partial(run_operation, delta), identity={**IDENTITY, "attempt": "attempt-1"})
    before = versions_as_read(delta, table)
    drop(table, "deletionVectors")
    check_usable(delta, table, before)

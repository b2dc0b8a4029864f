"""CLONE: shallow ones beside Delta Spark's, with the same log entry; tables that all engines read, Delta Spark goes on from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_delta.exceptions import DeltaAnalysisException, DeltaIllegalStateException
from airflow_delta.spark.changes import read_change_plan
from airflow_delta.table.changes.plan import plan_changes
from airflow_delta.table.operations.clone import clone_table
from airflow_delta.table.operations.statistics import compute_statistics
from delta_spark.support import assert_same_state, delta_rows, open_log, rows_of, sql_name
from support.table import Table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAMES_OF_ITS_OWN = (
    "delta.rowTracking.materializedRowIdColumnName",
    "delta.rowTracking.materializedRowCommitVersionColumnName",
)
OF_THE_SOURCES_HISTORY = ("delta.inCommitTimestampEnablementVersion", "delta.inCommitTimestampEnablementTimestamp")


def clone(table: Table, source: Table, key: str = "clone", **options: Any) -> Any:
    return clone_table(table.log(), source.log(), transaction_key=key, attempt="1-test", **options)


def entry(table: Table, version: int) -> dict[str, Any]:
    """Return what a clone's log entry says, without what differs from run to run."""
    commit = table.actions(version)
    info = commit["commitInfo"][0]
    [metadata], [protocol] = commit["metaData"], commit["protocol"]
    new_table = version == 0
    drop = {*(NAMES_OF_ITS_OWN if new_table else ()), *OF_THE_SOURCES_HISTORY}
    return {
        "info": {
            name: info.get(name)
            for name in ("operation", "operationParameters", "operationMetrics", "readVersion", "isolationLevel", "isBlindAppend")
        },
        "metadata": {k: v for k, v in metadata.items() if not (k == "id" and new_table) and k != "configuration"},
        "configuration": {k: v for k, v in metadata["configuration"].items() if k not in drop},
        "protocol": {k: sorted(v) if isinstance(v, list) else v for k, v in protocol.items()},
        "files": {add["path"]: {k: v for k, v in add.items() if k not in ("path", "baseRowId")} for add in commit["add"]},
        # Files come in any order, so which of them gets which ids does, too.
        "first row ids": sorted(add.get("baseRowId") is None for add in commit["add"]),
        "domains": sorted((d["domain"], d["removed"], _domain(d)) for d in commit.get("domainMetadata", [])),
        "order": [k for k in _kinds(table, version) if k not in ("add", "txn")],
    }


def _domain(domain: dict[str, Any]) -> str:
    value = json.loads(domain["configuration"])
    value.pop("domainName", None)  # Delta repeats it there
    return json.dumps(value, sort_keys=True)


def _kinds(table: Table, version: int) -> list[str]:
    return [next(iter(line)) for line in table.lines(version)]


def rust_count(table: Table) -> int:
    """Return the number of rows as delta-rs reads them: its SQL knows absolute paths, its datasets of PyArrow do not."""
    from deltalake import DeltaTable, QueryBuilder

    answer = QueryBuilder().register("t", DeltaTable(table.path)).execute("SELECT count(*) AS c FROM t").read_all()
    return int(answer["c"][0].as_py())


@pytest.fixture
def tables(delta: SparkSession, tmp_path: Path) -> tuple[Table, Table, Table]:
    return Table(tmp_path / "src a%b+ü", delta), Table(tmp_path / "ours", delta), Table(tmp_path / "theirs", delta)


def both(delta: SparkSession, tables: tuple[Table, Table, Table], version: int = 0) -> tuple[list[str], list[str]]:
    source, ours, theirs = tables
    assert entry(ours, version) == entry(theirs, version)
    rows = delta_rows(delta, theirs.path)
    assert delta_rows(delta, ours.path) == rows
    assert_same_state(ours.log(), delta, ours.path, label="the clone")
    assert rust_count(ours) == len(rows)
    assert len(source.versions()) > 0
    return rows, delta_rows(delta, ours.path)


def test_partitions_vectors_mapping_and_row_ids(delta: SparkSession, tables: tuple[Table, Table, Table]) -> None:
    source, ours, theirs = tables
    name = sql_name(source.path)
    delta.sql(
        f"CREATE TABLE {name} (id LONG NOT NULL, p STRING, at DATE) USING delta PARTITIONED BY (p) COMMENT 'of the source' "
        "TBLPROPERTIES ('delta.enableDeletionVectors'='true', 'delta.enableRowTracking'='true', "
        "'delta.columnMapping.mode'='name', 'user.x'='1', 'delta.constraints.pos'='id >= 0')"
    )
    delta.sql(f"INSERT INTO {name} VALUES (1, 'a b/c%', date'2020-01-01'), (2, 'a b/c%', null), (3, null, null), (4, 'ü=', null)")
    delta.sql(f"INSERT INTO {name} SELECT id, 'z', null FROM range(0, 10, 1, 1)")
    delta.sql(f"DELETE FROM {name} WHERE id IN (1, 5)")
    delta.sql(f"CREATE TABLE {sql_name(theirs.path)} SHALLOW CLONE {name}")
    clone(ours, source)
    rows, _ours = both(delta, tables)
    assert len(rows) == 11
    # Delta Spark goes on from ours as it does from its own: new vectors in the clone, the source's stay as they are.
    for table in (ours, theirs):
        delta.sql(f"DELETE FROM {sql_name(table.path)} WHERE id IN (3, 6)")
        delta.sql(f"INSERT INTO {sql_name(table.path)} VALUES (77, 'new', null)")
    assert delta_rows(delta, ours.path) == delta_rows(delta, theirs.path)
    assert len(delta_rows(delta, source.path)) == len(rows)
    assert_same_state(None, delta, ours.path)
    # A clone of the clone points to all three places. Statistics that are complete are not computed again.
    second, judge = Table(ours.path.parent / "second", delta), Table(ours.path.parent / "judge", delta)
    delta.sql(f"CREATE TABLE {sql_name(judge.path)} SHALLOW CLONE {sql_name(ours.path)}")
    clone(second, ours)
    both(delta, (ours, second, judge))
    assert compute_statistics(second.log(), only_missing=True).attempts == 0


def test_versions_times_and_properties(delta: SparkSession, tables: tuple[Table, Table, Table]) -> None:
    source, ours, theirs = tables
    name = sql_name(source.path)
    delta.sql(f"CREATE TABLE {name} (id LONG, p STRING) USING delta PARTITIONED BY (p)")
    delta.sql(f"INSERT INTO {name} VALUES (1, 'a')")
    delta.sql(f"INSERT INTO {name} VALUES (2, 'b')")
    delta.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('delta.enableInCommitTimestamps'='true')")
    delta.sql(f"CREATE TABLE {sql_name(theirs.path)} SHALLOW CLONE {name} VERSION AS OF 1")
    clone(ours, source, version=1)
    assert both(delta, tables)[0] == ["id=1, p='a'"]
    earlier = Table(ours.path.parent / "earlier", delta)
    clone(earlier, source, timestamp=source.log().snapshot_at(2).timestamp)
    assert earlier.info(0)["operationParameters"]["sourceVersion"] == 2
    # When timestamps were switched on is a fact about the source's versions: Delta copies it, and its clone then says that its
    # first version has none. Ours has had them from the start.
    feed = {"delta.enableChangeDataFeed": "true", "user.x": "2", "delta.feature.deletionVectors": "supported"}
    listed = ", ".join(f"'{key}'='{value}'" for key, value in feed.items())
    ours, theirs = Table(ours.path.parent / "ours 2", delta), Table(ours.path.parent / "theirs 2", delta)
    delta.sql(f"CREATE TABLE {sql_name(theirs.path)} SHALLOW CLONE {name} TBLPROPERTIES ({listed})")
    clone(ours, source, properties=feed)
    both(delta, (source, ours, theirs))
    assert not set(OF_THE_SOURCES_HISTORY) & set(ours.log().update().metadata.configuration)
    assert "inCommitTimestamp" in ours.info(0)
    for properties in ({"delta.columnMapping.mode": "name"}, {"delta.logRetentionDuration": "interval 3 days"}):
        with pytest.raises(ValueError, match=r"column mapping mode|must not be shorter"):
            clone(Table(ours.path.parent / "refused", delta), source, properties=properties)


def test_change_data_feed_and_column_mapping(delta: SparkSession, tables: tuple[Table, Table, Table]) -> None:
    source, ours, theirs = tables
    both_on = "TBLPROPERTIES ('delta.columnMapping.mode' = 'name', 'delta.enableChangeDataFeed' = 'true')"
    delta.sql(f"CREATE TABLE {sql_name(source.path)} (id LONG, p STRING) USING delta {both_on}")
    delta.sql(f"INSERT INTO {sql_name(source.path)} VALUES (1, 'a')")
    delta.sql(f"ALTER TABLE {sql_name(source.path)} RENAME COLUMN p TO q")
    delta.sql(f"CREATE TABLE {sql_name(theirs.path)} SHALLOW CLONE {sql_name(source.path)}")
    clone(ours, source)
    assert both(delta, tables)[0] == ["id=1, q='a'"]
    empty = Table(ours.path.parent / "empty", delta)
    delta.sql(f"CREATE TABLE {sql_name(empty.path)} (x LONG) USING delta {both_on}")
    clone(empty, source, replace=True)
    assert delta_rows(delta, empty.path) == ["id=1, q='a'"]
    for path in (ours.path, theirs.path, empty.path):
        version = len(list((path / "_delta_log").glob("0*.json"))) - 1
        feed = delta.read.format("delta").option("readChangeFeed", "true").option("startingVersion", version).load(str(path))
        changes = read_change_plan(delta, plan_changes(open_log(path), starting_version=version))
        assert rows_of(changes) == rows_of(feed)
        assert [row.q for row in changes.collect()] == ["a"]


def test_an_empty_table_becomes_the_clone(delta: SparkSession, tables: tuple[Table, Table, Table]) -> None:
    source, ours, theirs = tables
    delta.sql(f"CREATE TABLE {sql_name(source.path)} (id LONG, p STRING) USING delta PARTITIONED BY (p)")
    delta.sql(f"INSERT INTO {sql_name(source.path)} VALUES (1, 'a')")
    for table in (ours, theirs):
        delta.sql(
            f"CREATE TABLE {sql_name(table.path)} (x LONG, y STRING) USING delta CLUSTER BY (x) COMMENT 'of the target' "
            "TBLPROPERTIES ('mine'='1', 'delta.enableDeletionVectors'='true', 'delta.enableRowTracking'='true')"
        )
    before = ours.log().update().metadata
    delta.sql(f"CREATE OR REPLACE TABLE {sql_name(theirs.path)} SHALLOW CLONE {sql_name(source.path)}")
    clone(ours, source, replace=True)
    mine, judge = entry(ours, 1), entry(theirs, 1)
    assert mine["metadata"].pop("id") == before.id
    judge["metadata"].pop("id")
    # Delta leaves the two names out where row tracking is supported and not switched on.
    mine["configuration"] = {k: v for k, v in mine["configuration"].items() if k not in NAMES_OF_ITS_OWN}
    judge["configuration"] = {k: v for k, v in judge["configuration"].items() if k not in NAMES_OF_ITS_OWN}
    assert mine == judge
    assert delta_rows(delta, ours.path) == delta_rows(delta, source.path)
    assert_same_state(None, delta, ours.path)
    with pytest.raises(DeltaIllegalStateException, match="DELTA_UNSUPPORTED_NON_EMPTY_CLONE"):
        clone(ours, source, key="again", replace=True)
    with pytest.raises(DeltaIllegalStateException, match="DELTA_TABLE_ALREADY_EXISTS"):
        clone(ours, source, key="again")


def test_clustering_identity_defaults_and_generated_columns(delta: SparkSession, tables: tuple[Table, Table, Table]) -> None:
    source, ours, theirs = tables
    name = sql_name(source.path)
    delta.sql(
        f"CREATE TABLE {name} (v INT DEFAULT 3, g INT GENERATED ALWAYS AS (v * 2), id LONG GENERATED ALWAYS AS IDENTITY, "
        "n TIMESTAMP_NTZ, c STRING COMMENT 'a comment') USING delta CLUSTER BY (v) TBLPROPERTIES ("
        "'delta.feature.allowColumnDefaults'='supported', 'delta.appendOnly'='true', 'delta.checkpointPolicy'='v2')"
    )
    delta.sql(f"INSERT INTO {name} (v, c) VALUES (1, 'a'), (2, 'b')")
    delta.sql(f"CREATE TABLE {sql_name(theirs.path)} SHALLOW CLONE {name}")
    clone(ours, source)
    both(delta, tables)
    delta.sql(f"INSERT INTO {sql_name(ours.path)} (c) VALUES ('c')")
    assert len(delta_rows(delta, ours.path)) == 3


def test_mapping_modes_do_not_mix(delta: SparkSession, tables: tuple[Table, Table, Table]) -> None:
    source, ours, theirs = tables
    mapped = "USING delta TBLPROPERTIES ('delta.columnMapping.mode'='name'"
    legacy = ", 'delta.minReaderVersion'='2', 'delta.minWriterVersion'='5'"
    delta.sql(f"CREATE TABLE {sql_name(source.path)} (id LONG) {mapped}{legacy})")
    delta.sql(f"INSERT INTO {sql_name(source.path)} VALUES (1)")
    for table in (ours, theirs):
        delta.sql(f"CREATE TABLE {sql_name(table.path)} (id LONG) {mapped})")
    delta.sql(f"CREATE OR REPLACE TABLE {sql_name(theirs.path)} SHALLOW CLONE {sql_name(source.path)}")
    clone(ours, source, replace=True)
    mine, judge = entry(ours, 1), entry(theirs, 1)
    for each in (mine, judge):
        each["metadata"].pop("id")
    assert mine == judge
    assert delta_rows(delta, ours.path) == ["id=1"]
    plain = Table(ours.path.parent / "plain", delta)
    delta.sql(f"CREATE TABLE {sql_name(plain.path)} (id LONG) USING delta")
    with pytest.raises(DeltaAnalysisException, match="DELTA_UNSUPPORTED_COLUMN_MAPPING_MODE_CHANGE"):
        clone(plain, source, replace=True)


def test_deep_clones(delta: SparkSession, tables: tuple[Table, Table, Table]) -> None:
    source, ours, _theirs = tables
    name = sql_name(source.path)
    delta.sql(
        f"CREATE TABLE {name} (id LONG, p STRING, n LONG GENERATED ALWAYS AS IDENTITY) USING delta PARTITIONED BY (p) "
        "TBLPROPERTIES ('delta.enableDeletionVectors'='true', 'delta.enableRowTracking'='true', "
        "'delta.columnMapping.mode'='name', 'delta.enableChangeDataFeed'='true', 'delta.enableInCommitTimestamps'='true')"
    )
    delta.sql(f"INSERT INTO {name} (id, p) VALUES (1, 'a b/c%'), (2, 'a b/c%'), (3, null)")
    delta.sql(f"INSERT INTO {name} (id, p) SELECT id, 'z' FROM range(0, 10, 1, 1)")
    delta.sql(f"DELETE FROM {name} WHERE id IN (1, 5)")
    clone(ours, source, deep=True)
    copied = []
    for number, statement in enumerate(
        (
            "INSERT INTO {} (id, p) VALUES (77, 'z')",
            "DELETE FROM {} WHERE id = 7",
            "UPDATE {} SET id = 78 WHERE id = 77",
            "ALTER TABLE {} RENAME COLUMN id TO number",
            "OPTIMIZE {}",
            "RESTORE TABLE {} TO VERSION AS OF 4",
        )
    ):
        delta.sql(statement.format(name))
        result = clone(ours, source, f"clone {number}", deep=True)
        copied.append(int(ours.info(result.version)["operationMetrics"]["numCopiedFiles"]))
        assert delta_rows(delta, ours.path) == delta_rows(delta, source.path)
        assert_same_state(ours.log(), delta, ours.path, label=statement)
    assert copied[:4] == [1, 0, 1, 0]
    # A shallow clone of this version would now be lost.
    rows = delta_rows(delta, source.path)
    for version in ours.versions()[1:]:
        assert len(delta_rows(delta, ours.path, version)) > 0
    delta.sql(f"DELETE FROM {name}")
    delta.sql(f"VACUUM {name} RETAIN 0 HOURS")
    assert delta_rows(delta, ours.path) == rows
    delta.sql(f"VACUUM {sql_name(ours.path)} RETAIN 0 HOURS")
    assert delta_rows(delta, ours.path) == rows
    # Delta Spark goes on: values of the identity column do not come twice.
    delta.sql(f"INSERT INTO {sql_name(ours.path)} (id, p) VALUES (99, 'own')")
    numbers = [row.n for row in delta.sql(f"SELECT n FROM {sql_name(ours.path)}").collect()]
    assert len(set(numbers)) == len(numbers)
    assert_same_state(ours.log(), delta, ours.path)
    with pytest.raises(DeltaIllegalStateException, match="changed since it was cloned"):
        clone(ours, source, "last", deep=True)
    clone(ours, source, "last", deep=True, replace=True)
    assert delta_rows(delta, ours.path) == []

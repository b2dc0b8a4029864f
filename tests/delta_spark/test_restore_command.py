"""RESTORE, ours and Delta Spark's on copies of the same tables: rows, schema, files, protocol, domains, history."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_delta.exceptions import DeltaError
from airflow_delta.spark.changes import read_change_plan
from airflow_delta.table.changes.plan import plan_changes
from airflow_delta.table.operations.restore import restore
from delta_spark.support import delta_history, delta_log, delta_rows, open_log, rows_of, sql_name
from support.table import Table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CASES: dict[str, tuple[str, ...]] = {
    "plain": (
        "CREATE TABLE {t} (id LONG, p STRING) USING delta PARTITIONED BY (p)",
        "INSERT INTO {t} SELECT id, CAST(id % 2 AS STRING) FROM range(10)",
        "UPDATE {t} SET id = 100 WHERE id = 1",
        "ALTER TABLE {t} ADD COLUMNS (more INT)",
        "ALTER TABLE {t} SET TBLPROPERTIES ('a' = 'b', 'delta.enableChangeDataFeed' = 'true')",
        "INSERT INTO {t} VALUES (50, '5', 1)",
        "DELETE FROM {t} WHERE p = '0'",
    ),
    "features": (
        "CREATE TABLE {t} (id LONG, v STRING) USING delta CLUSTER BY (id) "
        "TBLPROPERTIES ('delta.enableDeletionVectors' = 'true', 'delta.enableRowTracking' = 'true')",
        "INSERT INTO {t} SELECT id, 'a' FROM range(10)",
        "DELETE FROM {t} WHERE id = 1",
        "ALTER TABLE {t} CLUSTER BY (v)",
        "DELETE FROM {t} WHERE id = 2",
        "INSERT INTO {t} VALUES (20, 'b')",
        "ALTER TABLE {t} SET TBLPROPERTIES ('delta.enableInCommitTimestamps' = 'true')",
        "ALTER TABLE {t} CLUSTER BY NONE",
        "DELETE FROM {t} WHERE id > 5",
    ),
    "removed clustering": (
        "CREATE TABLE {t} (id LONG, v STRING) USING delta CLUSTER BY (id) TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')",
        "INSERT INTO {t} VALUES (1, 'x')",
        "REPLACE TABLE {t} (id LONG) USING delta",
        "INSERT INTO {t} VALUES (2)",
    ),
    "widening": (
        "CREATE TABLE {t} (id INT, v SMALLINT) USING delta TBLPROPERTIES ('delta.enableTypeWidening' = 'true')",
        "INSERT INTO {t} VALUES (1, 1)",
        "ALTER TABLE {t} ALTER COLUMN id TYPE BIGINT",
        "INSERT INTO {t} VALUES (2, 2)",
        "ALTER TABLE {t} ALTER COLUMN v TYPE INT",
    ),
    "mapping": (
        "CREATE TABLE {t} (id LONG, v STRING) USING delta",
        "INSERT INTO {t} VALUES (1, 'x')",
        "ALTER TABLE {t} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')",
        "ALTER TABLE {t} RENAME COLUMN v TO w",
        "INSERT INTO {t} VALUES (2, 'y')",
        "ALTER TABLE {t} ADD CONSTRAINT positive CHECK (id > 0)",
    ),
    "feed and mapping": (
        "CREATE TABLE {t} (id LONG, v STRING) USING delta "
        "TBLPROPERTIES ('delta.columnMapping.mode' = 'name', 'delta.enableChangeDataFeed' = 'true')",
        "INSERT INTO {t} VALUES (1, 'x')",
        "ALTER TABLE {t} RENAME COLUMN v TO w",
        "INSERT INTO {t} VALUES (2, 'y')",
        "ALTER TABLE {t} DROP COLUMN w",
        "INSERT INTO {t} VALUES (3)",
        "ALTER TABLE {t} ADD COLUMNS (more INT)",
    ),
    "dropped feature": (
        "CREATE TABLE {t} (id LONG, v STRING) USING delta "
        "TBLPROPERTIES ('delta.enableDeletionVectors' = 'true', 'delta.columnMapping.mode' = 'name')",
        "INSERT INTO {t} VALUES (1, 'x'), (2, 'y')",
        "DELETE FROM {t} WHERE id = 1",
        "ALTER TABLE {t} DROP FEATURE deletionVectors",
        "INSERT INTO {t} VALUES (3, 'z')",
        "ALTER TABLE {t} DROP FEATURE columnMapping",
    ),
}


@pytest.fixture(scope="module", params=CASES)
def source(delta: SparkSession, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    path = tmp_path_factory.mktemp("restore") / "source"
    for statement in CASES[request.param]:
        delta.sql(statement.format(t=sql_name(path)))
    return path


def commit(path: Path, version: int) -> dict[str, Any]:
    """Return a commit without what two runs cannot have in common."""
    found = Table(path).actions(version)
    for remove in found.get("remove", []):
        remove.pop("deletionTimestamp", None)
    found.pop("txn", None)  # the identity of ours
    del found["commitInfo"]
    for metadata in found.get("metaData", []):
        metadata["configuration"].pop("delta.inCommitTimestampEnablementTimestamp", None)
        metadata["configuration"].pop("delta.requireCheckpointProtectionBeforeVersion", None)  # Delta Spark takes it back
    for protocol in found.get("protocol", []):
        protocol |= {kind: sorted(names) for kind, names in protocol.items() if kind.endswith("Features")}
    return {kind: sorted(actions, key=str) for kind, actions in found.items()}


def attempt(run: Any) -> Exception | None:
    try:
        run()
    except Exception as error:  # what it is, the test says
        return error
    return None


def test_same_as_delta(delta: SparkSession, source: Path, tmp_path: Path) -> None:
    latest = len(list((source / "_delta_log").glob("0*.json"))) - 1
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    for copy in (theirs, ours):
        shutil.copytree(source, copy)
    # Delta commits nothing for the last version; we note the identity, so that a retry restores nothing either.
    delta.sql(f"RESTORE TABLE {sql_name(theirs)} TO VERSION AS OF {latest}").collect()
    assert not (theirs / "_delta_log" / f"{latest + 1:020}.json").exists()
    # One restore after the other; the first has nothing to restore, the last brings back what was the newest version.
    for step, wanted in enumerate([latest + 1, latest - 1, 1, latest // 2, 0, latest]):
        refused = attempt(
            lambda wanted=wanted: delta.sql(f"RESTORE TABLE {sql_name(theirs)} TO VERSION AS OF {wanted}").collect()
        )
        ours_refused = attempt(
            lambda wanted=wanted, step=step: restore(
                open_log(ours), version=wanted, transaction_key=f"restore-{step}", attempt="1-0"
            )
        )
        assert (refused is None) == (ours_refused is None), (wanted, refused, ours_refused)
        if refused is not None:
            assert isinstance(ours_refused, DeltaError)
            continue
        their_history, our_history = (delta_history(delta, path, limit=1) for path in (theirs, ours))
        (version,) = their_history.keys()
        for field in ("operation", "operationParameters", "operationMetrics", "isolationLevel", "isBlindAppend", "readVersion"):
            assert our_history[version][field] == their_history[version][field], (wanted, field)
        ours_committed, theirs_committed = commit(ours, version), commit(theirs, version)
        for kind in ours_committed | theirs_committed:
            assert ours_committed.get(kind) == theirs_committed.get(kind), (wanted, kind)
        assert delta_rows(delta, ours) == delta_rows(delta, theirs)


def test_the_feed_across_a_restore(delta: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "table"
    for statement in CASES["feed and mapping"]:
        delta.sql(statement.format(t=sql_name(path)))
    for version in (1, 5):
        restore(open_log(path), version=version, transaction_key=f"restore-{version}", attempt="1-0")
    told = 0
    for start, end in ((0, 1), (1, 3), (1, 7), (2, 3), (3, 7), (6, 8), (7, 7), (7, 8), (8, 8)):
        theirs, ours = feeds(delta, path, start, end)
        assert isinstance(ours, list) == isinstance(theirs, list), (start, end, theirs, ours)
        if isinstance(theirs, list):
            assert ours == theirs, (start, end)
            told += 1
    assert told >= 4


def feeds(delta: SparkSession, path: Path, start: int, end: int) -> tuple[list[str] | Exception, list[str] | Exception]:
    """Return the changes as Delta Spark reads them and as we do, or the errors."""
    found: list[list[str] | Exception] = []
    reader = delta.read.format("delta").option("readChangeFeed", "true").option("startingVersion", start)
    for read in (
        lambda: reader.option("endingVersion", end).load(str(path)),
        lambda: read_change_plan(delta, plan_changes(open_log(path), starting_version=start, ending_version=end)),
    ):
        try:
            found.append(rows_of(read()))
        except Exception as error:
            found.append(error)
    return found[0], found[1]


def test_timestamp(delta: SparkSession, source: Path, tmp_path: Path) -> None:
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    for copy in (theirs, ours):
        shutil.copytree(source, copy)
    milliseconds = delta_history(delta, ours)[1]["timestamp"]
    text = datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")
    delta.sql(f"RESTORE TABLE {sql_name(theirs)} TO TIMESTAMP AS OF '{text}'")
    restore(open_log(ours), timestamp=text, transaction_key="restore", attempt="1-0")
    (theirs_entry,), (ours_entry,) = (delta_history(delta, path, limit=1).values() for path in (theirs, ours))
    for field in ("operation", "operationParameters", "operationMetrics"):
        assert ours_entry[field] == theirs_entry[field], field
    assert delta_rows(delta, ours) == delta_rows(delta, theirs) == delta_rows(delta, source, 1)


def test_retention(delta: SparkSession, tmp_path: Path) -> None:
    """A version is out of reach when VACUUM may have deleted what it held."""
    path = tmp_path / "table"
    name = sql_name(path)
    delta.sql(
        f"CREATE TABLE {name} USING delta TBLPROPERTIES ('delta.deletedFileRetentionDuration' = 'interval 0 hours') "
        "AS SELECT 1 AS id"
    )
    delta.sql(f"INSERT INTO {name} VALUES (2)")
    delta.sql(f"INSERT INTO {name} VALUES (3)")
    theirs = attempt(lambda: delta.sql(f"RESTORE TABLE {name} TO VERSION AS OF 0").collect())
    ours = attempt(lambda: restore(open_log(path), version=0, transaction_key="restore", attempt="1-0"))
    assert theirs is not None
    assert ours is not None
    assert "BEYOND_DELETED_FILE_RETENTION" in str(theirs)
    assert "BEYOND_DELETED_FILE_RETENTION" in str(ours)


def test_row_ids_of_two_times_do_not_meet(delta: SparkSession, tmp_path: Path) -> None:
    """The feature was dropped since, and is there again. Delta Spark's own RESTORE gives ids twice."""
    path = tmp_path / "t"
    name = sql_name(path)
    delta.sql(f"CREATE TABLE {name} (id LONG) USING delta TBLPROPERTIES ('delta.enableRowTracking' = 'true')")
    for first in (0, 10):
        delta.sql(f"INSERT INTO {name} SELECT id FROM range({first}, {first + 10}, 1, 1)")
    delta.sql(f"DELETE FROM {name} WHERE id < 10")
    delta.sql(f"ALTER TABLE {name} DROP FEATURE rowTracking")
    delta.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('delta.enableRowTracking' = 'true')")
    restore(open_log(path), version=2, transaction_key="restore", attempt="1-0")
    for rows in (20, 30):
        delta_log(delta, path)
        found = dict(delta.sql(f"SELECT id, _metadata.row_id FROM {name}").collect())
        assert found == {number: number for number in range(rows)}
        delta.sql(f"INSERT INTO {name} SELECT id FROM range(20, 30, 1, 1)")

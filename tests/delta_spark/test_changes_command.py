"""The change data feed: the rows that we read are those that Delta Spark reads, whoever wrote the commits."""

from __future__ import annotations

import json
import os
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_delta.contract.change_plan import ChangePlan
from airflow_delta.exceptions import DeltaError
from airflow_delta.spark import read as reading
from airflow_delta.spark.changes import read_change_plan
from airflow_delta.table.changes.plan import plan_changes
from airflow_delta.table.changes.read import read_changes as read_in_worker
from airflow_delta.table.stage import scan
from delta_spark.support import delta_log, open_log, rows_of, sql_name

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from support.table import Table

REPLACED = {"mode": "overwrite", "replace_where": "p = 'p 1' AND id < 15"}
COLUMNS = "(id LONG, p STRING, v DOUBLE, s STRUCT<a: INT>)"
ROWS = "id, concat('p ', id % 3) AS p, id * 1.5D AS v, named_struct('a', int(id)) AS s"
FEED = "'delta.enableChangeDataFeed'='true'"

MIX = [
    "INSERT INTO {t} SELECT /*+ REPARTITION(1) */ " + ROWS + " FROM range(30)",
    "DELETE FROM {t} WHERE id IN (3, 4, 5)",
    "DELETE FROM {t} WHERE id IN (6, 7)",
    "UPDATE {t} SET v = -1 WHERE id % 10 = 1",
    "MERGE INTO {t} AS t USING (SELECT " + ROWS.replace("id * 1.5D", "0.5D") + " FROM range(25, 35)) AS s ON t.id = s.id "
    "WHEN MATCHED AND s.id = 26 THEN DELETE WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *",
    "DELETE FROM {t} WHERE p = 'p 2'",
    "OPTIMIZE {t}",
    "RESTORE TABLE {t} TO VERSION AS OF 2",
    "ALTER TABLE {t} ADD COLUMN (n INT)",
    "INSERT OVERWRITE {t} SELECT " + ROWS + ", 7 FROM range(5)",
]


def sql(delta: SparkSession, path: Path, *statements: str) -> None:
    for text in statements:
        delta.sql(text.replace("{t}", sql_name(path)))


def theirs(delta: SparkSession, path: Path, **options: Any) -> list[str]:
    reader = delta.read.format("delta").option("readChangeFeed", "true")
    return rows_of(reader.options(**options).load(str(path)))


def ours(delta: SparkSession, path: Path, **arguments: Any) -> list[str]:
    """Return the rows as Spark reads our plan, after the worker's own reader has read the same ones."""
    plan = plan_changes(open_log(path), **arguments)
    found = rows_of(read_change_plan(delta, ChangePlan.from_dict(json.loads(json.dumps(plan.to_dict())))))
    assert rows_of(delta.createDataFrame(read_in_worker(open_log(path), **arguments).to_table())) == found
    return found


def outcome(read: Any) -> Any:
    try:
        return read()
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:300]}"


@pytest.mark.parametrize(
    "properties",
    [
        "'delta.enableDeletionVectors'='true'",
        "'delta.enableDeletionVectors'='false', 'delta.columnMapping.mode'='id', 'delta.enableInCommitTimestamps'='true'",
    ],
    ids=["deletion vectors", "copy on write by id"],
)
def test_a_mix_of_operations_of_both(delta: SparkSession, table: Table, properties: str, monkeypatch: pytest.MonkeyPatch):
    path = table.path
    sql(
        delta, path, f"CREATE TABLE {{t}} {COLUMNS} USING delta PARTITIONED BY (p) TBLPROPERTIES ({FEED}, {properties})", *MIX[:6]
    )
    rows = "SELECT " + ROWS + " FROM range({}, {})"
    table.write(rows.format(40, 45))
    table.write(
        rows.format(10, 13).replace("concat('p ', id % 3)", "'p 1'"), mode="overwrite", replace_where="p = 'p 1' AND id < 15"
    )
    table.write(rows.format(200, 203), mode="dynamic")
    sql(delta, path, *MIX[6:])
    last = table.versions()[-1]
    whole = theirs(delta, path, startingVersion=0)
    assert len(whole) > 100
    assert ours(delta, path, starting_version=0) == whole
    monkeypatch.setattr(reading, "MAX_LITERAL_PARTITIONS", 0)
    monkeypatch.setattr(scan, "MAX_INLINE_WORDS", 1)
    assert ours(delta, path, starting_version=0) == whole
    monkeypatch.undo()
    for start, end in ((2, 4), (5, 5), (last, last + 5)):
        expected = theirs(delta, path, startingVersion=start, endingVersion=end)
        assert ours(delta, path, starting_version=start, ending_version=end) == expected, (start, end)
    ending = "mapped" if "columnMapping" in properties else "plain"
    reader = delta.read.format("delta").option("readChangeFeed", "true")
    before = reader.option("startingVersion", 1).option("endingVersion", 3).load(str(path))
    # Without column mapping, changes are read with the latest schema; with it, with that of the last version read.
    assert ("n" in before.columns) == (ending == "plain")
    plan = plan_changes(open_log(path), starting_version=1, ending_version=3)
    assert read_change_plan(delta, plan).schema.simpleString() == before.schema.simpleString()


def text(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, tz=UTC).strftime("%Y-%m-%d %H:%M:%S.%f")


def test_ranges_by_version_and_time(delta: SparkSession, table: Table):
    path = table.path
    sql(delta, path, f"CREATE TABLE {{t}} (id LONG) USING delta TBLPROPERTIES ({FEED})")
    for value in range(1, 5):
        sql(delta, path, f"INSERT INTO {{t}} VALUES ({value})")
    base = (int(time.time()) - 3600) * 1000  # Delta reads nothing older than the retention of deleted files
    # Version 3 is older than version 2: it counts as a millisecond after it.
    for version, offset in enumerate((0, 10_000, 20_000, 15_000, 30_000)):
        at = base + offset
        os.utime(path / "_delta_log" / f"{version:020}.json", (at / 1000, at / 1000))
    delta_log(delta, path)
    moments = [base + after for after in (-1, 0, 10_001, 20_001, 30_000, 30_001)]
    for start in moments:
        for end in (None, base - 1, base + 10_002, base + 30_001):
            # An end after the last commit is the last commit here; Delta refuses it, unless a setting of the session allows it.
            given = None if end is None or end > base + 30_000 else end
            options = {"startingTimestamp": text(start)} | ({} if given is None else {"endingTimestamp": text(given)})
            arguments = {"starting_timestamp": start} | ({} if end is None else {"ending_timestamp": end})
            expected = outcome(lambda o=options: theirs(delta, path, **o))
            found = outcome(lambda a=arguments: ours(delta, path, **a))
            assert isinstance(found, list) == isinstance(expected, list), (options, found, expected)
            if isinstance(expected, list):
                assert found == expected, options
    for start, end in ((5, None), (3, 2), (0, 99)):
        options = {"startingVersion": start} | ({} if end is None else {"endingVersion": end})
        arguments = {"starting_version": start} | ({} if end is None else {"ending_version": end})
        expected = outcome(lambda o=options: theirs(delta, path, **o))
        found = outcome(lambda a=arguments: ours(delta, path, **a))
        assert (found == expected) if isinstance(expected, list) else isinstance(found, str), (options, found, expected)


CHANGES = {
    "switched off and on": [
        "ALTER TABLE {t} SET TBLPROPERTIES('delta.enableChangeDataFeed'='false')",
        "INSERT INTO {t} VALUES (9, 'x', 9, 'p')",
        "ALTER TABLE {t} SET TBLPROPERTIES('delta.enableChangeDataFeed'='true')",
        "INSERT INTO {t} VALUES (10, 'x', 9, 'p')",
    ],
    "added": ["ALTER TABLE {t} ADD COLUMN (b INT)", "INSERT INTO {t} VALUES (9, 'x', 9, 'p', 1)"],
    "renamed": ["ALTER TABLE {t} RENAME COLUMN a TO aa", "INSERT INTO {t} VALUES (9, 'x', 9, 'p')"],
    "dropped": ["ALTER TABLE {t} DROP COLUMN a", "INSERT INTO {t} VALUES (9, 9, 'p')"],
    "null allowed": ["ALTER TABLE {t} ALTER COLUMN c DROP NOT NULL", "INSERT INTO {t} VALUES (9, 'x', null, 'p')"],
    "widened": [
        "ALTER TABLE {t} SET TBLPROPERTIES('delta.enableTypeWidening'='true')",
        "ALTER TABLE {t} ALTER COLUMN c TYPE LONG",
        "INSERT INTO {t} VALUES (9, 'x', 9000000000, 'p')",
    ],
}


@pytest.mark.parametrize("mapping", ["none", "name"])
def test_changes_of_the_schema(delta: SparkSession, tmp_path: Path, mapping: str):
    for name, statements in CHANGES.items():
        if mapping == "none" and name in ("renamed", "dropped"):
            continue
        path = tmp_path / name.replace(" ", "_")
        create = "CREATE TABLE {t} (id LONG, a STRING, c INT NOT NULL, p STRING) USING delta PARTITIONED BY (p) TBLPROPERTIES"
        sql(delta, path, f"{create} ({FEED}, 'delta.columnMapping.mode'='{mapping}')", "INSERT INTO {t} VALUES (1, 'x', 1, 'q')")
        sql(delta, path, *statements)
        latest = open_log(path).update().version
        for start in range(latest + 1):
            for end in range(start, latest + 1):
                expected = outcome(lambda s=start, e=end, p=path: theirs(delta, p, startingVersion=s, endingVersion=e))
                found = outcome(lambda s=start, e=end, p=path: ours(delta, p, starting_version=s, ending_version=e))
                same = found == expected or (isinstance(expected, str) and isinstance(found, str))
                assert same, (name, start, end, found, expected)


def test_refusals(delta: SparkSession, table: Table):
    path = table.path
    sql(delta, path, f"CREATE TABLE {{t}} (id LONG) USING delta TBLPROPERTIES ({FEED})")
    for arguments in (
        {},
        {"starting_version": 0, "starting_timestamp": 0},
        {"starting_version": -1},
        {"starting_version": True},
        {"starting_version": 0, "ending_version": 0, "ending_timestamp": 0},
    ):
        with pytest.raises(DeltaError):
            plan_changes(open_log(path), **arguments)

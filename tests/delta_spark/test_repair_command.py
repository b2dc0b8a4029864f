"""A table that was repaired, as Delta Spark reads it: the rows that are left, its history, its changes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

import pytest

from airflow_delta.log import DeltaLog
from airflow_delta.table.operations.repair import find_missing_files, repair_table
from delta_spark.support import sql_name

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_delta_goes_on_with_what_is_left(delta: SparkSession, tmp_path: Path) -> None:
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    cannot_read = pytest.raises((PySparkException, Py4JJavaError), match="FILE_NOT_EXIST")
    table = tmp_path / "a b"
    name = sql_name(table)
    delta.sql(
        f"CREATE TABLE {name} (id LONG, p STRING) USING delta PARTITIONED BY (p) TBLPROPERTIES "
        "('delta.enableDeletionVectors' = 'true', 'delta.enableRowTracking' = 'true', 'delta.enableChangeDataFeed' = 'true', "
        "'delta.enableInCommitTimestamps' = 'true')"
    )
    delta.sql(f"INSERT INTO {name} SELECT /*+ COALESCE(1) */ id, IF(id < 5, 'x y/50%', 'b') FROM range(10)")
    delta.sql(f"DELETE FROM {name} WHERE id IN (1, 7)")  # a vector for each
    log = DeltaLog.for_table(str(table))
    [lost] = log.update().add_files("p = 'x y/50%'")
    (table / unquote(lost.path)).unlink()
    with cannot_read:
        delta.sql(f"SELECT * FROM {name}").collect()
    missing = find_missing_files(log)
    assert ([file.path for file in missing.files], missing.missing_records) == ([lost.path], 4)
    version = repair_table(log, max_missing_share=0.9, transaction_key="k", attempt="1-0").commit.version

    delta.catalog.clearCache()
    assert [row.id for row in delta.sql(f"SELECT id FROM {name} ORDER BY id").collect()] == [5, 6, 8, 9]
    entry = delta.sql(f"DESCRIBE HISTORY {name} LIMIT 1").collect()[0]
    assert (entry.version, entry.operation, entry.isBlindAppend) == (version, "FSCK", False)
    assert entry.operationMetrics["numDeletedRows"] == "4"
    delta.sql(f"INSERT INTO {name} VALUES (20, 'x y/50%')")
    delta.sql(f"OPTIMIZE {name}")
    assert [row.id for row in delta.sql(f"SELECT id FROM {name} ORDER BY id").collect()] == [5, 6, 8, 9, 20]

    def changes(first: int, last: int) -> list[int]:
        feed = delta.read.option("readChangeFeed", "true").option("startingVersion", first).option("endingVersion", last)
        return [row.id for row in feed.format("delta").load(str(table)).collect()]

    with cannot_read:  # it derives the deleted rows from the file that is gone
        changes(version, version)
    assert changes(version + 1, version + 1) == [20]

"""GENERATE symlink_format_manifest beside Delta Spark's, file by file, and what both refuse."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_delta.exceptions import DeltaUnsupportedOperationException
from airflow_delta.log import DeltaLog
from airflow_delta.table.operations.manifests import generate
from airflow_delta.transaction.commit.symlink_manifest import DIRECTORY
from delta_spark.support import sql_name

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = (
    "VALUES (1, 'a b', DATE'2020-01-01', TIMESTAMP'2020-01-01 10:00:00.5'), (2, 'b/c:%', NULL, TIMESTAMP'1969-12-31 23:59:59'), "
    "(3, NULL, NULL, NULL), (4, 'ü=', DATE'0001-01-05', NULL), (5, 'x', DATE'2020-01-01', NULL) AS r(id, part, day, at)"
)


def manifests(table: Path) -> dict[str, list[str]]:
    """Return the lines of each manifest; Spark's order of files is not a rule."""
    files = (path for path in (table / DIRECTORY).rglob("*") if path.is_file() and path.suffix != ".crc")
    return {str(path.relative_to(table)): sorted(path.read_text().splitlines()) for path in files}


def assert_same(delta: SparkSession, table: Path) -> dict[str, list[str]]:
    """Check that both write the same files, whether the directory is empty, or the other has written it."""
    delta.sql(f"GENERATE symlink_format_manifest FOR TABLE {sql_name(table)}")
    theirs = manifests(table)
    assert generate(DeltaLog.for_table(str(table))).num_manifests == len(theirs)
    assert manifests(table) == theirs
    shutil.rmtree(table / DIRECTORY, ignore_errors=True)
    generate(DeltaLog.for_table(str(table)))
    assert manifests(table) == theirs
    return theirs


@pytest.mark.parametrize("partitioned", [True, False])
def test_manifests_are_those_of_delta(delta: SparkSession, tmp_path: Path, partitioned: bool) -> None:
    table, clone = tmp_path / "a b%20", tmp_path / "clone"
    name = sql_name(table)
    partitioning = "PARTITIONED BY (part, day, at)" if partitioned else ""
    delta.sql(f"CREATE TABLE {name} (id LONG, part STRING, day DATE, at TIMESTAMP) USING delta {partitioning}")
    assert len(assert_same(delta, table)) == (0 if partitioned else 1), "without files"
    delta.sql(f"INSERT INTO {name} SELECT * FROM {ROWS}")
    assert len(assert_same(delta, table)) == (5 if partitioned else 1)
    delta.sql(f"DELETE FROM {name} WHERE part = 'x' OR part IS NULL")
    assert len(assert_same(delta, table)) == (3 if partitioned else 1), "those of partitions that are gone are gone"
    delta.sql(f"CREATE TABLE {sql_name(clone)} SHALLOW CLONE {name}")
    delta.sql(f"INSERT INTO {sql_name(clone)} SELECT * FROM {ROWS}")
    assert_same(delta, clone)


@pytest.mark.parametrize(
    ("properties", "statement"),
    [
        ("delta.enableDeletionVectors = true", "DELETE FROM {t} WHERE id = 3"),
        ("delta.columnMapping.mode = 'name'", "ALTER TABLE {t} RENAME COLUMN id TO k"),
    ],
)
def test_both_refuse_the_same_tables(delta: SparkSession, tmp_path: Path, properties: str, statement: str) -> None:
    from pyspark.errors import PySparkException

    table = tmp_path / "table"
    delta.sql(f"CREATE TABLE {sql_name(table)} (id LONG) USING delta TBLPROPERTIES ({properties})")
    delta.sql(f"INSERT INTO {sql_name(table)} SELECT /*+ COALESCE(1) */ id FROM range(9)")
    delta.sql(statement.replace("{t}", sql_name(table)))
    with pytest.raises(PySparkException) as theirs:
        delta.sql(f"GENERATE symlink_format_manifest FOR TABLE {sql_name(table)}")
    with pytest.raises(DeltaUnsupportedOperationException, match=theirs.value.getCondition() or "none"):
        generate(DeltaLog.for_table(str(table)))
    assert manifests(table) == {}

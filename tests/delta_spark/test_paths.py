"""Partition values that paths encode: the same file for Delta Spark, delta-rs and us, whoever removes it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from deltalake import DeltaTable

from airflow_delta.table.read.read_table import read_table
from delta_spark.support import sql_name
from support.sql_values import PARTITION_VALUES
from support.table import Table
from table.arrow_stages import write

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_three_writers_change_the_same_files(delta: SparkSession, tmp_path: Path) -> None:
    table, name = Table(tmp_path / "table", delta), sql_name(tmp_path / "table")
    for number in range(3):
        ids = [10 * index + number for index in range(len(PARTITION_VALUES))]
        write(table, pa.table({"id": ids, "p": PARTITION_VALUES}), begin={"partition_by": ["p"]})

    def check(expected: set[int]) -> None:
        found = {row["id"] for row in read_table(table.log()).to_table().to_pylist()}
        spark = sorted(row[0] for row in delta.sql(f"SELECT id FROM {name}").collect())
        rust = sorted(DeltaTable(table.uri).to_pyarrow_table()["id"].to_pylist())
        assert (sorted(found), spark, rust) == (sorted(expected),) * 3

    expected = {10 * index + number for index in range(len(PARTITION_VALUES)) for number in range(3)}
    check(expected)
    DeltaTable(table.uri).delete("id % 10 = 0")
    expected = {number for number in expected if number % 10}
    check(expected)
    delta.sql(f"UPDATE {name} SET id = id + 5 WHERE id % 10 = 1")
    expected = {number + 5 if number % 10 == 1 else number for number in expected}
    check(expected)
    delta.sql(f"OPTIMIZE {name}")
    check(expected)

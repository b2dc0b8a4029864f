"""The change data feed through the reader that a stage is handed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_delta.operators.pyspark import TableReader
from support.table import Table

pytestmark = pytest.mark.spark


def test_a_stage_reads_changes_until_the_version_that_its_transaction_reads(spark: Any, tmp_path: Path):
    table = Table(tmp_path / "table", spark)
    table.write(
        "SELECT 1L AS id, 'a' AS p", begin={"partition_by": ["p"], "configuration": {"delta.enableChangeDataFeed": "true"}}
    )
    table.write("SELECT 2L AS id, 'a' AS p", mode="overwrite")
    handle = table.begin()
    table.write("SELECT 3L AS id, 'b' AS p")
    changes = TableReader(spark, table.view(handle)).changes(1)
    assert changes.columns == ["id", "p", "_change_type", "_commit_version", "_commit_timestamp"]
    found = sorted((row["id"], row["p"], row["_change_type"], row["_commit_version"]) for row in changes.collect())
    assert found == [(1, "a", "delete", 1), (2, "a", "insert", 1)]

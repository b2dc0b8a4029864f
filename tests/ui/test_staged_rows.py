"""What the pages find out about an open transaction, for tables that other writers made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_delta.log.actions.actions import AddFile
from airflow_delta.table.audit import bounds
from airflow_delta.table.effects import review
from airflow_delta.table.operations.rewrite.delete import plan_truncate
from airflow_delta.ui.staged_rows import PARTITIONS, SAMPLE, staged_rows
from support.actions import SCHEMA, add
from support.table import Table
from support.tables import create_table


def truncated(path: Path, *parts: str, data_type: str, rows: bool, schema: str = SCHEMA) -> dict[str, Any]:
    """Return what the page says of a TRUNCATE of a table with a file of three rows in each partition."""
    files = []
    path.mkdir()
    for number, part in enumerate(parts):
        pq.write_table(pa.table({"id": [1, 2, 3]}), path / f"{number}.parquet")
        size = (path / f"{number}.parquet").stat().st_size
        files.append(add(f"{number}.parquet", part=part, size=size, stats='{"numRecords":3}'))
    create_table(path, *files, partition_columns=["part"], schema_string=schema.replace("string", data_type))
    table = Table(path)
    handle = table.begin()
    staged = table.operate(handle, plan_truncate)
    return staged_rows(table.log(), handle=handle.to_dict(), staged=[staged.to_dict()], rows=rows)


def state(found: dict[str, Any], when: str) -> dict[str, Any]:
    return next(column[when] for column in found["statistics"] if column["name"] == "part")


def test_binary_partitions(tmp_path: Path) -> None:
    found = truncated(tmp_path / "binary", "x", "y", data_type="binary", rows=True)
    assert (found["removed"], len(found["sample"]["removed"])) == (6, 6)
    assert state(found, "before") == {"nulls": 0, "distinct": 2, "min": "x", "max": "y"}


def test_partitions_in_another_writers_spelling(tmp_path: Path) -> None:
    """One value that is no date does not take the page away."""
    found = truncated(tmp_path / "spelled", "2026-11-25", "25/11/2026", data_type="date", rows=False)
    assert (found["removed"], [one["removed"] for one in found["partitions"]]) == (6, [3, 3])
    assert state(found, "before") == {"nulls": None, "distinct": 2, "min": None, "max": None}


def test_ten_rows_are_a_sample(tmp_path: Path) -> None:
    found = truncated(tmp_path / "rows", *"abcdef", data_type="string", rows=True)
    assert (found["exact"], found["removed"], len(found["sample"]["removed"])) == (True, 18, SAMPLE)


def test_only_some_partitions_are_listed(tmp_path: Path) -> None:
    parts = [f"{number:03}" for number in range(PARTITIONS + 5)]
    found = truncated(tmp_path / "many", *parts, data_type="string", rows=False)
    assert (len(found["partitions"]), found["num_partitions"], found["removed"]) == (PARTITIONS, PARTITIONS + 5, 3 * len(parts))


def test_names_that_turn_the_direction_of_text(tmp_path: Path) -> None:
    found = truncated(tmp_path / "names", "x", data_type="string", rows=True, schema=SCHEMA.replace('"id"', '"i\\u202ed"'))
    assert found["columns"][0] == found["statistics"][0]["name"] == "i<U+202E>d"


def test_the_statistics_of_a_file_are_decoded_once_for_all_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[str] = []

    class Counted(bounds.FileStatistics):
        @classmethod
        def of(cls, file: AddFile) -> bounds.FileStatistics:
            decoded.append(file.path)
            return bounds.FileStatistics.of(file)

    monkeypatch.setattr(review, "FileStatistics", Counted)
    found = truncated(tmp_path / "many", *"abcdef", data_type="string", rows=False)
    assert len(found["statistics"]) > 1
    assert sorted(decoded) == [f"{number}.parquet" for number in range(6)]

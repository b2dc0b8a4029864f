"""A read that is pinned to a version, planned from the log alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_delta.exceptions import PredicateException, VersionNotFoundException
from airflow_delta.log import DeltaLog
from airflow_delta.table.read.version_scan import plan_version_scan
from support import tables


@pytest.fixture
def log(tmp_path: Path) -> DeltaLog:
    """Versions: 0 nothing, 1 adds x, 2 adds y, 3 replaces x."""
    path = tmp_path / "table"
    tables.create_table(path, partition_columns=["part"])
    tables.write_commit(path, 1, tables.add("1.parquet", part="x"))
    tables.write_commit(path, 2, tables.add("2.parquet", part="y"))
    tables.write_commit(path, 3, tables.remove("1.parquet", part="x"), tables.add("3.parquet", part="x"))
    return DeltaLog.for_table(str(path))


@pytest.mark.parametrize(
    ("version", "predicate", "files"),
    [
        (0, None, []),
        (1, None, ["1.parquet"]),
        (2, None, ["1.parquet", "2.parquet"]),
        (3, None, ["2.parquet", "3.parquet"]),
        (2, "part = 'x'", ["1.parquet"]),
        (3, "part = 'x' and id > 0", ["3.parquet"]),
    ],
)
def test_the_files_of_a_version(log, version, predicate, files):
    plan = plan_version_scan(log, version, predicate)
    assert sorted(file.path for file in plan.files) == files
    assert (plan.read_version, plan.predicate is None) == (version, predicate is None)


@pytest.mark.depends("sqlglot")
def test_what_cannot_be_read(log):
    with pytest.raises(VersionNotFoundException):
        plan_version_scan(log, 4)
    with pytest.raises(PredicateException):
        plan_version_scan(log, 3, "nope = 1")


def test_no_two_reads_share_an_id(log):
    assert plan_version_scan(log, 3).transaction_id != plan_version_scan(log, 3).transaction_id

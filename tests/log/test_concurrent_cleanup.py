"""Reading a log while another writer cleans it up: files disappear between listing and reading."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from airflow_delta.exceptions import VersionNotFoundException, VersionsNotContiguousException
from airflow_delta.log import DeltaLog
from airflow_delta.log.storage.local import LocalStore
from support import tables


class CleanedUp(LocalStore):
    """A real local store; right before commits are read together, some of them are deleted."""

    def __init__(self, table: Path, gone: Sequence[int]) -> None:
        super().__init__(str(table), {"durable": "false"})
        self.table = table
        self.gone = list(gone)

    def read_many(self, paths: Sequence[str]) -> list[bytes]:
        for version in self.gone:
            tables.commit_path(self.table, version).unlink(missing_ok=True)
        return super().read_many(paths)


def test_the_history_ends_where_the_log_now_begins(table: Path) -> None:
    tables.table_with_commits(table, 5)
    log = DeltaLog(CleanedUp(table, [0, 1, 2]))
    assert [record.version for record in log.history()] == [5, 4, 3]


def test_commits_that_are_needed_and_gone_are_told(table: Path) -> None:
    tables.table_with_commits(table, 5)
    log = DeltaLog(CleanedUp(table, [3]))
    with pytest.raises(VersionsNotContiguousException, match="A commit between 2 and 4"):
        log.read_commit_range(range(2, 5))


def test_a_version_that_was_cleaned_up_is_told_by_what_is_left(table: Path) -> None:
    tables.table_with_commits(table, 5)
    log = DeltaLog(LocalStore(str(table), {"durable": "false"}))
    log.checkpoint()
    for version in range(3):
        tables.commit_path(table, version).unlink()
    with pytest.raises(VersionNotFoundException) as caught:
        DeltaLog.for_table(str(table)).snapshot_at(1)
    assert caught.value.version == 1

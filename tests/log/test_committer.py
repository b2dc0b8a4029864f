"""What makes a commit a version: the store's committer, which alone is asked."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from airflow_delta.exceptions import DeltaUnsupportedOperationException
from airflow_delta.log import DeltaLog
from airflow_delta.log.storage.base import LogStore
from airflow_delta.log.storage.committer import Definition, FileSystemCommitter, LogCommitter
from airflow_delta.log.storage.local import LocalStore
from airflow_delta.transaction import Operation
from support import tables


class Elsewhere(LogCommitter):
    """Refuses maintenance, calls what it is asked for, and commits to the file system."""

    def __init__(self, store: LogStore, asked: list[str]) -> None:
        self._below = FileSystemCommitter(store)
        self._asked = asked

    def commit(self, version: int, data: bytes, before: Definition | None = None) -> None:
        replaced = "" if before is None else f" replacing {before.description}"
        self._asked.append(f"commit {version}{replaced if b'metaData' in data else ''}")
        self._below.commit(version, data)

    def publish(self) -> None:
        self._asked.append("publish")

    def is_published(self, version: int) -> bool:
        return version != 10

    def check_allowed(self, operation: str, definition: Definition | None = None) -> None:
        if operation == "OPTIMIZE" or (definition is not None and "delta.appendOnly" in definition.configuration):
            raise DeltaUnsupportedOperationException(f"no {operation} here")


class Store(LocalStore):
    asked: list[str]

    @property
    def committer(self) -> LogCommitter:
        return Elsewhere(self, self.asked)


@pytest.fixture
def log(tmp_path: Path) -> DeltaLog:
    tables.write_commit(tmp_path, 0, tables.protocol(), tables.metadata())
    store = Store(str(tmp_path))
    store.asked = []
    return DeltaLog(store)


def asked(log: DeltaLog) -> list[str]:
    return log.store.asked  # type: ignore[attr-defined,no-any-return]


def append(log: DeltaLog, path: str) -> int:
    return log.start_transaction().commit([tables.add(path)], Operation.write("Append"))


def test_the_committer_is_asked_for_a_version_and_finishes_it(log: DeltaLog) -> None:
    assert append(log, "a") == 1
    assert asked(log) == ["commit 1", "publish"]


def test_after_a_lost_race_it_is_asked_for_the_next_version(log: DeltaLog, tmp_path: Path) -> None:
    txn = log.start_transaction()
    append(DeltaLog.for_table(str(tmp_path)), "other")
    assert txn.commit([tables.add("a")], Operation.write("Append")) == 2
    assert asked(log)[-2:] == ["commit 2", "publish"]


def test_what_it_does_not_allow_is_refused_before_it_is_asked(log: DeltaLog) -> None:
    with pytest.raises(DeltaUnsupportedOperationException, match="no OPTIMIZE here"):
        log.start_transaction().commit([], Operation("OPTIMIZE"))
    txn = log.start_transaction()
    before = log.snapshot.metadata
    txn.update_metadata(tables.metadata(configuration={"delta.appendOnly": "true"}, id=before.id))
    with pytest.raises(DeltaUnsupportedOperationException):
        txn.commit([], Operation("SET TBLPROPERTIES"))
    assert asked(log) == []


def test_it_is_told_which_metadata_a_commit_replaces(log: DeltaLog) -> None:
    for text in ("one", "two"):
        txn = log.start_transaction()
        txn.update_metadata(msgspec.structs.replace(log.update().metadata, description=text))
        txn.commit([], Operation("SET TBLPROPERTIES"))
    assert asked(log) == ["commit 1 replacing None", "publish", "commit 2 replacing one", "publish"]


def test_a_version_that_is_not_published_gets_no_checkpoint(log: DeltaLog, tmp_path: Path) -> None:
    for number in range(20):
        append(log, str(number))
    assert [file.name[:20] for file in (tmp_path / "_delta_log").glob("*.checkpoint.parquet")] == [f"{20:020d}"]

"""The snapshot after a commit: taken over without reading, or listed until the commit shows (SnapshotManagementSuite)."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from airflow_delta.exceptions import InvalidCommittedVersionException
from airflow_delta.log import DeltaLog
from airflow_delta.log.actions.decode import CommitFile
from airflow_delta.log.storage.base import FileStatus
from airflow_delta.log.storage.local import LocalStore
from airflow_delta.transaction import Operation
from airflow_delta.transaction.commit.observer import TransactionObserver
from support import tables


class StaleStore(LocalStore):
    """A store whose next listings still show the state when ``frozen`` was called."""

    probes = False
    stale = 0
    shown: frozenset[str] = frozenset()

    def frozen(self, listings: int) -> None:
        self.shown = frozenset(status.name for status in super().list_from("_delta_log", ""))
        self.stale = listings

    def list_from(self, directory: str, start_name: str, *, stat: bool = True) -> list[FileStatus]:
        found = super().list_from(directory, start_name)
        if self.stale <= 0:
            return found
        self.stale -= 1
        return [status for status in found if status.name in self.shown]


@pytest.fixture
def log(table: Path) -> DeltaLog:
    tables.table_with_commits(table, 2)
    log = DeltaLog(StaleStore(str(table), {"durable": "false"}))
    log.stale_listing_pauses = (0.0, 0.001, 0.002)
    assert log.snapshot.version == 2
    return log


def stale(log: DeltaLog, listings: int) -> None:
    assert isinstance(log.store, StaleStore)
    log.store.frozen(listings)


def test_known_commits_need_no_listing(log: DeltaLog, table: Path) -> None:
    stale(log, 100)
    data = tables.append(table, 3).read_bytes()
    assert log.update_after_commit(3, [CommitFile(3, data)]).version == 3
    assert isinstance(log.store, StaleStore)
    assert log.store.stale == 100


@pytest.mark.parametrize("broken", [False, True])
def test_a_listing_for_a_newer_checkpoint_may_fail(
    log: DeltaLog, table: Path, broken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.checkpoint()  # the next snapshot looks for it
    stale(log, 100)
    data = tables.append(table, 3).read_bytes()
    with monkeypatch.context() as patch:
        if broken:
            patch.setattr(log.store, "list_from", lambda *_args, **_options: (_ for _ in ()).throw(OSError("slow down")))
        assert log.update_after_commit(3, [CommitFile(3, data)]).version == 3
    assert log.snapshot.segment.checkpoint is None
    stale(log, 0)
    data = tables.append(table, 4).read_bytes()
    checkpoint = log.update_after_commit(4, [CommitFile(4, data)]).segment.checkpoint
    assert checkpoint is not None
    assert checkpoint.version == 2


@pytest.mark.parametrize("listings", [0, 1, 3])
def test_a_stale_listing_is_repeated(log: DeltaLog, table: Path, listings: int, caplog: pytest.LogCaptureFixture) -> None:
    stale(log, listings)
    tables.append(table, 3)
    with caplog.at_level(logging.INFO, logger="airflow_delta"):
        assert log.update_after_commit(3).version == 3
    assert caplog.text.count("Version 3 of") == listings


def test_a_listing_that_stays_stale(log: DeltaLog, table: Path) -> None:
    stale(log, 100)
    tables.append(table, 3)
    with pytest.raises(InvalidCommittedVersionException) as caught:
        log.update_after_commit(3)
    assert (caught.value.table, caught.value.version) == (str(table), 3)
    for text in ("DELTA_INVALID_COMMITTED_VERSION", "IS committed", "version 2 as the latest", "Do not commit it again"):
        assert text in str(caught.value)


def test_a_newer_snapshot_is_as_good(log: DeltaLog, table: Path) -> None:
    tables.append(table, 3)
    tables.append(table, 4)
    assert log.update_after_commit(3).version == 4


def test_a_transaction_whose_commit_is_not_listed_is_committed_all_the_same(log: DeltaLog, table: Path) -> None:
    told: list[str] = []

    class Observer(TransactionObserver):
        def committed(self, version: int) -> None:
            told.append(f"committed {version}")

        def aborted(self, error: BaseException) -> None:
            told.append(f"aborted: {error}")

    other = DeltaLog(log.store)  # has read nothing yet, so it must list what was committed
    other.stale_listing_pauses = (0.0,)
    txn = other.start_transaction(log.snapshot, observer=Observer())
    stale(log, 100)
    with pytest.raises(InvalidCommittedVersionException):
        txn.commit([tables.add("new")], Operation("WRITE", {"mode": "Append"}))
    assert txn.committed
    assert told == ["committed 3"]
    assert tables.commit_path(table, 3).exists()
    assert DeltaLog.for_table(str(table)).snapshot.version == 3


def test_the_first_version_has_a_checksum_too(table: Path) -> None:
    log = DeltaLog.for_table(str(table), {"durable": "false"})
    txn = log.start_transaction()
    txn.update_metadata(tables.metadata())
    assert txn.commit([tables.add("a")], Operation("CREATE TABLE", {})) == 0
    assert log.snapshot.version == 0
    assert tables.log_path(table, f"{0:020d}.crc").exists()
    assert log.snapshot.validate_checksum()


class BusyStore(LocalStore):
    """A store that does not tell the status of a commit which it has just taken."""

    busy = False

    def put_if_absent(self, path: str, data: bytes, *, durable: bool = True) -> None:
        super().put_if_absent(path, data, durable=durable)
        self.busy = path.endswith(".json")

    def head(self, path: str) -> FileStatus | None:
        if self.busy:
            self.busy = False
            raise OSError("slow down")
        return super().head(path)


def test_a_commit_is_reported_although_its_status_cannot_be_read(table: Path) -> None:
    tables.table_with_commits(table, 2)
    log = DeltaLog(BusyStore(str(table), {"durable": "false"}))
    assert log.start_transaction().commit([tables.add("new.parquet")], Operation.write()) == 3
    tables.append(table, 4)
    assert log.update().version == 4

"""Checksums that do not match their version: which fields differ, and when a transaction checks (ChecksumSuite)."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_delta.contract.intents import INTENT_APP, STATE_APP
from airflow_delta.exceptions import DeltaChecksumMismatchException, DeltaIllegalArgumentException
from airflow_delta.log import ChecksumValidation, DeltaLog
from airflow_delta.log.actions.actions import DomainMetadata, encode_actions
from airflow_delta.log.checksum import checksum
from airflow_delta.transaction import Operation
from support import tables

ALWAYS = ChecksumValidation(mode="always")


def change(table: Path, version: int, edit: Callable[[dict[str, Any]], None]) -> None:
    content = json.loads(tables.crc_path(table, version).read_bytes())
    edit(content)
    tables.crc_path(table, version).write_text(json.dumps(content))


@pytest.fixture
def checked(table: Path) -> Path:
    """Version 3, with everything that a checksum can have."""
    log = DeltaLog.for_table(str(table), {"durable": "false"})
    features = {"reader_features": ["deletionVectors"], "writer_features": ["deletionVectors", "domainMetadata"]}
    commits = [
        [tables.protocol(3, 7, **features), tables.metadata()],
        [tables.add("a", size=10), tables.txn("app", 1), DomainMetadata(domain="mine", configuration="{}", removed=False)],
        [tables.add("b", size=9_000)],
        [tables.txn("app", 2), tables.txn("other", 5)],
    ]
    for version, actions in enumerate(commits):
        log.write_commit(version, encode_actions([tables.info(), *actions]))
        assert log.write_checksum(log.update())
    return table


def test_what_was_written_is_valid(checked: Path) -> None:
    for version in range(4):
        assert DeltaLog.for_table(str(checked)).snapshot_at(version).validate_checksum()


def set_field(*keys: str | int, value: object) -> Callable[[dict[str, Any]], None]:
    def edit(content: dict[str, Any]) -> None:
        place: Any = content
        for key in keys[:-1]:
            place = place[key]
        place[keys[-1]] = value

    return edit


DAMAGE = [
    ("numFiles", set_field("numFiles", value=3)),
    ("tableSizeBytes", set_field("tableSizeBytes", value=1)),
    ("txnId", set_field("txnId", value="another")),
    ("numMetadata", set_field("numMetadata", value=2)),
    ("numProtocol", set_field("numProtocol", value=0)),
    ("numDeletedRecordsOpt", set_field("numDeletedRecordsOpt", value=4)),
    ("numDeletionVectorsOpt", set_field("numDeletionVectorsOpt", value=4)),
    ("metadata", set_field("metadata", "configuration", value={"delta.appendOnly": "true"})),
    ("protocol", set_field("protocol", "minWriterVersion", value=6)),
    ("setTransactions", set_field("setTransactions", 0, "version", value=9)),
    ("setTransactions", set_field("setTransactions", value=[])),
    ("setTransactions", lambda content: content["setTransactions"].append(content["setTransactions"][0])),
    ("domainMetadata", set_field("domainMetadata", 0, "configuration", value="[]")),
    ("fileSizeHistogram.fileCounts", set_field("fileSizeHistogram", "fileCounts", 0, value=7)),
    ("fileSizeHistogram.totalBytes", set_field("fileSizeHistogram", "totalBytes", 1, value=7)),
    ("fileSizeHistogram.sortedBinBoundaries", set_field("fileSizeHistogram", "sortedBinBoundaries", 3, value=7)),
    (
        "deletedRecordCountsHistogramOpt.deletedRecordCounts",
        set_field("deletedRecordCountsHistogramOpt", "deletedRecordCounts", 1, value=1),
    ),
    ("allFiles", set_field("allFiles", 0, "size", value=11)),
    ("allFiles", set_field("allFiles", 0, "path", value="c")),
    ("allFiles", lambda content: content["allFiles"].pop()),
    ("allFiles", set_field("allFiles", 0, "size", value="ten")),
    ("fileSizeHistogram", set_field("fileSizeHistogram", "fileCounts", 0, value="two")),
    ("deletedRecordCountsHistogramOpt", set_field("deletedRecordCountsHistogramOpt", value={})),
    ("allFiles", lambda content: content["allFiles"].append(content["allFiles"][0])),
]


@pytest.mark.parametrize(("field", "damage"), DAMAGE)
def test_every_field_is_compared(checked: Path, field: str, damage: Callable[[dict[str, Any]], None]) -> None:
    change(checked, 3, damage)
    with pytest.raises(DeltaChecksumMismatchException) as caught:
        DeltaLog.for_table(str(checked)).snapshot.validate_checksum()
    error = caught.value
    assert (error.error_class, error.table, error.version) == ("DELTA_TXN_LOG_FAILED_INTEGRITY", str(checked), 3)
    assert list(error.mismatches) == [field]
    for text in (str(checked), "version 3", field, f"delete _delta_log/{3:020d}.crc"):
        assert text in str(error)


def test_the_timestamp_is_compared(table: Path) -> None:
    txn = DeltaLog.for_table(str(table), {"durable": "false"}).start_transaction()
    txn.update_metadata_for_new_table(tables.metadata(configuration={"delta.enableInCommitTimestamps": "true"}))
    txn.commit([], Operation.create_table())
    assert DeltaLog.for_table(str(table)).snapshot.validate_checksum()
    change(table, 0, set_field("inCommitTimestampOpt", value=1))
    with pytest.raises(DeltaChecksumMismatchException) as caught:
        DeltaLog.for_table(str(table)).snapshot.validate_checksum()
    assert list(caught.value.mismatches) == ["inCommitTimestampOpt"]


@pytest.mark.parametrize(("field", "damage"), DAMAGE)
def test_rows_never_come_from_a_checksum(checked: Path, field: str, damage: Callable[[dict[str, Any]], None]) -> None:
    change(checked, 3, damage)
    assert sorted(DeltaLog.for_table(str(checked)).snapshot.files()["path"].to_pylist()) == ["a", "b"], field


def test_when_it_is_not_fatal_the_log_counts(checked: Path, caplog: pytest.LogCaptureFixture) -> None:
    change(checked, 3, set_field("metadata", "configuration", value={"delta.appendOnly": "true"}))
    change(checked, 3, set_field("setTransactions", value=[]))
    snapshot = DeltaLog.for_table(str(checked)).snapshot
    assert snapshot.properties.append_only
    assert snapshot.transaction_version("app") is None
    with caplog.at_level(logging.WARNING, logger="airflow_delta"):
        assert not snapshot.validate_checksum(fatal=False)
    assert "metadata" in caplog.text
    assert not snapshot.properties.append_only
    assert snapshot.transaction_version("app") == 2


def test_there_is_nothing_to_compare_without_a_checksum_that_can_be_read(checked: Path, caplog: pytest.LogCaptureFixture) -> None:
    tables.crc_path(checked, 3).write_text("{")
    with caplog.at_level(logging.WARNING, logger="airflow_delta"):
        assert DeltaLog.for_table(str(checked)).snapshot.validate_checksum()
    assert "ignoring the checksum file" in caplog.text
    tables.crc_path(checked, 3).unlink()
    assert DeltaLog.for_table(str(checked)).snapshot.validate_checksum()


def test_a_changed_commit_is_found(checked: Path) -> None:
    tables.write_commit(checked, 2, tables.add("b", size=9_001))
    with pytest.raises(DeltaChecksumMismatchException) as caught:
        DeltaLog.for_table(str(checked)).snapshot.validate_checksum()
    assert set(caught.value.mismatches) == {"tableSizeBytes", "fileSizeHistogram.totalBytes", "allFiles"}


def test_own_list_of_transactions_is_compared(table: Path) -> None:
    now = int(time.time() * 1000)
    log = DeltaLog.for_table(str(table), {"durable": "false"})
    retention = tables.metadata(configuration={"delta.setTransactionRetentionDuration": "interval 1 days"})
    log.write_commit(0, encode_actions([tables.info(), tables.protocol(), retention, tables.txn("app", 1, now)]))
    assert log.write_checksum(log.update())
    assert log.snapshot.validate_checksum()
    change(table, 0, set_field("airflowDelta", "setTransactions", value=[]))
    with pytest.raises(DeltaChecksumMismatchException) as caught:
        DeltaLog.for_table(str(table)).snapshot.validate_checksum()
    assert list(caught.value.mismatches) == ["airflowDelta.setTransactions"]


@pytest.mark.parametrize("listed", ["none", "one that has ended"])
def test_the_list_of_intents_is_compared(table: Path, listed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit would pass the open one, or wait for one that nobody ends."""
    monkeypatch.setattr(checksum, "MAX_SET_TRANSACTIONS", 2)
    monkeypatch.setattr(checksum, "MAX_OWN_SET_TRANSACTIONS", 2)
    log = DeltaLog.for_table(str(table), {"durable": "false"})
    intents = [tables.txn(f"{INTENT_APP}one", 0), tables.txn(f"{INTENT_APP}two", 0), tables.txn(f"{STATE_APP}two", 1)]
    log.write_commit(0, encode_actions([tables.info(), tables.protocol(), tables.metadata(), *intents]))
    assert log.write_checksum(log.update())
    assert log.snapshot.validate_checksum()
    ended = [] if listed == "none" else [{"appId": f"{INTENT_APP}{name}", "version": 0} for name in ("one", "two")]
    change(table, 0, set_field("airflowDelta", "intents", value=ended))
    with pytest.raises(DeltaChecksumMismatchException) as caught:
        DeltaLog.for_table(str(table)).snapshot.validate_checksum()
    assert list(caught.value.mismatches) == ["airflowDelta.intents"]


# -- at the start of a transaction ------------------------------------------------------------------------------------


def age(path: Path, minutes: float) -> None:
    then = time.time() - minutes * 60
    os.utime(path, (then, then))


def start(table: Path, validation: ChecksumValidation | None = None) -> None:
    log = DeltaLog.for_table(str(table), checksum_validation=validation)
    log.validate_at_start(log.update())


@pytest.fixture
def wrong(checked: Path) -> Path:
    change(checked, 3, set_field("numFiles", value=3))
    return checked


@pytest.mark.parametrize(
    ("interval", "minutes", "due"), [(4, 721, True), (4, 719, False), (5, 721, False), (1, 100_000, True), (400, 100_000, False)]
)
def test_due_after_so_many_versions_and_so_much_time(wrong: Path, interval: int, minutes: int, due: bool) -> None:
    age(tables.commit_path(wrong, 0), minutes)
    validation = ChecksumValidation(interval=interval)
    if due:
        with pytest.raises(DeltaChecksumMismatchException):
            start(wrong, validation)
    else:
        start(wrong, validation)


def test_a_checkpoint_counts_as_a_verified_state(wrong: Path) -> None:
    crc = tables.crc_path(wrong, 3).read_bytes()
    DeltaLog.for_table(str(wrong)).checkpoint()
    tables.crc_path(wrong, 3).write_bytes(crc)
    age(tables.commit_path(wrong, 0), 100_000)
    start(wrong, ChecksumValidation(interval=1))
    tables.append(wrong, 4)
    tables.crc_path(wrong, 4).write_bytes(crc)
    start(wrong, ChecksumValidation(interval=1))  # the checkpoint is young
    age(next(wrong.glob("_delta_log/*.checkpoint.parquet")), 721)
    with pytest.raises(DeltaChecksumMismatchException):
        start(wrong, ChecksumValidation(interval=1))


def test_modes(wrong: Path, caplog: pytest.LogCaptureFixture) -> None:
    age(tables.commit_path(wrong, 0), 100_000)
    start(wrong)
    start(wrong, ChecksumValidation(mode="never", interval=1))
    with pytest.raises(DeltaChecksumMismatchException):
        start(wrong, ALWAYS)
    with caplog.at_level(logging.WARNING, logger="airflow_delta"):
        start(wrong, ChecksumValidation(mode="always", fatal=False))
    assert "numFiles: checksum 3, log 2" in caplog.text
    for options in ({"mode": "sometimes"}, {"interval": 0}, {"min_age": -1}):
        with pytest.raises(DeltaIllegalArgumentException):
            ChecksumValidation(**options)


def test_a_transaction_does_not_start_on_a_wrong_state(wrong: Path) -> None:
    tables.write_commit(wrong, 4, tables.protocol(1, 2))
    crc = json.loads(tables.crc_path(wrong, 3).read_text())
    two = {"minReaderVersion": 1, "minWriterVersion": 2}
    tables.crc_path(wrong, 4).write_text(json.dumps({**crc, "protocol": two, "txnId": None}))
    assert DeltaLog.for_table(str(wrong)).start_transaction().read_version == 4
    with pytest.raises(DeltaChecksumMismatchException):
        DeltaLog.for_table(str(wrong), checksum_validation=ALWAYS).start_transaction()


def test_a_start_verifies_a_version_once(checked: Path) -> None:
    age(tables.commit_path(checked, 0), 100_000)
    log = DeltaLog.for_table(str(checked), checksum_validation=ChecksumValidation(interval=2))
    log.validate_at_start(log.update())
    change(checked, 3, set_field("numFiles", value=3))
    log.validate_at_start(log.update())
    tables.append(checked, 4)
    tables.append(checked, 5)
    tables.crc_path(checked, 5).write_bytes(tables.crc_path(checked, 3).read_bytes())
    with pytest.raises(DeltaChecksumMismatchException):
        log.validate_at_start(log.update())


def test_an_ordinary_start_asks_for_nothing(checked: Path) -> None:
    log = DeltaLog.for_table(str(checked))
    snapshot = log.snapshot
    asked: list[str] = []
    for name in ("read", "read_many", "head", "list_from"):
        real = getattr(log.store, name)
        setattr(log.store, name, lambda *args, real=real, **options: asked.append(str(args)) or real(*args, **options))
    log.validate_at_start(snapshot)
    assert asked == []

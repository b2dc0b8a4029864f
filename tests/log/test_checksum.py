"""``<version>.crc``: written from the state before plus the commit, read on start, never trusted blindly (ChecksumSuite)."""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path

import pytest

from airflow_delta.log import DeltaLog
from airflow_delta.log.actions import encode_actions
from support import tables


def crc_path(table: Path, version: int) -> Path:
    return tables.log_path(table, f"{version:020d}.crc")


def crc(table: Path, version: int) -> dict:
    return json.loads(crc_path(table, version).read_bytes())


def commit(log: DeltaLog, version: int, *actions, operation: str = "WRITE") -> bool:
    log.write_commit(version, encode_actions([tables.info(operation), *actions]))
    return log.write_checksum(log.update())


@pytest.fixture
def log(table: Path) -> DeltaLog:
    log = DeltaLog.for_table(str(table), {"durable": "false"})
    assert commit(log, 0, tables.protocol(), tables.metadata(), tables.add("a", size=10))
    return log


def test_content(log: DeltaLog, table: Path) -> None:
    assert commit(log, 1, tables.txn("app", 7, 5), tables.add("b", size=5), tables.add("c", size=1))
    assert commit(log, 2, tables.remove("a", size=10))
    content = crc(table, 2)
    assert content == {
        "txnId": json.loads(tables.commit_path(table, 2).read_text().splitlines()[0])["commitInfo"]["txnId"],
        "tableSizeBytes": 6,
        "numFiles": 2,
        "numMetadata": 1,
        "numProtocol": 1,
        "setTransactions": [{"appId": "app", "version": 7, "lastUpdated": 5}],
        "domainMetadata": [],
        "metadata": json.loads(encode_actions([tables.metadata()]))["metaData"],
        "protocol": {"minReaderVersion": 1, "minWriterVersion": 2},
    }


def test_a_start_reads_the_checksum_and_nothing_else(log: DeltaLog, table: Path) -> None:
    for version in range(1, 8):
        assert commit(log, version, tables.txn("app", version), tables.add(f"{version}"))
    reads: list[str] = []
    fresh = DeltaLog.for_table(str(table))
    read = fresh.store.read
    fresh.store.read = lambda path: reads.append(path) or read(path)  # type: ignore[method-assign,func-returns-value]
    snapshot = fresh.snapshot
    assert (snapshot.version, snapshot.metadata, snapshot.protocol) == (7, tables.metadata(), tables.protocol())
    assert snapshot.transaction_version("app") == 7
    assert snapshot.transaction_version("never") is None
    assert snapshot.num_files == 8
    assert reads == [f"_delta_log/{7:020d}.crc"]


def test_commits_without_a_checksum_are_added_to_an_older_one(log: DeltaLog, table: Path) -> None:
    commit(log, 1, tables.txn("app", 1), tables.add("b"))
    tables.write_commit(table, 2, tables.txn("app", 2), tables.metadata(name="new"), tables.remove("b"))
    snapshot = DeltaLog.for_table(str(table)).snapshot
    assert snapshot.metadata.name == "new"
    assert snapshot.transactions == {"app": 2}
    assert (snapshot.num_files, snapshot.size_in_bytes) == (1, 10)


def test_an_existing_checksum_is_not_overwritten(log: DeltaLog, table: Path) -> None:
    crc_path(table, 0).write_text("{}")
    assert not log.write_checksum(log.snapshot)
    assert crc_path(table, 0).read_text() == "{}"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda content: b"", "truncated"),
        (lambda content: content[:-30], "truncated"),
        (lambda content: content.replace(b'"metadata"', b'"other"'), "missing required field `metadata`"),
        (lambda content: content.replace(b'"protocol"', b'"other"'), "missing required field `protocol`"),
        (lambda content: content.replace(b'"numMetadata":1', b'"numMetadata":2'), "counts 2 metadata"),
        (lambda content: content.replace(b'"numFiles":1', b'"numFiles":-1'), "counts -1 files"),
        (lambda content: content.replace(b'"txnId":"', b'"txnId":"x'), "commit 0 is of another"),
        (lambda content: b"\xff" + content, "malformed"),
    ],
)
def test_a_bad_checksum_is_ignored_with_a_warning(
    log: DeltaLog, table: Path, change, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = crc_path(table, 0)
    path.write_bytes(change(path.read_bytes()))
    snapshot = DeltaLog.for_table(str(table)).snapshot
    with caplog.at_level(logging.WARNING, logger="airflow_delta"):
        assert snapshot.metadata == tables.metadata()
    assert why in caplog.text
    assert path.name in caplog.text
    assert snapshot.num_files == 1


def test_another_writers_checksum_with_more_fields_is_read(log: DeltaLog, table: Path) -> None:
    content = crc(table, 0)
    content |= {"histogramOpt": {"sortedBinBoundaries": [0]}, "allFiles": [], "setTransactions": None, "txnId": None}
    crc_path(table, 0).write_text(json.dumps(content))
    snapshot = DeltaLog.for_table(str(table)).snapshot
    assert snapshot.metadata == tables.metadata()
    assert snapshot.transactions == {}


@pytest.mark.parametrize(
    ("operation", "actions"),
    [("WRITE", [tables.remove("a", size=None)]), ("Manual Update", [tables.add("z")]), ("COMPUTE STATS", [tables.add("a")])],
)
def test_where_totals_are_not_known_there_is_no_checksum(log: DeltaLog, table: Path, operation: str, actions: list) -> None:
    assert not commit(log, 1, *actions, operation=operation)
    assert not commit(log, 2, tables.add("later"))
    assert not crc_path(table, 2).exists()


def test_removing_what_is_not_there_ends_the_chain(log: DeltaLog, table: Path) -> None:
    assert not commit(log, 1, tables.remove("x"), tables.remove("y"))
    assert not crc_path(table, 1).exists()


# -- transactions -----------------------------------------------------------------------------------------------------


def test_up_to_a_hundred_transactions_stand_in_deltas_field(log: DeltaLog, table: Path) -> None:
    commit(log, 1, *(tables.txn(f"app{number}", 1) for number in range(100)))
    assert len(crc(table, 1)["setTransactions"]) == 100
    commit(log, 2, tables.txn("one more", 1))
    content = crc(table, 2)
    assert "setTransactions" not in content
    assert len(content["airflowDelta"]["setTransactions"]) == 101
    fresh = DeltaLog.for_table(str(table)).snapshot
    assert fresh.transaction_version("one more") == 1
    assert len(fresh.transactions) == 101


def test_too_many_transactions_are_left_to_the_log(log: DeltaLog, table: Path) -> None:
    commit(log, 1, *(tables.txn(f"app{number}", number) for number in range(1_001)))
    content = crc(table, 1)
    assert "setTransactions" not in content
    assert "airflowDelta" not in content
    snapshot = DeltaLog.for_table(str(table)).snapshot
    assert snapshot.transaction_version("app1000") == 1000
    assert snapshot.transaction_version("nobody") is None


def test_with_a_retention_deltas_field_stays_empty_and_ours_holds_the_unexpired(log: DeltaLog, table: Path) -> None:
    now = int(time.time() * 1000)
    retention = tables.metadata(configuration={"delta.setTransactionRetentionDuration": "interval 1 days"})
    old, young, unknown = tables.txn("old", 1, now - 2 * 86_400_000), tables.txn("young", 2, now), tables.txn("unknown", 3)
    commit(log, 1, retention, old, young, unknown)
    content = crc(table, 1)
    assert "setTransactions" not in content
    assert content["airflowDelta"] == {"setTransactions": [{"appId": "young", "version": 2, "lastUpdated": now}]}
    for snapshot in (log.snapshot, DeltaLog.for_table(str(table)).snapshot):
        assert snapshot.transactions == {"young": 2}
        assert [snapshot.transaction_version(app) for app in ("old", "young", "unknown", "nobody")] == [None, 2, None, None]


def test_a_transaction_expires_while_it_stands_in_the_checksum(log: DeltaLog, table: Path) -> None:
    now = int(time.time() * 1000)
    retention = tables.metadata(configuration={"delta.setTransactionRetentionDuration": "interval 1 seconds"})
    commit(log, 1, retention, tables.txn("app", 1, now + 60_000))
    assert "app" in crc_path(table, 1).read_text()
    content = crc_path(table, 1).read_text().replace(str(now + 60_000), str(now - 60_000))
    crc_path(table, 1).write_text(content)
    assert DeltaLog.for_table(str(table)).snapshot.transactions == {}

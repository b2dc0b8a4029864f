"""Versions that this provider cannot read: nothing lists their files, but protocol, metadata and history stay readable."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_delta.contract.payloads import TransactionHandle
from airflow_delta.exceptions import (
    DeltaError,
    DeltaLogCorruptedException,
    DeltaUnsupportedTableFeatureException,
    InvalidProtocolVersionException,
)
from airflow_delta.log import DeltaLog
from airflow_delta.log.actions.actions import Action, Protocol, encode_actions
from airflow_delta.log.checkpoint_write.writer import write_checkpoint
from airflow_delta.log.cleanup import clean_up_expired_logs
from airflow_delta.table.abort import abort_transaction
from airflow_delta.table.changes.plan import plan_changes
from airflow_delta.table.observe.commit_summary import recent_commits
from airflow_delta.table.observe.describe import describe
from airflow_delta.table.operations.clone import clone_table
from airflow_delta.table.operations.convert import convert_to_delta
from airflow_delta.table.operations.restore import restore
from airflow_delta.table.operations.statistics import compute_statistics
from airflow_delta.table.operations.vacuum.run import vacuum
from airflow_delta.table.read.version_scan import plan_version_scan
from airflow_delta.table.stage.scan import plan_scan
from airflow_delta.table.stage.view import view_of
from airflow_delta.table.start.begin import begin
from airflow_delta.table.state.read_snapshot import table_fields
from support import tables

NOW = int(time.time() * 1000)
CDF = tables.metadata(configuration={"delta.enableChangeDataFeed": "true"})
UNKNOWN = tables.protocol(3, 7, reader_features=["fromTheFuture"], writer_features=["fromTheFuture"])
REASONS: dict[str, tuple[list[Action], type[DeltaError], str]] = {
    "a newer version": ([tables.protocol(99, 99), CDF], InvalidProtocolVersionException, "reader version 99"),
    "no version": ([tables.protocol(0, 2), CDF], InvalidProtocolVersionException, "reader version 0"),
    "an unknown feature": ([UNKNOWN, CDF], DeltaUnsupportedTableFeatureException, "fromTheFuture"),
    "no protocol": ([CDF], DeltaLogCorruptedException, "no protocol"),
    "no metadata": ([tables.protocol()], DeltaLogCorruptedException, "no metaData"),
    "neither": ([], DeltaLogCorruptedException, "no protocol and metaData"),
}
IDENTITY = {"transaction_key": "key", "attempt": "1"}


def handle_of(log: DeltaLog) -> TransactionHandle:
    return TransactionHandle(
        transaction_id="00000000-0000-0000-0000-000000000001",
        table=log.uri,
        read_version=1,
        staging_path=f"{log.uri}/staged/00000000-0000-0000-0000-000000000001",
        app_id="a",
        txn_version=0,
        **table_fields(log.snapshot),
    )


WAYS: dict[str, Callable[[DeltaLog], object]] = {
    "files": lambda log: log.snapshot.files(),
    "files of a column": lambda log: log.snapshot.files(columns=["path"]),
    "files by predicate": lambda log: log.snapshot.files("id > 1"),
    "add_files": lambda log: log.snapshot.add_files(),
    "files of a version": lambda log: log.snapshot_at(1).files(),
    "files of a time": lambda log: log.snapshot_at_timestamp(NOW - 1500).files(),
    "tombstones": lambda log: log.snapshot.tombstones(),
    "tail_files": lambda log: log.snapshot.tail_files(),
    "num_files": lambda log: log.snapshot.num_files,
    "size_in_bytes": lambda log: log.snapshot.size_in_bytes,
    "count_totals": lambda log: log.snapshot.count_totals(),
    "checkpoint": lambda log: write_checkpoint(log.snapshot),
    "checksum": lambda log: log.write_checksum(log.snapshot),
    "log cleanup": lambda log: clean_up_expired_logs(log.snapshot),
    "transaction": lambda log: log.start_transaction(),
    "start": lambda log: begin(log, transaction_key="key"),
    "scan": lambda log: plan_scan(view_of(log, handle_of(log))),
    "scan of a version": lambda log: plan_version_scan(log, 1),
    "changes": lambda log: plan_changes(log, starting_version=0),
    "clone": lambda log: clone_table(DeltaLog.for_table(f"{log.uri}-clone"), log, **IDENTITY),
    "convert": lambda log: convert_to_delta(log, **IDENTITY),
    "restore": lambda log: restore(log, version=0, **IDENTITY),
    "statistics": lambda log: compute_statistics(log),
    "vacuum": lambda log: vacuum(log, retention_hours=0, retention_check=False),
}


def unreadable(table: Path, reason: str) -> DeltaLog:
    """Write a table of two versions that are both unreadable."""
    actions, _, _ = REASONS[reason]
    tables.write_commit(table, 0, *actions, tables.add("a"), tables.add("b"), at=NOW - 2000)
    tables.write_commit(table, 1, tables.add("c"), tables.remove("b", deletion_timestamp=NOW), at=NOW - 1000)
    return DeltaLog.for_table(str(table))


@pytest.mark.parametrize("reason", REASONS)
def test_no_way_to_the_files(table: Path, reason: str) -> None:
    _, error, said = REASONS[reason]
    log = unreadable(table, reason)
    before = sorted(path.name for path in table.rglob("*"))
    for name, way in WAYS.items():
        with pytest.raises(error, match=said) as caught:
            pytest.fail(f"{name} answers {way(DeltaLog.for_table(str(table)))!r}")
        assert (caught.value.table, caught.value.version in (0, 1)) == (log.uri, True), name
    assert sorted(path.name for path in table.rglob("*")) == before


def test_what_explains_it_can_be_read(table: Path) -> None:
    log = unreadable(table, "a newer version")
    assert (log.snapshot.protocol, log.snapshot.metadata.id) == (tables.protocol(99, 99), tables.TABLE_ID)
    assert [record.version for record in log.history()] == [commit.version for commit in recent_commits(log)] == [1, 0]
    found = describe(log)
    assert found["min_reader_version"] == 99
    assert (found["num_files"], found["size_in_bytes"], found["num_records"]) == (None, None, None)


@pytest.mark.parametrize(
    ("source", "protocol"),
    [
        ("checksum", tables.protocol(99, 99)),
        ("checksum", UNKNOWN),
        ("checkpoint", tables.protocol(99, 99)),
        ("checkpoint", UNKNOWN),
        ("checkpoint", None),
    ],
)
def test_protocols_of_small_files(table: Path, source: str, protocol: Protocol | None) -> None:
    """A protocol in a checksum or a checkpoint counts like one in a commit."""
    tables.table_with_commits(table, 2)
    if source == "checkpoint":
        kept = [action for action in (protocol, tables.metadata(), tables.add("0-0.parquet")) if action is not None]
        tables.write_checkpoint_by_hand(table, 1, kept)
        for version in (0, 1):
            tables.commit_path(table, version).unlink()
    else:
        log = DeltaLog.for_table(str(table))
        log.write_checksum(log.snapshot)
        path = tables.log_path(table, f"{2:020d}.crc")
        content = json.loads(path.read_bytes())
        content["protocol"] = json.loads(encode_actions([protocol]))["protocol"]
        path.write_text(json.dumps(content))
    expected = {99: InvalidProtocolVersionException, 3: DeltaUnsupportedTableFeatureException}
    error = DeltaLogCorruptedException if protocol is None else expected[protocol.min_reader_version]
    for way in ("files", "add_files", "num_files", "tombstones"):
        with pytest.raises(error):
            WAYS[way](DeltaLog.for_table(str(table)))


def test_a_version_in_between(table: Path) -> None:
    """Versions before and after an unreadable one stay readable; a range of changes across it does not."""
    tables.write_commit(table, 0, tables.protocol(), CDF, tables.add("a"))
    tables.write_commit(table, 1, tables.protocol(99, 99), tables.add("b"))
    tables.write_commit(table, 2, tables.protocol(), tables.add("c"))
    log = DeltaLog.for_table(str(table))
    assert (log.snapshot.num_files, log.snapshot_at(0).files().num_rows) == (3, 1)
    with pytest.raises(InvalidProtocolVersionException, match="version 1 needs reader version 99"):
        log.snapshot_at(1).files()
    with pytest.raises(InvalidProtocolVersionException, match="version 1 needs reader version 99"):
        plan_changes(log, starting_version=0)
    with pytest.raises(InvalidProtocolVersionException, match="version 1 needs reader version 99"):
        restore(log, version=1, **IDENTITY)
    assert plan_changes(log, starting_version=2).ending_version == 2


def test_an_abort_by_id_refuses_to_guess(table: Path) -> None:
    log = unreadable(table, "a newer version")
    directory = table / "staged" / "00000000-0000-0000-0000-000000000001"
    directory.mkdir(parents=True)
    (directory / "file.parquet").write_bytes(b"rows")
    with pytest.raises(InvalidProtocolVersionException):
        abort_transaction(log, directory.name, force=True)
    assert (directory / "file.parquet").exists()


def test_a_readable_table_pays_nothing(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commits are read once, for both the protocol and the files."""
    tables.table_with_commits(table, 5)
    log = DeltaLog.for_table(str(table))
    snapshot = log.snapshot
    reads: list[str] = []
    read = log.store.read
    monkeypatch.setattr(log.store, "read", lambda path: reads.append(path) or read(path))
    assert snapshot.files().num_rows == 6
    assert len(reads) == len(set(reads)) == 6
    reads.clear()
    assert (snapshot.files("id > 1").num_rows, len(snapshot.add_files())) == (6, 6)
    assert reads == []

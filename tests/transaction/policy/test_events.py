"""Events of the engine, and CommitStats among them."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from airflow_delta.exceptions import ConcurrentAppendException, DeltaAssertionError
from airflow_delta.log.actions.actions import AddCDCFile
from airflow_delta.transaction import Operation, events
from support.actions import add, remove, txn
from support.table import Table, metadata

# The fields of Delta 4.4's CommitStats, without those of coordinated commits, of the checkpoint's own size, of the histogram of
# the whole table, and of the preview of adaptive metadata.
FIELDS_OF_DELTA = {
    "startVersion",
    "commitVersion",
    "readVersion",
    "txnDurationMs",
    "commitDurationMs",
    "fsWriteDurationMs",
    "stateReconstructionDurationMs",
    "numAdd",
    "numRemove",
    "numSetTransaction",
    "bytesNew",
    "numFilesTotal",
    "sizeInBytesTotal",
    "numCdcFiles",
    "cdcBytesNew",
    "protocol",
    "commitSizeBytes",
    "totalCommitsSizeSinceLastCheckpoint",
    "checkpointAttempt",
    "info",
    "newMetadata",
    "numAbsolutePathsInAdd",
    "numDistinctPartitionsInAdd",
    "numPartitionColumnsInTable",
    "isolationLevel",
    "addFilesHistogram",
    "removeFilesHistogram",
    "isIdempotentRetry",
    "numOfDomainMetadatas",
    "txnId",
}

Recorded = list[tuple[str, str, Mapping[str, Any]]]


@pytest.fixture
def table(tmp_path: Path) -> Table:
    table = Table(tmp_path / "table")
    table.create(("part",))
    return table


@pytest.fixture
def recorded() -> Iterator[Recorded]:
    seen: Recorded = []

    def listen(name: str, uri: str, data: Mapping[str, Any]) -> None:
        seen.append((name, uri, data))

    events.add_listener(listen)
    events.add_listener(listen)
    yield seen
    events.remove_listener(listen)


def stats_of(recorded: Recorded) -> Mapping[str, Any]:
    (data,) = [data for name, _uri, data in recorded if name == "delta.commit.stats"]
    return data


def test_commit_stats(table: Table, recorded: Recorded) -> None:
    table.commit(add("a", part=1), add("b", part=2))
    recorded.clear()
    transaction = table.log().start_transaction()
    transaction.filter_files("part = 1")
    table.commit(add("c", part=3))
    recorded.clear()
    cdc = AddCDCFile(path="_change_data/x", partition_values={"part": "1"}, size=7)
    actions = [
        metadata(("part",), description="d"),
        remove("a", part=1),
        add("d", part=1),
        add("s3://x/e", part=1),
        cdc,
        txn("a", 1),
    ]
    transaction.commit(actions, Operation.update())
    data = stats_of(recorded)
    assert data.keys() >= FIELDS_OF_DELTA
    assert data.keys() - FIELDS_OF_DELTA == {"attempts", "versionsChecked"}
    assert (data["startVersion"], data["commitVersion"], data["readVersion"]) == (1, 3, 3)
    assert (data["numAdd"], data["numRemove"], data["numCdcFiles"], data["cdcBytesNew"]) == (2, 1, 1, 7)
    assert (data["numSetTransaction"], data["bytesNew"], data["numAbsolutePathsInAdd"]) == (1, 200, 1)
    assert (data["numDistinctPartitionsInAdd"], data["numPartitionColumnsInTable"]) == (1, 1)
    assert data["commitSizeBytes"] == (table.path / "_delta_log" / f"{3:020d}.json").stat().st_size
    assert data["info"]["operation"] == "UPDATE"
    assert data["newMetadata"]["description"] == "d"
    assert data["protocol"] == {"minReaderVersion": 1, "minWriterVersion": 2}
    assert data["txnId"] == table.info(3)["txnId"]
    assert sum(data["addFilesHistogram"]["fileCounts"]) == 2
    assert sum(data["removeFilesHistogram"]["totalBytes"]) == 100
    assert (data["versionsChecked"], data["isIdempotentRetry"], data["checkpointAttempt"]) == (1, False, False)
    assert data["txnDurationMs"] >= data["commitDurationMs"] >= data["fsWriteDurationMs"] >= 0
    json.dumps(data)


def test_totals_are_those_of_the_table(table: Table, recorded: Recorded) -> None:
    log = table.log()
    for index in range(3):
        log.start_transaction().commit([add(f"f{index}", part=1)], Operation.write())
    totals = [(d["numFilesTotal"], d["sizeInBytesTotal"]) for name, _u, d in recorded if name == "delta.commit.stats"]
    assert totals == [(1, 100), (2, 200), (3, 300)]


def test_totals_that_cannot_be_had_do_not_fail_a_commit_that_is_durable(table: Table, recorded: Recorded) -> None:
    table.commit(add("a", part=1))
    log_files = table.path / "_delta_log"
    (log_files / f"{1:020d}.crc").unlink()
    transaction = table.log().start_transaction()
    recorded.clear()
    (log_files / f"{1:020d}.json").write_text('{"add":damaged}\n')
    assert transaction.commit([add("b", part=1)], Operation.write()) == 2
    assert stats_of(recorded)["numFilesTotal"] == -1


def test_events_are_log_records(table: Table, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="airflow_delta.transaction.events"):
        table.commit(add("a", part=1))
    (record,) = [r for r in caplog.records if getattr(r, "delta_event", None) == "delta.commit.stats"]
    assert record.delta_table == str(table.path)  # type: ignore[attr-defined]
    assert record.delta_data["commitVersion"] == 1  # type: ignore[attr-defined]


def test_nobody_listening(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    logging.getLogger("airflow_delta.transaction.events").setLevel(logging.INFO)
    try:
        assert not events.enabled()
        monkeypatch.setattr(
            "airflow_delta.transaction.commit.stats.CommitStats.of", lambda *_a, **_k: pytest.fail("counted for nobody")
        )
        table.commit(add("a", part=1))
    finally:
        logging.getLogger("airflow_delta.transaction.events").setLevel(logging.NOTSET)


def test_a_conflict_is_an_event_and_no_failure(table: Table, recorded: Recorded) -> None:
    transaction = table.log().start_transaction()
    transaction.filter_files("part = 1")
    table.commit(add("w", part=1), operation=Operation.truncate())
    recorded.clear()
    with pytest.raises(ConcurrentAppendException):
        transaction.commit([add("o", part=1)], Operation.update())
    names = [name for name, _uri, _data in recorded]
    assert names.count("delta.commit.conflict.ConcurrentAppend") == 1
    assert "delta.commit.failure" not in names
    data = next(data for name, _uri, data in recorded if name.startswith("delta.commit.conflict"))
    assert data["winningTxnOperation"] == "TRUNCATE"


def test_any_other_failure(table: Table, recorded: Recorded) -> None:
    transaction = table.log().start_transaction()
    transaction.commit([add("a", part=1)], Operation.write())
    with pytest.raises(DeltaAssertionError):
        transaction.commit([], Operation.write())
    (data,) = [data for name, _uri, data in recorded if name == "delta.commit.failure"]
    assert data["error"] == "DeltaAssertionError"
    assert data["txnId"] == transaction.txn_id


def test_a_listener_that_fails_harms_nobody(table: Table, recorded: Recorded, caplog: pytest.LogCaptureFixture) -> None:
    def fail(name: str, uri: str, data: Mapping[str, Any]) -> None:
        raise ValueError(name)

    events.add_listener(fail)
    try:
        assert table.commit(add("a", part=1)) == 1
    finally:
        events.remove_listener(fail)
        events.remove_listener(fail)
    assert stats_of(recorded)["commitVersion"] == 1
    assert any("listener failed" in record.getMessage() for record in caplog.records)


def test_a_listener_of_some_events(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """It hears those that it asks for, and what nobody asks for is not even put together."""
    seen: list[str] = []

    def listen(name: str, _uri: str, _data: Mapping[str, Any]) -> None:
        seen.append(name)

    logging.getLogger("airflow_delta.transaction.events").setLevel(logging.INFO)
    monkeypatch.setattr(
        "airflow_delta.transaction.commit.stats.CommitStats.of", lambda *_a, **_k: pytest.fail("counted for nobody")
    )
    events.add_listener(listen, only=("delta.commit.conflict.", "delta.commit.retry"))
    try:
        assert events.enabled(name="delta.commit.retry")
        assert not events.enabled(name="delta.commit.stats")
        transaction = table.log().start_transaction()
        table.commit(add("a", part=1))
        transaction.filter_files("part = 2")
        transaction.commit([add("b", part=2)], Operation.write())
        late = table.log().start_transaction()
        late.read_whole_table()
        table.commit(add("c", part=1))
        with pytest.raises(ConcurrentAppendException):
            late.commit([add("d", part=1)], Operation.update())
    finally:
        events.remove_listener(listen)
        logging.getLogger("airflow_delta.transaction.events").setLevel(logging.NOTSET)
    assert set(seen) <= {"delta.commit.conflict.ConcurrentAppend", "delta.commit.retry"}
    assert seen.count("delta.commit.conflict.ConcurrentAppend") == 1

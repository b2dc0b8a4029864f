"""The history of a table (DescribeDeltaHistorySuite)."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_delta.exceptions import DeltaIllegalArgumentException, DeltaLogCorruptedException, DeltaTableNotFoundException
from airflow_delta.log import CommitRecord, DeltaLog
from support import tables


def test_newest_first_with_all_that_the_commit_says(table: Path) -> None:
    tables.create_table(table)
    tables.write_commit(
        table,
        1,
        tables.info(
            "DELETE",
            operation_parameters={"predicate": '["id = 1"]'},
            operation_metrics={"numRemovedFiles": "1"},
            read_version=0,
            isolation_level="Serializable",
            is_blind_append=False,
            user_metadata="note",
            tags={"k": "v"},
            engine_info="some engine",
            txn_id="t",
        ),
        at=1_700_000_000_000,
    )
    first, second = DeltaLog.for_table(str(table)).history()
    assert (first.version, second.version) == (1, 0)
    assert first == CommitRecord(1, first.timestamp, first.commit_info)
    assert (first.operation, first.operation_parameters, first.operation_metrics) == (
        "DELETE",
        {"predicate": '["id = 1"]'},
        {"numRemovedFiles": "1"},
    )
    assert (first.read_version, first.isolation_level, first.is_blind_append) == (0, "Serializable", False)
    assert (first.user_metadata, first.tags, first.engine_info, first.txn_id) == ("note", {"k": "v"}, "some engine", "t")


def test_a_commit_without_commit_info(table: Path) -> None:
    tables.create_table(table)
    tables.commit_path(table, 1).write_bytes(b'{"txn":{"appId":"a","version":1}}\n')
    record = DeltaLog.for_table(str(table)).history(1)[0]
    assert (record.version, record.commit_info, record.operation, record.tags) == (1, {}, None, {})


def test_a_limit_reads_no_more_than_it_must(table: Path) -> None:
    tables.table_with_commits(table, 200)
    log = DeltaLog.for_table(str(table))
    _ = log.snapshot.metadata
    read: list[str] = []
    original = log.store.read
    log.store.read = lambda path: read.append(path) or original(path)  # type: ignore[method-assign,func-returns-value]
    assert [record.version for record in log.history(3)] == [200, 199, 198]
    assert len(read) == 4  # these and the one that is not there yet
    assert log.history(0) == []
    assert len(log.history()) == 201


def test_only_what_the_log_still_holds(table: Path) -> None:
    tables.table_with_commits(table, 12)
    tables.write_checkpoint_by_hand(table, 10, [tables.protocol(), tables.metadata()])
    for version in (0, 1, 2, 3, 6):
        tables.commit_path(table, version).unlink()
    assert [record.version for record in DeltaLog.for_table(str(table)).history()] == [12, 11, 10, 9, 8, 7]


def test_bad_input(table: Path) -> None:
    with pytest.raises(DeltaTableNotFoundException):
        DeltaLog.for_table(str(table)).history()
    tables.create_table(table)
    with pytest.raises(DeltaIllegalArgumentException, match="negative"):
        DeltaLog.for_table(str(table)).history(-1)
    tables.commit_path(table, 1).write_bytes(b'{"commitInfo":{"operation":}}\n{"add":{}}\n')
    with pytest.raises(DeltaLogCorruptedException, match="line 1"):
        DeltaLog.for_table(str(table)).history()

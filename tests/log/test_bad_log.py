"""Damaged logs: a typed error with table, version and remedy, or an older file is read instead; nothing is lost silently."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from airflow_delta.exceptions import DeltaLogCorruptedException, VersionsNotContiguousException
from airflow_delta.log import DeltaLog, Snapshot
from airflow_delta.log.actions.actions import encode_actions
from support import tables

BASE = [tables.protocol(), tables.metadata(name="checkpointed"), tables.txn("app", 1)]


def snapshot(table: Path) -> Snapshot:
    return DeltaLog.for_table(str(table)).snapshot


def paths(found: Snapshot) -> list[str]:
    return sorted(found.files(columns=["path"])["path"].to_pylist())


def garbage(path: Path) -> None:
    path.write_bytes(b"PAR1 this is not a checkpoint PAR1")


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


@pytest.fixture
def long_table(table: Path) -> Path:
    """Versions 0 to 12, checkpoints of 5 and 10, all commits kept."""
    tables.table_with_commits(table, 12)
    for version in (5, 10):
        files = [tables.add(f"{number}-0.parquet") for number in range(version + 1)]
        tables.write_checkpoint_by_hand(table, version, [*BASE, *files])
    tables.write_last_checkpoint(table, 10)
    return table


@pytest.mark.parametrize("damage", [garbage, cut])
def test_a_corrupt_checkpoint_is_replaced_by_an_older_one(long_table: Path, damage, caplog: pytest.LogCaptureFixture) -> None:
    damage(tables.log_path(long_table, f"{10:020d}.checkpoint.parquet"))
    for version in range(6):
        tables.commit_path(long_table, version).unlink()
    found = snapshot(long_table)
    with caplog.at_level(logging.WARNING, logger="airflow_delta"):
        assert found.metadata.name == "checkpointed"
    assert "corrupt checkpoint of version 10" in caplog.text
    assert "reading the checkpoint of version 5 instead" in caplog.text
    assert len(paths(found)) == 13
    assert found.transactions == {"app": 1}


def test_a_corrupt_checkpoint_is_replaced_by_the_commits(long_table: Path, caplog: pytest.LogCaptureFixture) -> None:
    for version in (5, 10):
        garbage(tables.log_path(long_table, f"{version:020d}.checkpoint.parquet"))
    found = snapshot(long_table)
    with caplog.at_level(logging.WARNING, logger="airflow_delta"):
        assert len(paths(found)) == 13
    assert "reading all commits instead" in caplog.text
    assert found.metadata.name is None
    assert found.transaction_version("app") is None
    assert snapshot(long_table).transactions == {}
    assert snapshot(long_table).num_files == 13


def test_a_corrupt_checkpoint_with_nothing_to_replace_it(long_table: Path) -> None:
    for version in (5, 10):
        garbage(tables.log_path(long_table, f"{version:020d}.checkpoint.parquet"))
    tables.commit_path(long_table, 0).unlink()
    for read in (lambda found: found.metadata, lambda found: found.files(), lambda found: found.transaction_version("nobody")):
        with pytest.raises(DeltaLogCorruptedException) as caught:
            read(snapshot(long_table))
        assert caught.value.table == str(long_table)
        assert "0" in str(caught.value)
        assert "cannot be replaced by an older checkpoint" in str(caught.value)


def test_an_empty_checkpoint_is_no_checkpoint(long_table: Path) -> None:
    tables.log_path(long_table, f"{10:020d}.checkpoint.parquet").write_bytes(b"")
    found = snapshot(long_table)
    assert found.segment.first_commit == 6
    assert len(paths(found)) == 13


def test_a_checkpoint_of_something_else_is_corrupt(long_table: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"x": [1]}), tables.log_path(long_table, f"{10:020d}.checkpoint.parquet"))
    found = snapshot(long_table)
    tables.commit_path(long_table, 0).unlink()
    for version in (1, 2, 3, 4, 5):
        tables.commit_path(long_table, version).unlink()
    tables.log_path(long_table, f"{5:020d}.checkpoint.parquet").unlink()
    with pytest.raises(DeltaLogCorruptedException):
        _ = found.metadata


def test_a_checksum_spares_a_corrupt_checkpoint(long_table: Path) -> None:
    log = DeltaLog.for_table(str(long_table))
    _ = log.snapshot.num_files, log.snapshot.set_transactions
    assert log.write_checksum(log.snapshot)
    garbage(tables.log_path(long_table, f"{10:020d}.checkpoint.parquet"))
    assert snapshot(long_table).metadata.name == "checkpointed"
    assert snapshot(long_table).num_files == 13


@pytest.mark.parametrize(
    ("actions", "lacking"),
    [
        ([tables.metadata()], "no protocol action"),
        ([tables.protocol()], "no metaData action"),
        ([tables.add("a")], "no protocol and metaData action"),
    ],
)
@pytest.mark.parametrize("kind", ["commits", "checkpoint"])
def test_missing_protocol_or_metadata(table: Path, actions: list, lacking: str, kind: str) -> None:
    tables.write_commit(table, 0, *actions)
    if kind == "checkpoint":
        tables.write_checkpoint_by_hand(table, 0, actions)
    found = snapshot(table)
    with pytest.raises(DeltaLogCorruptedException, match=lacking) as caught:
        _ = (found.protocol, found.metadata)
    assert (caught.value.table, caught.value.version) == (str(table), 0)
    assert "backup" in str(caught.value)


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"", "is empty"),
        (encode_actions([tables.info(), tables.txn("app", 1)])[:-9], "is truncated in line 2"),
        (b'{"commitInfo":{}}\n{"txn":{"appId":"a"}}\n', "is malformed in line 2"),
        (b'{"commitInfo":{}}\n{"txn":nonsense}\n', "is malformed in line 2"),
    ],
)
def test_a_damaged_commit(table: Path, data: bytes, what: str) -> None:
    tables.table_with_commits(table, 3)
    tables.commit_path(table, 2).write_bytes(data)
    for read in (lambda found: found.metadata, lambda found: found.files(), lambda found: found.transactions):
        with pytest.raises(DeltaLogCorruptedException, match=what) as caught:
            read(snapshot(table))
        assert (caught.value.table, caught.value.version) == (str(table), 2)


# -- the checksum beside the log --------------------------------------------------------------------------------------


def bytes_of_a_checksum(table: Path) -> bytes:
    log = DeltaLog.for_table(str(table))
    for commit in range(3):
        assert log.write_checksum(log.snapshot_at(commit))
    return tables.log_path(table, f"{2:020d}.crc").read_bytes()


CHECKSUM_DAMAGE = {
    "empty": lambda data: b"",
    "cut off": lambda data: data[: len(data) // 2],
    "not JSON": lambda data: b"\x00" * len(data),
    "not UTF-8": lambda data: data.replace(b'"txnId":"', b'"txnId":"\xff'),
    "a list": lambda data: b"[" + data.strip() + b"]",
    "no metadata": lambda data: data.replace(b'"metadata":', b'"meta":'),
    "null protocol": lambda data: data.replace(b'"protocol":{', b'"protocol":null,"other":{'),
    "text for a number": lambda data: data.replace(b'"numFiles":3', b'"numFiles":"three"'),
    "negative": lambda data: data.replace(b'"tableSizeBytes":', b'"tableSizeBytes":-'),
    "two protocols": lambda data: data.replace(b'"numProtocol":1', b'"numProtocol":2'),
    "another version's": lambda data: data.replace(b'"txnId":"', b'"txnId":"0000'),
    "a file that is none": lambda data: data.replace(b'"allFiles":[{"path"', b'"allFiles":[{"pfad"'),
    "a histogram that is none": lambda data: data.replace(b'"fileCounts":[', b'"fileCounts":["x",'),
}


@pytest.mark.parametrize("damage", CHECKSUM_DAMAGE.values(), ids=CHECKSUM_DAMAGE)
def test_a_damaged_checksum_changes_nothing(table: Path, damage) -> None:
    tables.table_with_commits(table, 2)
    data = bytes_of_a_checksum(table)
    changed = damage(data)
    assert changed != data
    path = tables.log_path(table, f"{2:020d}.crc")
    path.write_bytes(changed)
    found = snapshot(table)
    assert (found.metadata, found.protocol, found.transactions) == (tables.metadata(), tables.protocol(), {})
    assert (found.num_files, found.size_in_bytes, len(paths(found))) == (3, 300, 3)
    # and what is derived from it is right again
    tables.append(table, 3)
    log = DeltaLog.for_table(str(table))
    assert log.write_checksum(log.snapshot)
    assert log.snapshot.validate_checksum()


def test_a_checksum_of_a_version_that_was_replaced(table: Path) -> None:
    tables.table_with_commits(table, 2)
    bytes_of_a_checksum(table)
    tables.write_commit(table, 2, tables.add("other"), tables.metadata(name="other"))
    assert snapshot(table).metadata.name == "other"


def test_a_damaged_commit_met_by_an_update(table: Path) -> None:
    tables.table_with_commits(table, 3)
    log = DeltaLog.for_table(str(table))
    assert log.snapshot.metadata == tables.metadata()
    tables.commit_path(table, 4).write_bytes(b'{"commitInfo":{}}\n{"metaData":{"id":1}}\n')
    with pytest.raises(DeltaLogCorruptedException, match="line 2"):
        log.update()
    assert log.snapshot.version == 3


def test_a_malformed_file_action_is_met_when_files_are_read(table: Path) -> None:
    tables.table_with_commits(table, 2)
    tables.commit_path(table, 1).write_bytes(b'{"commitInfo":{}}\n{"add":{"path":"x"}}\n')
    found = snapshot(table)
    assert found.metadata == tables.metadata()
    with pytest.raises(DeltaLogCorruptedException, match="line 2"):
        found.files()


def test_a_gap_after_the_checkpoint(long_table: Path) -> None:
    tables.commit_path(long_table, 11).unlink()
    with pytest.raises(VersionsNotContiguousException, match="commit 11 is missing") as caught:
        snapshot(long_table)
    assert (caught.value.table, caught.value.version) == (str(long_table), 11)


def test_partition_columns_that_the_schema_lacks(table: Path) -> None:
    tables.create_table(table, partition_columns=["nowhere"])
    with pytest.raises(DeltaLogCorruptedException, match="nowhere"):
        _ = snapshot(table).partition_schema

"""Tables that delta-rs wrote, read by us: the same version, protocol, metadata and files."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from airflow_delta.log import DeltaLog, Snapshot
from airflow_delta.log.actions.actions import encode_actions
from support import readers, tables


def assert_same(ours: Snapshot, theirs: DeltaTable) -> None:
    assert ours.version == theirs.version()
    metadata, protocol = theirs.metadata(), theirs.protocol()
    assert ours.metadata.id == str(metadata.id)
    assert ours.metadata.partition_columns == metadata.partition_columns
    assert ours.metadata.configuration == metadata.configuration
    assert json.loads(ours.metadata.schema_string) == json.loads(theirs.schema().to_json())
    assert (ours.protocol.min_reader_version, ours.protocol.min_writer_version) == (
        protocol.min_reader_version,
        protocol.min_writer_version,
    )
    listed = pa.table(theirs.get_add_actions(flatten=False))
    expected = {(path, size) for path, size in zip(listed["path"].to_pylist(), listed["size_bytes"].to_pylist(), strict=True)}
    if theirs.version() == ours.log.update().version:
        assert len(readers.files(ours.log.uri)) == len(expected)
    files = ours.files(columns=["path", "size"])
    assert set(zip(files["path"].to_pylist(), files["size"].to_pylist(), strict=True)) == expected
    assert ours.num_files == len(expected)
    assert ours.size_in_bytes == sum(size for _, size in expected)


def write(table: Path, version: int, **options) -> None:
    data = pa.table({"id": pa.array([version, version + 1], pa.int64()), "day": pa.array(["a b", "ü:%"], pa.string())})
    write_deltalake(str(table), data, mode="append", partition_by=["day"], **options)


@pytest.mark.parametrize("checkpoint_at", [None, 4, 9])
def test_appends_and_deletes(table: Path, checkpoint_at: int | None) -> None:
    for version in range(10):
        write(table, version)
        if version == checkpoint_at:
            DeltaTable(str(table)).create_checkpoint()
    DeltaTable(str(table)).delete("id = 3")
    DeltaTable(str(table)).delete("day = 'a b' and id > 7")
    log = DeltaLog.for_table(str(table))
    assert_same(log.snapshot, DeltaTable(str(table)))
    assert len(readers.rows(table)) == 16
    assert (log.snapshot.segment.checkpoint is not None) == (checkpoint_at is not None)
    for version in (0, 3, 5, 9):
        assert_same(log.snapshot_at(version), DeltaTable(str(table), version=version))


def test_following_a_table_that_grows(table: Path) -> None:
    write(table, 0)
    log = DeltaLog.for_table(str(table))
    for version in range(1, 12):
        write(table, version)
        if version == 6:
            DeltaTable(str(table)).create_checkpoint()
        assert_same(log.update(), DeltaTable(str(table)))


def test_cleaned_up_logs(table: Path) -> None:
    for version in range(6):
        write(table, version, configuration={"delta.logRetentionDuration": "interval 0 days"} if version == 0 else None)
    theirs = DeltaTable(str(table))
    theirs.create_checkpoint()
    theirs.cleanup_metadata()
    assert_same(DeltaLog.for_table(str(table)).snapshot, DeltaTable(str(table)))


def test_transactions(table: Path) -> None:
    from deltalake import CommitProperties, Transaction

    for version in range(5):
        properties = CommitProperties(app_transactions=[Transaction(app_id="app", version=version)])
        write(table, version, commit_properties=properties)
    DeltaTable(str(table)).create_checkpoint()
    ours = DeltaLog.for_table(str(table)).snapshot
    assert ours.transaction_version("app") == 4
    assert ours.transactions == {"app": 4}


def test_history(table: Path) -> None:
    for version in range(5):
        write(table, version)
    theirs = DeltaTable(str(table)).history(3)
    ours = DeltaLog.for_table(str(table)).history(3)
    assert [(record.version, record.operation) for record in ours] == [(entry["version"], entry["operation"]) for entry in theirs]


# -- the other way: what we write, delta-rs reads -------------------------------------------------------------------------


def ours(table: Path, commits: int) -> DeltaLog:
    log = DeltaLog.for_table(str(table))
    partitioned = tables.metadata(partition_columns=["part"])
    log.write_commit(0, encode_actions([tables.info(), tables.protocol(), partitioned]))
    log.write_checksum(log.update())
    for version in range(1, commits + 1):
        # DuckDB takes a "%" that begins no escape for damaged text.
        adds = [tables.add(f"part={quoted}/{version}.parquet", part=unquote(quoted)) for quoted in ("a b", "ü", "%25")]
        removed = [tables.remove(f"part=ü/{version - 1}.parquet", part="ü")] if version > 1 else []
        log.write_commit(version, encode_actions([tables.info(), tables.txn("app", version), *adds, *removed]))
        log.write_checksum(log.update())
    return log


def test_delta_rs_reads_our_commits_and_checkpoints(table: Path) -> None:
    log = ours(table, 12)
    assert_same(log.snapshot, DeltaTable(str(table)))
    log.checkpoint(log.snapshot_at(10))
    for version in range(10):
        tables.commit_path(table, version).unlink()
    theirs = DeltaTable(str(table))
    fresh = DeltaLog.for_table(str(table)).snapshot
    assert fresh.segment.first_commit == 11
    assert_same(fresh, theirs)
    assert theirs.transaction_version("app") == 12
    assert fresh.transaction_version("app") == 12


def test_a_checkpoint_starts_the_chain_of_checksums_anew(table: Path) -> None:
    """delta-rs writes no checksums, so our first one needs the list of files: it is written with a checkpoint."""
    for version in range(5):
        write(table, version)
    log = DeltaLog.for_table(str(table))
    DeltaTable(str(table)).create_checkpoint()
    write(table, 5)
    assert not log.write_checksum(log.update())
    log.checkpoint()
    assert tables.log_path(table, f"{5:020d}.crc").exists()
    log.write_commit(6, encode_actions([tables.info(), tables.txn("app", 1)]))
    assert log.write_checksum(log.update())
    fresh = DeltaLog.for_table(str(table)).snapshot
    assert fresh.derived_totals() is not None
    assert_same(fresh, DeltaTable(str(table)))
    assert fresh.transactions == {"app": 1}

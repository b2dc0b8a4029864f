"""Log compaction files replace runs of commits and never change what is read (Delta's DeltaLogMinorCompactionSuite)."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from airflow_delta.log import DeletionVectorDescriptor, DeltaLog
from airflow_delta.log.checkpoint_write.writer import write_checkpoint
from support.actions import add, remove
from support.tables import append, commit_path, log_path, table_with_commits, write_commit, write_compaction


def paths(table: Path, version: int | None = None) -> list[str]:
    log = DeltaLog.for_table(str(table))
    snapshot = log.snapshot if version is None else log.snapshot_at(version)
    return sorted(snapshot.files(columns=["path"])["path"].to_pylist())


def mixed_table(table: Path) -> Path:
    """Versions 0 to 6: files are added, removed, added again, and change their deletion vector."""
    table_with_commits(table, 2)
    vector = DeletionVectorDescriptor(storage_type="i", path_or_inline_dv="x", size_in_bytes=1, cardinality=1)
    write_commit(table, 3, remove("0-0.parquet"), add("3-0.parquet"))
    write_commit(table, 4, remove("1-0.parquet"), add("1-0.parquet", deletion_vector=vector))
    write_commit(table, 5, add("0-0.parquet"), remove("3-0.parquet"))
    append(table, 6)
    return table


def compact(table: Path, first: int, last: int) -> Path:
    """Compact a run of commits with the same reconciliation as the tail."""
    from airflow_delta.log.actions.decode import decode_commits
    from airflow_delta.log.actions.reconciliation import TailFiles

    log = DeltaLog.for_table(str(table))
    tail = TailFiles.of(decode_commits(log.read_commit_range(range(first, last + 1)), table=log.uri))
    return write_compaction(table, first, last, *tail.removes.values(), *tail.adds.values())


def break_commits(table: Path, first: int, last: int) -> None:
    """Replace the commits of a run by content that would fail or change the list of files."""
    for version in range(first, last + 1):
        commit_path(table, version).write_text('{"add":{"path":"wrong"}}\n')


@pytest.mark.parametrize("runs", [[(1, 4)], [(1, 2), (3, 6)], [(2, 5)], [(4, 5), (1, 3)], [(5, 6)], [(3, 4), (3, 6)]])
@pytest.mark.parametrize("checkpoint", [None, 0, 2])
def test_the_same_files_with_and_without(table: Path, runs: list[tuple[int, int]], checkpoint: int | None) -> None:
    mixed_table(table)
    if checkpoint is not None:
        write_checkpoint(DeltaLog.for_table(str(table)).snapshot_at(checkpoint))
    log = DeltaLog.for_table(str(table))
    expected = {version: paths(table, version) for version in range(7)}
    tombstones = sorted(log.snapshot.tombstones()["path"].to_pylist())
    for first, last in runs:
        compact(table, first, last)
    assert {version: paths(table, version) for version in range(7)} == expected
    fresh = DeltaLog.for_table(str(table)).snapshot
    assert sorted(fresh.tombstones()["path"].to_pylist()) == tombstones
    assert [commit.version for commit in DeltaLog.for_table(str(table)).history()] == list(range(6, -1, -1))


def test_compacted_commits_are_not_decoded(table: Path) -> None:
    mixed_table(table)
    expected = paths(table)
    compact(table, 1, 5)
    break_commits(table, 1, 5)
    assert paths(table) == expected


def test_an_update_goes_on_after_a_compaction(table: Path) -> None:
    mixed_table(table)
    compact(table, 1, 6)
    log = DeltaLog.for_table(str(table))
    before = log.snapshot.files(columns=["path"]).num_rows
    append(table, 7)
    assert log.update().files(columns=["path"]).num_rows == before + 1


@pytest.mark.parametrize("damage", [b"", b"{", b"garbage\n", b'{"add":{"path":1}}\n', b'{"add":{"path":"a"', b"\xff\xfe\n", None])
def test_a_damaged_compaction_is_left_out(table: Path, damage: bytes | None, caplog: pytest.LogCaptureFixture) -> None:
    mixed_table(table)
    expected = paths(table)
    path = compact(table, 1, 4)
    compact(table, 5, 6)
    path.write_bytes(path.read_bytes()[:-20] if damage is None else damage)
    with caplog.at_level(logging.WARNING, logger="airflow_delta"):
        assert paths(table) == expected
    assert path.name in caplog.text


def test_a_compaction_that_goes_away_meanwhile(table: Path) -> None:
    mixed_table(table)
    expected = paths(table)
    path = compact(table, 1, 4)
    snapshot = DeltaLog.for_table(str(table)).snapshot
    assert snapshot.segment.compactions
    path.unlink()
    assert sorted(snapshot.files(columns=["path"])["path"].to_pylist()) == expected


def test_other_names_are_no_compactions(table: Path) -> None:
    mixed_table(table)
    expected = paths(table)
    for name in (f"{1:020d}.{4:019d}.compacted.json", f"{1:020d}.{4:020d}.compacted.json.tmp", f"{1:020d}..compacted.json"):
        log_path(table, name).write_text("{}")
    assert paths(table) == expected


@pytest.mark.s3
def test_on_an_object_store(s3_table: str, s3_options: dict[str, str], tmp_path: Path) -> None:
    mixed_table(tmp_path)
    expected = paths(tmp_path)
    compact(tmp_path, 1, 5)
    break_commits(tmp_path, 1, 5)
    log = DeltaLog.for_table(s3_table, s3_options)
    for file in (tmp_path / "_delta_log").iterdir():
        log.store.put(f"_delta_log/{file.name}", file.read_bytes())
    assert sorted(log.snapshot.files(columns=["path"])["path"].to_pylist()) == expected

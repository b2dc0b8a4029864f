"""Cleanup of expired logs: what goes, what stays, and that a version can always be restored."""

from __future__ import annotations

import datetime as dt
import os
from pathlib import Path

import pytest
from deltalake import DeltaTable

from airflow_delta.log import DeltaLog
from airflow_delta.log.checkpoint_writer import write_checkpoint
from airflow_delta.log.cleanup import clean_up_expired_logs
from support.tables import add, append, commit_path, create_table, log_path, protocol, write_commit

DAY = 86_400_000
NOON = int(dt.datetime(2026, 6, 15, 12, tzinfo=dt.UTC).timestamp() * 1000)
MIDNIGHT = NOON - DAY // 2
RETENTION = 30 * DAY
CUTOFF = MIDNIGHT - RETENTION


def touch(path: Path, at: int) -> None:
    os.utime(path, ns=(at * 1_000_000, at * 1_000_000))


def table_with(
    table: Path,
    ages: list[int],
    checkpoints: list[int],
    configuration: dict[str, str] | None = None,
    part_size: int | None = None,
) -> DeltaLog:
    """A table whose commit ``v`` is ``ages[v]`` milliseconds after the cutoff, with checkpoints at some versions."""
    create_table(table, add("0"), configuration=configuration or {})
    for version in range(1, len(ages)):
        append(table, version)
    log = DeltaLog.for_table(str(table))
    for version in checkpoints:
        write_checkpoint(log.snapshot_at(version), part_size=part_size)
        log_path(table, f"{version:020d}.crc").write_text("{}")
    for file in (table / "_delta_log").iterdir():
        if file.name[:20].isdigit():
            touch(file, CUTOFF + ages[int(file.name[:20])])
    return DeltaLog.for_table(str(table))


def versions(table: Path) -> list[int]:
    return sorted(int(file.stem) for file in (table / "_delta_log").glob("*.json"))


OLD, NEW = -5 * DAY, 5 * DAY

CASES = {
    "all before the checkpoint are old": ([OLD] * 6 + [NEW] * 2, [5], range(5, 8)),
    "all is old, the last checkpoint stays": ([OLD] * 8, [5], range(5, 8)),
    "nothing is old": ([NEW] * 8, [5], range(8)),
    "no run ends before a checkpoint": ([OLD] * 3 + [NEW] * 5, [5], range(8)),
    "an older checkpoint is a restart point": ([OLD] * 5 + [NEW] * 5, [3, 8], range(3, 10)),
    "two runs": ([OLD] * 10, [3, 8], range(8, 10)),
    "no checkpoint": ([OLD] * 5, [], range(5)),
    "exactly at the cutoff": ([-4, -3, -2, -1, 0, OLD], [5], range(5, 6)),
    "just after the cutoff": ([1] * 6, [5], range(6)),
    "a clock that goes back does not make a commit older": ([NEW, OLD, OLD, OLD, OLD], [4], range(5)),
}


@pytest.mark.parametrize(("ages", "checkpoints", "left"), CASES.values(), ids=CASES.keys())
@pytest.mark.parametrize("part_size", [None, 2])
def test_what_stays(table: Path, ages: list[int], checkpoints: list[int], left: range, part_size: int | None) -> None:
    log = table_with(table, ages, checkpoints, part_size=part_size)
    files = log.snapshot.num_files
    deleted = clean_up_expired_logs(log.snapshot, now=NOON)
    assert versions(table) == list(left)
    for name in deleted:
        assert int(Path(name).name[:20]) < left.start
    assert {int(f.name[:20]) for f in (table / "_delta_log").iterdir() if f.name[:20].isdigit()} >= set(left)
    assert not [f for f in (table / "_delta_log").iterdir() if f.name[:20].isdigit() and int(f.name[:20]) < left.start]
    fresh = DeltaLog.for_table(str(table))
    assert fresh.snapshot.num_files == files
    assert fresh.snapshot_at(left.start).files().num_rows == left.start + 1
    assert len(DeltaTable(str(table)).file_uris()) == files


def test_the_cutoff_is_midnight(table: Path) -> None:
    log = table_with(table, [-3, -2, -1, 0, NEW], [4])
    assert clean_up_expired_logs(log.snapshot, now=MIDNIGHT - 1) == []
    assert len(clean_up_expired_logs(log.snapshot, now=MIDNIGHT)) == 4


def test_retention_is_a_property(table: Path) -> None:
    log = table_with(table, [-3, -2, -1, 0, NEW], [4], {"delta.logRetentionDuration": "interval 40 days"})
    assert clean_up_expired_logs(log.snapshot, now=NOON) == []
    assert clean_up_expired_logs(log.snapshot, now=NOON + 10 * DAY) != []


def test_cleanup_can_be_switched_off(table: Path) -> None:
    log = table_with(table, [OLD] * 5, [4], {"delta.enableExpiredLogCleanup": "false"})
    assert clean_up_expired_logs(log.snapshot, now=NOON) == []
    assert versions(table) == [0, 1, 2, 3, 4]


def test_incomplete_and_empty_checkpoints_restart_nothing(table: Path) -> None:
    log = table_with(table, [OLD] * 8, [3, 6], part_size=2)
    log_path(table, f"{6:020d}.checkpoint.{2:010d}.{4:010d}.parquet").unlink(missing_ok=True)
    parts = list((table / "_delta_log").glob(f"{6:020d}.checkpoint.*"))
    parts[0].unlink()
    log_path(table, f"{7:020d}.checkpoint.parquet").touch()
    touch(log_path(table, f"{7:020d}.checkpoint.parquet"), CUTOFF + OLD)
    log_path(table, "_last_checkpoint").unlink()
    clean_up_expired_logs(DeltaLog.for_table(str(table)).snapshot, now=NOON)
    assert versions(table) == [3, 4, 5, 6, 7]
    assert DeltaLog.for_table(str(table)).snapshot.num_files == 8
    assert log.uri


def test_other_files_stay(table: Path) -> None:
    log = table_with(table, [OLD] * 5, [4])
    others = ["_last_checkpoint", "notes.txt", f"{1:020d}.tmp", f"{0:020d}.{3:020d}.compacted.json"]
    for name in others[1:]:
        log_path(table, name).write_text("x")
        touch(log_path(table, name), CUTOFF + OLD)
    clean_up_expired_logs(log.snapshot, now=NOON)
    assert all(log_path(table, name).exists() for name in others)
    assert not commit_path(table, 3).exists()


def test_protected_checkpoints(table: Path) -> None:
    log = table_with(table, [OLD] * 5, [4])
    features = protocol(3, 7, reader_features=[], writer_features=["checkpointProtection"])
    write_commit(table, 5, features)
    assert clean_up_expired_logs(log.update(), now=NOON) == []


def test_through_the_log(table: Path) -> None:
    log = table_with(table, [-400 * DAY] * 5, [4])
    log.clean_up_expired_logs()
    assert versions(table) == [4]

"""Cleanup of expired logs: what is deleted, what is kept, and that the kept versions can be rebuilt."""

from __future__ import annotations

import datetime as dt
import os
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from airflow_delta.exceptions import DeltaUnsupportedTableFeatureException
from airflow_delta.log import DeltaLog
from airflow_delta.log.checkpoint_write.v2 import write_compatibility_checkpoint
from airflow_delta.log.checkpoint_write.writer import write_checkpoint
from airflow_delta.log.cleanup import clean_up_expired_logs
from airflow_delta.log.segment.segment import LogListing, list_log
from support import readers
from support.actions import add, info, metadata, protocol
from support.tables import append, commit_path, create_table, log_path, write_commit, write_compaction

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
    return sorted(int(file.stem) for file in (table / "_delta_log").glob("*.json") if file.stem.isdigit())


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
    "commits of one millisecond are a millisecond apart": ([-1] * 6, [5], range(6)),
    "a clock that goes back does not make a commit older": ([NEW, OLD, OLD, OLD, OLD], [4], range(5)),
}


@pytest.mark.parametrize(("ages", "checkpoints", "left"), CASES.values(), ids=CASES.keys())
@pytest.mark.parametrize("part_size", [None, 2])
def test_what_stays(table: Path, ages: list[int], checkpoints: list[int], left: range, part_size: int | None) -> None:
    log = table_with(table, ages, checkpoints, part_size=part_size)
    files = log.snapshot.num_files
    deleted = clean_up_expired_logs(log.snapshot, now=NOON)
    assert versions(table) == list(left)
    names = [Path(path).name for path in deleted]
    assert names == sorted(names, key=lambda name: (int(name[:20]), name[20:] == ".json")), "of a version, the commit goes last"
    assert all(int(name[:20]) < left.start for name in names)
    assert {int(f.name[:20]) for f in (table / "_delta_log").iterdir() if f.name[:20].isdigit()} >= set(left)
    assert not [f for f in (table / "_delta_log").iterdir() if f.name[:20].isdigit() and int(f.name[:20]) < left.start]
    fresh = DeltaLog.for_table(str(table))
    assert fresh.snapshot.num_files == files
    assert fresh.snapshot_at(left.start).files().num_rows == left.start + 1
    assert len(readers.files(table)) == files


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
    others = ["_last_checkpoint", "notes.txt", f"{1:020d}.tmp"]
    for name in others[1:]:
        log_path(table, name).write_text("x")
        touch(log_path(table, name), CUTOFF + OLD)
    clean_up_expired_logs(log.snapshot, now=NOON)
    assert all(log_path(table, name).exists() for name in others)
    assert not commit_path(table, 3).exists()


PROTECTION = "delta.requireCheckpointProtectionBeforeVersion"


@pytest.mark.parametrize("before", [0, 2, 4, 5, 7])
@pytest.mark.parametrize("checkpoints", [[4], [3, 6], []])
def test_protected_checkpoints(table: Path, before: int, checkpoints: list[int]) -> None:
    """History is cut off only at existing checkpoints, and none is written for it."""
    log = table_with(table, [OLD] * 8, checkpoints, {PROTECTION: str(before)})
    features = protocol(3, 7, reader_features=[], writer_features=["checkpointProtection"])
    write_commit(table, 8, features)
    clean_up_expired_logs(log.update(), now=NOON)
    kept = max(checkpoints, default=0)
    assert versions(table) == list(range(kept, 9))
    assert [int(file.name[:20]) for file in (table / "_delta_log").glob("*.parquet")] == ([kept] if kept else [])


def test_no_checkpoint_of_a_protected_version_that_is_not_understood(table: Path) -> None:
    create_table(table, add("0"))
    write_commit(table, 1, protocol(3, 7, reader_features=[], writer_features=["somethingNew"]))
    dropped = protocol(3, 7, reader_features=[], writer_features=["checkpointProtection"])
    write_commit(table, 2, dropped, metadata(configuration={PROTECTION: "2"}))
    log = DeltaLog.for_table(str(table))
    write_checkpoint(log.snapshot)
    write_checkpoint(log.snapshot_at(0))
    with pytest.raises(DeltaUnsupportedTableFeatureException, match="somethingNew"):
        write_checkpoint(log.snapshot_at(1))
    assert not log_path(table, f"{1:020d}.checkpoint.parquet").exists()


def test_compaction_files_go_with_their_first_commit(table: Path) -> None:
    log = table_with(table, [OLD] * 8, [5])
    for first, last in [(1, 3), (4, 6), (6, 7)]:
        path = write_compaction(table, first, last, *(add(f"{version}-0.parquet") for version in range(first, last + 1)))
        touch(path, CUTOFF + OLD)
    clean_up_expired_logs(log.snapshot, now=NOON)
    assert [file.name[18:20] for file in (table / "_delta_log").glob("*.compacted.json")] == ["06"]
    assert DeltaLog.for_table(str(table)).snapshot.num_files == 8


@pytest.mark.parametrize(
    ("recorded", "left"),
    [
        ([OLD] * 6, range(5, 6)),  # files were copied yesterday, the commits are old
        ([NEW] * 6, range(6)),
        ([OLD, OLD + 1, OLD + 2, NEW, NEW + 1, NEW + 2], range(2, 6)),
    ],
)
def test_in_commit_timestamps_are_the_times_of_commits(table: Path, recorded: list[int], left: range) -> None:
    configuration = {"delta.enableInCommitTimestamps": "true"}
    enabled = protocol(3, 7, reader_features=[], writer_features=["inCommitTimestamp"])
    for version, at in enumerate(recorded):
        actions = [enabled, metadata(configuration=configuration)] if version == 0 else []
        stamp = info(in_commit_timestamp=CUTOFF + at + version)
        write_commit(table, version, stamp, *actions, add(str(version)), at=NOON - 1000 + version)
    log = DeltaLog.for_table(str(table))
    for version in (2, 5):
        write_checkpoint(log.snapshot_at(version))
    clean_up_expired_logs(log.snapshot, now=NOON)
    assert versions(table) == list(left)


V2 = {"delta.checkpointPolicy": "v2"}
V2_PROTOCOL = protocol(3, 7, reader_features=["v2Checkpoint"], writer_features=["v2Checkpoint"])


def v2_table(table: Path, checkpoints: list[int], *, parquet_manifest: bool = False, latest: int = 7) -> DeltaLog:
    """A table of versions 0 to ``latest`` with V2 checkpoints; everything is old."""
    write_commit(table, 0, V2_PROTOCOL, metadata(configuration=V2), add("0"))
    for version in range(1, latest + 1):
        append(table, version)
    log = DeltaLog.for_table(str(table))
    for version in checkpoints:
        write_checkpoint(log.snapshot_at(version), part_size=2, parquet_manifest=parquet_manifest)
    for file in [*(table / "_delta_log").iterdir(), *sidecars(table)]:
        touch(file, CUTOFF + OLD)
    return DeltaLog.for_table(str(table))


def sidecars(table: Path) -> list[Path]:
    return sorted((table / "_delta_log" / "_sidecars").glob("*"))


@pytest.mark.parametrize("parquet_manifest", [False, True])
def test_sidecars_that_no_checkpoint_names_go(table: Path, parquet_manifest: bool) -> None:
    log = v2_table(table, [3, 6], parquet_manifest=parquet_manifest)
    stray = log_path(table, "_sidecars/young.parquet")
    stray.write_bytes(b"x")
    touch(stray, CUTOFF)
    deleted = clean_up_expired_logs(log.snapshot, now=NOON)
    assert versions(table) == [6, 7]
    assert {int(path.name[:20]) for path in sidecars(table) if path != stray} == {6}
    assert stray.exists(), "it may belong to a checkpoint that is being written"
    assert sum("_sidecars" in path for path in deleted) == 2
    assert DeltaLog.for_table(str(table)).snapshot.files().num_rows == 8


@pytest.mark.parametrize("parquet_manifest", [False, True])
def test_a_classic_twin_for_readers_that_know_no_v2(table: Path, parquet_manifest: bool) -> None:
    log = v2_table(table, [3, 6], parquet_manifest=parquet_manifest)
    clean_up_expired_logs(log.snapshot, now=NOON)
    twin = log_path(table, f"{6:020d}.checkpoint.parquet")
    (stored,) = [row["protocol"] for row in pq.read_table(twin).to_pylist() if row["protocol"]]
    assert stored["readerFeatures"] == ["v2Checkpoint"]
    for manifest in (table / "_delta_log").glob(f"{6:020d}.checkpoint.*-*"):
        manifest.unlink()
    snapshot = DeltaLog.for_table(str(table)).snapshot
    assert snapshot.segment.checkpoint is not None
    assert snapshot.segment.checkpoint.parts[0].name == twin.name
    assert snapshot.files().num_rows == 8
    assert len(readers.files(table)) == 8


def test_sidecars_stay_that_only_the_twin_names(table: Path) -> None:
    log = v2_table(table, [3, 6])
    checkpoint = list_log(log.store).complete_checkpoint(log.store, 6)
    assert checkpoint is not None
    write_compatibility_checkpoint(log.store, checkpoint, table=log.uri)
    for manifest in (table / "_delta_log").glob(f"{6:020d}.checkpoint.*-*"):
        manifest.unlink()
    clean_up_expired_logs(DeltaLog.for_table(str(table)).snapshot, now=NOON)
    assert {int(path.name[:20]) for path in sidecars(table)} == {6}
    assert DeltaLog.for_table(str(table)).snapshot.files().num_rows == 8


def test_no_twin_of_a_protected_version(table: Path) -> None:
    v2_table(table, [3, 6])
    both = ["checkpointProtection", "v2Checkpoint"]
    write_commit(table, 8, protocol(3, 7, reader_features=["v2Checkpoint"], writer_features=both))
    write_commit(table, 9, metadata(configuration={**V2, PROTECTION: "7"}))
    clean_up_expired_logs(DeltaLog.for_table(str(table)).snapshot, now=NOON)
    assert versions(table) == [6, 7, 8, 9]
    assert not list((table / "_delta_log").glob("*.checkpoint.parquet"))


def test_no_twin_beside_a_classic_checkpoint_or_when_nothing_goes(table: Path) -> None:
    log = v2_table(table, [6])
    assert clean_up_expired_logs(log.snapshot, now=NOON - 10 * DAY) == []
    assert not list((table / "_delta_log").glob("*.checkpoint.parquet"))


def test_only_the_checkpoints_that_matter_are_opened(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = v2_table(table, [1, 2, 3, 4, 5, 6])
    for version in (5, 6, 7):
        touch(log_path(table, f"{version:020d}.json"), CUTOFF + NEW)
    snapshot = log.snapshot
    opened: list[int] = []
    complete = LogListing.complete_checkpoint
    monkeypatch.setattr(LogListing, "complete_checkpoint", lambda *args: opened.append(args[2]) or complete(*args))
    clean_up_expired_logs(snapshot, now=NOON - 10 * DAY)
    assert opened == [], "nothing has expired"
    clean_up_expired_logs(snapshot, now=NOON)
    assert set(opened) == {5, 6}
    assert versions(table) == [5, 6, 7]


@pytest.mark.parametrize("damage", ["missing", "truncated"])
def test_a_v2_checkpoint_without_its_sidecars_restarts_nothing(table: Path, damage: str) -> None:
    log = v2_table(table, [3, 6])
    victim = next(path for path in sidecars(table) if int(path.name[:20]) == 6)
    victim.unlink() if damage == "missing" else victim.write_bytes(victim.read_bytes()[:100])
    clean_up_expired_logs(log.snapshot, now=NOON)
    assert versions(table)[0] == 3
    assert DeltaLog.for_table(str(table)).snapshot.files().num_rows == 8


def test_sidecars_stay_while_a_manifest_cannot_be_read(table: Path) -> None:
    log = v2_table(table, [3, 6])
    broken = log_path(table, f"{7:020d}.checkpoint.80a083e8-7026-4e79-81be-64bd76c43a11.json")
    broken.write_text("{")
    before = len(sidecars(table))
    clean_up_expired_logs(log.snapshot, now=NOON)
    assert len(sidecars(table)) == before
    assert DeltaLog.for_table(str(table)).snapshot.files().num_rows == 8


def test_through_the_log(table: Path) -> None:
    log = table_with(table, [-400 * DAY] * 5, [4])
    log.clean_up_expired_logs()
    assert versions(table) == [4]

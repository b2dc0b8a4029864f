"""Reading in-commit timestamps: of a snapshot, of the history, of a point in time, around the version that began with them
(InCommitTimestampSuite)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_delta.exceptions import MissingCommitInfoException, MissingCommitTimestampException, VersionNotFoundException
from airflow_delta.log import DeltaLog, Metadata
from airflow_delta.log.actions.actions import encode_actions
from support import tables

START = 1_700_000_000_000
ENABLED = {"delta.enableInCommitTimestamps": "true"}


def enabled_at(version: int, timestamp: int) -> Metadata:
    return tables.metadata(
        configuration={
            **ENABLED,
            "delta.inCommitTimestampEnablementVersion": str(version),
            "delta.inCommitTimestampEnablementTimestamp": str(timestamp),
        }
    )


def write(table: Path, version: int, time: int, *actions, at: int = START) -> None:
    tables.write_commit(table, version, tables.info(in_commit_timestamp=time), *(actions or [tables.add(f"{version}")]), at=at)


@pytest.fixture
def from_the_start(table: Path) -> Path:
    """Versions 0 to 3, a second apart; the files say nothing useful."""
    write(table, 0, START, tables.protocol(), tables.metadata(configuration=ENABLED))
    for version in (1, 2, 3):
        write(table, version, START + version * 1_000)
    return table


@pytest.fixture
def enabled_later(table: Path) -> Path:
    """File times up to version 2 (one goes back), recorded ones from version 3 on, which began before version 2's file time."""
    tables.create_table(table)
    for version, at in ((0, 0), (1, 5_000), (2, 4_000)):
        if version:
            tables.append(table, version)
        tables.os.utime(tables.commit_path(table, version), ns=((START + at) * 1_000_000,) * 2)
    write(table, 3, START + 3_000, enabled_at(3, START + 3_000), at=START + 9_000)
    write(table, 4, START + 6_000, at=START + 9_000)
    return table


def test_from_the_first_version_on(from_the_start: Path) -> None:
    log = DeltaLog.for_table(str(from_the_start))
    assert (log.snapshot.timestamp, log.snapshot.in_commit_timestamp) == (START + 3_000, START + 3_000)
    assert [record.timestamp - START for record in log.history()] == [3_000, 2_000, 1_000, 0]
    assert [log.snapshot_at_timestamp(START + time).version for time in (0, 999, 1_000, 2_999, 3_000)] == [0, 0, 1, 2, 3]
    assert log.snapshot_at_timestamp(START + 3_001).version == 3
    with pytest.raises(VersionNotFoundException):
        log.snapshot_at_timestamp(START - 1)


def test_enabled_on_a_table_that_was_there(enabled_later: Path) -> None:
    log = DeltaLog.for_table(str(enabled_later))
    assert [record.timestamp - START for record in log.history()] == [6_000, 3_000, 5_001, 5_000, 0]
    assert [log.snapshot_at(version).timestamp - START for version in (2, 3, 4)] == [4_000, 3_000, 6_000]
    # From the time on that the metadata names, only recorded times count; before it, only file times.
    expected = {0: 0, 2_999: 0, 3_000: 3, 5_500: 3, 6_000: 4}
    assert {time: log.snapshot_at_timestamp(START + time).version for time in expected} == expected
    assert log.snapshot_at_timestamp(START + 6_001).version == 4


def test_switched_off_again_the_file_times_count(enabled_later: Path) -> None:
    write(enabled_later, 5, START + 7_000, tables.metadata(), at=START + 9_500)
    log = DeltaLog.for_table(str(enabled_later))
    assert (log.snapshot.timestamp, log.snapshot.in_commit_timestamp) == (START + 9_500, None)
    assert [record.timestamp - START for record in log.history(2)] == [9_500, 9_001]


def test_after_the_versions_before_were_cleaned_up(enabled_later: Path) -> None:
    tables.write_checkpoint_by_hand(enabled_later, 3, [tables.protocol(), enabled_at(3, START + 3_000)])
    for version in range(4):
        tables.commit_path(enabled_later, version).unlink()
    log = DeltaLog.for_table(str(enabled_later))
    assert log.snapshot.timestamp == START + 6_000
    assert log.snapshot_at_timestamp(START + 6_000).version == 4
    with pytest.raises(VersionNotFoundException, match="before version 4"):
        log.snapshot_at_timestamp(START + 5_999)


def test_a_checksum_tells_it_without_the_commit(from_the_start: Path) -> None:
    log = DeltaLog.for_table(str(from_the_start))
    assert log.write_checksum(log.snapshot)
    crc = json.loads(tables.log_path(from_the_start, f"{3:020d}.crc").read_text())
    assert crc["inCommitTimestampOpt"] == START + 3_000
    assert log.snapshot.validate_checksum()
    fresh = DeltaLog.for_table(str(from_the_start))
    reads: list[str] = []
    read = fresh.store.read
    fresh.store.read = lambda path: reads.append(path) or read(path)  # type: ignore[method-assign,func-returns-value]
    assert fresh.snapshot.timestamp == START + 3_000
    assert reads == [f"_delta_log/{3:020d}.crc"]


def test_a_start_after_a_checksum_reads_one_commit_more(from_the_start: Path) -> None:
    log = DeltaLog.for_table(str(from_the_start))
    assert log.write_checksum(log.snapshot)
    write(from_the_start, 4, START + 4_000)
    fresh = DeltaLog.for_table(str(from_the_start)).snapshot
    assert fresh.timestamp == START + 4_000
    assert log.update().timestamp == START + 4_000


def test_a_table_without_them_has_file_times(table: Path) -> None:
    tables.write_commit(table, 0, tables.protocol(), tables.metadata(), at=START)
    write(table, 1, START + 77, at=START + 5)  # a foreign writer's, on a table that does not have them
    snapshot = DeltaLog.for_table(str(table)).snapshot
    assert (snapshot.timestamp, snapshot.in_commit_timestamp) == (START + 5, None)
    assert DeltaLog.for_table(str(table)).history(1)[0].timestamp == START + 5


READS: list[Callable[[DeltaLog], object]] = [
    lambda log: log.snapshot.timestamp,
    lambda log: log.snapshot.in_commit_timestamp,
    lambda log: log.history(),
    lambda log: log.snapshot_at_timestamp(START + 2_500),
]


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize(
    ("lines", "error", "error_class"),
    [
        ([tables.add("x")], MissingCommitInfoException, "DELTA_MISSING_COMMIT_INFO"),
        ([tables.info(), tables.add("x")], MissingCommitTimestampException, "DELTA_MISSING_COMMIT_TIMESTAMP"),
    ],
)
def test_a_commit_that_lacks_it(
    from_the_start: Path, read: Callable[[DeltaLog], object], lines: list, error: type[Exception], error_class: str
) -> None:
    tables.commit_path(from_the_start, 3).write_bytes(encode_actions(lines))
    with pytest.raises(error) as caught:
        read(DeltaLog.for_table(str(from_the_start)))
    for text in (error_class, str(from_the_start), "ommit 3", "delta.enableInCommitTimestamps", "backup"):
        assert text in str(caught.value)
    assert (caught.value.table, caught.value.version) == (str(from_the_start), 3)


def test_a_timestamp_of_another_type_is_none(from_the_start: Path) -> None:
    line = json.dumps({"commitInfo": {"operation": "WRITE", "inCommitTimestamp": str(START)}})
    tables.commit_path(from_the_start, 3).write_text(line + "\n")
    with pytest.raises(MissingCommitTimestampException):
        _ = DeltaLog.for_table(str(from_the_start)).snapshot.timestamp


def test_the_history_of_a_table_without_them_does_not_read_its_metadata(table: Path) -> None:
    tables.table_with_commits(table, 30)
    log = DeltaLog.for_table(str(table))
    asked: list[int] = []
    real = log.read_commit_range
    log.read_commit_range = lambda versions: asked.append(len(versions)) or real(versions)  # type: ignore[method-assign,func-returns-value]
    assert len(log.history(2)) == 2
    assert asked == []

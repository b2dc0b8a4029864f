"""Versions by time (DeltaHistoryManagerSuite): the last version committed at or before the time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest

from airflow_delta.exceptions import DeltaIllegalArgumentException, DeltaTableNotFoundException, VersionNotFoundException
from airflow_delta.log import DeltaLog
from support import tables

START = 1_700_000_000_000
MINUTE = 60_000


def table_at(table: Path, times: list[int], **configuration: str) -> DeltaLog:
    tables.create_table(table, configuration=configuration)
    for version, time in enumerate(times):
        if version:
            tables.append(table, version)
        tables.os.utime(tables.commit_path(table, version), ns=(time * 1_000_000, time * 1_000_000))
    return DeltaLog.for_table(str(table))


@pytest.mark.parametrize(("minutes", "version"), [(0, 0), (0.5, 0), (1, 1), (1.99, 1), (2, 2), (3, 3)])
def test_the_last_version_at_or_before(table: Path, minutes: float, version: int) -> None:
    log = table_at(table, [START + number * MINUTE for number in range(4)])
    assert log.snapshot_at_timestamp(START + int(minutes * MINUTE)).version == version


def test_a_time_before_the_first_version(table: Path) -> None:
    log = table_at(table, [START, START + MINUTE])
    with pytest.raises(
        VersionNotFoundException, match=r"is before version 0.*2023-11-14T22:13:20\.000.*versions 0 to 1"
    ) as caught:
        log.snapshot_at_timestamp(START - 1)
    assert (caught.value.earliest, caught.value.latest, caught.value.table) == (0, 1, str(table))


def test_a_time_after_the_last_version(table: Path) -> None:
    log = table_at(table, [START, START + MINUTE])
    assert log.snapshot_at_timestamp(START + MINUTE + 1).version == 1
    assert log.snapshot_at_timestamp(datetime(9999, 12, 31)).version == 1


@pytest.mark.parametrize(
    "moment",
    [
        datetime(2023, 11, 14, 22, 14, 20),
        datetime(2023, 11, 14, 22, 14, 20, tzinfo=UTC),
        datetime(2023, 11, 15, 0, 14, 20, tzinfo=timezone(timedelta(hours=2))),
        START + MINUTE,
    ],
)
def test_forms_of_a_time(table: Path, moment: datetime | int) -> None:
    log = table_at(table, [START, START + MINUTE, START + 2 * MINUTE])
    assert log.snapshot_at_timestamp(moment).version == 1


@pytest.mark.parametrize("moment", ["2023-11-14", 1.5, True, None])
def test_what_is_no_time(table: Path, moment: object) -> None:
    log = table_at(table, [START])
    with pytest.raises(DeltaIllegalArgumentException, match="datetime"):
        log.snapshot_at_timestamp(moment)  # type: ignore[arg-type]


def test_times_that_go_back_count_as_just_after_the_one_before(table: Path) -> None:
    log = table_at(table, [START, START + 5 * MINUTE, START + MINUTE, START + MINUTE, START + 10 * MINUTE])
    five = START + 5 * MINUTE
    assert [log.snapshot_at_timestamp(time).version for time in (START + MINUTE, five - 1, five, five + 1, five + 2)] == [
        0,
        0,
        1,
        2,
        3,
    ]
    assert [record.timestamp for record in log.history()] == [START + 10 * MINUTE, five + 2, five + 1, five, START]


def test_versions_that_cannot_be_rebuilt_do_not_count(table: Path) -> None:
    log = table_at(table, [START + number * MINUTE for number in range(8)])
    tables.write_checkpoint_by_hand(table, 5, [tables.protocol(), tables.metadata()])
    for version in range(3):
        tables.commit_path(table, version).unlink()
    with pytest.raises(VersionNotFoundException, match="versions 5 to 7"):
        log.snapshot_at_timestamp(START + 4 * MINUTE)
    assert log.snapshot_at_timestamp(START + 6 * MINUTE).version == 6


def test_no_table(table: Path) -> None:
    with pytest.raises(DeltaTableNotFoundException):
        DeltaLog.for_table(str(table)).snapshot_at_timestamp(START)


def test_in_commit_timestamps(table: Path) -> None:
    table_at(
        table,
        [START, START + MINUTE],
        **{"delta.enableInCommitTimestamps": "true", "delta.inCommitTimestampEnablementVersion": "2"},
    )
    for version in (2, 3, 4):
        recorded = START + version * 10 * MINUTE
        tables.write_commit(table, version, tables.info(in_commit_timestamp=recorded), tables.add("x"), at=START + 99 * MINUTE)
    log = DeltaLog.for_table(str(table))
    minutes = [1, 19, 20, 29, 30, 40]
    assert [log.snapshot_at_timestamp(START + number * MINUTE).version for number in minutes] == [1, 1, 2, 2, 3, 4]
    assert [record.timestamp - START for record in log.history(2)] == [40 * MINUTE, 30 * MINUTE]
    assert log.snapshot_at_timestamp(START + 41 * MINUTE).version == 4

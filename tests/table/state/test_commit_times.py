"""When commits were made, and what it costs to ask."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_delta.contract.tags import APP_ID_TAG
from airflow_delta.log import DeltaLog
from airflow_delta.log.storage.local import LocalStore
from airflow_delta.table.state.commit_times import CommitTimes
from airflow_delta.table.state.find_commit import newest_first
from support.actions import info
from support.tables import create_table, write_commit

DAY = 24 * 3_600_000
OWN = {"tags": {APP_ID_TAG: "key"}}


def log_of(path: Path) -> DeltaLog:
    log = DeltaLog.for_table(str(path))
    log.update()
    return log


@pytest.mark.parametrize(
    ("fields", "stored", "before"),
    [
        ({"timestamp": 9 * DAY}, 9 * DAY, True),
        ({"timestamp": 9 * DAY}, 10 * DAY, False),
        ({"timestamp": 0}, 10 * DAY, False),
        ({"timestamp": -1, "in_commit_timestamp": 0}, 10 * DAY, False),
        ({"timestamp": 11 * DAY}, 9 * DAY, False),  # further than it must look, without a request
        ({"timestamp": 90_000 * DAY}, 9 * DAY, True),  # from the future
        ({"timestamp": 90_000 * DAY, **OWN}, 9 * DAY, False),
        ({"timestamp": 9 * DAY, "in_commit_timestamp": 11 * DAY, **OWN}, 9 * DAY, False),
        ({"timestamp": 9 * DAY, **OWN}, 9 * DAY, True),
        ({"timestamp": 9 * DAY, **OWN}, 11 * DAY, False),
    ],
)
def test_what_is_certainly_before_the_tenth_day(tmp_path: Path, fields: dict, stored: int, before: bool) -> None:
    create_table(tmp_path)
    write_commit(tmp_path, 1, info(**fields), at=stored)
    log = log_of(tmp_path)
    newest = next(newest_first(log))
    assert CommitTimes(log).all_before(newest, 10 * DAY) is before
    assert CommitTimes(log).all_before(newest._replace(modification_time=stored), 10 * DAY) is before


def test_a_commit_that_is_gone_is_before_nothing(tmp_path: Path) -> None:
    create_table(tmp_path)
    path = write_commit(tmp_path, 1, info(timestamp=0), at=0)
    log = log_of(tmp_path)
    newest = next(newest_first(log))
    assert not CommitTimes(log).all_before(newest, DAY), "a file of no time"
    path.unlink()
    assert not CommitTimes(log).all_before(newest, DAY)


def test_many_contradictions_cost_one_listing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a store that is listed: else each commit of a writer whose clock is behind would cost a request."""
    create_table(tmp_path)
    for version in range(1, 40):
        write_commit(tmp_path, version, info(timestamp=0), at=10 * DAY + version)
    write_commit(tmp_path, 20, info(timestamp=0), at=DAY)
    monkeypatch.setattr(LocalStore, "probes", False)
    log = log_of(tmp_path)
    log.checkpoint()  # the segment knows the times of the commits after it only
    log = log_of(tmp_path)
    asked: list[str] = []
    for name in ("head", "list_from"):
        original = getattr(log.store, name)
        monkeypatch.setattr(
            log.store, name, lambda *given, original=original, **more: asked.append(given[0]) or original(*given, **more)
        )
    times = CommitTimes(log)
    searched = [commit.version for commit in newest_first(log) if not times.all_before(commit, 10 * DAY)]
    assert searched == [version for version in range(39, -1, -1) if version != 20]
    assert len(asked) <= 3

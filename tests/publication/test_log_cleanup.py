"""Nobody came for a month, and the logs were cleaned up: what an open publication needs is still there."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from airflow_delta.exceptions import DeltaError
from airflow_delta.log import DeltaLog
from airflow_delta.log.cleanup import clean_up_expired_logs
from airflow_delta.publication import get_versions, settle
from airflow_delta.table.operations.drop_feature.history import truncate_history
from publication.lake import LakeTable, keep
from publication.points import killed
from publication.world import DECISION, NAMES, PUTS, World

DAY = 24 * 3600 * 1000
POINTS = [(point, when) for point in PUTS for when in ("before", "after") if point != "plan second" and point != "plan third"]


def log_cleanup(table: LakeTable, now: int) -> None:
    clean_up_expired_logs(table.log().update(), now=now)


def drop_feature(table: LakeTable, now: int) -> None:
    truncate_history(table.log().update(), now)


def commits_later(monkeypatch: pytest.MonkeyPatch, world: World, days: int) -> int:
    """Commit to every table and write its checkpoint, later; return when."""
    now = time.time() + days * 24 * 3600
    monkeypatch.setattr(time, "time", lambda: now)
    for table in world.tables:
        table.append([900], part="z")
        table.log().checkpoint()
    return int(now * 1000)


def read(world: World) -> list[bool]:
    """Return which of the tables show the publication, as a reader of versions that belong together sees them."""
    found = get_versions({name: table.log() for name, table in zip(NAMES, world.tables, strict=True)}).versions
    return [77 in table.ids(found[name]) for name, table in zip(NAMES, world.tables, strict=True)]


def commits(table: LakeTable) -> int:
    return len(list((table.path / "_delta_log").glob("*.json")))


@pytest.mark.parametrize("cleaned", [log_cleanup, drop_feature], ids=["log cleanup", "DROP FEATURE"])
@pytest.mark.parametrize(("point", "when"), POINTS)
def test_what_it_needs_stays(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    point: str,
    when: str,
    cleaned: Callable[[LakeTable, int], None],
) -> None:
    decided = PUTS.index(point) + (when == "after") > DECISION
    killed(world.publish, point, when)
    later = commits_later(monkeypatch, world, 31)
    for table in world.tables:
        cleaned(table, later)
    assert len(set(read(world))) == 1, "no half"
    if decided:
        world.publish()
    else:
        try:
            world.publish()
        except DeltaError:
            assert world.shown() == 0
    assert world.shown() == 3 or not decided
    assert len(set(read(world))) == 1
    for table in world.tables:
        cleaned(table, later)
        if world.shown():
            assert commits(table) <= 3, "then it goes, up to the checkpoint"


def test_keys_expire_and_states_stay_in_the_log(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for table in world.tables:
        keep(table, {"delta.setTransactionRetentionDuration": "interval 7 days"})
    members = [table.member("k", [77]) for table in world.tables]
    world.members = members
    killed(world.publish, "published second", "before")
    later = commits_later(monkeypatch, world, 31)
    for table in world.tables:
        log_cleanup(table, later)
    assert len(set(read(world))) == 1
    world.publish()
    assert world.shown() == 3
    assert read(world) == [True] * 3


def test_one_without_the_note_of_its_end_is_noted_by_whoever_settles_it(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its worker was killed right before the note."""
    world.publish()
    for note in world.tables[0].path.parent.rglob("*.ended"):
        note.unlink()
    publication = next(entry["publication"] for entry in world.tables[0].entries() if entry["publication"])
    later = commits_later(monkeypatch, world, 31)
    before = [commits(table) for table in world.tables]
    for table in world.tables:
        log_cleanup(table, later)
    assert f"publication {publication}" in caplog.text
    assert "airflow delta settle" in caplog.text
    assert settle(world.tables[0].log(), publication, DeltaLog.for_table, patience=0.0).outcome == "published"
    for table, number in zip(world.tables, before, strict=True):
        log_cleanup(table, later)
        assert commits(table) < number

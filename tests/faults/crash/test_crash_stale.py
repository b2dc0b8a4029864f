"""A commit that races an abort or a VACUUM on a store that serves the past: one stops at every point, and the other one runs.

Either the rows are there and their files stay, or the commit is refused. Never are files deleted that the log names.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_delta.exceptions import DeltaError
from airflow_delta.log.storage.base import LogStore
from faults.crash.attempts import Attempt
from faults.crash.zombie_table import ContendedTable, apart, clean, commit, give_up
from faults.shared.pasts import Past, World
from support.pauses import sleep_by

OTHERS: dict[str, Callable[[Any], Callable[[Any], Any]]] = {
    "abort": give_up,
    "VACUUM": lambda _handle: clean(),
    "VACUUM a month later": lambda _handle: clean(days=30),
}


def points_of(path: Path, task: str) -> int:
    """Count the points of a task without another one beside it."""
    table = ContendedTable(path)
    handle, staged = table.staged(table.log())
    attempt = table.attempt(commit(handle, staged) if task == "commit" else OTHERS[task](handle)).run()
    assert attempt.error is None, attempt.error
    return len(attempt.points.trail)


@pytest.fixture(autouse=True)
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    """The world's clock stands still, but for pauses."""
    world = World()
    sleep_by(monkeypatch, world.sleep)
    apart(monkeypatch)
    return world


def stale_table(path: Path, world: World) -> tuple[ContendedTable, Any, Any]:
    def client(below: LogStore) -> LogStore:
        return Past(below, world)

    table = ContendedTable(path, client)
    handle, staged = table.staged(table.log())
    world.now += 3600  # what was staged is an hour old
    return table, handle, staged


def judge(table: ContendedTable, committing: Attempt, where: str) -> None:
    if committing.error is not None:
        assert isinstance(committing.error, DeltaError), f"{where}: {committing.error!r}"
    try:
        ids = table.ids()
    except AssertionError as wrong:
        raise AssertionError(f"{where}: {wrong}") from wrong
    if committing.error is None:
        assert ids == [0, 1, 2], f"{where}: a commit was reported, and the table has the ids {ids}"
    else:
        assert ids in ([0, 1], [0, 1, 2]), where


@pytest.mark.parametrize("other", OTHERS)
def test_another_one_comes_while_a_commit_stands_still(
    other: str, tmp_path: Path, world: World, figures: Callable[..., None]
) -> None:
    count = points_of(tmp_path / "count", "commit")
    for point in range(count):
        table, handle, staged = stale_table(tmp_path / str(point), world)
        committing = table.attempt(commit(handle, staged), stop_at=point).begin()
        where = f"{other}, while the commit is at point {point}"
        against = table.attempt(OTHERS[other](handle)).run()
        assert against.error is None or isinstance(against.error, DeltaError), f"{where}: {against.error!r}"
        judge(table, committing.wake(), where)
    figures(f"stale store, {other} while a commit stands still", tried=count, failed=0)


@pytest.mark.parametrize("other", OTHERS)
def test_a_commit_comes_while_another_one_stands_still(
    other: str, tmp_path: Path, world: World, figures: Callable[..., None]
) -> None:
    count = points_of(tmp_path / "count", other)
    for point in range(count):
        table, handle, staged = stale_table(tmp_path / str(point), world)
        against = table.attempt(OTHERS[other](handle), stop_at=point).begin()
        committing = table.attempt(commit(handle, staged)).run()
        against.wake()
        where = f"a commit, while {other} is at point {point}"
        assert against.error is None or isinstance(against.error, DeltaError), f"{where}: {against.error!r}"
        judge(table, committing, where)
    figures(f"stale store, commit while {other} stands still", tried=count, failed=0)


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("seconds", [0, 59, 61])
def test_another_one_comes_soon_after_a_commit(other: str, seconds: int, tmp_path: Path, world: World) -> None:
    table, handle, staged = stale_table(tmp_path / "table", world)
    committing = table.attempt(commit(handle, staged)).run()
    world.now += seconds
    table.attempt(OTHERS[other](handle)).run()
    judge(table, committing, f"{other} {seconds} s after a commit")
    assert committing.error is None

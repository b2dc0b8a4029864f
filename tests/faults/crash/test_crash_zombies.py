"""Two live attempts of the same task, and attempts that wake up when the transaction is over, at every point of the first.

Airflow gives up a try whose heartbeat is late, but its process may live on. On a store that tells the truth, and with a halt of
more than a minute at the point.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_delta.exceptions import DeltaError
from faults.crash.attempts import Attempt
from faults.crash.zombie_table import COMMITTED, GONE, Transaction, apart, commit, slept

Task = Callable[[Any], Any]
TASKS = ("start", "stage", "commit", "abort", "vacuum", "vacuum_later", "restart")
OTHERS = (*TASKS, "commit_and_vacuum", "abort_and_vacuum")


@pytest.fixture(autouse=True)
def on_different_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    apart(monkeypatch)


def judge(transaction: Transaction, attempts: dict[str, list[Attempt]], where: str) -> None:
    """What was reported as committed is there once; every failure is typed; a later try ends well or says why not."""
    ended = [attempt for each in attempts.values() for attempt in each]
    for attempt in ended:
        assert attempt.error is None or isinstance(attempt.error, DeltaError), f"{where}: {attempt.error!r}"
    committing = [*attempts.get("commit", ()), *attempts.get("restart", ()), *attempts.get("commit_and_vacuum", ())]
    ids = transaction.table.ids()
    if any(attempt.error is None for attempt in committing):
        assert ids == COMMITTED, f"{where}: a commit was reported, and the table has the ids {ids}"
    else:
        assert ids in (COMMITTED, GONE), f"{where}: {ids}"
    if not committing:
        assert ids == GONE, f"{where}: nobody has committed, and the table has the ids {ids}"
    again = transaction.table.attempt(transaction.commit).run()
    assert again.error is None or isinstance(again.error, DeltaError), f"{where}: {again.error!r}"
    after = transaction.table.ids()
    assert after == (COMMITTED if again.error is None or ids == COMMITTED else GONE), f"{where}: the next try left {after}"
    transaction.table.attempt(transaction.vacuum_later).run()
    assert transaction.table.ids() == after, f"{where}: VACUUM changed the rows"


def count(path: Path, task: str) -> int:
    transaction = Transaction(path)
    attempt = transaction.table.attempt(getattr(transaction, task)).run()
    assert attempt.error is None, attempt.error
    return len(attempt.points.trail)


@pytest.mark.parametrize("late", [False, True], ids=["soon", "late"])
@pytest.mark.parametrize("task", [task for task in TASKS if task not in ("start", "stage")])
def test_one_wakes_up_after_another(task: str, late: bool, tmp_path: Path, figures: Callable[..., None], is_long: bool) -> None:
    points, tried = range(count(tmp_path / "count", task)), 0
    for point, other in itertools.product(points, OTHERS):
        if other in ("vacuum_later", "abort_and_vacuum") and not late:  # by its clock, a month has passed
            continue
        if not is_long and task != "commit" and (point + OTHERS.index(other) + late) % 4:
            continue
        transaction = Transaction(tmp_path / f"{point}-{other}")
        sleeping = transaction.table.attempt(getattr(transaction, task), stop_at=point).begin()
        awake = transaction.table.attempt(getattr(transaction, other)).run()
        if late:
            with slept(3 * 24 * 3600):
                sleeping.wake()
        else:
            sleeping.wake()
        attempts: dict[str, list[Attempt]] = {task: [sleeping]}
        attempts.setdefault(other, []).append(awake)
        judge(transaction, attempts, f"{other} while {task} is at point {point}{', which wakes up days later' if late else ''}")
        tried += 1
    figures(f"zombies, {task} wakes up {'late' if late else 'soon'}", tried=tried, points=len(points), failed=0)


@pytest.mark.parametrize("other", OTHERS)
def test_a_stage_that_wakes_up_late_publishes_nothing_by_itself(other: str, tmp_path: Path) -> None:
    """It writes only files of its own attempt, and nobody takes its result any more."""
    transaction = Transaction(tmp_path / "table")
    awake = transaction.table.attempt(getattr(transaction, other)).run()
    sleeping = transaction.table.attempt(transaction.stage).run()
    judge(transaction, {other: [awake], "stage": [sleeping]}, f"a stage after {other}")


@pytest.mark.parametrize("first", ["start", "restart"])
def test_of_two_that_started_under_one_key_one_commits(first: str, tmp_path: Path) -> None:
    """Two live attempts of start have two transactions of one key, and both may get to their commit."""
    transaction = Transaction(tmp_path / "table")
    table = transaction.table
    log = table.log()
    second = transaction.start(log)
    staged = table.stage_id(log, second, 2)
    awake = table.attempt(transaction.commit if first == "start" else transaction.restart).run()
    late = table.attempt(commit(second, staged)).run()
    assert awake.error is None
    assert late.error is None or isinstance(late.error, DeltaError)
    assert table.ids() == COMMITTED

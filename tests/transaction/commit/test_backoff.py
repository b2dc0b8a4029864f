"""Who waits for whom: the older a commit, the sooner its next put."""

from __future__ import annotations

import json
import random
import time

import pytest

from airflow_delta.log.actions.decode import CommitFile
from airflow_delta.transaction.commit.fairness import Crowd
from airflow_delta.transaction.conflicts.winning_commit import WinningCommit

PUT = 0.01
LONGEST = 10.0


def winner(version: int, age: int, *, open_for: int = 0, began: float | None = None) -> WinningCommit:
    """Return a commit that has let others pass, of a transaction that read a version that many commits before that."""
    milliseconds = int((began if began is not None else 0) * 1000)
    info = {"commitInfo": {"timestamp": milliseconds, "readVersion": version - 1 - age - open_for, "operation": "WRITE"}}
    return WinningCommit(CommitFile(version, json.dumps(info).encode() + b"\n"), table="t")


def crowd(*ages: int) -> Crowd:
    """Return a crowd of which commits are known that got through at these ages."""
    found = Crowd()
    found.put_took(PUT)
    for _ in range(64):
        found.won(0)  # landings, so that ages are known
    for version, age in enumerate(ages, 1000):
        found.lost_to([winner(version, age)])
    return found


def pauses(found: Crowd, age: int, losses: int = 1) -> list[float]:
    random.seed(age)
    return [found.pause(age, losses, 0.0, LONGEST) for _ in range(50)]


def test_the_young_wait_for_about_as_many_puts_as_they_are_too_young() -> None:
    found = crowd(*[8] * 8)
    for age in range(7):
        waits = pauses(found, age)
        assert (8 - age) * PUT / 2 <= min(waits) < max(waits) <= (8 - age) * PUT
    for age in (7, 8, 20):
        assert pauses(found, age) == [0.0] * 50


def test_a_newcomer_lets_those_pass_that_are_known_to_wait() -> None:
    assert min(pauses(crowd(*[8] * 8), age=0, losses=0)) > 0
    assert pauses(crowd(*[0] * 8), age=0, losses=0) == [0.0] * 50


def test_who_waited_is_forgotten_after_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    found = crowd(*[8] * 8)
    monkeypatch.setattr(time, "monotonic", lambda now=time.monotonic: now() + 2)
    assert pauses(found, age=0, losses=0) == [0.0] * 50
    assert min(pauses(found, age=0, losses=1)) > 0


def test_one_old_commit_is_no_crowd() -> None:
    assert pauses(crowd(0, 0, 0, 0, 0, 0, 0, 50), age=0) == [0.0] * 50


def test_a_transaction_that_was_open_for_long_is_not_old() -> None:
    found = Crowd()
    found.put_took(PUT)
    now = time.time()
    for version in range(100, 108):
        found.lost_to([winner(version, age=0, open_for=90, began=now + 1)])
    assert pauses(found, age=0) == [0.0] * 50


def test_commits_of_others_that_say_nothing_are_no_crowd() -> None:
    found = crowd(*[8] * 8)
    for version in range(2000, 2008):
        found.lost_to([WinningCommit(CommitFile(version, b'{"commitInfo":{"operation":"WRITE"}}\n'), table="t")])
    assert pauses(found, age=0) == [0.0] * 50


def test_nothing_known_is_no_wait_but_now_and_then() -> None:
    found = Crowd()
    found.put_took(PUT)
    assert [losses for losses in range(13) if max(pauses(found, age=losses, losses=losses)) > 0] == [4, 8, 12]


def test_pauses_stay_within_their_bounds() -> None:
    found = crowd(*[60] * 8)
    for losses in range(1, 20):
        assert 0.02 <= found.pause(0, losses, 0.02, 0.1) <= 0.1
        assert found.pause(100, losses, 0.02, 0.1) >= 0.02
    assert found.pause(100, 0, 0.02, 0.1) == 0.0, "nobody waits before a first put without a reason"

"""How long to wait before a put, so that of many writers those who have waited longest go first.

A writer's age is the number of commits it has let pass. The ages at which others got through, which their commits tell, say how
old one has to be at present; whoever is younger waits for about as many puts as are still to come. So most writers neither put in
vain nor are overtaken for long, though they do not know of each other. A transaction that was open for long is not old: only what
landed after its commit began counts. Where nothing is known of the others, only a short wait now and then is taken.
"""

from __future__ import annotations

import random
import time
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING

from airflow_delta.exceptions import DeltaLogCorruptedException

if TYPE_CHECKING:
    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.transaction.conflicts.winning_commit import WinningCommit

_AGES = 8

_LANDINGS = 64

_MEMORY = 1.0
"""Seconds after which no writer is expected to be waiting."""

_LOSSES = 4
"""Number of losses in a row without a wait, if nothing is known of the others."""


class Crowd:
    """The writers of one table as its commits show them."""

    def __init__(self) -> None:
        # Replaced as a whole, since threads may share a log.
        self._ages: tuple[int, ...] = ()
        self._landings: tuple[float, ...] = ()
        self._put_seconds = 0.0
        self._seen_at = float("-inf")

    def lost_to(self, winners: Sequence[WinningCommit]) -> None:
        """Take note of commits that landed since this process last looked."""
        now = time.time()
        for winner in winners[-_LANDINGS:]:
            self._landed(_age(winner, self._landings), now)

    def won(self, age: int) -> None:
        """Take note of an own commit.

        :param age: the number of commits that it has let pass.
        """
        self._landed(age, time.time())

    def put_took(self, seconds: float) -> None:
        """Take note of how long a put takes."""
        self._put_seconds = seconds if not self._put_seconds else 0.7 * self._put_seconds + 0.3 * seconds

    def pause(self, age: int, losses: int, shortest: float, longest: float) -> float:
        """Return how many seconds to wait before the next put.

        :param age: the number of commits that have been let pass.
        :param losses: puts lost so far; 0 before the first one.
        :param shortest: seconds; the lower bound of a pause after a loss.
        :param longest: seconds; the upper bound.
        """
        if not losses and time.monotonic() - self._seen_at > _MEMORY:
            return 0.0
        ages = sorted(self._ages)
        too_young = ages[len(ages) // 2] - age if ages else 0
        seconds = 0.0
        if too_young > 1:
            seconds = too_young * self._put_seconds * random.uniform(0.5, 1)  # noqa: S311 - jitter, not a secret
        elif losses and losses % _LOSSES == 0:
            seconds = self._put_seconds * random.uniform(0, 1)  # noqa: S311
        return min(longest, max(shortest if losses else 0.0, seconds))

    def _landed(self, age: int, now: float) -> None:
        self._ages = (*self._ages, age)[-_AGES:]
        self._landings = (*self._landings, now)[-_LANDINGS:]
        self._seen_at = time.monotonic()


def _age(winner: WinningCommit, landings: Sequence[float]) -> int:
    """Return the number of commits that a winner has let pass since its commit began, as far as is known."""
    try:
        info = winner.commit_info
    except DeltaLogCorruptedException:  # whether that matters, the conflict check has decided
        return 0
    began, read = info.get("timestamp"), info.get("readVersion")
    if not isinstance(began, int) or not isinstance(read, int):
        return 0
    return max(0, min(winner.version - read - 1, sum(landing >= began / 1000 for landing in landings)))


_crowds: weakref.WeakKeyDictionary[DeltaLog, Crowd] = weakref.WeakKeyDictionary()


def crowd_of(log: DeltaLog) -> Crowd:
    """Return what is known of the writers of a log's table."""
    return _crowds.setdefault(log, Crowd())

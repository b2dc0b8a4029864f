"""The lock with which commits from one process to one table take turns (Delta's ``lockCommitIfEnabled``).

Correctness does not need it: the store decides who wins a version. It spares threads of one process races that all but one would
lose, and is held for all attempts of a commit and the update of the log after it.

How long to wait before a put, so that of many writers those who have waited longest go first.

A writer's age is the number of commits it has let pass. The ages at which others got through, which their commits tell, say how
old one has to be at present; whoever is younger waits for about as many puts as are still to come. So most writers neither put in
vain nor are overtaken for long, though they do not know of each other. A transaction that was open for long is not old: only what
landed after its commit began counts. Where nothing is known of the others, only a short wait now and then is taken.
"""

from __future__ import annotations

import os
import random
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from airflow_delta.contract.location import GCS, S3, Location, store_of
from airflow_delta.exceptions import CommitCancelledException, DeltaLogCorruptedException, MaxCommitRetriesExceededException
from airflow_delta.log.storage.options import location_of

if TYPE_CHECKING:
    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.log.storage.base import LogStore
    from airflow_delta.transaction.conflicts.winning_commit import WinningCommit
    from airflow_delta.transaction.policy import CommitPolicy


_POLL = 0.05
"""Seconds between a waiting commit's checks whether it was cancelled."""

_WHOLE_OBJECTS = (S3, GCS)
"""Stores that show an object only once it is complete (Delta's ``LogStore.isPartialWriteVisible`` is false)."""


class TableLock:
    """A reentrant lock of one table."""

    __slots__ = ("__weakref__", "_lock")

    def __init__(self) -> None:
        self._lock = threading.RLock()

    def acquire(self, timeout: float) -> bool:
        """Acquire the lock; return ``False`` if it was not free within ``timeout`` seconds."""
        return self._lock.acquire(timeout=timeout)

    def release(self) -> None:
        """Release the lock."""
        self._lock.release()


_locks: weakref.WeakValueDictionary[str, TableLock] = weakref.WeakValueDictionary()
_registry = threading.Lock()


def _forget() -> None:
    """Reset the locks in a forked child: the threads that hold them do not exist there."""
    global _registry
    _registry = threading.Lock()
    _locks.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def is_partial_write_visible(store: LogStore) -> bool:
    """Tell whether others may see a log file before it is completely written, which Delta decides by kind of store."""
    return store.local_root is not None or store_of(store.root) not in _WHOLE_OBJECTS


def is_commit_lock_enabled(store: LogStore, policy: CommitPolicy) -> bool:
    """Tell whether commits take the lock: the policy decides, else the kind of store."""
    return policy.commit_lock if policy.commit_lock is not None else is_partial_write_visible(store)


def lock_of(store: LogStore) -> TableLock:
    """Return the lock of a table, the same for all of its logs in this process."""
    key = (location_of(store) if store.local_root is None else Location.parse(store.local_root)).key
    with _registry:
        lock = _locks.get(key)
        if lock is None:
            lock = _locks[key] = TableLock()
        return lock


@contextmanager
def lock_commit_if_enabled(store: LogStore, policy: CommitPolicy) -> Iterator[None]:
    """Hold the table's lock inside a ``with`` block, if it is enabled."""
    if not is_commit_lock_enabled(store, policy):
        yield
        return
    lock = lock_of(store)
    if not lock.acquire(timeout=0):
        _wait(lock, store, policy)
    try:
        yield
    finally:
        lock.release()


def _wait(lock: TableLock, store: LogStore, policy: CommitPolicy) -> None:
    started = time.monotonic()
    while not lock.acquire(timeout=_POLL):
        if policy.cancelled is not None and policy.cancelled():
            raise store.error(
                CommitCancelledException,
                f"The commit to table {store.root} was cancelled while waiting for another commit of this process. Nothing was "
                "written.",
            )
        waited = time.monotonic() - started
        if policy.total_timeout is not None and waited >= policy.total_timeout:
            raise store.error(
                MaxCommitRetriesExceededException,
                f"The commit to table {store.root} gave up after waiting {waited:.1f} s for another commit of this process. "
                "Nothing was written. Commit again, or allow a longer total_timeout.",
            )


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

"""The lock with which commits from one process to one table take turns (Delta's ``lockCommitIfEnabled``).

Correctness does not need it: the store decides who wins a version. It spares threads of one process races that all but one would
lose, and is held for all attempts of a commit and the update of the log after it.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from airflow_delta.contract.location import GCS, S3, Location, store_of
from airflow_delta.exceptions import CommitCancelledException, MaxCommitRetriesExceededException
from airflow_delta.log.storage.place import location_of

if TYPE_CHECKING:
    from airflow_delta.log.storage.base import LogStore
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

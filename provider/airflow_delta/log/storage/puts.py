"""Create an object whose content shows whether it is one's own, however often the put has to be repeated.

Prove that a store refuses to overwrite: without that, two writers can commit the same version and one of them is lost.

Taking turns, between the processes of one machine, at work of which one at a time is enough.

Nothing relies on it: no file of the log is safe because of a turn. It spares eight processes that come to their first checkpoint
at once from all loading what writes one, each for as long as the eight together need.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

from airflow_delta.exceptions import ConditionalPutException
from airflow_delta.log.storage.base import AmbiguousPutError, LogStore
from airflow_delta.log.storage.file_names import LOG_DIRECTORY

if TYPE_CHECKING:
    from airflow_delta.log.storage.base import LogStore


Found = TypeVar("Found")

_REPETITIONS = 5
_PAUSE = 0.1


def creates(store: LogStore, path: str, data: bytes) -> bool:
    """Put an object unless it exists, again after an ambiguous answer, so that a throttled request does not end a task.

    Not for log entries: whether one of those is under way must be known.

    :return: whether this put created it. ``False`` if it was there, perhaps from an earlier repetition.
    :raises AmbiguousPutError: if the store does not say, however often it is asked.
    """
    repetition = 0
    while True:
        try:
            store.put_if_absent(path, data, durable=False)
        except FileExistsError:
            return False
        except AmbiguousPutError:
            if repetition == _REPETITIONS:
                raise
            repetition += 1
            time.sleep(_PAUSE * repetition)
        else:
            return True


_LOOKS = (0.1, 0.4, 1.0, 3.0, 6.0)
"""Seconds between looks for an object that is there and is not found: a look-up may be stale."""


def read_until_found(read: Callable[[], Found | None]) -> Found | None:
    """Read an object that another put has created, again as long as it is not found.

    :param read: returns ``None`` if the object is not found, or not whole.
    :return: what ``read`` has returned at last.
    """
    found = read()
    for pause in _LOOKS:
        if found is not None:
            break
        time.sleep(pause)
        found = read()
    return found


logger = logging.getLogger(__name__)

_lock = threading.Lock()
_proven: set[tuple[str, ...]] = set()


def check_conditional_put(store: LogStore, *, again: bool = False) -> None:
    """Put a scratch object twice: the second put must fail. Done once for each process and table.

    :param again: do it even if it was done.
    :raises ConditionalPutException: if the store ignores the condition.
    :raises StoreRefusedError: if the store refuses to write at all.
    """
    if store.local_root is not None:
        return
    with _lock:
        if _place(store) in _proven and not again:
            return
    path = f"{LOG_DIRECTORY}/_probe-{uuid.uuid4().hex}"
    try:
        creates(store, path, b"1")
        if creates(store, path, b"2"):
            raise store.error(
                ConditionalPutException,
                f"The store of {store.root} ignores the condition of a put (If-None-Match: *): a second writer overwrote an "
                "object. Concurrent commits would be lost without a word, so no table can be kept there. Use a store, or a "
                "version of it, with conditional puts.",
            )
    finally:
        _remove(store, path)
    with _lock:
        _proven.add(_place(store))


def _place(store: LogStore) -> tuple[str, ...]:
    """Return what makes a store another one: two connections may have buckets of one name at two endpoints."""
    return (store.root, *sorted(value for name, value in store.options.items() if "endpoint" in name.lower()))


def _remove(store: LogStore, path: str) -> None:
    try:
        store.delete([path])
    except OSError as error:
        logger.warning("Could not delete %s/%s: %s", store.root, path, error)


LONGEST_SECONDS = 600
"""After this time a turn is no longer waited for: its holder may be stopped, or hang."""

_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


@contextlib.contextmanager
def turn(store: LogStore) -> Iterator[bool]:
    """Hold the table's turn inside a ``with`` block; yields ``False`` while another process or thread of this machine has it.

    The kernel gives it back when its holder dies. Where there are no locks, or its holder has it for too long, it is free.
    """
    try:
        descriptor = _open(store)
    except OSError:
        yield True
        return
    locked = _locked(descriptor)
    try:
        yield locked or _overdue(descriptor)
    finally:
        if locked:  # a child that was forked meanwhile has the descriptor, too
            with contextlib.suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def _open(store: LogStore) -> int:
    """Open what is locked: an empty file that only this user can open. Whoever may read a table could lock a file of it."""
    from airflow_delta.private_directory import private_directory

    table = store.root if store.local_root is None else os.path.realpath(store.local_root)
    name = hashlib.sha256(table.encode(errors="surrogateescape")).hexdigest()[:32]
    return os.open(f"{private_directory()}/{name}.turn", _FLAGS, 0o600)


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a network file system without locks
        return True
    with contextlib.suppress(OSError):
        os.utime(descriptor)  # since when it is held
    return True


def _overdue(descriptor: int) -> bool:
    try:
        return abs(time.time() - os.fstat(descriptor).st_mtime) > LONGEST_SECONDS
    except OSError:
        return True

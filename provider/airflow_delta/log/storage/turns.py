"""Taking turns, between the processes of one machine, at work of which one at a time is enough.

Nothing relies on it: no file of the log is safe because of a turn. It spares eight processes that come to their first checkpoint
at once from all loading what writes one, each for as long as the eight together need.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import time
from collections.abc import Iterator

from airflow_delta.log.storage.base import LogStore

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

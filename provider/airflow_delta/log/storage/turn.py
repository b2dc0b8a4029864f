"""Taking turns, between the processes of one machine, at work of which one at a time is enough.

Nothing relies on it: no file of the log is safe because of a turn. It spares eight processes that come to their first checkpoint
at once from all loading what writes one, each for as long as the eight together need.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from airflow_delta.log.storage.file_names import LOG_DIRECTORY

if TYPE_CHECKING:
    from airflow_delta.log.storage.base import LogStore

_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextlib.contextmanager
def turn(store: LogStore) -> Iterator[bool]:
    """Hold the table's turn inside a ``with`` block; yields ``False`` while another process or thread of this machine has it.

    The kernel gives it back when its holder dies. Where the file system has no locks, it is always free.
    """
    try:
        descriptor = _open(store)
    except OSError:
        yield True
        return
    locked = _locked(descriptor)
    try:
        yield locked
    finally:
        if locked:  # a child that was forked meanwhile has the descriptor, too
            with contextlib.suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def _open(store: LogStore) -> int:
    """Open what is locked: the log itself, or for an object store an empty file in a directory of this user."""
    if store.local_root is not None:
        return os.open(f"{store.local_root}/{LOG_DIRECTORY}", _FLAGS)
    from airflow_delta.private_directory import private_directory

    name = hashlib.sha256(store.root.encode()).hexdigest()[:32]
    return os.open(f"{private_directory()}/{name}.turn", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a network file system without locks
        return True
    return True

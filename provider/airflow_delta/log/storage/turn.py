"""Taking turns, between the processes of one machine, at work of which one at a time is enough.

Nothing relies on it: no file of the log is safe because of a turn. It spares eight processes that come to their first checkpoint
at once from all loading what writes one, each for as long as the eight together need.
"""

from __future__ import annotations

import contextlib
import fcntl
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

    The kernel gives it back when its holder dies. Where the storage has no locks, it is always free.
    """
    if store.local_root is None:
        yield True
        return
    try:
        directory = os.open(f"{store.local_root}/{LOG_DIRECTORY}", _FLAGS)
    except OSError:
        yield True
        return
    locked = _locked(directory)
    try:
        yield locked
    finally:
        if locked:  # a child that was forked meanwhile has the descriptor, too
            with contextlib.suppress(OSError):
                fcntl.flock(directory, fcntl.LOCK_UN)
        os.close(directory)


def _locked(directory: int) -> bool:
    try:
        fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a network file system without locks
        return True
    return True

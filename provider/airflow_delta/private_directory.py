"""A directory on this machine that only this user can write to, for what outlives a process. Standard library only."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from functools import cache

_NAME = "airflow-delta"


def private_directory() -> str:
    """Return the directory, made if need be: below the user's cache, else below the temporary directory.

    Others may have taken a name in the temporary directory, and a home may be missing, read-only or another user's. What is not a
    directory of this user alone is passed over; in the end a new one serves this process.
    """
    return next(filter(_is_private, _candidates()), None) or _of_this_process()


def _candidates() -> Iterator[str]:
    cache_home = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(cache_home):  # ignored (XDG Base Directory Specification)
        cache_home = os.path.join(os.path.expanduser("~"), ".cache")
    if os.path.isabs(cache_home):
        yield os.path.join(cache_home, _NAME)
    yield os.path.join(tempfile.gettempdir(), f"{_NAME}-{os.getuid()}")


def _is_private(directory: str) -> bool:
    try:
        os.makedirs(directory, mode=0o700, exist_ok=True)
        status = os.lstat(directory)
    except OSError:
        return False
    own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o022
    return own and os.access(directory, os.W_OK | os.X_OK)


@cache
def _of_this_process() -> str:
    return tempfile.mkdtemp(prefix=f"{_NAME}-")

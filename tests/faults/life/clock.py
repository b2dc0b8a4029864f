"""A clock that jumps, for everything that asks ``time.time`` and for the times of the files of a table."""

from __future__ import annotations

import os
import time
from pathlib import Path
from unittest.mock import patch

from airflow_delta.log.storage.local import LocalStore

HOUR = 3600.0
DAY = 24 * HOUR
_AHEAD = 1000 * DAY
_real = time.time


class Clock:
    """Time that only moves when it is told to; files of the table are as old as it says.

    It is far ahead of the real time: a file whose time is the real one has just been written and gets this clock's.
    """

    def __init__(self, table: Path) -> None:
        self.now = _real() + _AHEAD
        self._table = table
        self._patches = [patch("time.time", self._ticking)]
        for name in ("put", "put_file", "put_if_absent"):
            self._patches.append(patch.object(LocalStore, name, self._dated(getattr(LocalStore, name))))
        for each in self._patches:
            each.start()

    def stop(self) -> None:
        for each in reversed(self._patches):
            each.stop()

    def jump(self, seconds: float) -> None:
        self.now += seconds

    def date_new_files(self) -> None:
        """Give what was written since the last call the time of this clock."""
        newest = _real() + _AHEAD / 2
        for directory, _, files in os.walk(self._table):
            for name in (*files, ""):
                path = os.path.join(directory, name) if name else directory
                if os.stat(path, follow_symlinks=False).st_mtime < newest:
                    os.utime(path, (self.now, self.now), follow_symlinks=False)

    def _ticking(self) -> float:
        self.now += 0.001  # two commits are never at the same millisecond
        return self.now

    def _dated(self, put):  # type: ignore[no-untyped-def]
        def dated(store, path, *arguments, **options):  # type: ignore[no-untyped-def]
            result = put(store, path, *arguments, **options)
            target = os.path.join(store.local_root, path)
            if os.path.lexists(target):
                os.utime(target, (self.now, self.now))
            return result

        return dated

"""An object as a seekable file, read in ranges, for Arrow's Parquet reader."""

from __future__ import annotations

import io
from bisect import bisect_right
from collections.abc import Mapping
from typing import Any, Protocol

from airflow_delta.log.storage.whole_reads import require_whole

_TAIL = 64 * 1024
"""Bytes read when the end is first requested: enough for most footers."""


class RangedReads(Protocol):
    """What a file is read with: a log store."""

    def read_range(self, path: str, start: int, length: int) -> bytes:
        """Return a part of the object."""
        ...


class ObjectInput(io.RawIOBase):
    """A read-only file over a store's ranged reads; keeps the tail of the object.

    :param size: bytes of the object.
    :param ranges: content that has been read already, by position.
    :raises IncompleteReadError: from reads, if the object is shorter.
    """

    def __init__(self, store: RangedReads, path: str, size: int, ranges: Mapping[int, bytes] | None = None) -> None:
        self._store = store
        self._path = path
        self._size = size
        self._position = 0
        self._tail: bytes | None = None
        self._ranges = ranges or {}
        self._starts = sorted(self._ranges)

    def readable(self) -> bool:
        """Return ``True``."""
        return True

    def seekable(self) -> bool:
        """Return ``True``."""
        return True

    def tell(self) -> int:
        """Return the position."""
        return self._position

    def size(self) -> int:
        """Return the number of bytes."""
        return self._size

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move the position."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = max(base + offset, 0)
        return self._position

    def read(self, size: int = -1) -> bytes:
        """Return up to ``size`` bytes; all remaining ones for -1."""
        left = max(self._size - self._position, 0)
        length = left if size < 0 else min(size, left)
        if length == 0:
            return b""
        start = self._position
        tail_start = max(self._size - _TAIL, 0)
        if (known := self._known(start, length)) is not None:
            data = known
        elif start >= tail_start:
            if self._tail is None:
                self._tail = self._read(tail_start, self._size - tail_start)
            data = self._tail[start - tail_start : start - tail_start + length]
        else:
            data = self._read(start, length)
        self._position += len(data)
        return data

    def _read(self, start: int, length: int) -> bytes:
        data = self._store.read_range(self._path, start, length)
        require_whole(f"{getattr(self._store, 'root', '')}/{self._path}".lstrip("/"), data, length)
        return data

    def _known(self, start: int, length: int) -> bytes | None:
        at = bisect_right(self._starts, start) - 1
        if at < 0:
            return None
        first = self._starts[at]
        content = self._ranges[first]
        return content[start - first : start - first + length] if start - first + length <= len(content) else None

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer."""
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

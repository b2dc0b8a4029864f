"""The bytes of files that a stage loads, without their compression."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_delta.table.stage.file_loads import LoadedFile
    from airflow_delta.table.stage.source_files import SourceFiles

BLOCK = 16 << 20
"""Bytes that a row of CSV or a JSON document may have."""

_COMPRESSED = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}


def open_text(found: SourceFiles, file: LoadedFile) -> Any:
    """Open a file that may be compressed, which the end of its name says.

    Reading raises :class:`pyarrow.ArrowInvalid` if what is compressed is damaged or cut off.
    """
    opened = found.store.open_input(file.path, file.size)
    kind = next((kind for end, kind in _COMPRESSED.items() if file.path.endswith(end)), None)
    if kind is None:
        return opened
    stored = _Stored(opened)
    return as_input(_Decompressed(pa.CompressedInputStream(as_input(stored), kind), stored))


def as_input(stream: Stream) -> Any:
    """Return a stream as one of Arrow."""
    return pa.PythonFile(stream, mode="r")


class Stream:
    """A file of Python around one of Arrow."""

    def __init__(self, opened: Any) -> None:
        self._opened = opened

    @property
    def closed(self) -> bool:
        """Whether it is closed."""
        return bool(self._opened.closed)

    def close(self) -> None:
        """Close it."""
        self._opened.close()

    def read(self, size: int = -1) -> bytes:
        """Read the next bytes, at most ``size``; none at the end."""
        return bytes(self._opened.read(size if size >= 0 else None))


class _Stored(Stream):
    """Knows whether the store failed: Arrow has one kind of error for that and for what cannot be decompressed."""

    failed = False

    def read(self, size: int = -1) -> bytes:
        try:
            return super().read(size)
        except BaseException:
            self.failed = True
            raise


class _Decompressed(Stream):
    def __init__(self, opened: Any, stored: _Stored) -> None:
        super().__init__(opened)
        self._stored = stored

    def read(self, size: int = -1) -> bytes:
        try:
            return super().read(size)
        except OSError as error:
            if self._stored.failed:
                raise
            raise pa.ArrowInvalid(f"its compression is damaged or cut off ({error})") from error


class Watched(Stream):
    """Shows what is read to a function.

    :param watch: takes the bytes, and whether the end is reached.
    """

    def __init__(self, opened: Any, watch: Callable[[bytes, bool], None]) -> None:
        super().__init__(opened)
        self._watch = watch
        self._held = b""

    def read(self, size: int = -1) -> bytes:
        """Read the next bytes, at most ``size``; none at the end."""
        more = super().read(size if size < 0 else max(size - len(self._held), 1))
        data, self._held = self._held + more, b""
        if more and len(data) > 1 and data.endswith(b"\r"):
            # Arrow leaves out a \n with which the next block begins, even inside quotes.
            data, self._held = data[:-1], b"\r"
        self._watch(data, not more)
        return data

"""Parquet footers of many files, read by ranges and without the data."""

from __future__ import annotations

import io
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from airflow_delta.exceptions import StagedFileException

if TYPE_CHECKING:
    import pyarrow.parquet as pq

    from airflow_delta.log.store import FileStatus, LogStore

_TAIL = 64 * 1024
_MAGIC = b"PAR1"
_FIXED = 8  # length of the footer, and the magic number


def read_footers(store: LogStore, statuses: Sequence[FileStatus], concurrency: int = 8) -> list[pq.FileMetaData]:
    """Return the footer of each file, in order.

    :param concurrency: ranges that are read at a time.
    :raises StagedFileException: a file is gone, shorter than listed, or no Parquet file; names it.
    """
    if len(statuses) <= 1 or concurrency <= 1:
        return [_read_footer(store, status) for status in statuses]
    with ThreadPoolExecutor(min(concurrency, len(statuses)), thread_name_prefix="footers") as pool:
        return list(pool.map(lambda status: _read_footer(store, status), statuses))


def try_footers(store: LogStore, statuses: Sequence[FileStatus], concurrency: int = 8) -> list[pq.FileMetaData | str]:
    """Return the footer of each file in order, or why a file is no Parquet file: both of its ends must say that it is."""

    def look(status: FileStatus) -> pq.FileMetaData | str:
        try:
            footer = _read_footer(store, status)
            if store.read_range(status.path, 0, len(_MAGIC)) != _MAGIC:
                return "no Parquet mark at its beginning"
        except _Broken as error:
            return error.why
        return footer

    if len(statuses) <= 1:
        return [look(status) for status in statuses]
    with ThreadPoolExecutor(min(concurrency, len(statuses)), thread_name_prefix="footers") as pool:
        return list(pool.map(look, statuses))


class _Broken(StagedFileException):
    why: str


def _read_footer(store: LogStore, status: FileStatus) -> pq.FileMetaData:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        length = min(status.size, _TAIL)
        tail = store.read_range(status.path, status.size - length, length) if length else b""
        if len(tail) != length:
            raise _broken(store, status, "it is shorter than listed")
        if len(tail) < _FIXED or tail[-4:] != _MAGIC:
            raise _broken(store, status, f"it has {len(tail)} bytes at its end and no Parquet mark")
        needed = int.from_bytes(tail[-_FIXED:-4], "little") + _FIXED
        if needed > status.size:
            raise _broken(store, status, f"its footer claims {needed} bytes, the file has {status.size}")
        if needed > len(tail):
            tail = store.read_range(status.path, status.size - needed, needed)
        # The reader wants the mark at the front, too; the data between are not looked at.
        return pq.read_metadata(io.BytesIO(_MAGIC + tail[-needed:]))
    except FileNotFoundError as error:
        raise _broken(store, status, "it is gone") from error
    except (pa.ArrowException, OSError) as error:
        raise _broken(store, status, f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}") from error


def _broken(store: LogStore, status: FileStatus, why: str) -> _Broken:
    error = _Broken(
        f"{status.path} of {store.root} ({status.size} bytes) cannot be read as Parquet: {why}. "
        "Run the stage that wrote it again.",
        table=store.root,
    )
    error.why = why
    return error

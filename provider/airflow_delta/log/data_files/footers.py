"""Reading the Parquet footers of many files by ranges, without the data."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_delta.exceptions import StagedFileException
from airflow_delta.log.storage.errors import StoreRefusedError, StoreUnavailableError
from airflow_delta.log.storage.progress import Progress

if TYPE_CHECKING:
    from airflow_delta.log.storage.base import FileStatus, LogStore

T = TypeVar("T")

_TAIL = 64 * 1024
_LEAST_TAIL = 4 * 1024
_MAGIC = b"PAR1"
_UNKNOWN_TYPE = "LogicalType that is not recognized"
_FRONT = "it does not start with the Parquet magic number"
_FIXED = 8  # bytes of the footer length and the magic number


def read_footers(
    store: LogStore, statuses: Sequence[FileStatus], concurrency: int = 8, progress: Progress | None = None
) -> list[pq.FileMetaData]:
    """Return the footer of each file, in order.

    :param concurrency: number of ranges read at a time.
    :param progress: counts them, if there are more than these.
    """

    def look(status: FileStatus, tail: int) -> pq.FileMetaData:
        return _read_footer(store, status, tail)

    if progress is not None:
        return _each(look, statuses, concurrency, progress)
    with footers_progress(store, len(statuses)) as own:
        return _each(look, statuses, concurrency, own)


def footers_progress(store: LogStore, total: int) -> Progress:
    """Return the progress of reading so many footers."""
    return Progress(f"Reading the footers of files of {store.root}", total)


def _each(look: Callable[[FileStatus, int], T], statuses: Sequence[FileStatus], concurrency: int, progress: Progress) -> list[T]:
    """Call ``look`` for each file and the number of bytes to begin with: of many files, twice what the largest one needs."""
    tail = _TAIL
    if len(statuses) > concurrency:
        first = look(max(statuses, key=lambda status: status.size), tail)
        if (size := getattr(first, "serialized_size", None)) is not None:
            tail = min(max(2 * size, _LEAST_TAIL), _TAIL)
    if len(statuses) <= 1 or concurrency <= 1:
        return [look(status, tail) for status in progress.over(statuses)]
    with ThreadPoolExecutor(min(concurrency, len(statuses)), thread_name_prefix="footers") as pool:
        return list(progress.over(pool.map(lambda status: look(status, tail), statuses)))


def try_footers(store: LogStore, statuses: Sequence[FileStatus], concurrency: int = 8) -> list[pq.FileMetaData | str]:
    """Return the footer of each file in order, or why it is not a Parquet file: both ends must have the magic number."""

    def look(status: FileStatus, tail: int) -> pq.FileMetaData | str:
        try:
            return _read_footer(store, status, tail, look_at_front=True)
        except _Broken as error:
            return error.why

    with footers_progress(store, len(statuses)) as progress:
        return _each(look, statuses, concurrency, progress)


class _Broken(StagedFileException):
    why: str


def _read_footer(store: LogStore, status: FileStatus, at_first: int, *, look_at_front: bool = False) -> pq.FileMetaData:
    try:
        length = min(status.size, at_first)
        tail = store.read_range(status.path, status.size - length, length) if length else b""
        if len(tail) != length:
            raise _broken(store, status, "it is shorter than listed")
        if len(tail) < _FIXED or tail[-4:] != _MAGIC:
            raise _broken(store, status, f"it has {len(tail)} bytes at its end and no Parquet mark")
        at_front = tail if length == status.size else store.read_range(status.path, 0, len(_MAGIC)) if look_at_front else _MAGIC
        if at_front[: len(_MAGIC)] != _MAGIC:
            raise _broken(store, status, _FRONT)
        needed = int.from_bytes(tail[-_FIXED:-4], "little") + _FIXED
        if needed > status.size:
            raise _broken(store, status, f"its footer claims {needed} bytes, but the file has {status.size}")
        if needed > len(tail):
            tail = store.read_range(status.path, status.size - needed, needed)
        # The reader checks the magic number at the front too, but does not read the data between.
        return pq.read_metadata(io.BytesIO(_MAGIC + tail[-needed:]))
    except FileNotFoundError as error:
        raise _broken(store, status, "it is gone") from error
    except (StoreUnavailableError, StoreRefusedError):  # of the store, which says nothing about the file
        raise
    except (pa.ArrowException, OSError) as error:
        why = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        if _UNKNOWN_TYPE in why:
            why = f"pyarrow {pa.__version__} does not know the type of one of its columns, such as a variant; install a newer one"
        raise _broken(store, status, why) from error


def _broken(store: LogStore, status: FileStatus, why: str) -> _Broken:
    error = _Broken(
        f"{status.path} of {store.root} ({status.size} bytes) cannot be read as Parquet: {why}. "
        "Run the stage that wrote it again.",
        table=store.root,
    )
    error.why = why
    return error

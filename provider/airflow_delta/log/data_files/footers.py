"""Reading the Parquet footers of many files by ranges, without the data."""

from __future__ import annotations

import datetime as dt
import io
import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as kinds

from airflow_delta.exceptions import StagedFileException
from airflow_delta.log.schema.partition_values import EPOCH
from airflow_delta.log.storage.base import StoreRefusedError, StoreUnavailableError
from airflow_delta.log.storage.progress import Progress

if TYPE_CHECKING:
    from airflow_delta.log.storage.base import FileStatus, LogStore

T = TypeVar("T")

_TAIL = 64 * 1024
_LEAST_TAIL = 4 * 1024
_MAGIC = b"PAR1"
PER_SECOND = {"milliseconds": 1_000, "microseconds": 1_000_000, "nanoseconds": 1_000_000_000}
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


def leaf_paths(footer: pq.FileMetaData) -> list[tuple[str, ...]]:
    """Return the path of each leaf column, in order: the names of the fields from the top.

    Parquet joins the names of a path with dots, but names may contain dots too: the column ``a.b`` and the field ``b`` of a
    struct ``a`` would be the same. Below a list or a map the path continues with ``element``, ``key`` and ``value``.
    """
    try:
        paths = [path for field in footer.schema.to_arrow_schema() for path in _leaves(field.type, (field.name,))]
    except pa.ArrowException:  # a type unknown to Arrow
        paths = []
    if len(paths) == footer.num_columns:
        return paths
    # Without the schema tree, only top-level columns without a dot in their text are unambiguous.
    texts = [footer.schema.column(index).path for index in range(footer.num_columns)]
    return [(text,) if "." not in text else (text, "") for text in texts]


def _leaves(data_type: pa.DataType, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    if isinstance(data_type, pa.BaseExtensionType):
        yield from _leaves(data_type.storage_type, path)
    elif kinds.is_struct(data_type):
        for field in data_type:
            yield from _leaves(field.type, (*path, field.name))
    elif kinds.is_map(data_type):
        yield from _leaves(data_type.key_type, (*path, "key"))
        yield from _leaves(data_type.item_type, (*path, "value"))
    elif kinds.is_list(data_type) or kinds.is_large_list(data_type) or kinds.is_fixed_size_list(data_type):
        yield from _leaves(data_type.value_type, (*path, "element"))
    else:
        yield path


def instant_of(statistics: pq.Statistics) -> Callable[[int], dt.datetime] | None:
    """Return the function from a physical value to the point in time it stands for; ``None`` for columns of other types.

    pyarrow's own ``min`` and ``max`` import pandas for timestamps.
    """
    if statistics.physical_type != "INT64" or statistics.logical_type.type != "TIMESTAMP":
        return None
    logical = json.loads(statistics.logical_type.to_json())
    return timestamps(PER_SECOND[logical["timeUnit"]], zoned=logical["isAdjustedToUTC"])


def timestamps(per_second: int, *, zoned: bool) -> Callable[[int], dt.datetime]:
    """Return the function from a number of ticks since the epoch to a point in time, cut to microseconds."""
    epoch = EPOCH if zoned else EPOCH.replace(tzinfo=None)
    return lambda raw: epoch + dt.timedelta(microseconds=raw * 1_000_000 // per_second)


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

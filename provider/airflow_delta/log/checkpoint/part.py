"""One Parquet file of a checkpoint: its footer, its row groups, and batches of requested columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any
from typing import Protocol as TypingProtocol

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_delta.exceptions import DeltaLogCorruptedException
from airflow_delta.log.checkpoint.byte_ranges import windows
from airflow_delta.log.checkpoint.prefetch import prefetched
from airflow_delta.log.data_files.leaf_columns import instant_of, leaf_paths
from airflow_delta.log.schema.walk import Path
from airflow_delta.log.storage.base import FileStatus, Ranges
from airflow_delta.log.storage.errors import StoreRefusedError

if TYPE_CHECKING:
    import pyarrow.parquet as pq


BATCH_ROWS = 32_768

# For each kind of action, the leaf that is never null in a row of that kind.
MARKERS = {
    "add": "add.path",
    "remove": "remove.path",
    "metaData": "metaData.id",
    "protocol": "protocol.minReaderVersion",
    "txn": "txn.appId",
    "domainMetadata": "domainMetadata.domain",
    "sidecar": "sidecar.path",
    "checkpointMetadata": "checkpointMetadata.version",
}


class PartStatus(TypingProtocol):
    """What the reader needs to know of a part: its path and size."""

    @property
    def path(self) -> str: ...

    @property
    def size(self) -> int: ...


class InputStore(TypingProtocol):
    """The part of a log store that the reader needs."""

    @property
    def local_root(self) -> str | None: ...

    def open_input(self, path: str, size: int | None = None, ranges: Ranges | None = None) -> Any: ...

    def read(self, path: str) -> bytes: ...

    def read_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]: ...

    def head(self, path: str) -> FileStatus | None: ...


CONSISTENT = "airflow_delta.consistent_statistics"
"""Key in the footer of a part: the typed statistics of none of its files contradict themselves."""


class RowGroup:
    """One row group of a part, as its footer describes it.

    :param part: the part that holds it.
    :param index: its position in the part.
    """

    def __init__(self, part: CheckpointPart, index: int) -> None:
        self.part = part
        self.index = index
        self._meta = part.metadata.row_group(index)

    @property
    def num_rows(self) -> int:
        """Return the number of rows, of all kinds."""
        return int(self._meta.num_rows)

    def null_count(self, leaf: Path) -> int | None:
        """Return how many rows have no value in a leaf outside lists and maps, or ``None`` if the footer does not say."""
        position = self.part.leaves.get(leaf)
        if position is None:
            return self.num_rows
        statistics = self._meta.column(position).statistics
        if statistics is None or not statistics.has_null_count:
            return None
        return int(statistics.null_count)

    def bounds(self, leaf: Path) -> tuple[Any, Any] | None:
        """Return the least and the greatest value of a leaf.

        ``None`` if the footer does not say, or Python cannot hold them: some dates and times, a text cut inside a character.
        """
        position = self.part.leaves.get(leaf)
        if position is None:
            return None
        statistics = self._meta.column(position).statistics
        if statistics is None or not statistics.has_min_max:
            return None
        moment = instant_of(statistics)
        try:
            if moment is not None:
                return moment(statistics.min_raw), moment(statistics.max_raw)
            return statistics.min, statistics.max
        except (OverflowError, UnicodeDecodeError):
            return None

    def may_begin(self, leaf: Path, prefixes: Iterable[str]) -> bool:
        """Return whether any text in a leaf may begin with one of these prefixes; only ``False`` is certain."""
        low, high = self.bounds(leaf) or (None, None)
        if not isinstance(low, str) or not isinstance(high, str):
            return True
        return any(low[: len(prefix)] <= prefix <= high[: len(prefix)] for prefix in prefixes)

    def may_hold(self, kind: str) -> bool:
        """Return whether it may have rows of that kind (``add``, ``txn``, ...)."""
        return self.null_count(tuple(MARKERS[kind].split("."))) != self.num_rows


class CheckpointPart:
    """One Parquet file of a checkpoint; the footer is read once.

    :param store: where the file is.
    :param status: its path and size.
    :param table: URI of the table, for error messages.
    :param version: version of the checkpoint, for error messages.
    """

    def __init__(self, store: InputStore, status: PartStatus, *, table: str, version: int) -> None:
        self.path = status.path
        self._store = store
        self._size = status.size
        self._table = table
        self._version = version

    @contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            raise self.corrupted("is missing") from error
        except (pa.ArrowException, EOFError, UnicodeDecodeError) as error:
            raise self.corrupted(f"is damaged: {error}") from error
        except OSError as error:
            # Arrow reports a damaged file as a plain OSError; one with a code, or a subclass, comes from the storage.
            if type(error) is not OSError or error.errno is not None:
                raise
            raise self.corrupted(f"is damaged: {error}") from error

    def corrupted(self, what: str) -> DeltaLogCorruptedException:
        """Return the error for this file, given what is wrong with it."""
        return DeltaLogCorruptedException(
            f"Checkpoint file {self.path} of version {self._version} of table {self._table} {what}. "
            "An older checkpoint or the JSON commits are read instead, if the log still has them. Delete the file to avoid this.",
            table=self._table,
            version=self._version,
        )

    def read(self) -> bytes:
        """Return the whole file, whatever its format."""
        return self._store.read(self.path)

    @property
    def _local(self) -> bool:
        return self._store.local_root is not None

    def _open(self, metadata: pq.FileMetaData | None = None, ranges: Ranges | None = None) -> pq.ParquetFile:
        source = self._store.open_input(self.path, None if self._local else self._size, ranges)
        return pq.ParquetFile(
            source,
            metadata=metadata,
            pre_buffer=False,  # what is worth it has been read
            page_checksum_verification=True,
            coerce_int96_timestamp_unit="us",  # the year 9999 overflows in nanoseconds
        )

    @cached_property
    def metadata(self) -> pq.FileMetaData:
        """Return the footer."""
        if self._size == 0:
            raise self.corrupted("is empty")
        try:
            return self._footer()
        except (DeltaLogCorruptedException, StoreRefusedError):
            if not self._has_another_size():
                raise
            return self._footer()

    def _footer(self) -> pq.FileMetaData:
        with self._readable(), self._open() as file:
            return file.metadata

    @property
    def has_consistent_statistics(self) -> bool:
        """Whether its writer has made sure that no file's typed statistics contradict themselves."""
        return CONSISTENT.encode() in (self.metadata.metadata or {})

    def _has_another_size(self) -> bool:
        """Adopt the size of a file on an object store if it is not the listed one: another writer may have replaced the file."""
        status = None if self._local else self._store.head(self.path)
        if status is None or status.size == self._size:
            return False
        self._size = status.size
        return True

    @cached_property
    def leaves(self) -> dict[Path, int]:
        """Return the position of every leaf column by its path (:func:`airflow_delta.log.data_files.leaf_columns.leaf_paths`)."""
        return {path: i for i, path in enumerate(leaf_paths(self.metadata))}

    @cached_property
    def schema(self) -> pa.Schema:
        """Return the Arrow schema."""
        with self._readable():
            return self._with_moments(self.metadata.schema.to_arrow_schema())

    @cached_property
    def _int96(self) -> frozenset[Path]:
        schema = self.metadata.schema
        return frozenset(path for path, i in self.leaves.items() if schema.column(i).physical_type == "INT96")

    def _with_moments(self, schema: pa.Schema) -> pa.Schema:
        """Return a schema with UTC timestamps for INT96 columns: Spark writes timestamps so, and INT96 has no time zone."""
        return pa.schema([field.with_type(_with_moments(field.type, (field.name,), self._int96)) for field in schema])

    @cached_property
    def row_groups(self) -> list[RowGroup]:
        """Return the row groups in order."""
        return [RowGroup(self, index) for index in range(self.metadata.num_row_groups)]

    def batches(self, row_groups: Sequence[RowGroup], columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield record batches of the given row groups and (nested) columns; missing columns are left out.

        :param columns: dotted paths; a prefix selects everything below it.
        """
        present = [name for name in columns if self.has_text(name)]
        if not row_groups or not present:
            return
        with self._readable():
            for together, ranges in self._fetched([group.index for group in row_groups], present):
                wanted, found = sum(self.metadata.row_group(index).num_rows for index in together), 0
                with self._open(self.metadata, ranges) as file:
                    for batch in file.iter_batches(BATCH_ROWS, row_groups=together, columns=present):
                        found += batch.num_rows
                        yield batch.cast(self._with_moments(batch.schema)) if self._int96 else batch
                if found != wanted:  # pages whose headers count fewer values than the footer
                    raise self.corrupted(f"is damaged: it has {found:,} rows where its footer says {wanted:,}")

    def _fetched(self, groups: list[int], columns: Sequence[str]) -> Iterator[tuple[list[int], Ranges | None]]:
        """Yield row groups with their columns: a window of a file on an object store while the one before it is in use."""
        if self._local:
            yield groups, None
            return
        found = list(windows(self.metadata, groups, columns))
        read = ((together, self._read_ranges(ranges)) for together, ranges in found)
        yield from read if len(found) < 2 else prefetched(read)

    def _read_ranges(self, ranges: Sequence[tuple[int, int]]) -> Ranges:
        try:
            read = self._store.read_ranges(self.path, ranges)
        except StoreRefusedError as error:
            if not self._has_another_size():
                raise
            raise self.corrupted("was replaced while it was read") from error
        return {start: content for (start, _), content in zip(ranges, read, strict=True)}

    def has(self, path: Path) -> bool:
        """Return whether the file has the column, or columns below it."""
        return path in self.leaves or any(leaf[: len(path)] == path for leaf in self.leaves)

    def has_text(self, column: str) -> bool:
        """Return whether the file has a column for a dotted path, as :meth:`batches` takes it."""
        return column in self._texts or any(text.startswith(f"{column}.") for text in self._texts)

    @cached_property
    def _texts(self) -> frozenset[str]:
        return frozenset(map(".".join, self.leaves))


def _with_moments(data_type: pa.DataType, path: Path, int96: frozenset[Path]) -> pa.DataType:
    if pa.types.is_struct(data_type):
        return pa.struct([f.with_type(_with_moments(f.type, (*path, f.name), int96)) for f in data_type])
    return pa.timestamp("us", "UTC") if path in int96 else data_type

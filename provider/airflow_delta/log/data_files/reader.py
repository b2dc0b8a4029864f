"""Rows of one data file as record batches: live ones, in the table's columns and types."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyroaring import BitMap64

from airflow_delta.exceptions import (
    DeltaAnalysisException,
    DeltaFileNotFoundException,
    DeltaLogCorruptedException,
    ReadLimitException,
)
from airflow_delta.light_dataclasses import dataclass
from airflow_delta.log.arrow.arrays import array, scalar
from airflow_delta.log.data_files.batches import (
    BATCH_ROWS,
    JOINED_BYTES,
    encoded_columns,
    joined_batches,
    longest_value,
    plain_field,
    plain_parts,
)
from airflow_delta.log.data_files.columns import FileFields, FileKind, from_file_type, has_ids
from airflow_delta.log.data_files.page_sizes import (
    Chunk,
    batch_rows,
    declared,
    problem_of,
    value_bytes,
)
from airflow_delta.log.schema.partition_values import parse_partition_value
from airflow_delta.log.storage.errors import StoreRefusedError, StoreUnavailableError
from airflow_delta.log.storage.table_paths import locate

if TYPE_CHECKING:
    from airflow_delta.log.actions.actions import AddFile, RemoveFile
    from airflow_delta.log.data_files.columns import Convert
    from airflow_delta.log.schema.types import StructField
    from airflow_delta.log.storage.base import LogStore


_WHOLE_BYTES = 4 << 20  # of a remote file that is read at once

_VERSION = b"org.apache.spark.version"
_LEGACY = (b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96")


@dataclass(frozen=True, slots=True)
class _Opened:
    """A data file.

    :param content: returns the file for reads; of one at a time if each read is a request.
    :param remote: each read is a request.
    """

    content: Callable[[], Any]
    remote: bool
    footer: pq.ParquetFile

    def reader(self, read_dictionary: Sequence[str] = ()) -> pq.ParquetFile:
        """Return a reader for one thread.

        :param read_dictionary: columns that come as references to a dictionary.
        """
        return _parquet(self.content(), self.remote, metadata=self.footer.metadata, read_dictionary=list(read_dictionary))


@dataclass(frozen=True, slots=True)
class DataRowGroup:
    """A row group of a file that has wanted rows.

    :param number: in the file.
    :param start: position of its first row in the file.
    :param sources: where each column comes from: a scalar, or its name in the file and the function to convert it.
    """

    file: AddFile | RemoveFile
    opened: _Opened
    number: int
    start: int
    num_rows: int
    sources: Sequence[Any]
    marked: BitMap64 | None
    deleted: bool


class RowSelection(NamedTuple):
    """Which rows are wanted, by their values.

    :param columns: names of the columns that decide.
    :param rows: returns where a batch of them is wanted.
    """

    columns: frozenset[str]
    rows: Callable[[pa.RecordBatch], pa.BooleanArray]


class FileReader:
    """Reads data files of one version of a table.

    :param fields: the columns to return, in order: the table's, without physical names unless files have these.
    :param target: their Arrow fields.
    :param partition_columns: logical names.
    :param by_id: columns are found by field id.
    :param most_rows: rows to decode at once; by default as many more as take little memory.
    """

    def __init__(
        self,
        store: LogStore,
        version: int,
        fields: Sequence[StructField],
        target: pa.Schema,
        partition_columns: Sequence[str],
        *,
        by_id: bool,
        most_rows: int = BATCH_ROWS,
    ) -> None:
        partitions = {name.lower() for name in partition_columns}
        self._store = store
        self._version = version
        self._fields = fields
        self._target = target
        self._in_partition = [field.name.lower() in partitions for field in fields]
        self._by_id = by_id
        self.most_rows = most_rows
        self._stores: dict[str, LogStore] = {}

    def read(self, file: AddFile | RemoveFile, marked: BitMap64 | None, *, deleted: bool = False) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a file; parameters and errors as for :meth:`groups` and :meth:`rows`."""
        for group in self.groups(file, marked, deleted=deleted):
            yield from self.rows(group)

    def groups(self, file: AddFile | RemoveFile, marked: BitMap64 | None, *, deleted: bool = False) -> Iterator[DataRowGroup]:
        """Yield the row groups of a file that have wanted rows.

        :param marked: positions of the rows that its deletion vector marks.
        :param deleted: the marked rows instead of the others.
        :raises DeltaFileNotFoundException: if it is gone.
        :raises DeltaLogCorruptedException: if it is damaged.
        :raises DeltaAnalysisException: if it does not have the table's columns in a type that they can be read from.
        """
        with self._explained(file):
            opened = self._open(file)
            parquet = opened.footer
            if marked and marked.max() >= parquet.metadata.num_rows:
                raise self._store.error(
                    DeltaLogCorruptedException,
                    f"The deletion vector of {file.path} in table {self._store.root} version {self._version} marks row "
                    f"{marked.max()}, but the file has {parquet.metadata.num_rows} rows. Another writer's commit is damaged; "
                    "restore the table to an earlier version.",
                    version=self._version,
                )
            sources = self._sources(file, parquet)
            start = 0
            for number in range(parquet.metadata.num_row_groups):
                rows = parquet.metadata.row_group(number).num_rows
                if _counts(marked, start, start + rows, deleted):
                    yield DataRowGroup(file, opened, number, start, rows, sources, marked, deleted)
                start += rows

    def rows(self, group: DataRowGroup, selection: RowSelection | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the wanted rows of a row group.


        Also raises as :meth:`groups` does.
        """
        with self._explained(group.file):
            yield from joined_batches(self._converted(group, selection), self.most_rows)

    def _converted(self, group: DataRowGroup, selection: RowSelection | None) -> Iterator[pa.RecordBatch]:
        """Yield the wanted rows of a row group, and look up in dictionaries only what they refer to."""
        start = group.start
        constants: list[pa.Array | None] = [None] * len(group.sources)
        for length, columns in self._stored(group):
            if _counts(group.marked, start, start + length, group.deleted):
                arrays = []
                for at, source in enumerate(group.sources):
                    if isinstance(source, tuple):
                        found = columns[source[0]]
                        arrays.append(found if pa.types.is_dictionary(found.type) else source[1](found))
                    else:
                        constant = constants[at]
                        if constant is None or len(constant) < length:
                            constants[at] = constant = _repeated(source, length)
                        arrays.append(constant.slice(0, length))
                batch = pa.RecordBatch.from_arrays(arrays, names=self._target.names)
                if group.marked is not None:
                    batch = _live(batch, group.marked, start, group.deleted)
                yield from self._plain(batch if selection is None else self._selected(group, batch, selection), group)
            start += length

    def _selected(self, group: DataRowGroup, batch: pa.RecordBatch, selection: RowSelection) -> pa.RecordBatch:
        at = [number for number, name in enumerate(self._target.names) if name in selection.columns]
        at = at or [0]  # a batch without columns has no rows
        masks = [selection.rows(part) for part in self._plain(batch.select(at), group, at)]
        if sum(mask.true_count for mask in masks) == batch.num_rows:  # a filter would copy all of it
            return batch
        return batch.filter(masks[0] if len(masks) == 1 else pa.concat_arrays(masks))

    def _plain(self, batch: pa.RecordBatch, group: DataRowGroup, fields: Sequence[int] | None = None) -> Iterator[pa.RecordBatch]:
        """Yield a batch in the table's types, its dictionaries replaced by their values.

        :param fields: the columns that the batch has; default: all.
        """
        fields = range(len(self._target)) if fields is None else fields
        schema = pa.schema([self._target.field(at) for at in fields])
        encoded = [pa.types.is_dictionary(column.type) for column in batch.columns]
        for part in plain_parts(batch):
            arrays = [
                group.sources[at][1](column) if refers else column
                for at, column, refers in zip(fields, part.columns, encoded, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)

    @contextmanager
    def _explained(self, file: AddFile | RemoveFile) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            raise self._store.error(
                DeltaFileNotFoundException,
                f"Data file {file.path} of table {self._store.root} version {self._version} is gone. VACUUM deletes the files of "
                "versions older than its retention period. Read a newer version, or restore the file from a backup.",
                version=self._version,
            ) from error
        except DeltaAnalysisException as error:
            raise self._store.error(
                DeltaAnalysisException,
                f"Data file {file.path} of table {self._store.root} version {self._version} cannot be read without Spark: "
                f"{error.message}.",
                version=self._version,
            ) from error
        except (StoreUnavailableError, StoreRefusedError):  # of the store, which says nothing about the file
            raise
        except (pa.ArrowException, OSError) as error:
            raise self._store.error(
                DeltaLogCorruptedException,
                f"Data file {file.path} of table {self._store.root} version {self._version} cannot be read "
                f"({str(error).splitlines()[0] if str(error) else type(error).__name__}). If Spark reads it, use "
                'df_type="spark"; if not, restore it from a backup.',
                version=self._version,
            ) from error

    def _stored(self, group: DataRowGroup) -> Iterator[tuple[int, dict[str, pa.Array]]]:
        """Yield number of rows and columns of batches of a row group, as the file has them."""
        names = list(dict.fromkeys(source[0] for source in group.sources if isinstance(source, tuple)))
        if not names:
            for first in range(0, group.num_rows, self.most_rows):
                yield min(self.most_rows, group.num_rows - first), {}
            return
        chunks, opened = self._checked(group, names), group.opened
        most = self._rows_at_once(group, chunks)
        encoded = encoded_columns(chunks, opened.footer.schema_arrow, most)

        @cache
        def longest(chunk: Chunk) -> int:
            return longest_value(opened.reader([chunk.path]), group.number, chunk)

        known = {*encoded, *(f.name for f in opened.footer.schema_arrow if pa.types.is_dictionary(f.type))}
        others = [chunk for chunk in chunks if chunk.path not in known]
        size = batch_rows(others, most, None if opened.remote else longest)
        if size > self.most_rows:  # by the mean of each dictionary, but its longest value may stand in every row
            value = sum(longest(chunk) for chunk in others if chunk.is_text and chunk.dictionary)
            size = min(size, max(self.most_rows, JOINED_BYTES // max(value, 1)))
        found = 0
        for batch in opened.reader(encoded).iter_batches(size, row_groups=[group.number], columns=names, use_threads=True):
            found += batch.num_rows
            yield batch.num_rows, dict(zip(batch.schema.names, batch.columns, strict=True))
        if found != group.num_rows:
            raise OSError(f"row group {group.number} has {found:,} rows, its footer says {group.num_rows:,}")

    def _rows_at_once(self, group: DataRowGroup, chunks: Sequence[Chunk]) -> int:
        """Return how many rows to decode at once: each batch costs time, above all for the dictionaries that it repeats."""
        if self.most_rows < BATCH_ROWS or group.opened.remote:
            return min(self.most_rows, group.num_rows)
        constants = [source for source in group.sources if not isinstance(source, tuple)]
        memory = sum(map(value_bytes, chunks)) + group.num_rows * sum(map(_bytes_of, constants))
        parts = memory // JOINED_BYTES + 1
        return max(min(self.most_rows, group.num_rows), -(-group.num_rows // parts))

    def _checked(self, group: DataRowGroup, names: Sequence[str]) -> list[Chunk]:
        """Return what columns of a row group declare, and refuse those that take much more memory than their size lets expect.

        Headers of pages are read where that costs no requests; in other files only if the footer, which counts all pages of a
        column together, does not tell that they are small.
        """
        opened, file, number = group.opened, group.file, group.number
        try:
            chunks = declared(opened.footer, opened.content(), number, names, headers=not opened.remote)
            problem = problem_of(chunks)
            if problem is not None and opened.remote:
                chunks = declared(opened.footer, opened.content(), number, names, headers=True)
                problem = problem_of(chunks)
        except ValueError as error:
            raise OSError(str(error)) from error
        if problem is not None:
            raise self._store.error(
                ReadLimitException,
                f"Data file {file.path} of table {self._store.root} version {self._version} is not read: {problem}. Leave "
                'columns out with columns=, or read it with Spark (df_type="spark") if you trust who wrote it.',
                version=self._version,
            )
        return chunks

    def _open(self, file: AddFile | RemoveFile) -> _Opened:
        store, key = locate(self._store, unquote(file.path), self._stores)
        content, remote = store.open_input(key, file.size), store.local_root is None
        if remote and file.size is not None and file.size <= _WHOLE_BYTES:
            content, remote = pa.BufferReader(content.read()), False
        return _Opened(
            partial(store.open_input, key, file.size) if remote else lambda: content, remote, _parquet(content, remote)
        )

    def _sources(self, file: AddFile | RemoveFile, parquet: pq.ParquetFile) -> list[Any]:
        """Return where each column comes from: a scalar, or its name in the file and the function to convert it."""
        there = [plain_field(field) for field in parquet.schema_arrow]
        kind = FileKind(self._by_id, is_legacy(parquet.metadata.metadata or {}), _int96_columns(parquet.metadata))
        if self._by_id and there and not has_ids(there) and not all(self._in_partition):
            raise DeltaAnalysisException("the table finds columns by field id, and it has no field ids")
        sources: list[Any] = []
        by_name = FileFields(there, kind)
        for field, target, in_partition in zip(self._fields, self._target, self._in_partition, strict=True):
            if in_partition:
                text = (file.partition_values or {}).get(field.physical_name)
                sources.append(array([parse_partition_value(text, field.data_type, field.name)], target.type)[0])
                continue
            at = by_name.find(field)
            found: tuple[str, Convert] | pa.Scalar
            found = pa.nulls(1, target.type)[0] if at is None else (there[at].name, from_file_type(field, there[at], kind))
            sources.append(found)
        return sources


def _bytes_of(value: pa.Scalar) -> int:
    return value.as_buffer().size if value.is_valid and value.type in (pa.string(), pa.binary()) else 8


def _repeated(value: pa.Scalar, length: int) -> pa.Array:
    return pa.repeat(value, length) if value.is_valid else pa.nulls(length, value.type)


def _parquet(content: Any, remote: bool, **options: Any) -> pq.ParquetFile:
    return pq.ParquetFile(content, pre_buffer=remote, coerce_int96_timestamp_unit="us", **options)


def _counts(marked: BitMap64 | None, start: int, end: int, deleted: bool) -> bool:
    """Return whether some of a range of rows is wanted."""
    if marked is None:
        return not deleted and end > start
    found = int(marked.range_cardinality(start, end))
    return found > 0 if deleted else found < end - start


def _live(batch: pa.RecordBatch, marked: BitMap64, start: int, deleted: bool) -> pa.RecordBatch:
    here = BitMap64(range(start, start + batch.num_rows))
    found = marked & here
    if len(found) == (batch.num_rows if deleted else 0):
        return batch
    data = (found if deleted else here - found).to_array()
    positions = pa.Array.from_buffers(pa.uint64(), len(data), [None, pa.py_buffer(data)])
    return batch.take(pc.subtract(positions, scalar(start, pa.uint64())))


def is_legacy(metadata: dict[bytes, bytes]) -> bool:
    """Return whether dates and times of before 1900 may be in the Julian calendar."""
    version = re.match(rb"(\d+)\.(\d+)", metadata.get(_VERSION, b""))
    old = version is not None and (int(version[1]), int(version[2])) < (3, 1)
    return old or any(key in metadata for key in _LEGACY)


def _int96_columns(metadata: pq.FileMetaData) -> frozenset[str]:
    leaves = [metadata.schema.column(i) for i in range(metadata.num_columns)]
    return frozenset(leaf.path for leaf in leaves if leaf.physical_type == "INT96")

"""Rows of one data file as record batches: live ones, in the table's columns and types."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from airflow_delta.commands.files.table_paths import locate
from airflow_delta.commands.read.columns import FileFields, FileKind, converter, has_ids
from airflow_delta.commands.read.page_sizes import batch_rows, check_pages
from airflow_delta.exceptions import (
    DeltaAnalysisException,
    DeltaFileNotFoundException,
    DeltaLogCorruptedException,
    ReadLimitException,
)
from airflow_delta.log.schema.partition_values import parse_partition_value
from airflow_delta.log.storage.base import StoreRefusedError, StoreUnavailableError

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyroaring import BitMap64

    from airflow_delta.commands.read.columns import Convert
    from airflow_delta.log.actions.actions import AddFile, RemoveFile
    from airflow_delta.log.schema.types import StructField
    from airflow_delta.log.storage.base import LogStore

BATCH_ROWS = 65_536

_BATCH_BYTES = 32 << 20  # up to which small batches are joined

_WHOLE_BYTES = 4 << 20  # of a remote file that is read at once

_VERSION = b"org.apache.spark.version"
_LEGACY = (b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96")


class FileReader:
    """Reads data files of one version of a table.

    :param fields: the columns to return, in order: the table's, without physical names unless files have these.
    :param target: their Arrow fields.
    :param partition_columns: logical names.
    :param by_id: columns are found by field id.
    :param most_rows: rows to decode at once.
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
        self._most_rows = most_rows
        self._stores: dict[str, LogStore] = {}

    def read(self, file: AddFile | RemoveFile, marked: BitMap64 | None, *, deleted: bool = False) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a file.

        :param marked: positions of the rows that its deletion vector marks.
        :param deleted: the marked rows instead of the others.
        :raises DeltaFileNotFoundException: if it is gone.
        :raises DeltaLogCorruptedException: if it is damaged.
        :raises ReadLimitException: if it declares much more memory than its size lets expect.
        :raises DeltaAnalysisException: if it does not have the table's columns in a type that they can be read from.
        """
        import pyarrow as pa

        try:
            yield from self._read(file, marked, deleted)
        except FileNotFoundError as error:
            raise DeltaFileNotFoundException(
                f"Data file {file.path} of table {self._store.root} version {self._version} is gone. VACUUM deletes the files of "
                "versions older than its retention period. Read a newer version, or restore the file from a backup.",
                table=self._store.root,
                version=self._version,
            ) from error
        except DeltaAnalysisException as error:
            raise DeltaAnalysisException(
                f"Data file {file.path} of table {self._store.root} version {self._version} cannot be read without Spark: "
                f"{error.message}.",
                table=self._store.root,
                version=self._version,
            ) from error
        except (StoreUnavailableError, StoreRefusedError):  # of the store, which says nothing about the file
            raise
        except (pa.ArrowException, OSError) as error:
            raise DeltaLogCorruptedException(
                f"Data file {file.path} of table {self._store.root} version {self._version} cannot be read "
                f"({str(error).splitlines()[0] if str(error) else type(error).__name__}). If Spark reads it, use "
                'df_type="spark"; if not, restore it from a backup.',
                table=self._store.root,
                version=self._version,
            ) from error

    def _read(self, file: AddFile | RemoveFile, marked: BitMap64 | None, deleted: bool) -> Iterator[pa.RecordBatch]:
        parquet, opened = self._open(file)
        if marked and marked.max() >= parquet.metadata.num_rows:
            raise DeltaLogCorruptedException(
                f"The deletion vector of {file.path} in table {self._store.root} version {self._version} marks row "
                f"{marked.max()}, but the file has {parquet.metadata.num_rows} rows. Another writer's commit is damaged; restore "
                "the table to an earlier version.",
                table=self._store.root,
                version=self._version,
            )
        sources = self._sources(file, parquet)
        stored = list(dict.fromkeys(source[0] for source in sources if isinstance(source, tuple)))
        start = 0
        for group in range(parquet.metadata.num_row_groups):
            rows = parquet.metadata.row_group(group).num_rows
            if _counts(marked, start, start + rows, deleted):
                self._check_memory(file, parquet, opened, group, stored)
                yield from self._read_group(parquet, group, start, stored, sources, marked, deleted)
            start += rows

    def _read_group(
        self,
        parquet: pq.ParquetFile,
        group: int,
        start: int,
        stored: Sequence[str],
        sources: Sequence[Any],
        marked: BitMap64 | None,
        deleted: bool,
    ) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        size = batch_rows(parquet, group, stored, self._most_rows)
        for length, columns in _stored_batches(parquet, group, stored, size, self._most_rows):
            if _counts(marked, start, start + length, deleted):
                arrays = [_values(source, columns, length) for source in sources]
                batch = pa.RecordBatch.from_arrays(arrays, schema=self._target)
                yield batch if marked is None else _live(batch, marked, start, deleted)
            start += length

    def _check_memory(
        self, file: AddFile | RemoveFile, parquet: pq.ParquetFile, opened: Any, group: int, stored: Sequence[str]
    ) -> None:
        """Refuse a row group that takes much more memory than its size lets expect.

        Headers of pages are read where that costs no requests; in other files only if the footer, which counts all pages of a
        column together, does not tell that they are small.
        """
        headers = self._store.local_root is not None or _is_small(file)
        try:
            problem = check_pages(parquet, opened, group, stored, headers=headers)
            if problem is not None and not headers:
                problem = check_pages(parquet, opened, group, stored, headers=True)
        except ValueError as error:
            raise OSError(str(error)) from error
        if problem is not None:
            raise ReadLimitException(
                f"Data file {file.path} of table {self._store.root} version {self._version} is not read: {problem}. Leave "
                'columns out with columns=, or read it with Spark (df_type="spark") if you trust who wrote it.',
                table=self._store.root,
                version=self._version,
            )

    def _open(self, file: AddFile | RemoveFile) -> tuple[pq.ParquetFile, Any]:
        """Return a file, and its content for other reads than those of Arrow."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        path = unquote(file.path)
        directory = path.rpartition("/")[0]
        store = self._stores.get(directory)  # of files elsewhere: not a client for each
        if store is None:
            store, key = locate(self._store, path)
            if store is not self._store:
                self._stores[directory] = store
        else:
            key = path.rpartition("/")[2]
        opened = store.open_input(key, file.size)
        if store.local_root is None and _is_small(file):
            opened = pa.BufferReader(opened.read())
        parquet = pq.ParquetFile(opened, pre_buffer=store.local_root is None, coerce_int96_timestamp_unit="us")
        return parquet, opened

    def _sources(self, file: AddFile | RemoveFile, parquet: pq.ParquetFile) -> list[Any]:
        """Return where each column comes from: a scalar, or its name in the file and the function to convert it."""
        import pyarrow as pa

        from airflow_delta.log.arrow.arrays import array

        there = list(parquet.schema_arrow)
        kind = FileKind(self._by_id, _is_legacy(parquet.metadata.metadata or {}), _int96_columns(parquet.metadata))
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
            found = pa.nulls(1, target.type)[0] if at is None else (there[at].name, converter(field, there[at], kind))
            sources.append(found)
        return sources


def _is_small(file: AddFile | RemoveFile) -> bool:
    return file.size is not None and file.size <= _WHOLE_BYTES


def _stored_batches(
    parquet: pq.ParquetFile, group: int, names: Sequence[str], size: int, most: int
) -> Iterator[tuple[int, dict[str, pa.Array]]]:
    """Yield number of rows and columns of batches of a row group.

    :param size: rows to decode at once.
    :param most: rows of a batch; those that are decoded are joined, since each costs time.
    """
    if not names:
        rows = parquet.metadata.row_group(group).num_rows
        for first in range(0, rows, BATCH_ROWS):
            yield min(BATCH_ROWS, rows - first), {}
        return
    waiting: list[pa.RecordBatch] = []
    rows = used = 0
    for batch in parquet.iter_batches(size, row_groups=[group], columns=list(names), use_threads=False):
        if waiting and (rows + batch.num_rows > most or used + batch.nbytes > _BATCH_BYTES):
            yield rows, _joined(waiting, names)
            waiting, rows, used = [], 0, 0
        waiting.append(batch)
        rows, used = rows + batch.num_rows, used + batch.nbytes
    if waiting:
        yield rows, _joined(waiting, names)


def _joined(batches: Sequence[pa.RecordBatch], names: Sequence[str]) -> dict[str, pa.Array]:
    import pyarrow as pa

    if len(batches) == 1:
        return {name: batches[0].column(name) for name in names}
    [batch] = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return {name: batch.column(name) for name in names}


def _values(source: Any, columns: dict[str, pa.Array], length: int) -> pa.Array:
    import pyarrow as pa

    if isinstance(source, tuple):
        name, convert = source
        return convert(columns[name])
    return pa.repeat(source, length) if source.is_valid else pa.nulls(length, source.type)


def _counts(marked: BitMap64 | None, start: int, end: int, deleted: bool) -> bool:
    """Return whether some of a range of rows is wanted."""
    if marked is None:
        return not deleted and end > start
    found = int(marked.range_cardinality(start, end))
    return found > 0 if deleted else found < end - start


def _live(batch: pa.RecordBatch, marked: BitMap64, start: int, deleted: bool) -> pa.RecordBatch:
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyroaring import BitMap64

    from airflow_delta.log.arrow.arrays import scalar

    here = BitMap64(range(start, start + batch.num_rows))
    found = marked & here
    if len(found) == (batch.num_rows if deleted else 0):
        return batch
    data = (found if deleted else here - found).to_array()
    positions = pa.Array.from_buffers(pa.uint64(), len(data), [None, pa.py_buffer(data)])
    return batch.take(pc.subtract(positions, scalar(start, pa.uint64())))


def _is_legacy(metadata: dict[bytes, bytes]) -> bool:
    """Return whether dates and times of before 1900 may be in the Julian calendar."""
    version = re.match(rb"(\d+)\.(\d+)", metadata.get(_VERSION, b""))
    old = version is not None and (int(version[1]), int(version[2])) < (3, 1)
    return old or any(key in metadata for key in _LEGACY)


def _int96_columns(metadata: pq.FileMetaData) -> frozenset[str]:
    leaves = [metadata.schema.column(i) for i in range(metadata.num_columns)]
    return frozenset(leaf.path for leaf in leaves if leaf.physical_type == "INT96")

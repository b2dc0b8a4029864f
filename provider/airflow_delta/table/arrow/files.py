"""Rows as Parquet files of the table: under their physical names, in partition directories as Spark names them.

Memory holds a row group of each partition that rows are coming in for, up to a bound; then the largest is written out.
"""

from __future__ import annotations

import threading
import uuid
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import field
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from airflow_delta.contract.delta_names import HIVE_NULL
from airflow_delta.contract.schema import without_void
from airflow_delta.exceptions import DeltaAnalysisException
from airflow_delta.light_dataclasses import dataclass
from airflow_delta.log.arrow.arrays import scalar
from airflow_delta.log.arrow.values import to_pylist
from airflow_delta.log.features.column_mapping import field_id
from airflow_delta.log.schema.partition_directories import directory_prefixes, joined_directory
from airflow_delta.log.schema.partition_values import serialize_partition_value
from airflow_delta.log.schema.types import (
    ArrayType,
    DataType,
    MapType,
    StructField,
    StructType,
    arrow_type,
    as_nullable,
    struct_of,
    type_to_json,
)
from airflow_delta.log.statistics.nan_note import nan_note
from airflow_delta.table.arrow.align import Convert, to_table_type
from airflow_delta.table.arrow.dictionaries import FEW_ROWS, with_dictionaries
from airflow_delta.table.arrow.nan_columns import columns_with_nan, count_nulls, leaf_columns

if TYPE_CHECKING:
    from airflow_delta.log.storage.base import LogStore, NewFiles


ROW_GROUP_BYTES = 64 << 20
ROW_GROUP_ROWS = 131_072
"""Who reads a few rows decodes a row group, unless the reader knows the pages."""
BUFFERED_BYTES = 256 << 20
FILE_BYTES = 128 << 20
OPEN_FILES = 64
UNCOPIED_BYTES = 32 << 20
"""Rows that one writer may keep in memory longer than they are needed, since other rows of their batch are."""

IN_MEMORY_BYTES = 1 << 20
"""Rows up to which the last file of a partition is made in memory: with many partitions most files are that small."""

PUT_FILES = 64
PUT_BYTES = 4 << 20
"""Files made in memory that are put together: each change between making files and calling the system slows both."""


def stored_schema(schema: StructType, partitions: Sequence[str], *, mapped: bool) -> pa.Schema:
    """Return the schema of data files: without partition columns; with physical names and field ids under column mapping.

    Of a NOT NULL column the footer says so even where it has no statistics.
    """
    return pa.schema([_stored_field(f, mapped).with_nullable(f.nullable) for f in schema if f.name not in partitions])


def _stored_field(field: StructField, mapped: bool) -> pa.Field:
    identity = field_id(field) if mapped else None
    metadata = None if identity is None else {"PARQUET:field_id": str(identity)}
    return pa.field(field.physical_name if mapped else field.name, _stored_type(field.data_type, mapped), metadata=metadata)


def _stored_type(data_type: DataType, mapped: bool) -> pa.DataType:
    match data_type:
        case StructType(fields):
            return pa.struct([_stored_field(f, mapped) for f in fields])
        case ArrayType(element):
            return pa.list_(pa.field("element", _stored_type(element, mapped)))
        case MapType(key, value):
            return pa.map_(_stored_type(key, mapped), pa.field("value", _stored_type(value, mapped)))
    return arrow_type(as_nullable(data_type))


@dataclass(eq=False, slots=True)
class _Partition:
    """Rows of one partition, or of one part of it: those not written yet, and the file that is being written.

    :ivar has_nan: whether rows not written yet may have NaN.
    :ivar unbounded: columns of which the file has no statistics.
    :ivar nulls: how many nulls these have.
    """

    directory: str
    part: int
    batches: list[pa.RecordBatch] = field(default_factory=list)
    num_bytes: int = 0
    has_nan: bool = False
    file: BinaryIO | None = None
    writer: Any = None
    footer: list[pq.FileMetaData] = field(default_factory=list)
    unbounded: frozenset[str] = frozenset()
    nulls: Counter[str] = field(default_factory=Counter)
    rows: int = 0


class _Made(NamedTuple):
    """A file that is made and not yet put."""

    path: str
    data: bytes
    num_rows: int
    footer: pq.FileMetaData


class WrittenFile(NamedTuple):
    """A file of a :class:`RowWriter`; ``path`` is relative to its directory."""

    path: str
    size: int
    num_rows: int


class RowWriter:
    """Writes aligned rows below a directory.

    ``files`` are those that have their names, ``footers`` what stands at their ends, by path and size.

    :param directory: relative to the table.
    :param schema: of the rows, in order, under their logical names.
    :param partitions: logical names of the partition columns, in partition order.
    :param mapped: under column mapping.
    :param compression: codec of Parquet.
    :param most_rows: rows of a file at most; ``None`` for any number.
    :param file_bytes: size from which on a file is finished; ``None``: each partition becomes one file.
    :param unbounded: for each part, columns of which no file has statistics, as in Parquet. Others with NaN begin a new file.
    """

    def __init__(
        self,
        store: LogStore,
        directory: str,
        schema: StructType,
        partitions: Sequence[str],
        *,
        mapped: bool,
        compression: str,
        most_rows: int | None,
        file_bytes: int | None = FILE_BYTES,
        unbounded: Sequence[frozenset[str]] = (frozenset(),),
    ) -> None:
        self._store = store
        self._directory = directory
        self._schema = schema
        self._partitions = [f for name in partitions if (f := schema.find(name)) is not None]
        names = [f.name for f in self._partitions]
        kept = struct_of(without_void(type_to_json(schema), store.root))
        self._stored = stored_schema(kept, names, mapped=mapped)
        self._data = [number for number, f in enumerate(schema) if f.name not in names and f.data_type.name != "void"]
        self._convert: dict[int, Convert] = {}
        for number, f in enumerate(schema):
            held = kept.find(f.name)
            if held is not None and held.data_type != f.data_type:
                self._convert[number] = to_table_type(arrow_type(as_nullable(f.data_type)), f.data_type, held.data_type)
        self._leaves = list(leaf_columns(self._stored))
        self._unique = {path for path, count in Counter(self._leaves).items() if count == 1}
        self._prefixes = directory_prefixes([f.physical_name if mapped else f.name for f in self._partitions])
        codec = "" if compression == "none" else f".{compression}"
        self._name_end = f"{uuid.uuid4()}.c000{codec}.parquet"
        self._compression = compression
        self._most_rows = most_rows
        self._file_bytes = file_bytes
        self._unbounded = unbounded
        self._open: dict[tuple[str, int], _Partition] = {}
        self._buffered = 0
        self._uncopied = 0
        self._closing = False
        self._counting = threading.Lock()
        self.num_files = self.num_rows = self.num_bytes = 0
        self.files: list[WrittenFile] = []
        self.footers: dict[tuple[str, int], pq.FileMetaData] = {}

    def write(self, batch: pa.RecordBatch, directory: str | None = None, parts: pa.Array | None = None) -> None:
        """Take rows.

        :param directory: of the partition that all of them are in; ``None``: their values decide.
        :param parts: for each row, which of several files of this directory it goes to, from 0 on.
        """
        stored = self._stored_rows(batch)
        has_nan = bool(columns_with_nan(stored))  # once for all partitions: most rows have none
        for key, rows in self._split(batch, stored, directory, parts):
            if (found := self._open.get(key)) is None:
                found = self._open[key] = _Partition(*key)
            num_bytes = rows.nbytes
            found.batches.append(rows)
            found.has_nan |= has_nan
            found.num_bytes += num_bytes
            self._buffered += num_bytes
            if found.num_bytes >= ROW_GROUP_BYTES:
                self._flush(found)
        while self._buffered > BUFFERED_BYTES:
            self._flush(max(self._open.values(), key=lambda partition: partition.num_bytes))

    def nan_columns(self, batch: pa.RecordBatch) -> frozenset[str]:
        """Return which columns of rows have a NaN, as in Parquet; nothing is written."""
        return columns_with_nan(self._stored_rows(batch))

    def close(self) -> None:
        """Write what is left: most rows of most partitions, in files of their own that do not wait for each other."""
        self._closing = True
        waiting = deque(self._open.values())
        if not waiting:
            return

        def write(files: NewFiles) -> None:
            # One task for each thread: one for each file would take as long as a small file does.
            held, size = list[_Made](), 0
            try:
                while waiting:
                    try:
                        partition = waiting.popleft()
                    except IndexError:
                        break
                    if (made := self._made_small(partition)) is not None:
                        held += made
                        size += sum(len(file.data) for file in made)
                    else:
                        self._flush(partition)
                        self._finish(partition)
                    if len(held) >= PUT_FILES or size >= PUT_BYTES:
                        self._put_all(held, files)
                        size = 0
                self._put_all(held, files)
            except BaseException:
                waiting.clear()
                raise

        threads = min(len(waiting), pa.cpu_count())
        with self._store.new_files(self._directory) as files:
            if threads <= 1:
                write(files)
            else:
                with ThreadPoolExecutor(threads, thread_name_prefix="delta-write") as pool:
                    for written in [pool.submit(write, files) for _ in range(threads)]:
                        written.result()
        self._open.clear()

    def discard(self) -> None:
        """Close the unfinished files, which have no name yet."""
        for partition in self._open.values():
            if partition.writer is not None:
                with suppress(Exception):  # it would end its file when it is collected, which is then closed
                    partition.writer.close()
            if partition.file is not None:
                partition.file.close()
        self._open.clear()

    # -- partitions -----------------------------------------------------------------------------------------------------------

    def _split(
        self, batch: pa.RecordBatch, stored: pa.RecordBatch, directory: str | None, parts: pa.Array | None
    ) -> Iterator[tuple[tuple[str, int], pa.RecordBatch]]:
        """Yield directory, part, and data columns of the rows of each partition.

        :param stored: the data columns of all rows.
        """
        if directory is not None and parts is not None:
            for part, rows in _by_code(stored, parts, sliced=False):
                yield (directory, part), rows
            return
        if directory is not None or not self._partitions:
            yield (directory or "", 0), stored
            return
        sliced = self._uncopied + (size := stored.nbytes) <= UNCOPIED_BYTES
        if sliced:
            self._uncopied += size
        for texts, rows in _groups(batch, self._partitions, stored, sliced=sliced):
            yield (joined_directory(self._prefixes, texts), 0), rows

    def _stored_rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        convert = self._convert
        columns = [convert[n](batch.column(n)) if n in convert else batch.column(n) for n in self._data]
        # The same bytes under other names: the types differ in nothing else.
        named = [c if c.type == f.type else c.view(f.type) for c, f in zip(columns, self._stored, strict=True)]
        return pa.RecordBatch.from_arrays(named, schema=self._stored)

    # -- files ----------------------------------------------------------------------------------------------------------------

    def _made_small(self, partition: _Partition) -> list[_Made] | None:
        """Return the rows of a partition that wait as files; ``None`` if they go on with a file, or are too many."""
        if partition.writer is not None or partition.num_bytes > IN_MEMORY_BYTES:
            return None
        rows = pa.Table.from_batches(partition.batches, self._stored)
        partition.batches = []
        most, made = self._most_rows or max(rows.num_rows, 1), list[_Made]()
        for start in range(0, rows.num_rows, most):
            part, unbounded = rows.slice(start, most), self._unbounded[partition.part]
            if partition.has_nan:
                unbounded |= columns_with_nan(part)
            name = self._next_name(part.num_rows)
            content, footer = pa.BufferOutputStream(), list[pq.FileMetaData]()
            dictionaries = part.num_rows > FEW_ROWS and with_dictionaries(part, self._leaves, ROW_GROUP_ROWS)
            with self._parquet(content, dictionaries, unbounded, footer) as writer:
                writer.write_table(part, ROW_GROUP_ROWS)
                writer.add_key_value_metadata(self._note(name, unbounded, count_nulls(part, unbounded)))
            path = f"{partition.directory}/{name}" if partition.directory else name
            made.append(_Made(path, content.getvalue().to_pybytes(), part.num_rows, footer[0]))
        return made

    def _put_all(self, made: list[_Made], files: NewFiles) -> None:
        """Put files, which are then forgotten."""
        for file in made:
            files.put(file.path, file.data)
            self._written(file.path, len(file.data), file.num_rows, file.footer)
        made.clear()

    def _parquet(
        self, file: Any, dictionaries: list[str] | bool, unbounded: frozenset[str], footer: list[pq.FileMetaData]
    ) -> pq.ParquetWriter:
        """Return a writer of a file.

        :param unbounded: columns without statistics.
        :param footer: gets the footer at the end.
        """
        return pq.ParquetWriter(
            file,
            self._stored,
            compression=self._compression,
            use_dictionary=dictionaries,
            write_statistics=[path for path in self._leaves if path not in unbounded] if unbounded else True,
            version="2.6",
            store_schema=False,
            store_decimal_as_integer=True,
            use_compliant_nested_type=True,
            metadata_collector=footer,
        )

    def _note(self, name: str, unbounded: frozenset[str], nulls: Counter[str]) -> dict[str, str]:
        return nan_note(name, {path: nulls[path] for path in sorted(unbounded & self._unique)})

    def _next_name(self, num_rows: int) -> str:
        """Return the name of a new file, which is counted."""
        with self._counting:
            number = self.num_files
            self.num_files += 1
            self.num_rows += num_rows
        return f"part-{number:05d}-{self._name_end}"

    def _written(self, path: str, size: int, num_rows: int, footer: pq.FileMetaData) -> None:
        with self._counting:
            self.num_bytes += size
            self.files.append(WrittenFile(path, size, num_rows))
            self.footers[path, size] = footer

    def _flush(self, partition: _Partition) -> None:
        """Write the rows of a partition that wait, as row groups."""
        if not partition.batches:
            return
        rows = pa.Table.from_batches(partition.batches, self._stored)
        with self._counting:
            self._buffered -= partition.num_bytes
        has_nan, fixed = partition.has_nan, self._unbounded[partition.part]
        partition.batches, partition.num_bytes, partition.has_nan = [], 0, False
        while rows.num_rows:
            room = rows.num_rows if self._most_rows is None else self._most_rows - partition.rows
            part = rows.slice(0, room)
            unbounded = fixed | columns_with_nan(part) if has_nan else fixed
            self._file(partition, unbounded, part).write_table(part, ROW_GROUP_ROWS)
            partition.rows += part.num_rows
            if partition.unbounded:
                partition.nulls += count_nulls(part, partition.unbounded)
            rows = rows.slice(part.num_rows)
            full = self._most_rows is not None and partition.rows >= self._most_rows
            if full or (
                self._file_bytes is not None and partition.file is not None and partition.file.tell() >= self._file_bytes
            ):
                self._finish(partition)

    def _file(self, partition: _Partition, unbounded: frozenset[str], rows: pa.Table) -> Any:
        if not unbounded <= partition.unbounded:
            self._finish(partition)
        if partition.writer is None:
            if not self._closing:  # then those of other threads
                writing = [other for other in self._open.values() if other.writer is not None]
                if len(writing) >= OPEN_FILES:
                    self._finish(writing[0])
            partition.file = self._store.scratch_file()
            partition.unbounded, partition.footer = unbounded, []
            dictionaries = with_dictionaries(rows, self._leaves, ROW_GROUP_ROWS)
            partition.writer = self._parquet(partition.file, dictionaries, unbounded, partition.footer)
        return partition.writer

    def _finish(self, partition: _Partition) -> None:
        """Give the file of a partition its name."""
        file, writer = partition.file, partition.writer
        if file is None or writer is None:
            return
        name = self._next_name(partition.rows)
        writer.add_key_value_metadata(self._note(name, partition.unbounded, partition.nulls))
        writer.close()
        path = f"{partition.directory}/{name}" if partition.directory else name
        size = file.seek(0, 2)
        file.seek(0)
        self._store.put_file("/".join(part for part in (self._directory, path) if part), file)
        file.close()
        self._written(path, size, partition.rows, partition.footer[0])
        partition.file = partition.writer = None
        partition.rows, partition.nulls, partition.footer = 0, Counter(), []


def _groups(
    batch: pa.RecordBatch, partitions: Sequence[StructField], rows: pa.RecordBatch, *, sliced: bool = False
) -> Iterator[tuple[list[str | None], pa.RecordBatch]]:
    """Yield the partition values of rows as the log spells them, and these rows.

    :param rows: what to yield of the batch.
    :param sliced: may keep the memory of all rows, until none of the slices is needed; otherwise few of many are copied.
    """
    texts: list[list[str | None]] = []  # of each column, by code
    codes = None
    for partition in partitions:
        encoded = batch.column(partition.name).dictionary_encode()
        try:
            known = [serialize_partition_value(value, partition.data_type) for value in to_pylist(encoded.dictionary)]
            if HIVE_NULL in known:
                raise DeltaAnalysisException(f"directories of partitions spell null as {HIVE_NULL!r}")
        except (DeltaAnalysisException, OverflowError) as error:
            raise DeltaAnalysisException(
                f"Partition column {partition.name} ({partition.data_type}) has a value that the log cannot hold: {error}. "
                "Nothing was committed."
            ) from error
        width, index = len(known) + 1, encoded.indices
        if index.null_count:
            index = pc.fill_null(index, scalar(len(known), index.type))
        if codes is None:
            texts, codes = [[*known, None]], index
            continue
        # Small numbers again, or the codes of many columns would overflow.
        codes = pc.add(pc.multiply(codes.cast(pa.int64()), scalar(width)), index.cast(pa.int64())).dictionary_encode()
        seen = codes.dictionary.to_pylist()
        texts = [[column[code // width] for code in seen] for column in texts] + [[[*known, None][code % width] for code in seen]]
        codes = codes.indices
    for code, part in _by_code(rows, codes, sliced=sliced):
        yield [column[code] for column in texts], part


def _by_code(rows: pa.RecordBatch, codes: pa.Array, *, sliced: bool) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the rows of each code, in order."""
    order, runs = None, pc.run_end_encode(codes)
    if len(runs.values) > len(set(runs.values.to_pylist())):
        order = pc.array_sort_indices(codes)
        runs = pc.run_end_encode(codes.take(order))
    if sliced and len(runs.values) > 1:  # in memory of their own: who made the batch may have more in its memory
        rows, order = (_copied(rows) if order is None else rows.take(order)), None
    start = 0
    for code, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
        if order is not None:
            yield code, rows.take(order.slice(start, end - start))
        else:
            part = rows.slice(start, end - start)
            yield code, part if sliced or 2 * part.num_rows >= rows.num_rows else _copied(part)
        start = end


def _copied(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows in memory of their own (``pa.concat_batches`` is newer than the lowest PyArrow)."""
    columns = [pa.concat_arrays([column, column.slice(0, 0)]) for column in rows.columns]
    return pa.RecordBatch.from_arrays(columns, schema=rows.schema)

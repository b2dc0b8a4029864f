"""The rows of Parquet files, read by Arrow in the worker, for a stage that loads them.

Files are read one after the other. Before the first one is, the columns of all are known: a column that only the last file has is
in no batch missing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from airflow_delta.exceptions import SchemaMismatchException
from airflow_delta.log.checkpoint.sort import joined
from airflow_delta.log.data_files.batches import longest_value
from airflow_delta.log.data_files.page_sizes import Chunk, batch_rows, declared, problem_of

if TYPE_CHECKING:
    from airflow_delta.log.schema.types import StructType
    from airflow_delta.table.positions.files.records import LoadedFile
    from airflow_delta.table.positions.files.unloaded import SourceFiles

_THREADS = 8
_JOINED_ROWS, _JOINED_BYTES = 65_536, 16 << 20
_DECODED_BYTES = 64 << 20
_SMALL_BYTES, _KEPT_BYTES = 1 << 20, 32 << 20  # of a file that is read once, and of all these
_TOGETHER = 16
_FOOTER_BYTES = 4 << 20  # of their footers that stay parsed, in several times as much memory


def read_arrow_files(found: SourceFiles, table: StructType, *, alike: bool = False) -> pa.RecordBatchReader:
    """Return the rows of the files that a transaction loads.

    :param table: the table's columns, whose spelling the columns of files get.
    :param alike: refuse files of different columns.
    """
    small, kept, footers = _small_files(found), dict[str, _Kept](), 0

    def content_of(file: LoadedFile) -> pa.Buffer | None:
        return _read(found, file, partial(_content, found, file)) if file.path in small else None

    def schema_of(file: LoadedFile, content: pa.Buffer | None) -> pa.Schema:
        nonlocal footers
        if not file.size:
            return pa.schema([])
        parquet, schema = _read(found, file, partial(_schema, found, file, content))
        if content is not None:
            footers += parquet.metadata.serialized_size
            kept[file.path] = _Kept(content, parquet if footers <= _FOOTER_BYTES else None)
        return schema

    schemas = _of_each(found.files, content_of, schema_of)
    schema = _common(found, schemas, table)
    if alike:
        _check_alike(found, schemas)

    def batches() -> Iterator[pa.RecordBatch]:
        for file in found.files:
            if not file.size:
                continue
            rows = _batches(found, file, kept.pop(file.path, None))
            while (batch := _read(found, file, partial(next, rows, None))) is not None:
                yield _read(found, file, partial(_fitted, batch, schema))

    return pa.RecordBatchReader.from_batches(schema, _joined(batches()))


def _small_files(found: SourceFiles) -> set[str]:
    """Return the paths of files that are read once, and kept until their rows are needed: small ones, the first of many."""
    sizes = [(file.path, file.size) for file in found.files if 0 < file.size <= _SMALL_BYTES]
    totals = accumulate(size for _path, size in sizes)
    return {path for (path, _size), total in zip(sizes, totals, strict=True) if total <= _KEPT_BYTES}


def _of_each(
    files: Sequence[LoadedFile],
    content_of: Callable[[LoadedFile], pa.Buffer | None],
    schema_of: Callable[[LoadedFile, pa.Buffer | None], pa.Schema],
) -> list[pa.Schema]:
    """Return the columns of all files; of several that cannot be read, the first one is told.

    A thread takes some at a time: one task for each file would take as long as a small file does, and so does each change between
    calling the system and decoding.
    """
    some = min(_TOGETHER, -(-len(files) // _THREADS)) or 1
    waiting = deque(range(0, len(files), some))
    schemas, errors = dict[int, pa.Schema](), dict[int, BaseException]()

    def take() -> None:
        while waiting:
            try:
                first = waiting.popleft()
            except IndexError:
                return
            taken = files[first : first + some]
            try:
                contents = [content_of(file) for file in taken]
                for number, (file, content) in enumerate(zip(taken, contents, strict=True), first):
                    schemas[number] = schema_of(file, content)
            except BaseException as error:  # noqa: BLE001 - raised by the caller
                errors[first] = error
                waiting.clear()

    with ThreadPoolExecutor(_THREADS) as pool:
        for done in [pool.submit(take) for _ in range(min(_THREADS, len(waiting)))]:
            done.result()
    if errors:
        raise errors[min(errors)]
    return [schemas[number] for number in range(len(files))]


class _Kept(NamedTuple):
    """A small file that was read.

    :param parquet: its parsed footer; ``None`` if those of other files take the memory for them.
    """

    content: pa.Buffer
    parquet: pq.ParquetFile | None


def _content(found: SourceFiles, file: LoadedFile) -> pa.Buffer:
    return pa.py_buffer(found.store.read_range(file.path, 0, file.size))


def _opened(found: SourceFiles, file: LoadedFile, content: pa.Buffer | None) -> Any:
    return found.open(file) if content is None else pa.BufferReader(content)


def _schema(found: SourceFiles, file: LoadedFile, content: pa.Buffer | None) -> tuple[pq.ParquetFile, pa.Schema]:
    opened = _opened(found, file, content)
    try:
        parquet = pq.ParquetFile(opened)
        schema = parquet.schema_arrow
    finally:
        if content is None:
            opened.close()
    return parquet, pa.schema([(field.name, _plain(field.type)) for field in schema])


def _batches(found: SourceFiles, file: LoadedFile, kept: _Kept | None) -> Iterator[pa.RecordBatch]:
    with _opened(found, file, None if kept is None else kept.content) as opened:
        parquet = (None if kept is None else kept.parquet) or pq.ParquetFile(opened)
        for group in range(parquet.num_row_groups):
            rows = _rows(found, parquet, group, opened)
            yield from parquet.iter_batches(rows, row_groups=[group], use_threads=file.size > _SMALL_BYTES)


def _joined(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of many small files together."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        held.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= _JOINED_ROWS or size >= _JOINED_BYTES:
            yield joined(held)
            held, rows, size = [], 0, 0
    if held:
        yield joined(held)


def _read(found: SourceFiles, file: LoadedFile, read: Callable[[], Any]) -> Any:
    try:
        return read()
    except (pa.ArrowException, UnicodeDecodeError, OSError) as error:
        # Arrow's errors about what is read (damaged pages, for example) are of this class too, but no error of a system or store.
        if isinstance(error, OSError) and (type(error) is not OSError or error.errno is not None):
            raise
        raise found.store.error(
            SchemaMismatchException,
            f"The file {file.path} of {found.source} cannot be read as Parquet: {error}. Nothing was staged. Correct it "
            "under another name, or leave it out by the pattern.",
        ) from error


def _common(found: SourceFiles, schemas: Sequence[pa.Schema], table: StructType) -> pa.Schema:
    """Return the columns of all files, named as in the table, whatever their case."""
    fields: dict[str, pa.Field] = {}
    for file, schema in zip(found.files, schemas, strict=True):
        lower = [name.lower() for name in schema.names]
        if twice := sorted({name for name in lower if lower.count(name) > 1}):
            raise found.store.error(
                SchemaMismatchException,
                f"The file {file.path} of {found.source} has the column {twice[0]!r} twice (names have no case). Nothing was "
                "staged.",
            )
        for field in schema:
            own = table.find(field.name)
            name = own.name if own is not None else field.name
            known = fields.get(name.lower())
            given = pa.field(name if known is None else known.name, field.type)
            if known is None or known.type == given.type:
                fields[name.lower()] = given
                continue
            try:
                both = pa.unify_schemas([pa.schema([known]), pa.schema([given])], promote_options="permissive")
            except pa.ArrowException as error:
                raise found.store.error(
                    SchemaMismatchException,
                    f"The column {name!r} is {given.type} in the file {file.path} of {found.source}, and {known.type} in others. "
                    "Nothing was staged. Load these files apart from each other, by pattern.",
                ) from error
            fields[name.lower()] = both.field(0)
    return pa.schema(list(fields.values()))


def _check_alike(found: SourceFiles, schemas: Sequence[pa.Schema]) -> None:
    """Refuse files with different columns: Spark reads all with the columns of one of them."""
    files = [(file, schema) for file, schema in zip(found.files, schemas, strict=True) if file.size]
    for file, schema in files[1:]:
        first, columns = files[0]
        if schema != columns:
            raise found.store.error(
                SchemaMismatchException,
                f"The files {first.path} and {file.path} of {found.source} have different columns or types, and Spark would read "
                "all files with those of one. Nothing was written. Read them apart from each other, or give them the same ones.",
            )


def _fitted(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    if schema.names and batch.schema.equals(schema):
        return batch
    given = {name.lower(): number for number, name in enumerate(batch.schema.names)}
    arrays = []
    for field in schema:
        number = given.get(field.name.lower())
        if number is None:
            arrays.append(pa.nulls(batch.num_rows, field.type))
        else:
            column = batch.column(number)
            arrays.append(column if column.type == field.type else pc.cast(column, field.type))
    if not arrays and batch.num_rows:
        raise pa.ArrowInvalid("its rows have no columns, nor do those of other files")
    return pa.RecordBatch.from_arrays(arrays, schema=schema) if arrays else pa.RecordBatch.from_pylist([], schema=schema)


def _rows(found: SourceFiles, parquet: pq.ParquetFile, group: int, opened: Any) -> int:
    """Return how many rows of a row group to decode at once: one value of a dictionary may stand in all of them."""
    local = found.store.local_root is not None
    try:
        chunks = declared(parquet, opened, group, None, headers=local)
        if not local and problem_of(chunks) is not None:
            chunks = declared(parquet, opened, group, None, headers=True)
    except ValueError as error:
        raise pa.ArrowInvalid(str(error)) from error
    if (problem := problem_of(chunks)) is not None:
        raise pa.ArrowInvalid(problem)

    def longest(chunk: Chunk) -> int:
        encoded = pq.ParquetFile(opened, metadata=parquet.metadata, read_dictionary=[chunk.path])
        return longest_value(encoded, group, chunk)

    return batch_rows(chunks, _JOINED_ROWS, longest, limit=_DECODED_BYTES, least=1)


def _plain(kind: pa.DataType) -> pa.DataType:
    """Return the type of values however they are encoded: a dictionary (a category of pandas) or a view goes with plain ones."""
    types = pa.types
    if types.is_dictionary(kind):
        return _plain(kind.value_type)
    if types.is_string_view(kind) or types.is_binary_view(kind):
        return pa.large_string() if types.is_string_view(kind) else pa.large_binary()
    if types.is_struct(kind):
        return pa.struct([field.with_type(_plain(field.type)) for field in kind])
    if types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_plain(kind.value_type)))
    if types.is_large_list(kind):
        return pa.large_list(kind.value_field.with_type(_plain(kind.value_type)))
    if types.is_map(kind):
        key, item = (field.with_type(_plain(field.type)) for field in (kind.key_field, kind.item_field))
        return pa.map_(key, item, kind.keys_sorted)
    return kind

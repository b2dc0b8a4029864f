"""Record batches of a data file without dictionaries, of a size that costs neither time nor memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_delta.log.arrow import kernels
from airflow_delta.log.data_files.page_sizes import (
    BATCH_BYTES,
    SMALLEST_BATCH,
    Chunk,
)

JOINED_BYTES = 32 << 20  # up to which small batches are joined, and row groups are decoded at once


def plain_parts(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a batch with the values that its columns refer to, in parts small enough for memory."""
    at = [number for number, column in enumerate(batch.columns) if pa.types.is_dictionary(column.type)]
    value = sum(_longest_of(batch.column(number).dictionary) for number in at)
    step = max(batch.num_rows, 1)
    if value * step > JOINED_BYTES:
        step = min(step, max(BATCH_ROWS, JOINED_BYTES // value))
    if value * step > BATCH_BYTES:
        step = max(SMALLEST_BATCH, BATCH_BYTES // value)
    for first in range(0, batch.num_rows, step):
        part = batch.slice(first, step)
        for number in at:
            part = part.set_column(number, batch.schema.names[number], part.column(number).dictionary_decode())
        yield part


def joined_batches(batches: Iterable[pa.RecordBatch], most: int) -> Iterator[pa.RecordBatch]:
    """Join small batches up to a number of rows, since each costs time."""
    waiting: list[pa.RecordBatch] = []
    rows = used = 0
    for batch in batches:
        if waiting and (rows + batch.num_rows > most or used + batch.nbytes > JOINED_BYTES):
            yield _concatenated(waiting)
            waiting, rows, used = [], 0, 0
        waiting.append(batch)
        rows, used = rows + batch.num_rows, used + batch.nbytes
    if waiting:
        yield _concatenated(waiting)


def longest_value(parquet: pq.ParquetFile, group: int, chunk: Chunk) -> int:
    """Return the bytes of the longest value in the dictionary of a column that has one; the first row brings all of it."""
    try:
        batch = next(parquet.iter_batches(1, row_groups=[group], columns=[chunk.path], use_threads=False), None)
    except pa.ArrowNotImplementedError:
        return chunk.dictionary
    columns = [] if batch is None else batch.columns
    lengths = [_longest_of(found.dictionary) for column in columns for found in _dictionaries(column)]
    return max(lengths) if lengths else chunk.dictionary


def _longest_of(values: pa.Array) -> int:
    """Return the bytes of the longest text; 0 for values of one length."""
    if values.type not in (pa.string(), pa.binary(), pa.large_string(), pa.large_binary()):
        return 0
    longest: int | None = kernels.max(kernels.binary_length(values)).as_py()
    return longest or 0


def _dictionaries(array: pa.Array) -> Iterator[pa.DictionaryArray]:
    """Yield the arrays at any depth that refer to a dictionary."""
    kinds = pa.types
    if kinds.is_dictionary(array.type):
        yield array
    elif kinds.is_struct(array.type):
        for number in range(array.type.num_fields):
            yield from _dictionaries(array.field(number))
    elif kinds.is_map(array.type):
        yield from _dictionaries(array.keys)
        yield from _dictionaries(array.items)
    elif kinds.is_list(array.type):
        yield from _dictionaries(array.values)


def _concatenated(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    [batch] = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return batch


def plain_field(field: pa.Field) -> pa.Field:
    return field.with_type(field.type.value_type) if pa.types.is_dictionary(field.type) else field


def encoded_columns(chunks: Sequence[Chunk], schema: pa.Schema, rows: int) -> list[str]:
    """Return the columns that are decoded faster as references to a dictionary, which each batch repeats.

    :param rows: of a batch.
    """
    texts = {f.name for f in schema if (pa.types.is_string(f.type) or pa.types.is_binary(f.type)) and "." not in f.name}
    return [chunk.path for chunk in chunks if chunk.path in texts and chunk.refers and 4 * chunk.distinct <= rows]


BATCH_ROWS = 65_536

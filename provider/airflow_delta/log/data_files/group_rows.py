"""Wanted rows of one row group as record batches: the columns that decide are decoded first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import pyarrow as pa
from pyroaring import BitMap64

from airflow_delta.light_dataclasses import dataclass
from airflow_delta.log.arrow import kernels
from airflow_delta.log.arrow.arrays import repeated, scalar
from airflow_delta.log.data_files.batches import (
    BATCH_ROWS,
    JOINED_BYTES,
    encoded_columns,
    joined_batches,
    longest_value,
    plain_parts,
)
from airflow_delta.log.data_files.page_sizes import Chunk, batch_rows, value_bytes

if TYPE_CHECKING:
    import pyarrow.parquet as pq

    from airflow_delta.log.data_files.opened import OpenedFile


class KnownFile(Protocol):
    """What a read needs to know of a data file, as an action or a plan has it."""

    @property
    def path(self) -> str:
        """In the log: URL-encoded, relative to the table or absolute."""

    @property
    def size(self) -> int | None:
        """In bytes."""

    @property
    def partition_values(self) -> Mapping[str, str | None] | None:
        """Serialised, by physical name."""


@dataclass(frozen=True, slots=True)
class DataRowGroup:
    """A row group of a file that has wanted rows.

    :param number: in the file.
    :param start: position of its first row in the file.
    :param sources: where each column comes from: a scalar, its name in the file and the function to convert it, or
        :class:`RowPositions`.
    """

    file: KnownFile
    opened: OpenedFile
    number: int
    start: int
    num_rows: int
    sources: Sequence[Any]
    marked: BitMap64 | None
    deleted: bool


class RowPositions:
    """Source of a column with the position of each row in its file."""


class RowSelection(NamedTuple):
    """Which rows are wanted, by their values.

    :param columns: names of the columns that decide.
    :param rows: returns where a batch of them is wanted.
    :param groups: returns for each row group whether it may have wanted rows, given a footer and the file's own names of its
        columns, by the table's.
    """

    columns: frozenset[str]
    rows: Callable[[pa.RecordBatch], pa.BooleanArray]
    groups: Callable[[pq.FileMetaData, Mapping[str, str]], Sequence[bool]]


class GroupRows:
    """Reads rows of a row group.

    :param target: Arrow fields of the columns to return.
    :param most_rows: rows to decode at once.
    :param declared: returns what columns of the file declare, or refuses them.
    """

    def __init__(
        self, group: DataRowGroup, target: pa.Schema, most_rows: int, declared: Callable[[Sequence[str]], Sequence[Chunk]]
    ) -> None:
        self._group = group
        self._target = target
        self._most_rows = most_rows
        self._declared = declared

    def rows(self, selection: RowSelection | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the wanted rows, and look up in dictionaries only what they refer to."""
        return joined_batches(self._wanted(selection), self._most_rows)

    def _wanted(self, selection: RowSelection | None) -> Iterator[pa.RecordBatch]:
        every, names = range(len(self._target)), self._target.names
        deciding = [at for at in every if selection is not None and names[at] in selection.columns]
        others = sorted(set(every).difference(deciding))
        # Not of a few rows at a time, of which the first may be all that is wanted.
        is_worth_it = self._most_rows == BATCH_ROWS and any(map(self._varies, others))
        if selection is not None and deciding and is_worth_it:
            yield from self._found(deciding, selection)
            return
        for start, batch in self._stored(every, self._has_live):
            live = batch if self._group.marked is None else _live(batch, self._group.marked, start, self._group.deleted)
            wanted = live if selection is None else self._selected(live, deciding or [0], selection)
            yield from self._plain(wanted, every)

    def _has_live(self, start: int, length: int) -> bool:
        return counts(self._group.marked, start, start + length, self._group.deleted)

    def _selected(self, batch: pa.RecordBatch, deciding: Sequence[int], selection: RowSelection) -> pa.RecordBatch:
        """Return the rows of a batch of all columns that a selection wants."""
        mask = self._mask(batch.select(list(deciding)), deciding, selection)
        return batch if mask.true_count == batch.num_rows else batch.filter(mask)  # a filter would copy all of it

    def _mask(self, batch: pa.RecordBatch, deciding: Sequence[int], selection: RowSelection) -> pa.BooleanArray:
        masks = [selection.rows(part) for part in self._plain(batch, deciding)]
        return masks[0] if len(masks) == 1 else pa.concat_arrays(masks)

    def _found(self, deciding: Sequence[int], selection: RowSelection) -> Iterator[pa.RecordBatch]:
        """Yield the wanted rows: the columns that decide are decoded first, the others as far as there are such rows."""
        masks: list[pa.BooleanArray] = []
        kept: list[pa.RecordBatch] = []
        used = 0
        for start, batch in self._stored(deciding):
            mask = self._mask(batch, deciding, selection)
            if self._group.marked is not None:
                mask = kernels.and_(mask, _live_mask(self._group.marked, start, batch.num_rows, self._group.deleted))
            masks.append(mask)
            for part in self._plain(batch.filter(mask), deciding) if mask.true_count and used <= JOINED_BYTES else ():
                kept.append(part)
                used += part.nbytes
        wanted = pa.concat_arrays(masks)
        left = wanted.true_count
        if not left:
            return
        # Unless they are large, the columns that decide are not decoded again.
        known = pa.Table.from_batches(kept).combine_chunks().to_batches()[0] if used <= JOINED_BYTES else None
        fields = [at for at in range(len(self._target)) if self._varies(at) and (known is None or at not in deciding)]

        def mask_of(start: int, length: int) -> pa.BooleanArray:
            return wanted.slice(start - self._group.start, length)

        rows_used = 1 + kernels.max(kernels.indices_nonzero(wanted)).as_py()
        for start, batch in self._stored(fields, lambda start, length: mask_of(start, length).true_count > 0, rows_used):
            mask = mask_of(start, batch.num_rows)
            found = mask.true_count
            rows = self._plain(batch if found == batch.num_rows else batch.filter(mask), fields)
            yield from self._complete(
                rows, fields, None if known is None else known.slice(known.num_rows - left, found), deciding
            )
            left -= found
            if not left:  # the pages after it are not decoded
                return

    def _complete(
        self, batches: Iterator[pa.RecordBatch], fields: Sequence[int], known: pa.RecordBatch | None, deciding: Sequence[int]
    ) -> Iterator[pa.RecordBatch]:
        """Yield batches of all columns, given some of their columns and the values of others."""
        done = 0
        for batch in batches:
            columns = {
                at: _repeated(value, batch.num_rows) for at, value in enumerate(self._group.sources) if not self._varies(at)
            }
            if known:
                columns |= zip(deciding, known.slice(done, batch.num_rows).columns, strict=True)
            columns |= zip(fields, batch.columns, strict=True)
            yield pa.RecordBatch.from_arrays([columns[at] for at in range(len(self._target))], schema=self._target)
            done += batch.num_rows

    def _varies(self, at: int) -> bool:
        return isinstance(self._group.sources[at], tuple | RowPositions)

    def _plain(self, batch: pa.RecordBatch, fields: Sequence[int]) -> Iterator[pa.RecordBatch]:
        """Yield a batch in the table's types, its dictionaries replaced by their values."""
        schema = pa.schema([self._target.field(at) for at in fields])
        encoded = [pa.types.is_dictionary(column.type) for column in batch.columns]
        for part in plain_parts(batch):
            arrays = [
                self._group.sources[at][1](column) if refers else column
                for at, column, refers in zip(fields, part.columns, encoded, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _stored(
        self,
        fields: Sequence[int],
        is_needed: Callable[[int, int], bool] = lambda _start, _length: True,
        rows_used: int | None = None,
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield where batches of a row group start, and some columns: texts may still refer to a dictionary.

        :param is_needed: tells of a first row and a number of rows whether to yield them.
        :param rows_used: after so many rows the caller stops: a batch ends there.
        """
        every = self._target.names
        start, names = self._group.start, [every[at] for at in fields]
        constants: dict[int, pa.Array] = {}
        for length, columns in self._columns([self._group.sources[at] for at in fields], rows_used or self._group.num_rows):
            if is_needed(start, length):
                arrays = []
                for at in fields:
                    source = self._group.sources[at]
                    if isinstance(source, tuple):
                        found = columns[source[0]]
                        arrays.append(found if pa.types.is_dictionary(found.type) else source[1](found))
                    elif isinstance(source, RowPositions):
                        arrays.append(positions_of(BitMap64(range(start, start + length))).view(pa.int64()))
                    else:
                        if at not in constants or len(constants[at]) < length:
                            constants[at] = _repeated(source, length)
                        arrays.append(constants[at].slice(0, length))
                yield start, pa.RecordBatch.from_arrays(arrays, names=names)
            start += length

    def _columns(self, sources: Sequence[Any], rows_used: int) -> Iterator[tuple[int, dict[str, pa.Array]]]:
        """Yield number of rows and columns of batches of a row group, as the file has them; a batch ends with ``rows_used``."""
        names = list(dict.fromkeys(source[0] for source in sources if isinstance(source, tuple)))
        if not names:
            for first in range(0, self._group.num_rows, self._most_rows):
                yield min(self._most_rows, self._group.num_rows - first), {}
            return
        chunks, opened = self._declared(names), self._group.opened
        most = self._rows_at_once(chunks, sources)
        encoded = encoded_columns(chunks, opened.footer.schema_arrow, most)

        @cache
        def longest(chunk: Chunk) -> int:
            return longest_value(opened.reader([chunk.path]), self._group.number, chunk)

        known = {*encoded, *(f.name for f in opened.footer.schema_arrow if pa.types.is_dictionary(f.type))}
        others = [chunk for chunk in chunks if chunk.path not in known]
        size = batch_rows(others, most, None if opened.remote else longest)
        if size > self._most_rows:  # by the mean of each dictionary, but its longest value may stand in every row
            value = sum(longest(chunk) for chunk in others if chunk.is_text and chunk.dictionary)
            size = min(size, max(self._most_rows, JOINED_BYTES // max(value, 1)))
        parts = max(-(-rows_used // size), 1)
        found, size = 0, max(-(-rows_used // parts), 1)
        for batch in opened.reader(encoded).iter_batches(size, row_groups=[self._group.number], columns=names, use_threads=True):
            found += batch.num_rows
            yield batch.num_rows, dict(zip(batch.schema.names, batch.columns, strict=True))
        if found != self._group.num_rows:
            raise OSError(f"row group {self._group.number} has {found:,} rows, its footer says {self._group.num_rows:,}")

    def _rows_at_once(self, chunks: Sequence[Chunk], sources: Sequence[Any]) -> int:
        """Return how many rows to decode at once: each batch costs time, above all for the dictionaries that it repeats."""
        if self._most_rows < BATCH_ROWS or self._group.opened.remote:
            return min(self._most_rows, self._group.num_rows)
        constants = [source for source in sources if not isinstance(source, tuple)]
        memory = sum(map(value_bytes, chunks)) + self._group.num_rows * sum(map(_bytes_of, constants))
        parts = memory // JOINED_BYTES + 1
        return max(min(self._most_rows, self._group.num_rows), -(-self._group.num_rows // parts))


def _bytes_of(value: pa.Scalar | RowPositions) -> int:
    if isinstance(value, RowPositions) or not value.is_valid or value.type not in (pa.string(), pa.binary()):
        return 8
    return int(value.as_buffer().size)


def _repeated(value: pa.Scalar, length: int) -> pa.Array:
    return pa.repeat(value, length) if value.is_valid else pa.nulls(length, value.type)


def counts(marked: BitMap64 | None, start: int, end: int, deleted: bool) -> bool:
    """Return whether some of a range of rows is wanted."""
    if marked is None:
        return not deleted and end > start
    found = int(marked.range_cardinality(start, end))
    return found > 0 if deleted else found < end - start


def _live_mask(marked: BitMap64, start: int, length: int, deleted: bool) -> pa.BooleanArray:
    """Return where the rows from ``start`` on are live."""
    here = BitMap64(range(start, start + length))
    found = marked & here
    if not found or len(found) == length:
        return repeated(bool(found) is deleted, length)
    mask = kernels.is_in(positions_of(here), value_set=positions_of(found))
    return mask if deleted else kernels.invert(mask)


def positions_of(rows: BitMap64) -> pa.Array:
    """Return positions of rows as an array of unsigned integers."""
    data = rows.to_array()
    return pa.Array.from_buffers(pa.uint64(), len(data), [None, pa.py_buffer(data)])


def _live(batch: pa.RecordBatch, marked: BitMap64, start: int, deleted: bool) -> pa.RecordBatch:
    here = BitMap64(range(start, start + batch.num_rows))
    found = marked & here
    if len(found) == (batch.num_rows if deleted else 0):
        return batch
    return batch.take(kernels.subtract(positions_of(found if deleted else here - found), scalar(start, pa.uint64())))

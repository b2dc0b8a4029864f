"""Sorting the files of a checkpoint by their combination of partition values, in bounded memory.

A first pass counts the files of each combination, which decides the bucket of each file: a stretch of some ten thousand files in
the sorted result. A second pass distributes every batch over its buckets, compressed. Each bucket is then sorted by itself.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa

from airflow_delta.light_dataclasses import dataclass
from airflow_delta.log.arrow import kernels
from airflow_delta.log.arrow.arrays import array, scalar
from airflow_delta.log.expressions.predicate import partition_texts
from airflow_delta.log.schema.partition_values import parse_partition_value
from airflow_delta.log.schema.types import DataType, StructType, arrow_type

KEY = "key"
COUNT = "count"


def combination_keys(columns: Sequence[pa.Array]) -> pa.Array:
    """Return a key for each row; two rows have equal keys exactly if all their columns are equal, nulls included."""
    if len(columns) == 1:
        return columns[0]
    mark, nothing, null = scalar("="), scalar(""), scalar("-")
    marked = [kernels.fill_null(kernels.binary_join_element_wise(mark, column, nothing), null) for column in columns]
    # The lengths tell values apart that contain the separator.
    none = scalar(0, pa.int32())
    lengths = [kernels.cast(kernels.fill_null(kernels.binary_length(column), none), pa.string()) for column in columns[:-1]]
    return kernels.binary_join_element_wise(*marked, *lengths, scalar("\x00"))


def combinations(columns: Sequence[pa.Array], keys: pa.Array) -> pa.Table:
    """Return the distinct rows of some columns: columns ``0``, ``1``, ..., their ``key`` and their ``count``."""
    values, counts = kernels.value_counts(keys).flatten()
    first = kernels.index_in(values, value_set=keys)
    names = [str(position) for position in range(len(columns))]
    return pa.table([*(kernels.take(column, first) for column in columns), values, counts], names=[*names, KEY, COUNT])


def merge_combinations(found: pa.Table) -> pa.Table:
    """Return the different rows of several such tables, one after the other, with their counts added up."""
    found = found.combine_chunks()
    keys = found.column(KEY).combine_chunks()
    values = kernels.unique(keys)
    totals = [0] * len(values)
    for place, count in zip(kernels.index_in(keys, value_set=values).to_pylist(), found.column(COUNT).to_pylist(), strict=True):
        totals[place] += count
    rows = kernels.take(found, kernels.index_in(values, value_set=keys))
    return rows.set_column(rows.column_names.index(COUNT), COUNT, array(totals, pa.int64()))


class PartitionTyper:
    """Turns partition values into typed columns; each distinct string is parsed once.

    :param partition_schema: the partition columns.
    """

    def __init__(self, partition_schema: StructType) -> None:
        self.names = [field.physical_name for field in partition_schema.fields]
        self._types: list[DataType] = [field.data_type for field in partition_schema.fields]
        self._parsed: list[dict[str, object]] = [{} for _ in self.names]

    def texts(self, values: pa.MapArray) -> list[pa.Array]:
        """Return the partition values of some files as strings, one array per partition column."""
        return [partition_texts(values, name) for name in self.names]

    def typed(self, texts: list[pa.Array]) -> list[pa.Array]:
        """Return the typed form of the strings of :meth:`texts`."""
        return [self._column(position, column) for position, column in enumerate(texts)]

    def _column(self, position: int, column: pa.Array) -> pa.Array:
        data_type = self._types[position]
        arrow = arrow_type(data_type)
        encoded = kernels.dictionary_encode(column)
        known = self._parsed[position]
        values = []
        for text in encoded.dictionary.to_pylist():
            if text not in known:
                known[text] = parse_partition_value(text, data_type)
            values.append(known[text])
        return kernels.take(array(values, arrow), encoded.indices)


@dataclass(frozen=True, slots=True)
class PartitionOrder:
    """The order of partitions in a sorted checkpoint.

    :param keys: one key for each partition, in order.
    :param bucket_starts: index into ``keys`` of each bucket's first partition.
    """

    keys: pa.Array
    bucket_starts: list[int]

    def places(self, files: pa.RecordBatch, typer: PartitionTyper) -> pa.Array:
        """Return the position of each file's partition in the order; ``files`` has a column ``partition_values``."""
        return kernels.index_in(combination_keys(typer.texts(files.column("partition_values"))), value_set=self.keys)

    def follows(self, batches: Iterable[pa.RecordBatch], typer: PartitionTyper) -> bool:
        """Tell whether files are already in this order."""
        last = -1
        for batch in batches:
            places = self.places(batch, typer)
            bounds = kernels.min_max(places)
            if bounds["min"].as_py() < last or not kernels.all(kernels.greater_equal(places[1:], places[:-1])).as_py():
                return False
            last = bounds["max"].as_py()
        return True

    @classmethod
    def of(cls, batches: Iterable[pa.RecordBatch], typer: PartitionTyper, bucket_rows: int) -> PartitionOrder:
        """Count the partitions in batches with a column ``partition_values``."""
        found: pa.Table | None = None
        for batch in batches:
            texts = typer.texts(batch.column("partition_values"))
            counted = combinations(texts, combination_keys(texts))
            found = counted if found is None else pa.concat_tables([found, counted])
            if found.num_rows > 4 * bucket_rows:
                found = merge_combinations(found)
        if found is None:
            return cls(array([], pa.string()), [0])
        found = merge_combinations(found)
        texts = [found.column(str(i)).combine_chunks() for i in range(len(typer.names))]
        typed = pa.table(typer.typed(texts), names=[str(i) for i in range(len(texts))])
        order = kernels.sort_indices(typed, sort_keys=[(name, "ascending") for name in typed.column_names])
        starts, rows = [0], 0
        for position, count in enumerate(kernels.take(found.column(COUNT), order).to_pylist()):
            if rows and rows + count > bucket_rows:
                starts.append(position)
                rows = 0
            rows += count
        keys = kernels.take(found.column(KEY), order)
        return cls(keys.combine_chunks() if isinstance(keys, pa.ChunkedArray) else keys, starts)


class Buckets:
    """Batches distributed over the buckets of the sorted result, compressed while they wait.

    :param order: where each partition goes.
    """

    def __init__(self, order: PartitionOrder, typer: PartitionTyper) -> None:
        self._order = order
        self._typer = typer
        self._held: list[list[bytes]] = [[] for _ in order.bucket_starts]
        ends = [*order.bucket_starts[1:], len(order.keys)]
        self._sizes = [end - start for start, end in zip(order.bucket_starts, ends, strict=True)]
        self._bucket_of = array([bucket for bucket, size in enumerate(self._sizes) for _ in range(size)], pa.int32())

    def add(self, batch: pa.RecordBatch) -> None:
        """Distribute the rows of a batch, which has a column ``partition_values``."""
        positions = self._order.places(batch, self._typer)
        order = kernels.sort_indices(positions)
        rows = kernels.take(batch, order)
        runs = kernels.run_end_encode(kernels.take(self._bucket_of, kernels.take(positions, order)))
        start = 0
        for bucket, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
            self._held[bucket].append(_packed(rows.slice(start, end - start)))
            start = end

    def drain(self) -> Iterator[pa.RecordBatch]:
        """Yield all rows in order, releasing them on the way."""
        for bucket, held in enumerate(self._held):
            batches = (_unpacked(data) for data in held)
            if self._sizes[bucket] <= 1:
                yield from batches  # one partition, of any size: nothing to sort
            else:
                yield sort_by_partition(joined(list(batches)), self._order, self._typer)
            self._held[bucket] = []


def joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    """Concatenate batches into one (``pa.concat_batches`` is newer than the lowest PyArrow)."""
    if len(batches) == 1:
        return batches[0]
    columns = zip(*(batch.columns for batch in batches), strict=True)
    return pa.RecordBatch.from_arrays([pa.concat_arrays(parts) for parts in columns], schema=batches[0].schema)


def sort_by_partition(files: pa.RecordBatch, order: PartitionOrder, typer: PartitionTyper) -> pa.RecordBatch:
    """Return files sorted by partition; files of one partition keep their order."""
    return kernels.take(files, kernels.sort_indices(order.places(files, typer)))


def merge_sorted(
    files: Iterable[pa.RecordBatch], more: pa.RecordBatch, order: PartitionOrder, typer: PartitionTyper
) -> Iterator[pa.RecordBatch]:
    """Merge a few files into batches of files that are already in order.

    :param files: batches in order.
    :param more: a few files in any order.
    """
    more = sort_by_partition(more, order, typer)
    places = order.places(more, typer).to_pylist()
    done = 0
    for batch in files:
        last = order.places(batch.slice(batch.num_rows - 1), typer)[0].as_py()
        until = bisect_left(places, last, lo=done)
        yield batch if until == done else sort_by_partition(joined([batch, more.slice(done, until - done)]), order, typer)
        done = until
    if done < more.num_rows:
        yield more.slice(done)


def _packed(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def _unpacked(data: bytes) -> pa.RecordBatch:
    with pa.ipc.open_stream(data) as stream:
        return stream.read_next_batch()

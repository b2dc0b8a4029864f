"""Counting the files of a version, and their totals, over the columns of the checkpoint (Delta's SnapshotState)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from airflow_delta.log.actions.reconciliation import TailFiles, file_key
from airflow_delta.log.arrow import kernels
from airflow_delta.log.arrow.arrays import array, scalar
from airflow_delta.log.checkpoint.file_columns import FILE_COLUMNS, FILE_SCHEMA, to_add_files
from airflow_delta.log.checksum.histograms import DELETED_RECORD_BINS, FILE_SIZE_BINS
from airflow_delta.log.checksum.totals import MAX_FILES, Deletions, SizeCounts, Totals
from airflow_delta.log.replay.live_files import live_batches, live_files

if TYPE_CHECKING:
    from airflow_delta.log.checkpoint.reader import CheckpointReader


def count_files(reader: CheckpointReader | None, tail: TailFiles) -> tuple[int, int]:
    """Return the number of live files and their bytes, reading only paths and sizes."""
    count = len(tail.adds)
    size = sum(add.size for add in tail.adds.values())
    if reader is not None:
        for batch in live_batches(reader, tail, pa.schema([FILE_SCHEMA.field("size")])):
            count += batch.num_rows
            size += kernels.sum(batch.column("size")).as_py() or 0
    return count, size


_COLUMNS = pa.schema([FILE_SCHEMA.field("size"), FILE_SCHEMA.field("deletion_vector")])


def count_totals(reader: CheckpointReader | None, tail: TailFiles) -> Totals:
    """Return the totals of the live files, with the files themselves if there are few.

    :param reader: the checkpoint, or ``None`` if the log has none.
    :param tail: the commits after it.
    """
    if reader is None:
        if len(tail.adds) <= MAX_FILES:
            return Totals.of(tail.adds)
        vectors = ((add.size, add.deletion_vector) for add in tail.adds.values())
        return Totals.counted((size, None if vector is None else vector.cardinality) for size, vector in vectors)
    sizes: list[pa.Array] = [array([add.size for add in tail.adds.values()], pa.int64())]
    cardinalities: list[pa.Array] = [
        array(
            [None if add.deletion_vector is None else add.deletion_vector.cardinality for add in tail.adds.values()], pa.int64()
        )
    ]
    for batch in live_batches(reader, tail, _COLUMNS):
        sizes.append(kernels.cast(batch.column("size"), pa.int64()))
        vectors = batch.column("deletion_vector")
        # The fields of a null vector may have any value, so its cardinality must not count.
        counts = kernels.cast(kernels.struct_field(vectors, "cardinality"), pa.int64())
        cardinalities.append(kernels.if_else(kernels.is_valid(vectors), counts, scalar(None, pa.int64())))
    size, deleted = pa.concat_arrays(sizes), pa.concat_arrays(cardinalities)
    if len(size) <= MAX_FILES:
        return Totals.of({file_key(add): add for add in to_add_files(live_files(reader, tail, columns=FILE_COLUMNS))})
    files, size_in_bytes = _bins(size, FILE_SIZE_BINS)
    rows, _ = _bins(kernels.fill_null(deleted, scalar(0)), DELETED_RECORD_BINS)
    deletions = Deletions(kernels.sum(deleted).as_py() or 0, len(deleted) - deleted.null_count, rows)
    return Totals(len(size), kernels.sum(size).as_py() or 0, SizeCounts(files, size_in_bytes), deletions)


def _bins(values: pa.Array, bounds: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return number and sum of the values in each bin, given the first value of each."""
    ordered = kernels.take(values, kernels.sort_indices(values))
    sums = kernels.cumulative_sum(ordered)
    ends = [bisect_left(ordered, bound, key=lambda scalar: scalar.as_py()) for bound in bounds[1:]] + [len(ordered)]
    counts, totals, start, before = [], [], 0, 0
    for end in ends:
        after = sums[end - 1].as_py() if end else 0
        counts.append(end - start)
        totals.append(after - before)
        start, before = end, after
    return tuple(counts), tuple(totals)

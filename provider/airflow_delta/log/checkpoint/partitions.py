"""Combinations of partition values: a key for each, and the number of files that have it."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from airflow_delta.log.arrow.arrays import array, scalar

KEY = "key"
COUNT = "count"


def combination_keys(columns: Sequence[pa.Array]) -> pa.Array:
    """Return a key for each row; two rows have equal keys exactly if all their columns are equal, nulls included."""
    if len(columns) == 1:
        return columns[0]
    mark, nothing, null = scalar("="), scalar(""), scalar("-")
    marked = [pc.fill_null(pc.binary_join_element_wise(mark, column, nothing), null) for column in columns]
    # The lengths tell values apart that contain the separator.
    none = scalar(0, pa.int32())
    lengths = [pc.fill_null(pc.binary_length(column), none).cast(pa.string()) for column in columns[:-1]]
    return pc.binary_join_element_wise(*marked, *lengths, scalar("\x00"))


def combinations(columns: Sequence[pa.Array], keys: pa.Array) -> pa.Table:
    """Return the distinct rows of some columns: columns ``0``, ``1``, ..., their ``key`` and their ``count``."""
    values, counts = pc.value_counts(keys).flatten()
    first = pc.index_in(values, value_set=keys)
    names = [str(position) for position in range(len(columns))]
    return pa.table([*(column.take(first) for column in columns), values, counts], names=[*names, KEY, COUNT])


def merge_combinations(found: pa.Table) -> pa.Table:
    """Return the different rows of several such tables, one after the other, with their counts added up."""
    found = found.combine_chunks()
    keys = found.column(KEY).combine_chunks()
    values = pc.unique(keys)
    totals = [0] * len(values)
    for place, count in zip(pc.index_in(keys, value_set=values).to_pylist(), found.column(COUNT).to_pylist(), strict=True):
        totals[place] += count
    rows = found.take(pc.index_in(values, value_set=keys))
    return rows.set_column(rows.column_names.index(COUNT), COUNT, array(totals, pa.int64()))

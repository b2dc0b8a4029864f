"""Combinations of partition values: a key for each, and the number of files that have it."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

KEY = "key"
COUNT = "count"


def combination_keys(columns: Sequence[pa.Array]) -> pa.Array:
    """Return a key for each row; two rows have equal keys exactly if all their columns are equal, nulls included."""
    if len(columns) == 1:
        return columns[0]
    marked = [pc.fill_null(pc.binary_join_element_wise("=", column, ""), "-") for column in columns]
    # The lengths tell values apart that contain the separator.
    lengths = [pc.fill_null(pc.binary_length(column), 0).cast(pa.string()) for column in columns[:-1]]
    return pc.binary_join_element_wise(*marked, *lengths, "\x00")


def combinations(columns: Sequence[pa.Array], keys: pa.Array) -> pa.Table:
    """Return the distinct rows of some columns: columns ``0``, ``1``, ..., their ``key`` and their ``count``."""
    names = [str(position) for position in range(len(columns))]
    table = pa.table([*columns, keys], names=[*names, KEY]).group_by([*names, KEY], use_threads=False)
    return table.aggregate([([], "count_all")]).rename_columns({"count_all": COUNT})

"""Null counts and bounds of columns, from the footer of a Parquet file."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from airflow_delta.log.data_files.leaf_columns import leaf_paths

if TYPE_CHECKING:
    import pyarrow.parquet as pq


def bounds_of_column(footer: pq.FileMetaData, name: str) -> tuple[int, int] | None:
    """Return the lowest and highest value of a top-level integer column, ``None`` if the footer lacks them."""
    index = next((i for i, path in enumerate(leaf_paths(footer)) if path == (name,)), None)
    if index is None:
        return None
    low: list[int] = []
    high: list[int] = []
    for group in range(footer.num_row_groups):
        statistics = footer.row_group(group).column(index).statistics
        if statistics is None or not statistics.has_min_max:
            return None
        low.append(int(statistics.min_raw))
        high.append(int(statistics.max_raw))
    return (min(low), max(high)) if low else None


def footer_null_counts(footer: pq.FileMetaData, names: Sequence[str], variants: Collection[str] = ()) -> dict[str, int]:
    """Return the number of nulls in top-level columns: -1 for a column that the file lacks or has no count for.

    :param variants: the names of those that are variants, which are groups in a file; other groups are not counted.
    """
    counts: dict[str, int] = {}
    leaves: dict[str, list[int]] = {}
    paths = leaf_paths(footer)
    for index, path in enumerate(paths):
        leaves.setdefault(path[0].lower(), []).append(index)
    for name in names:
        indexes = leaves.get(name.lower())
        if indexes is None:
            counts[name] = -1
        elif len(indexes) == 1 and len(paths[indexes[0]]) == 1:
            counts[name] = _nulls_of_leaf(footer, indexes[0])
        elif name in variants:  # each has metadata, unless it is null
            metadata = next((i for i in indexes if paths[i][1:] == ("metadata",)), None)
            counts[name] = -1 if metadata is None else _nulls_of_leaf(footer, metadata)
    return counts


def _nulls_of_leaf(footer: pq.FileMetaData, index: int) -> int:
    if footer.schema.column(index).max_definition_level == 0:
        return 0
    total = 0
    for group in range(footer.num_row_groups):
        statistics = footer.row_group(group).column(index).statistics
        if statistics is None or not statistics.has_null_count:
            return -1
        total += statistics.null_count
    return total

"""Row group skipping: as data skipping does with files, by what the footer says of each row group."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from airflow_delta.log.arrow.arrays import array
from airflow_delta.log.data_files.leaf_columns import leaf_paths
from airflow_delta.log.schema.types import Leaf
from airflow_delta.log.statistics.data_skipping import skipping_mask, statistics_columns
from airflow_delta.log.statistics.footers_to_stats import group_statistics

if TYPE_CHECKING:
    import pyarrow.parquet as pq

    from airflow_delta.log.expressions.predicate import Predicate

_MEMBERS = ("nullCount", "minValues", "maxValues")


def groups_that_may_hold(predicate: Predicate, footer: pq.FileMetaData, names: Mapping[str, str]) -> list[bool]:
    """Return for each row group of a file whether it may have rows that a predicate selects.

    :param names: the file's own names of columns, by the table's; others are not looked at.
    """
    paths = {path: i for i, path in enumerate(leaf_paths(footer)) if not footer.schema.column(i).max_repetition_level}
    # Fields of structs are not looked for.
    found = [
        (Leaf(column.path, column.physical_path, column.data_type), paths[(names[column.path[0]],)])
        for column in statistics_columns(predicate.data_part)
        if len(column.path) == 1 and column.path[0] in names and (names[column.path[0]],) in paths
    ]
    if not found:
        return [True] * footer.num_row_groups
    texts = []
    for group in range(footer.num_row_groups):
        stats: dict[str, Any] = {
            "numRecords": footer.row_group(group).num_rows,
            "minValues": {},
            "maxValues": {},
            "nullCount": {},
        }
        for leaf, index in found:
            values = group_statistics(footer, group, index, leaf)
            for member, value in zip(_MEMBERS, values, strict=True):
                if value is not None:
                    stats[member][leaf.physical_path[0]] = value
        texts.append(msgspec.json.encode(stats).decode())
    kept: list[bool] = skipping_mask(predicate.data_part, array(texts, pa.string())).to_pylist()
    return kept

"""Leaf columns in a Parquet footer: their paths, and the points in time that statistics of timestamps stand for."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Iterator

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as kinds

from airflow_delta.log.schema.partition_values import EPOCH

PER_SECOND = {"milliseconds": 1_000, "microseconds": 1_000_000, "nanoseconds": 1_000_000_000}


def leaf_paths(footer: pq.FileMetaData) -> list[tuple[str, ...]]:
    """Return the path of each leaf column, in order: the names of the fields from the top.

    Parquet joins the names of a path with dots, but names may contain dots too: the column ``a.b`` and the field ``b`` of a
    struct ``a`` would be the same. Below a list or a map the path continues with ``element``, ``key`` and ``value``.
    """
    paths = [path for field in schema_tree(footer) or () for path in _leaves(field.type, (field.name,))]
    if len(paths) == footer.num_columns:
        return paths
    # Without the schema tree, only top-level columns without a dot in their text are unambiguous.
    texts = [footer.schema.column(index).path for index in range(footer.num_columns)]
    return [(text,) if "." not in text else (text, "") for text in texts]


def schema_tree(footer: pq.FileMetaData) -> pa.Schema | None:
    """Return the schema of a file in Arrow's types, ``None`` if it has one that is unknown to Arrow."""
    try:
        return footer.schema.to_arrow_schema()
    except pa.ArrowException:
        return None


def _leaves(data_type: pa.DataType, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    if isinstance(data_type, pa.BaseExtensionType):
        yield from _leaves(data_type.storage_type, path)
    elif kinds.is_struct(data_type):
        for field in data_type:
            yield from _leaves(field.type, (*path, field.name))
    elif kinds.is_map(data_type):
        yield from _leaves(data_type.key_type, (*path, "key"))
        yield from _leaves(data_type.item_type, (*path, "value"))
    elif kinds.is_list(data_type) or kinds.is_large_list(data_type) or kinds.is_fixed_size_list(data_type):
        yield from _leaves(data_type.value_type, (*path, "element"))
    else:
        yield path


def instant_of(statistics: pq.Statistics) -> Callable[[int], dt.datetime] | None:
    """Return the function from a physical value to the point in time it stands for; ``None`` for columns of other types.

    pyarrow's own ``min`` and ``max`` import pandas for timestamps.
    """
    if statistics.physical_type != "INT64" or statistics.logical_type.type != "TIMESTAMP":
        return None
    logical = json.loads(statistics.logical_type.to_json())
    return timestamps(PER_SECOND[logical["timeUnit"]], zoned=logical["isAdjustedToUTC"])


def timestamps(per_second: int, *, zoned: bool) -> Callable[[int], dt.datetime]:
    """Return the function from a number of ticks since the epoch to a point in time, cut to microseconds."""
    epoch = EPOCH if zoned else EPOCH.replace(tzinfo=None)
    return lambda raw: epoch + dt.timedelta(microseconds=raw * 1_000_000 // per_second)

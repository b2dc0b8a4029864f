"""Which columns have statistics (``delta.dataSkippingStatsColumns`` and ``delta.dataSkippingNumIndexedCols``)."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.lazy_patterns import lazy_pattern
from airflow_delta.log.features.properties import TableProperties
from airflow_delta.log.schema.types import Leaf, StructType, leaves

_NAME = lazy_pattern(r"\s*+(?:`((?:[^`]|``)[^`]*+(?:``[^`]*+)*)`(?!`)\s*+|([^`.,\s][^`.,]*+))([.,]|$)")


def parse_column_list(text: str) -> list[tuple[str, ...]]:
    """Return the columns of a list such as ``a, b.c, `d.e```.

    :raises DeltaIllegalArgumentException: if the text is not such a list.
    """
    result: list[tuple[str, ...]] = []
    path: list[str] = []
    at = 0
    while at < len(text):
        match = _NAME.match(text, at)
        if match is None:
            raise DeltaIllegalArgumentException(f"delta.dataSkippingStatsColumns must be a list of columns, got {text!r}")
        path.append(match[1].replace("``", "`") if match[1] else match[2].rstrip())
        if match[3] != ".":
            result.append(tuple(path))
            path = []
        at = match.end()
    if path:
        raise DeltaIllegalArgumentException(f"delta.dataSkippingStatsColumns must be a list of columns, got {text!r}")
    return result


def indexed_leaves(schema: StructType, partition_columns: Sequence[str], properties: TableProperties) -> list[Leaf]:
    """Return the leaf columns with statistics, in schema order. Partition columns have none and do not count."""
    candidates = leaves(schema.without(list(partition_columns)))
    listed = properties.data_skipping_stats_columns
    if listed is not None:
        wanted = [tuple(name.lower() for name in path) for path in parse_column_list(listed)]
        return [leaf for leaf in candidates if any(_starts(leaf.path, path) for path in wanted)]
    count = properties.data_skipping_num_indexed_cols
    return candidates if count < 0 else candidates[:count]


def _starts(path: tuple[str, ...], prefix: tuple[str, ...]) -> bool:
    return tuple(name.lower() for name in path[: len(prefix)]) == prefix

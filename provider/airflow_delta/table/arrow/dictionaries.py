"""Which columns of a file have dictionaries: those whose values repeat."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from airflow_delta.log.arrow import kernels

FEW_ROWS = 16
"""Rows up to which a small file has no dictionaries: they take longer than the values, and hardly fewer bytes."""

_PARTS = 16
_PART_ROWS = 1024
_SAMPLE_DISTINCT = 0.95
_DISTINCT = 0.75
"""Of the values of a row group: from here on, a dictionary of numbers with references to it is larger than they are."""


def with_dictionaries(rows: pa.Table, leaves: Sequence[str], group_rows: int) -> list[str] | bool:
    """Return the columns of a file that are to have dictionaries, or whether all of them.

    For values that do not repeat, such as ids, a dictionary takes up to six times as long as the values, and more bytes. Parquet
    gives one up only when it has a megabyte, which many a row group has not.

    :param rows: the first ones of the file.
    :param leaves: paths of all columns, as in Parquet.
    :param group_rows: rows of a row group.
    """
    if rows.num_rows < _PARTS * _PART_ROWS:
        return True
    group = rows.slice(0, group_rows)
    step = group.num_rows // _PARTS
    sample = pa.concat_tables([group.slice(part * step, _PART_ROWS) for part in range(_PARTS)])
    unique = {
        field.name
        for at, field in enumerate(rows.schema)
        if _are_distinct(sample.column(at), _SAMPLE_DISTINCT) and _are_distinct(group.column(at), _DISTINCT)
    }
    return [path for path in leaves if path not in unique] if unique else True


def _are_distinct(values: pa.ChunkedArray, share: float) -> bool:
    """Return whether values hardly repeat; those of lists, maps and structs are not looked at, nor are few values."""
    known: int = len(values) - values.null_count
    if pa.types.is_nested(values.type) or known < _PART_ROWS:
        return False
    distinct: int = kernels.count_distinct(values, mode="only_valid").as_py()
    return distinct >= share * known

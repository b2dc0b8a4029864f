"""Which columns of a file have dictionaries: those whose values repeat."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import pyarrow as pa
import pyarrow.compute as pc

from airflow_delta.log.arrow import kernels
from airflow_delta.log.arrow.arrays import scalar

FEW_ROWS = 16
"""Rows up to which a small file has no dictionaries: they take longer than the values, and hardly fewer bytes."""

_LEAST_ROWS = 16_384
_SHARE = 8
"""One row in so many is looked at. They are drawn at random, since values may repeat at any distance, or side by side."""

_LEAST_VALUES = 512
_DISTINCT = 0.97
"""Share of the values looked at that differ if a quarter of all has come before: then a dictionary of numbers, with references
to it, is as large as they are."""

_WIDE_BYTES = 64
"""Parquet gives up a dictionary at a megabyte, which values from this mean length on soon have: sooner than they are compared."""


def with_dictionaries(rows: pa.Table, leaves: Sequence[str], group_rows: int) -> list[str] | bool:
    """Return the columns of a file that are to have dictionaries, or whether all of them.

    For values that do not repeat, such as ids, a dictionary takes up to six times as long as the values, and more bytes. Parquet
    gives one up only when it has a megabyte, which many a row group has not.

    :param rows: the first ones of the file.
    :param leaves: paths of all columns, as in Parquet.
    :param group_rows: rows of a row group.
    """
    if rows.num_rows < _LEAST_ROWS:
        return True
    group = rows.slice(0, group_rows)
    at = _drawn(group.num_rows)
    unique = {field.name for number, field in enumerate(rows.schema) if _are_distinct(group.column(number), at)}
    return [path for path in leaves if path not in unique] if unique else True


@lru_cache(maxsize=4)
def _drawn(num_rows: int) -> pa.Array:
    """Return the positions of some rows, always the same."""
    drawn = pc.random(num_rows // _SHARE, initializer=1)
    return kernels.unique(kernels.cast(kernels.floor(kernels.multiply(drawn, scalar(float(num_rows)))), pa.int64()))


def _are_distinct(values: pa.ChunkedArray, at: pa.Array) -> bool:
    """Return whether values hardly repeat; those of lists, maps and structs are not looked at, nor are few or wide values."""
    if pa.types.is_nested(values.type) or values.nbytes > _WIDE_BYTES * len(values):
        return False
    sample = kernels.take(values, at)
    known: int = len(sample) - sample.null_count
    if known < _LEAST_VALUES:
        return False
    distinct: int = kernels.count_distinct(sample, mode="only_valid").as_py()
    return distinct >= _DISTINCT * known

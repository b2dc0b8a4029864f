"""Numbers of values and of rows: equal ones have the same, as Spark compares them with ``<=>``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_delta.log.arrow.arrays import array, scalar
from airflow_delta.table.arrow.rewrite.key_columns import with_one_zero


def numbered(columns: Sequence[pa.Array]) -> pa.Array:
    """Return a number for each row of several columns of numbers from 0 on: the same for equal rows."""
    found = columns[0]
    for column in columns[1:]:
        most = pc.max(column).as_py() or 0
        both = pc.add(pc.multiply(found, scalar(most + 1, pa.int64())), column)
        found = both.dictionary_encode().indices.cast(pa.int64())
    return found


def value_numbers(column: pa.Array) -> pa.Array:
    """Return a number from 0 on for each value: the same for equal ones, as Spark compares them with ``<=>``."""
    kind = column.type
    if pa.types.is_struct(kind):
        return numbered([column.is_null().cast(pa.int64()), *map(value_numbers, column.flatten())])
    if pa.types.is_list(kind):
        numbers = value_numbers(column.values).to_pylist()
        known: dict[Any, int] = {}
        starts = column.offsets.to_pylist()
        lists = [
            tuple(numbers[start:end]) if valid else None
            for start, end, valid in zip(starts, starts[1:], column.is_valid().to_pylist(), strict=False)
        ]
        return array([known.setdefault(value, len(known)) for value in lists], pa.int64())
    indices = with_one_zero(column).dictionary_encode().indices.cast(pa.int64())
    return pc.fill_null(pc.add(indices, scalar(1, pa.int64())), scalar(0, pa.int64()))

"""Python values from Arrow arrays."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def to_pylist(array: pa.Array) -> list[Any]:
    """Return the values as Arrow's own ``to_pylist`` does, which imports pandas for timestamps with a zone.

    :param array: of any type of the log; such timestamps in microseconds, at the top or in structs.
    """
    if pa.types.is_struct(array.type):
        fields = [to_pylist(child) for child in array.flatten()]
        names = [field.name for field in array.type]
        rows = zip(*fields, strict=True) if fields else [()] * len(array)
        present = array.is_valid().to_pylist() if array.null_count else [True] * len(array)
        return [dict(zip(names, row, strict=True)) if valid else None for row, valid in zip(rows, present, strict=True)]
    if pa.types.is_timestamp(array.type) and array.type.tz is not None:
        counts = array.cast(pa.timestamp("us", array.type.tz)).cast(pa.int64()).to_pylist()
        return [None if count is None else _EPOCH + dt.timedelta(microseconds=count) for count in counts]
    values: list[Any] = array.to_pylist()
    return values

"""Python values from Arrow arrays."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from airflow_delta.log.arrow import kernels
from airflow_delta.log.arrow.arrays import EPOCH, EPOCH_DAY

Row = dict[str, Any]

_DAYS = 146_097  # in 400 years, after which the calendar repeats itself

_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}

_DAY = 86_400_000_000  # microseconds


def to_pylist(array: pa.Array) -> list[Any]:
    """Return the values as Arrow's own ``to_pylist`` does, which imports pandas for timestamps with a zone.

    :param array: of any type of the log; such timestamps in microseconds, at the top or in structs.
    :raises OverflowError: if a date or a time is before year 1 or after year 9999.
    :raises ValueError: likewise.
    """
    if pa.types.is_struct(array.type):
        return _structs(array, [to_pylist(child) for child in array.flatten()])
    if pa.types.is_timestamp(array.type) and array.type.tz is not None:
        counts = kernels.cast(kernels.cast(array, pa.timestamp("us", array.type.tz)), pa.int64()).to_pylist()
        return [None if count is None else EPOCH + dt.timedelta(microseconds=count) for count in counts]
    values: list[Any] = array.to_pylist()
    return values


def readable(array: pa.Array) -> list[Any]:
    """Return the values for people and for JSON: dates and times that Python cannot hold are text, in any depth.

    The text is ISO 8601, with a sign before years beyond 9999 (``+10000-01-01``) and below 0 (``-0044-03-15``), as in Spark.

    :param array: of any type that a table's rows have.
    """
    kind = array.type
    if pa.types.is_struct(kind):
        return _structs(array, [readable(child) for child in array.flatten()])
    if pa.types.is_map(kind):
        keys, items = readable(array.keys), readable(array.items)
        return [None if span is None else list(zip(keys[span], items[span], strict=True)) for span in _spans(array)]
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        values = readable(array.values)
        return [None if span is None else values[span] for span in _spans(array)]
    if pa.types.is_date32(kind):
        return [None if day is None else _date(day) for day in kernels.cast(array, pa.int32()).to_pylist()]
    if pa.types.is_timestamp(kind):
        per_second, zoned = _PER_SECOND[kind.unit], kind.tz is not None
        counts = kernels.cast(array, pa.int64()).to_pylist()
        return [None if count is None else _time(count * 1_000_000 // per_second, zoned=zoned) for count in counts]
    plain: list[Any] = array.to_pylist()
    return plain


def rows_of(batch: pa.RecordBatch) -> Iterator[Row]:
    """Yield the rows by the names of the columns, with values as :func:`readable` returns them."""
    names = batch.schema.names
    for row in zip(*(readable(column) for column in batch.columns), strict=True) if names else [()] * batch.num_rows:
        yield dict(zip(names, row, strict=True))


def _structs(array: pa.StructArray, fields: list[list[Any]]) -> list[Row | None]:
    names = [field.name for field in array.type]
    rows = zip(*fields, strict=True) if fields else [()] * len(array)
    present = kernels.is_valid(array).to_pylist() if array.null_count else [True] * len(array)
    return [dict(zip(names, row, strict=True)) if valid else None for row, valid in zip(rows, present, strict=True)]


def _spans(array: pa.ListArray) -> Iterator[slice | None]:
    """Yield where the elements of each list or map are among the elements of all, ``None`` for a null."""
    ends: list[int] = array.offsets.to_pylist()
    for position, valid in enumerate(kernels.is_valid(array).to_pylist()):
        yield slice(ends[position], ends[position + 1]) if valid else None


def _date(day: int) -> dt.date | str:
    """Return a day, counted from 1970."""
    cycles, inside = _within(day + EPOCH_DAY)
    found = dt.date.fromordinal(inside)
    return found if not cycles else _year(found.year + 400 * cycles) + found.isoformat()[4:]


def _time(microseconds: int, *, zoned: bool) -> dt.datetime | str:
    """Return a time, counted from 1970; in UTC if it has a zone."""
    days, rest = divmod(microseconds, _DAY)
    cycles, inside = _within(days + EPOCH_DAY)
    found = dt.datetime.fromordinal(inside) + dt.timedelta(microseconds=rest)
    found = found.replace(tzinfo=dt.UTC) if zoned else found
    return found if not cycles else _year(found.year + 400 * cycles) + found.isoformat()[4:]


def _within(ordinal: int) -> tuple[int, int]:
    """Return how many times 400 years a day is away from the nearest that Python has at the same place of the calendar."""
    if 1 <= ordinal <= dt.date.max.toordinal():
        return 0, ordinal
    cycles = (ordinal - 1) // _DAYS
    return cycles, ordinal - cycles * _DAYS


def _year(year: int) -> str:
    return f"{year:+05d}" if year > dt.MAXYEAR or year < 0 else f"{year:04d}"

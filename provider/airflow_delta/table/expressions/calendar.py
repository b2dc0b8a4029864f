"""Dates and times as Arrow has them, within the years 1 to 9999 that Spark and Python have, too."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pyarrow.compute as pc

from airflow_delta.log.arrow.arrays import EPOCH_DAY, scalar
from airflow_delta.table.expressions.problems import RowNotDecided

_FIRST = dt.date.min.toordinal() - EPOCH_DAY
_LAST = dt.date.max.toordinal() - EPOCH_DAY
_DAY = 86_400_000_000


def without_zone(values: pa.TimestampArray) -> pa.TimestampArray:
    """Return points in time as the time that it is then in UTC."""
    return values.cast(pa.int64()).cast(pa.timestamp("us"))


def in_utc(values: pa.TimestampArray) -> pa.TimestampArray:
    """Return times without a zone as points in time."""
    return values.cast(pa.int64()).cast(pa.timestamp("us", "UTC"))


def check_years(values: pa.Array) -> pa.Array:
    """Return dates, or times without a zone, that are all in the years 1 to 9999.

    :raises RowNotDecided: if one is not.
    """
    if pa.types.is_date32(values.type):
        counts, first, last = values.cast(pa.int32()), _FIRST, _LAST
        kind = pa.int32()
    else:
        counts, first, last = values.cast(pa.int64()), _FIRST * _DAY, (_LAST + 1) * _DAY - 1
        kind = pa.int64()
    outside = pc.or_(pc.less(counts, scalar(first, kind)), pc.greater(counts, scalar(last, kind)))
    if pc.any(outside).as_py():
        raise RowNotDecided("a date before year 1 or after year 9999 is left to Spark")
    return values


def midnight(values: pa.Date32Array) -> pa.TimestampArray:
    """Return the starts of days."""
    return check_years(values).cast(pa.timestamp("us"))


def utc_days(values: pa.TimestampArray) -> pa.Date32Array:
    """Return the days of times without a zone."""
    return pc.floor_temporal(values, unit="day").cast(pa.date32())

"""Functions of dates and times in UTC, of the years 1 to 9999."""

from __future__ import annotations

import calendar
import datetime as dt
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_delta.log.arrow.arrays import scalar
from airflow_delta.log.expressions.literals import NULL
from airflow_delta.log.schema.types import DATE, INTEGER, STRING, TIMESTAMP, TIMESTAMP_NTZ, DataType
from airflow_delta.table.expressions.calendar import check_years, without_zone
from airflow_delta.table.expressions.casts import cast_part
from airflow_delta.table.expressions.coercion import exactly, timed, to_type, whole
from airflow_delta.table.expressions.parts import TypedPart, by_row, strict
from airflow_delta.table.expressions.problems import NotDecided, RowError, RowNotDecided

_DATE_PARTS: dict[str, Callable[[Any], Any]] = {
    "year": pc.year,
    "quarter": pc.quarter,
    "month": pc.month,
    "day": pc.day,
    "dayofmonth": pc.day,
    "dayofyear": pc.day_of_year,
    "weekofyear": pc.iso_week,
    "weekday": lambda values: pc.day_of_week(values),
    "dayofweek": lambda values: pc.add(pc.day_of_week(values, count_from_zero=False, week_start=7), scalar(0)),
}
_TIME_PARTS: dict[str, Callable[[Any], Any]] = {"hour": pc.hour, "minute": pc.minute, "second": pc.second}

DATE_PARTS, TIME_PARTS = tuple(_DATE_PARTS), tuple(_TIME_PARTS)
EXTRACTED = {
    "year": "year",
    "quarter": "quarter",
    "month": "month",
    "week": "weekofyear",
    "day": "day",
    "dayofweek": "dayofweek",
    "doy": "dayofyear",
    "hour": "hour",
    "minute": "minute",
}
"""Fields of ``extract``, by the functions that they are."""


def day_of(part: TypedPart) -> TypedPart:
    """Return an operand of a function as a date.

    :raises NotDecided: if it is neither a date nor a timestamp.
    """
    if part.data_type in (TIMESTAMP, TIMESTAMP_NTZ):
        return cast_part(part, DATE)
    return exactly(part, DATE)


def date_part(name: str, operand: TypedPart) -> TypedPart:
    """Return the part ``year(operand)`` and the like."""
    kernel = _DATE_PARTS[name]
    return strict(
        INTEGER, lambda values: kernel(check_years(values)).cast(pa.int32()), day_of(operand), fails=True, present_only=True
    )


def time_part(name: str, operand: TypedPart) -> TypedPart:
    """Return the part ``hour(operand)`` and the like."""
    if operand.data_type == TIMESTAMP_NTZ:
        raise NotDecided(f"{name} of a timestamp without a time zone is not computed here")
    kernel = _TIME_PARTS[name]
    return strict(
        INTEGER,
        lambda values: kernel(check_years(without_zone(values))).cast(pa.int32()),
        timed(operand),
        fails=True,
        present_only=True,
    )


def extracted(field: TypedPart, operand: TypedPart) -> TypedPart:
    """Return the part ``extract(field FROM operand)``."""
    name = EXTRACTED.get(str(field.constant))
    if name is None:
        raise NotDecided(f"extract does not take {field.constant!r} here")
    return date_part(name, operand) if name in _DATE_PARTS else time_part(name, operand)


def to_date(operand: TypedPart) -> TypedPart:
    """Return the part ``to_date(operand)``."""
    if operand.data_type not in (STRING, DATE, TIMESTAMP, TIMESTAMP_NTZ, NULL):
        raise NotDecided(f"to_date of a {operand.data_type} is not computed here")
    return cast_part(operand, DATE)


def last_day(operand: TypedPart) -> TypedPart:
    """Return the part ``last_day(operand)``."""
    return _from_day(operand, lambda day: day.replace(day=calendar.monthrange(day.year, day.month)[1]))


def _from_day(operand: TypedPart, function: Callable[[dt.date], dt.date]) -> TypedPart:
    return by_days(DATE, function, day_of(operand))


def by_days(data_type: DataType, function: Callable[..., Any], day: TypedPart, *others: TypedPart) -> TypedPart:
    """Return the part that a function makes of dates in Python, and of other values."""
    checked = strict(DATE, check_years, day, fails=True, present_only=True)
    return by_row(data_type, function, checked, *others, fails=True)


def add_months(day: TypedPart, months: TypedPart) -> TypedPart:
    """Return the part ``add_months(day, months)``: the last day of a month that has not so many."""

    def computed(date: dt.date, count: int) -> dt.date:
        year, month = divmod(date.year * 12 + date.month - 1 + count, 12)
        if not 1 <= year <= dt.MAXYEAR:
            raise RowNotDecided("a date before year 1 or after year 9999 is left to Spark")
        return dt.date(year, month + 1, min(date.day, calendar.monthrange(year, month + 1)[1]))

    return by_days(DATE, computed, day_of(day), whole(months))


def make_date(year: TypedPart, month: TypedPart, day: TypedPart) -> TypedPart:
    """Return the part ``make_date(year, month, day)``."""

    def computed(*parts: int) -> dt.date:
        if not 1 <= parts[0] <= dt.MAXYEAR:
            raise RowNotDecided("a date before year 1 or after year 9999 is left to Spark")
        try:
            return dt.date(*parts)
        except ValueError as error:
            raise RowError(f"there is no such date: {error} (DATETIME_FIELD_OUT_OF_BOUNDS)") from error

    return by_row(DATE, computed, whole(year), whole(month), whole(day), fails=True)


# -- truncation ---------------------------------------------------------------------------------------------------------------

_UNITS = {
    **dict.fromkeys(("year", "yyyy", "yy"), "year"),
    "quarter": "quarter",
    **dict.fromkeys(("month", "mm", "mon"), "month"),
    "week": "week",
}
_TIME_UNITS = {
    **_UNITS,
    **dict.fromkeys(("day", "dd"), "day"),
    "hour": "hour",
    "minute": "minute",
    "second": "second",
    "millisecond": "millisecond",
    "microsecond": "microsecond",
}


def _unit(part: TypedPart, units: dict[str, str]) -> str:
    if part.columns or part.data_type != STRING or (name := units.get(str(part.constant).lower())) is None:
        raise NotDecided("dates and times are truncated to a literal unit here")
    return name


def truncated_date(day: TypedPart, unit: TypedPart) -> TypedPart:
    """Return the part ``trunc(day, unit)``."""
    name = _unit(unit, _UNITS)

    def first(date: dt.date) -> dt.date:
        if name == "week":
            return _checked(date.toordinal() - date.weekday())
        month = {"year": 1, "quarter": date.month - (date.month - 1) % 3, "month": date.month}[name]
        return date.replace(month=month, day=1)

    return _from_day(day, first)


def _checked(ordinal: int) -> dt.date:
    if ordinal < 1:
        raise RowNotDecided("a date before year 1 is left to Spark")
    return dt.date.fromordinal(ordinal)


def truncated_time(unit: TypedPart, moment: TypedPart) -> TypedPart:
    """Return the part ``date_trunc(unit, moment)``."""
    name = _unit(unit, _TIME_UNITS)

    def first(date: dt.datetime) -> dt.datetime:
        if name in ("millisecond", "microsecond"):
            return date.replace(microsecond=date.microsecond // 1000 * 1000) if name == "millisecond" else date
        start = date.replace(microsecond=0)
        start = start if name == "second" else start.replace(second=0)
        start = start if name in ("second", "minute") else start.replace(minute=0)
        start = start if name in ("second", "minute", "hour") else start.replace(hour=0)
        if name == "week":
            return dt.datetime.combine(_checked(start.toordinal() - start.weekday()), start.timetz())
        if name in ("year", "quarter", "month"):
            month = {"year": 1, "quarter": date.month - (date.month - 1) % 3, "month": date.month}[name]
            return start.replace(month=month, day=1)
        return start

    checked = strict(TIMESTAMP, _checked_moments, to_type(timed(moment), TIMESTAMP), fails=True, present_only=True)
    return by_row(TIMESTAMP, first, checked, fails=True)


def _checked_moments(values: pa.TimestampArray) -> pa.TimestampArray:
    check_years(without_zone(values))
    return values

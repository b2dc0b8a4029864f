"""Literals of a predicate, converted to the type of the column they are compared with.

Where Spark would convert the column instead (a string compared with a number), the comparison is left to Spark: evaluated here,
it could select files by one rule and rows by another.
"""

from __future__ import annotations

import datetime as dt
import decimal
import re
from typing import Any, NamedTuple

from airflow_delta.log.schema.partition_values import parse_timestamp, to_float32
from airflow_delta.log.schema.types import FLOATING, INTEGRAL, DataType, DecimalType

_DATE = re.compile(r"(\d{4})(?:-(\d{1,2})(?:-(\d{1,2})(?:[ T].*)?)?)?", re.ASCII)
MAX_DIGITS = 400
"""Numbers with more digits or larger exponents are left to Spark; no column type can hold them."""

_TRUE = frozenset({"t", "true", "y", "yes", "1"})
_FALSE = frozenset({"f", "false", "n", "no", "0"})


class NotComparableError(ValueError):
    """A literal cannot be compared here, but perhaps by Spark."""


class Constant(NamedTuple):
    """A literal as written.

    :param kind: ``string``, ``integer``, ``decimal``, ``double``, ``boolean``, ``date``, ``timestamp``, ``timestamp_ntz``,
        ``binary`` or ``null``.
    """

    value: Any
    kind: str


def parse_date(text: str) -> dt.date:
    """Parse a date as Spark does: ``yyyy``, ``yyyy-MM`` or ``yyyy-MM-dd``, with or without a time after it.

    :raises ValueError: if the text is not a date.
    """
    match = _DATE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a date")
    return dt.date(int(match[1]), int(match[2] or 1), int(match[3] or 1))


def coerce(constant: Constant, data_type: DataType) -> Any:
    """Return the value of a literal when it is compared with a column of a type.

    :raises ValueError: if they cannot be compared; the message says why.
    """
    value, kind = constant
    if kind == "null":
        return None
    name = data_type.name
    if isinstance(data_type, DecimalType) or name in INTEGRAL:
        return _exact(value, kind)
    if name in FLOATING:
        return _floating(value, kind)
    convert = {
        "string": _string,
        "boolean": _boolean,
        "date": _date,
        "timestamp": _timestamp,
        "timestamp_ntz": _timestamp_ntz,
        "binary": _binary,
    }.get(name)
    if convert is None:
        raise NotComparableError("columns of this type cannot be compared")
    return convert(value, kind)


def _refuse(kind: str) -> Any:
    raise NotComparableError(f"it cannot be compared with a {kind}")


def _exact(value: Any, kind: str) -> Any:
    """Return an int for a whole number, else a Decimal: both compare exactly with ints and Decimals."""
    if kind == "double":
        raise NotComparableError("write the number without an exponent or suffix D, so that the comparison is exact")
    if kind not in ("integer", "decimal", "string"):
        return _refuse(kind)
    if isinstance(value, str):
        value = value.strip()
        if len(value) > MAX_DIGITS:
            raise NotComparableError("it has too many digits")
    try:
        number = decimal.Decimal(value)
        if not number.is_finite():
            raise ValueError(f"{value!r} is not a number")
        if abs(number.adjusted()) > MAX_DIGITS:  # 1e1000000 as an int has a million digits
            raise NotComparableError("its exponent is too large")
        return int(number) if number == number.to_integral_value() else number
    except decimal.InvalidOperation as error:
        raise ValueError(f"{value!r} is not a number") from error


def _floating(value: Any, kind: str) -> float:
    if kind not in ("integer", "decimal", "double", "string"):
        return float(_refuse(kind))
    if isinstance(value, str) and len(value) > MAX_DIGITS:
        raise NotComparableError("it has too many digits")
    return float(value)


def _string(value: Any, kind: str) -> str:
    if kind != "string":
        raise NotComparableError(f"it is a string column; compare it with a quoted literal, not with a {kind}")
    return str(value)


def _boolean(value: Any, kind: str) -> bool:
    if kind == "boolean":
        return bool(value)
    folded = str(value).strip().lower()
    if kind == "string" and folded in _TRUE | _FALSE:
        return folded in _TRUE
    return bool(_refuse(kind))


def _date(value: Any, kind: str) -> dt.date:
    if kind == "date":
        return value  # type: ignore[no-any-return]
    if kind == "string":
        return parse_date(value)
    return _refuse(kind)  # type: ignore[no-any-return]


def _timestamp(value: Any, kind: str) -> dt.datetime:
    if kind == "string":
        return parse_timestamp(value, zoned=True)
    if kind == "timestamp":
        return value  # type: ignore[no-any-return]
    if kind == "date":
        return dt.datetime(value.year, value.month, value.day, tzinfo=dt.UTC)
    return _refuse(kind)  # type: ignore[no-any-return]


def _timestamp_ntz(value: Any, kind: str) -> dt.datetime:
    if kind == "string":
        return parse_timestamp(value, zoned=False)
    if kind == "timestamp_ntz":
        return value  # type: ignore[no-any-return]
    if kind == "date":
        return dt.datetime(value.year, value.month, value.day)
    return _refuse(kind)  # type: ignore[no-any-return]


def _binary(value: Any, kind: str) -> bytes:
    if kind == "binary":
        return bytes(value)
    if kind == "string":
        return str(value).encode()
    return _refuse(kind)  # type: ignore[no-any-return]


def cast(constant: Constant, target: str) -> Constant:
    """Return the literal that ``CAST(literal AS target)`` is.

    :param target: one of the kinds of :class:`Constant`, or ``float``.
    :raises ValueError: if it cannot be cast.
    """
    value, kind = constant
    if kind == "null" or kind == target:
        return constant
    if target == "date":
        return Constant(_date(value, kind), target)
    if target == "timestamp":
        return Constant(_timestamp(value, kind), target)
    if target == "timestamp_ntz":
        return Constant(_timestamp_ntz(value, kind), target)
    if target in ("double", "float"):
        number = _floating(value, kind)
        return Constant(to_float32(number) if target == "float" else number, "double")
    if target in ("integer", "decimal"):
        number = _exact(value, kind)
        if target == "integer" and not isinstance(number, int):
            raise ValueError(f"{value!r} is not a whole number")
        return Constant(number, target)
    if target == "boolean":
        return Constant(_boolean(value, kind), target)
    if target == "string" and kind == "integer":
        return Constant(str(value), target)
    raise NotComparableError(f"a {kind} is not cast to {target} here")

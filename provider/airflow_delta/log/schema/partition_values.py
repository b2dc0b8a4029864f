"""Partition values: their strings in the log (Delta protocol, "Partition Value Serialization"), and their typed values.

Timestamps come in two forms: ISO 8601 with a zone, and ``yyyy-MM-dd HH:mm:ss``, whose zone is not in the log. Delta Spark reads
the latter in the time zone of its session, which is not known here; code that decides about rows must use
:func:`possible_instants`. :func:`parse_partition_value` assumes UTC, as delta-rs does, which is enough to order values.
"""

from __future__ import annotations

import datetime as dt
import decimal
import math
import re
import struct
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow_delta.exceptions import DeltaAnalysisException
from airflow_delta.lazy_patterns import lazy_pattern
from airflow_delta.log.arrow import kernels
from airflow_delta.log.schema.types import FLOATING, INTEGRAL, DataType, DecimalType, arrow_type

if TYPE_CHECKING:
    import pyarrow as pa

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)

_BITS = {"byte": 8, "short": 16, "integer": 32, "long": 64}
_LONGEST = 1_000  # characters of a value that is not a string
_DIGITS = 400  # of a decimal, zeros included
_PARTITION_TYPES = frozenset({*_BITS, "float", "double", "string", "boolean", "binary", "date", "timestamp", "timestamp_ntz"})

_TIMESTAMP = lazy_pattern(
    r"(\d{4})-(\d{1,2})-(\d{1,2})"
    r"(?:[ T](\d{1,2}):(\d{1,2})(?::(\d{1,2})(?:\.(\d{1,9}))?)?)?\s*(Z|UTC|GMT|[+-](?:\d{4}|\d{2}(?::\d{2})?))?",
    re.ASCII,
)


_NUMBER = lazy_pattern(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_FLOAT = lazy_pattern(rf"{_NUMBER.pattern}|[+-]?(?:nan|inf|infinity)", re.IGNORECASE)
_FORMS = {
    **dict.fromkeys(INTEGRAL, lazy_pattern(r"[+-]?[0-9]+")),
    **dict.fromkeys(FLOATING, _FLOAT),
    "boolean": lazy_pattern(r"true|false", re.IGNORECASE),
    "date": lazy_pattern(r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}"),
}

MAX_OFFSET = dt.timedelta(hours=18)
"""Maximum distance of a time zone from UTC (``java.time.ZoneOffset``)."""


class Instants(NamedTuple):
    """The range of instants that a timestamp without a zone may mean, depending on the time zone of the reader."""

    earliest: dt.datetime
    latest: dt.datetime


def possible_instants(text: str | None, data_type: DataType) -> Instants | None:
    """Return the range of instants that a partition value may mean, ``None`` if it does not depend on a time zone."""
    if data_type.name != "timestamp" or text is None or not is_zoneless(text):
        return None
    moment = parse_partition_value(text, data_type)
    return Instants(_shifted(moment, -MAX_OFFSET), _shifted(moment, MAX_OFFSET))


def is_zoneless(text: str) -> bool:
    """Return whether a text is a timestamp without a time zone."""
    match = _TIMESTAMP.fullmatch(text.strip())
    return match is not None and match[8] is None


def _shifted(moment: dt.datetime, by: dt.timedelta) -> dt.datetime:
    try:
        return moment + by
    except OverflowError:
        return (dt.datetime.min if by < dt.timedelta() else dt.datetime.max).replace(tzinfo=dt.UTC)


def is_partition_type(data_type: DataType) -> bool:
    """Return whether columns of this type may be partition columns."""
    return isinstance(data_type, DecimalType) or data_type.name in _PARTITION_TYPES


def parse_partition_value(text: str | None, data_type: DataType, column: str | None = None) -> Any:
    """Parse a partition value.

    A ``date`` becomes a :class:`datetime.date`, a ``timestamp`` a :class:`datetime.datetime` in UTC, a ``timestamp_ntz`` one
    without a zone.

    :param text: string in the log; ``None`` and the empty string are null.
    :param column: its name, for messages.
    :raises DeltaAnalysisException: if the text is not a value of the type.
    """
    if text is None or text == "":
        return None
    of = "" if column is None else f" of column {column!r}"
    if len(text) > _LONGEST and data_type.name not in ("string", "binary"):
        raise DeltaAnalysisException(f"Partition value {text[:_LONGEST]!r}...{of} is not a value of type {data_type}")
    try:
        return _parse(text, data_type)
    except (ValueError, ArithmeticError, OverflowError) as error:
        raise DeltaAnalysisException(
            f"Partition value {text!r}{of} is not a value of type {data_type} that all Delta readers read alike"
        ) from error


def _parse(text: str, data_type: DataType) -> Any:
    """Return the value of a text that Delta Spark and delta-rs read alike, or that an earlier, narrower type of the column had.

    Delta Spark reads more, and makes null of the rest; delta-rs refuses more.

    :raises ValueError: if it is not such a text.
    """
    name = data_type.name
    if isinstance(data_type, DecimalType):
        return _parse_decimal(text, data_type)
    if (form := _FORMS.get(name)) is not None and form.fullmatch(text) is None:
        raise ValueError("not in this form")
    if name == "string":
        return text
    if name in INTEGRAL:
        value = int(text)
        if not -(1 << (_BITS[name] - 1)) <= value < 1 << (_BITS[name] - 1):
            raise ValueError("out of range")
        return value
    if name == "date":
        return dt.date(*map(int, text.split("-")))
    if name in ("timestamp", "timestamp_ntz"):
        return parse_timestamp(text, zoned=name == "timestamp")
    if name == "boolean":
        return text.lower() == "true"
    if name == "double":
        return float(text)
    if name == "float":
        return to_float32(float(text))
    if name == "binary":
        return text.encode()
    raise ValueError("not a partition type")


def _parse_decimal(text: str, data_type: DecimalType) -> decimal.Decimal:
    """Return a decimal, which may have fewer digits after the point than its type, as before its type was widened."""
    if _NUMBER.fullmatch(text) is None:
        raise ValueError("not a number")
    number = decimal.Decimal(text)
    if abs(number.adjusted()) > _DIGITS:
        raise ValueError("out of range")
    with decimal.localcontext(prec=2 * _LONGEST):
        exact = number.quantize(decimal.Decimal(1).scaleb(-data_type.scale))
    if exact != number or (exact and exact.adjusted() + 1 + data_type.scale > data_type.precision):
        raise ValueError("too many digits")
    return exact


def to_float32(value: float) -> float:
    """Return the value rounded to a 32-bit float."""
    try:
        return float(struct.unpack("<f", struct.pack("<f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


def parse_timestamp(text: str, *, zoned: bool) -> dt.datetime:
    """Parse an ISO 8601 or Spark timestamp; digits below a microsecond are dropped.

    :param zoned: return a time in UTC (also if the text has no zone); otherwise the zone is dropped.
    :raises ValueError: if the text is not a timestamp.
    """
    match = _TIMESTAMP.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a timestamp")
    year, month, day, hour, minute, second = (int(part or 0) for part in match.groups()[:6])
    micros = int((match[7] or "0")[:6].ljust(6, "0"))
    naive = dt.datetime(year, month, day, hour, minute, second, micros)
    offset = _offset(match[8])
    if abs(offset) > MAX_OFFSET:
        raise ValueError(f"{text!r} has an offset from UTC that no time zone has")
    return (naive - offset).replace(tzinfo=dt.UTC) if zoned else naive


def _offset(zone: str | None) -> dt.timedelta:
    if zone is None or zone in ("Z", "UTC", "GMT"):
        return dt.timedelta()
    hours, _, minutes = zone[1:].partition(":")
    if not minutes and len(hours) == 4:
        hours, minutes = hours[:2], hours[2:]
    if int(minutes or 0) > 59:
        raise ValueError(f"{zone!r} is not an offset from UTC")
    offset = dt.timedelta(hours=int(hours), minutes=int(minutes or 0))
    return offset if zone[0] == "+" else -offset


def serialize_partition_value(value: Any, data_type: DataType) -> str | None:
    """Return a value as current Delta writers store it in ``partitionValues``; null and the empty string become ``None``.

    :raises DeltaAnalysisException: if the value does not have the type.
    """
    if value is None or value == "" or value == b"":
        return None
    try:
        return _serialize(value, data_type)
    except (ValueError, TypeError, AttributeError, ArithmeticError) as error:
        raise DeltaAnalysisException(f"{value!r} is not a partition value of type {data_type}") from error


def _serialize(value: Any, data_type: DataType) -> str:
    name = data_type.name
    if name == "string":
        return value if isinstance(value, str) else _fail_text()
    if name in INTEGRAL:
        if value != int(value):
            raise ValueError("not whole")
        return str(_parse(str(int(value)), data_type))
    if name == "boolean":
        return "true" if value else "false"
    if name == "date":
        return str((value.date() if isinstance(value, dt.datetime) else value).isoformat())
    if name == "timestamp":
        moment: dt.datetime = value if value.tzinfo else value.replace(tzinfo=dt.UTC)
        return moment.astimezone(dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ").rjust(27, "0")
    if name == "timestamp_ntz":
        text = value.replace(tzinfo=None).isoformat(sep=" ", timespec="microseconds")
        return str(text.rstrip("0").rstrip(".")) if value.microsecond else str(text[:19])
    if name in ("float", "double"):
        single = name == "float"
        return _float_text(to_float32(float(value)) if single else float(value), single=single)
    if isinstance(data_type, DecimalType):
        quantum = decimal.Decimal(1).scaleb(-data_type.scale)
        with decimal.localcontext(prec=60):
            return f"{decimal.Decimal(value).quantize(quantum):f}"
    if name == "binary":
        return bytes(value).decode()
    raise ValueError("not a partition type")


def _fail_text() -> str:
    raise TypeError("not a string")


def _float_text(value: float, *, single: bool) -> str:
    """Return a floating-point number formatted as in Java, like Spark's cast to string."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    text = _shortest_float32(value) if single else repr(value)
    number = decimal.Decimal(text)
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        plain = f"{number:f}"
        return plain if "." in plain else plain + ".0"
    sign, digits, _ = number.as_tuple()
    mantissa = "".join(map(str, digits)).rstrip("0")
    return f"{'-' if sign else ''}{mantissa[0]}.{mantissa[1:] or '0'}E{number.adjusted()}"


def _shortest_float32(value: float) -> str:
    for digits in range(1, 10):
        text = f"{value:.{digits}g}"
        if to_float32(float(text)) == to_float32(value):
            return text
    return repr(value)


def normalise(text: str | None, data_type: DataType) -> str | None:
    """Return the same text for all texts of a partition value that mean the same (both timestamp forms, ``1`` and ``01``).

    A text that is not a value of the type is returned unchanged.
    """
    try:
        return serialize_partition_value(parse_partition_value(text, data_type), data_type)
    except DeltaAnalysisException:
        return text


# -- directories --------------------------------------------------------------------------------------------------------------


def partition_array(texts: pa.Array, data_type: DataType) -> pa.Array:
    """Return the values of a column of strings, parsing each distinct string once."""
    import pyarrow as pa

    from airflow_delta.log.arrow.arrays import array

    if isinstance(texts, pa.ChunkedArray):
        texts = texts.combine_chunks()
    encoded = kernels.dictionary_encode(texts)
    values = [parse_partition_value(text, data_type) for text in encoded.dictionary.to_pylist()]
    return kernels.take(array(values, arrow_type(data_type)), encoded.indices)

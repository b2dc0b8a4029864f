"""Arrow arrays and scalars from Python values.

``pa.array``, ``pa.scalar`` and every computation that is given a plain Python value import pandas, where it is installed, to see
whether the value is one of its own: up to 0.75 s in a task whose own work takes a tenth of that. Arrays made of buffers do not.
``group_by``, ``sort_by`` and ``pq.read_table`` import it too, by way of ``pyarrow.dataset``: the engine does without them.

Python values from Arrow arrays.
"""

from __future__ import annotations

import datetime as dt
import decimal
from array import array as packed
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, chain
from typing import Any, NoReturn

import pyarrow as pa

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_EPOCH_DAY = dt.date(1970, 1, 1).toordinal()
_MICROSECOND = dt.timedelta(microseconds=1)
_DECIMAL_BYTES = 16

Buffers = tuple[list[Any], list[Any]]
"""Buffers of an array after its validity, and its children."""

# Type codes of the standard library's module array.
_NUMBERS = {
    pa.int8(): "b",
    pa.int16(): "h",
    pa.int32(): "i",
    pa.int64(): "q",
    pa.uint64(): "Q",
    pa.float32(): "f",
    pa.float64(): "d",
}


def array(values: Sequence[Any], data_type: pa.DataType) -> pa.Array:
    """Return an array of Python values; ``None`` is null, a map is a mapping, a struct one by the names of its fields.

    :param data_type: any type of the log: of numbers, ``bool``, ``string``, ``binary``, ``date32``, ``timestamp("us")``,
        ``decimal128``, and lists, maps and structs of these.
    :raises TypeError: if a value is of another type.
    :raises ValueError: if a value does not fit the type.
    :raises OverflowError: if a number is too large for it.
    """
    length = len(values)
    if not length:
        return pa.nulls(0, data_type)
    valid = None
    if None in values:
        present = [value is not None for value in values]
        if not any(present):
            return pa.nulls(length, data_type)
        valid = _bits(bytes(present))
    buffers, children = _convert(values, data_type)
    return pa.Array.from_buffers(data_type, length, [valid, *buffers], children=children or None)


def scalar(value: Any, data_type: pa.DataType | None = None) -> pa.Scalar:
    """Return a Python value as a scalar; errors as for :func:`array`.

    :param data_type: left out, that of the value: ``bool``, ``int``, ``float``, ``str``, ``bytes`` or ``date``.
    """
    return _kept(value, data_type) if isinstance(value, int | None) else _scalar(value, data_type)


def _scalar(value: Any, data_type: pa.DataType | None) -> pa.Scalar:
    return array([value], _INFERRED[type(value)]() if data_type is None else data_type)[0]


_kept = lru_cache(maxsize=256, typed=True)(_scalar)  # the zeros, nulls and truths of every comparison


def repeated(value: Any, length: int, data_type: pa.DataType | None = None) -> pa.Array:
    """Return an array of one value; parameters and errors as for :func:`scalar`."""
    return pa.repeat(scalar(value, data_type), length)


_INFERRED: dict[type, Callable[[], pa.DataType]] = {
    bool: pa.bool_,
    int: pa.int64,
    float: pa.float64,
    str: pa.string,
    bytes: pa.binary,
    dt.date: pa.date32,
}


def _convert(values: Sequence[Any], data_type: pa.DataType) -> Buffers:
    kinds = pa.types
    if kinds.is_struct(data_type):
        _check(values, data_type, Mapping)
        return [], [array([None if row is None else row.get(f.name) for row in values], f.type) for f in data_type]
    if kinds.is_map(data_type):
        _check(values, data_type, Mapping)
        maps = [row or {} for row in values]
        entries = [
            array(list(chain.from_iterable(maps)), data_type.key_type),
            array([item for row in maps for item in row.values()], data_type.item_type),
        ]
        fields = [data_type.key_field, data_type.item_field]
        return [_offsets(maps)], [pa.StructArray.from_arrays(entries, fields=fields)]
    if kinds.is_list(data_type):
        _check(values, data_type, list, tuple)
        lists = [row or () for row in values]
        return [_offsets(lists)], [array(list(chain.from_iterable(lists)), data_type.value_type)]
    return _buffers(values, data_type), []


def _buffers(values: Sequence[Any], data_type: pa.DataType) -> list[Any]:
    kinds = pa.types
    if (code := _NUMBERS.get(data_type)) is not None:
        _check(values, data_type, int, *((float,) if code in "fd" else ()))
        return [_packed(code, (0 if value is None else value for value in values))]
    if kinds.is_string(data_type):
        _check(values, data_type, str)
        return _texts([value or "" for value in values])
    if kinds.is_binary(data_type):
        _check(values, data_type, bytes)
        return _bytes([value or b"" for value in values])
    if kinds.is_boolean(data_type):
        _check(values, data_type, bool)
        return [_bits(bytes(map(bool, values)))]
    if kinds.is_date32(data_type):
        _check(values, data_type, dt.date)
        return [_packed("i", (0 if day is None else day.toordinal() - _EPOCH_DAY for day in values))]
    if kinds.is_timestamp(data_type) and data_type.unit == "us":
        _check(values, data_type, dt.datetime)
        return [_packed("q", (0 if moment is None else microseconds(moment) for moment in values))]
    if kinds.is_decimal128(data_type):
        _check(values, data_type, decimal.Decimal, int)
        return [pa.py_buffer(b"".join(_decimal(value, data_type) for value in values))]
    raise TypeError(f"Python values are not converted to {data_type}")


def _check(values: Sequence[Any], data_type: pa.DataType, *allowed: type) -> None:
    for found in set(map(type, values)) - {type(None)}:
        # A boolean is an int to Python, and to nobody else.
        if not issubclass(found, allowed) or (found is bool and bool not in allowed):
            _refuse(found, data_type)


def _refuse(found: type, data_type: pa.DataType) -> NoReturn:
    raise TypeError(f"a value of type {found.__name__} is not a {data_type}")


def _packed(code: str, values: Any) -> pa.Buffer:
    return pa.py_buffer(packed(code, values))


def _offsets(values: Sequence[Any]) -> pa.Buffer:
    return _packed("i", accumulate(map(len, values), initial=0))


def _texts(values: list[str]) -> list[pa.Buffer]:
    joined = "".join(values)
    if joined.isascii():  # as many bytes as characters
        return [_offsets(values), pa.py_buffer(joined.encode())]
    return _bytes([value.encode() for value in values])


def _bytes(values: list[bytes]) -> list[pa.Buffer]:
    return [_offsets(values), pa.py_buffer(b"".join(values))]


def _bits(truths: bytes) -> pa.Buffer:
    """Return a bitmap of bytes that are 0 or 1."""
    whole = pa.Array.from_buffers(pa.uint8(), len(truths), [None, pa.py_buffer(truths)])
    return whole.cast(pa.bool_()).buffers()[1]


def microseconds(moment: dt.datetime) -> int:
    """Return a point in time as Arrow counts it; one without a zone counts as if it were in UTC."""
    return ((moment if moment.tzinfo is not None else moment.replace(tzinfo=dt.UTC)) - _EPOCH) // _MICROSECOND


def _decimal(value: decimal.Decimal | int | None, data_type: pa.DataType) -> bytes:
    number = decimal.Decimal(value or 0)
    if not number.is_finite():
        raise ValueError(f"{value} is not a {data_type}")
    sign, digits, exponent = number.as_tuple()
    unscaled, shift = int("".join(map(str, digits))), int(exponent) + data_type.scale
    if unscaled and -len(digits) < shift <= data_type.precision:
        unscaled, rest = (unscaled * 10**shift, 0) if shift >= 0 else divmod(unscaled, 10**-shift)
        fits = not rest and unscaled < 10**data_type.precision
    else:
        fits = not unscaled
    if not fits:
        raise ValueError(f"{value} is not a {data_type}")
    return (-unscaled if sign else unscaled).to_bytes(_DECIMAL_BYTES, "little", signed=True)


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
        counts = array.cast(pa.timestamp("us", array.type.tz)).cast(pa.int64()).to_pylist()
        return [None if count is None else _EPOCH + dt.timedelta(microseconds=count) for count in counts]
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
        return [None if day is None else _date(day) for day in array.cast(pa.int32()).to_pylist()]
    if pa.types.is_timestamp(kind):
        per_second, zoned = _PER_SECOND[kind.unit], kind.tz is not None
        counts = array.cast(pa.int64()).to_pylist()
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
    present = array.is_valid().to_pylist() if array.null_count else [True] * len(array)
    return [dict(zip(names, row, strict=True)) if valid else None for row, valid in zip(rows, present, strict=True)]


def _spans(array: pa.ListArray) -> Iterator[slice | None]:
    """Yield where the elements of each list or map are among the elements of all, ``None`` for a null."""
    ends: list[int] = array.offsets.to_pylist()
    for position, valid in enumerate(array.is_valid().to_pylist()):
        yield slice(ends[position], ends[position + 1]) if valid else None


def _date(day: int) -> dt.date | str:
    """Return a day, counted from 1970."""
    cycles, inside = _within(day + _EPOCH_DAY)
    found = dt.date.fromordinal(inside)
    return found if not cycles else _year(found.year + 400 * cycles) + found.isoformat()[4:]


def _time(microseconds: int, *, zoned: bool) -> dt.datetime | str:
    """Return a time, counted from 1970; in UTC if it has a zone."""
    days, rest = divmod(microseconds, _DAY)
    cycles, inside = _within(days + _EPOCH_DAY)
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

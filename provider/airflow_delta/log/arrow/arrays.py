"""Arrow arrays and scalars from Python values, made of buffers.

``pa.array``, ``pa.scalar`` and every computation that is given a plain Python value import pandas, where it is installed, to see
whether the value is one of its own: up to 0.75 s in a task whose own work takes a tenth of that. Arrays made of buffers do not.
``group_by``, ``sort_by`` and ``pq.read_table`` import it too, by way of ``pyarrow.dataset``: the engine does without them.
"""

from __future__ import annotations

import datetime as dt
import decimal
from array import array as packed
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, chain
from typing import Any, NoReturn

import pyarrow as pa

from airflow_delta.log.arrow import kernels

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
EPOCH_DAY = dt.date(1970, 1, 1).toordinal()
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


def no_rows(schema: pa.Schema) -> pa.Table:
    """Return a table of no rows; ``Schema.empty_table`` makes arrays of Python values."""
    return pa.table([pa.nulls(0, field.type) for field in schema], schema=schema)


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
        return [_packed("i", (0 if day is None else day.toordinal() - EPOCH_DAY for day in values))]
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
    return kernels.cast(whole, pa.bool_()).buffers()[1]


def microseconds(moment: dt.datetime) -> int:
    """Return a point in time as Arrow counts it; one without a zone counts as if it were in UTC."""
    return ((moment if moment.tzinfo is not None else moment.replace(tzinfo=dt.UTC)) - EPOCH) // _MICROSECOND


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

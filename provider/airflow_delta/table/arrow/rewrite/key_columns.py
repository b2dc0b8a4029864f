"""Keys in a form in which equal ones have equal bytes: to Spark, a NaN equals a NaN, and -0.0 equals 0.0, at every depth."""

from __future__ import annotations

import math
from collections.abc import Iterator
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc

from airflow_delta.log.arrow.arrays import array, scalar


def parts_of_key(values: pa.Array) -> Iterator[pa.Array]:
    """Yield arrays that a hash join knows, and that are equal where the keys are.

    The other way round, only lists may differ where these are equal: of them, only length and ends are looked at. What is inside
    of structs and lists is never null.
    """
    kind = values.type
    if pa.types.is_struct(kind):
        for part in values.flatten():
            yield from _inside(part)
    elif pa.types.is_list(kind):
        length = pc.list_value_length(values)
        yield pc.fill_null(length, scalar(-1, length.type))
        some = pc.greater(length, scalar(0, length.type))
        starts = pc.if_else(some, values.offsets.slice(0, len(values)), scalar(None, pa.int32()))
        ends = pc.if_else(some, pc.subtract(values.offsets.slice(1), scalar(1, pa.int32())), scalar(None, pa.int32()))
        for place in (starts, ends):
            yield from _inside(values.values.take(place))
    else:
        yield _hashed(values)


def _inside(values: pa.Array) -> Iterator[pa.Array]:
    yield values.is_null()
    if pa.types.is_nested(values.type):
        yield from parts_of_key(values)
    elif not pa.types.is_null(values.type):
        yield without_nulls(_hashed(values))


def _hashed(values: pa.Array) -> pa.Array:
    """Return values that are not nested as what is equal if its bytes are; whole numbers of all sizes are compared."""
    if pa.types.is_integer(values.type):
        return values.cast(pa.int64())
    if not pa.types.is_floating(values.type):
        return values
    numbers = with_one_zero(values.cast(pa.float64()))
    return numbers.view(pa.int64())


def with_one_zero(values: pa.Array) -> pa.Array:
    """Return values as Spark has them after it grouped by them: without -0.0, and with one NaN."""
    kind = values.type
    if pa.types.is_floating(kind):
        numbers = pc.add(values, scalar(0.0, kind))
        return pc.if_else(pc.is_nan(numbers), scalar(math.nan, kind), numbers)
    if pa.types.is_struct(kind):
        parts = [with_one_zero(part) for part in values.flatten()]
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=values.is_null()) if parts else values
    if pa.types.is_list(kind):
        whole = pa.concat_arrays([values, values.slice(0, 0)])  # a slice has the elements of other rows
        inner = [with_one_zero(whole.values)]
        return pa.Array.from_buffers(kind, len(whole), whole.buffers()[:2], offset=whole.offset, children=inner)
    return values


def without_nulls(values: pa.Array) -> pa.Array:
    """Return values with one of their type in the place of nulls."""
    return pc.fill_null(values, _zero(values.type)) if values.null_count else values


def _zero(kind: pa.DataType) -> pa.Scalar:
    if pa.types.is_string(kind):
        return scalar("")
    if pa.types.is_binary(kind):
        return scalar(b"")
    if pa.types.is_boolean(kind):
        return scalar(False)
    if pa.types.is_date32(kind):
        return scalar(0, pa.int32()).cast(kind)
    if pa.types.is_decimal(kind):
        return array([Decimal(0)], kind)[0]
    return scalar(0, pa.int64()).cast(kind)

"""Which values of two arrays are equal as in Spark's ``<=>``, at every depth: nulls, NaN, and the two zeros."""

from __future__ import annotations

from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc

from airflow_delta.log.arrow.arrays import array, repeated, scalar
from airflow_delta.log.schema.types import ArrayType, DataType, MapType, PrimitiveType, StructType


def is_compared_inside(data_type: DataType) -> bool:
    """Return whether values of a struct or an array are compared: Spark compares no maps and variants, at whatever depth."""
    return isinstance(data_type, StructType | ArrayType) and _has_equality(data_type)


def _has_equality(data_type: DataType) -> bool:
    match data_type:
        case StructType(fields):
            return all(_has_equality(field.data_type) for field in fields)
        case ArrayType(element):
            return _has_equality(element)
        case MapType():
            return False
        case PrimitiveType(name):
            return name != "variant"
    return True


def are_equal(one: pa.Array, other: pa.Array) -> pa.BooleanArray:
    """Return where values are equal, or both are null; never null itself.

    :param other: of the same type, and as many.
    """
    kind = one.type
    if pa.types.is_null(kind):
        return repeated(True, len(one))
    if pa.types.is_struct(kind):
        found = map(are_equal, one.flatten(), other.flatten())
        equal = reduce(pc.and_, found, repeated(True, len(one)))
    elif pa.types.is_list(kind):
        equal = _equal_lists(one, other)
    else:
        equal = pc.equal(one, other)
        if pa.types.is_floating(kind):
            equal = pc.or_(equal, pc.and_(pc.is_nan(one), pc.is_nan(other)))
        equal = pc.fill_null(equal, scalar(False))
    present, absent = pc.and_(one.is_valid(), other.is_valid()), pc.and_(one.is_null(), other.is_null())
    return pc.or_(absent, pc.and_(present, equal))


def _equal_lists(one: pa.Array, other: pa.Array) -> pa.BooleanArray:
    """Return where lists are equal; false where one is null."""
    alike = pc.fill_null(pc.equal(pc.list_value_length(one), pc.list_value_length(other)), scalar(False))
    rows = pc.indices_nonzero(alike)
    left, right = one.take(rows), other.take(rows)
    differs = pc.invert(are_equal(pc.list_flatten(left), pc.list_flatten(right)))
    wrong = rows.take(pc.unique(pc.list_parent_indices(left).filter(differs)))
    return pc.and_not(alike, pc.is_in(array(range(len(one)), pa.uint64()), value_set=wrong.cast(pa.uint64())))

"""Whether the statistics of a column may be believed: what contradicts itself decides nothing.

Other writers have written statistics that cannot be true. delta-rs up to 1.6.1 counts as many nulls as rows, or more, for
columns that are named ``item``, ``key``, ``value`` or ``element`` beside lists and maps, and caps bounds of ``decimal(p,0)`` at
64 bits; Delta Spark up to 3.3 cuts the seconds off the offsets of old timestamps (``+01:12`` for ``+01:12:12``). Everything that
skips files, proves that commits do not meet, or checks a constraint by statistics gets them through :func:`credible`.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from functools import reduce
from typing import Any

import pyarrow as pa

from airflow_delta.log.arrow import kernels
from airflow_delta.log.arrow.arrays import microseconds, scalar
from airflow_delta.log.expressions import ast
from airflow_delta.log.expressions.ast import ColumnReference
from airflow_delta.log.schema.types import FLOATING, INTEGRAL, ArrayType, DataType, DecimalType, MapType
from airflow_delta.log.statistics.columns import ColumnBounds, from_json, struct_leaf

_OLD_TIE_BREAKER = "\ufffd"

_BITS = {"byte": 8, "short": 16, "integer": 32}

_ROUNDED = 1 + 1e-14  # decimals are compared as doubles

_CAP = 2.0**63  # as a double, also 2**63 - 1

_CAPPED_DIGITS = 18  # more digits before the point than these may be too many for 64 bits

WHOLE_MINUTES = dt.datetime(1972, 6, 1, tzinfo=dt.UTC)
"""From here on, the offset of every time zone is whole minutes."""

SECONDS = dt.timedelta(minutes=1)
"""More than the seconds that a bound of an older timestamp may have lost."""

_SECONDS = int(SECONDS.total_seconds()) * 1_000_000


def credible(bounds: ColumnBounds, data_type: DataType) -> ColumnBounds:
    """Return the statistics of a column with what may not be believed as null, which means unknown.

    :param bounds: as they were written.
    :param data_type: of the column.
    """
    if isinstance(data_type, ArrayType | MapType):  # writers count elements there
        bounds = bounds._replace(null_count=pa.nulls(len(bounds.null_count), pa.int64()))
    wrong = contradictory(bounds)
    if bounds.minimum is not None and bounds.maximum is not None and (limits := _credible_limits(data_type)) is not None:
        outside = [kernels.less(end, limits[0]) for end in bounds[:2]] + [kernels.greater(end, limits[1]) for end in bounds[:2]]
        wrong = kernels.fill_null(reduce(kernels.or_kleene, outside, wrong), scalar(False))
    if kernels.any(wrong).as_py():
        bounds = ColumnBounds(*(None if values is None else _without(values, wrong) for values in bounds))
    return _widened(bounds, data_type)


def contradictory(bounds: ColumnBounds) -> pa.BooleanArray:
    """Return for each file whether the statistics of a column contradict themselves; what is unknown contradicts nothing."""
    low, high, nulls, records = bounds
    zero = scalar(0)
    tests = [kernels.less(nulls, zero), kernels.less(records, zero), kernels.greater(nulls, records)]
    if low is not None and high is not None:
        some = kernels.or_(kernels.is_valid(low), kernels.is_valid(high))
        tests += [kernels.and_kleene(kernels.equal(nulls, records), some), kernels.greater(low, high)]
    return kernels.fill_null(reduce(kernels.or_kleene, tests), scalar(False))


def are_consistent(stats: pa.StructArray) -> bool:
    """Return whether no file's typed statistics contradict themselves, or are cut too short, in a column with bounds.

    Only then does the range of the bounds of many files hold the values of each of them.
    """
    records = struct_leaf(stats, ("numRecords",))
    bounds = struct_leaf(stats, ("minValues",))
    if bounds is None:
        return True
    unknown = pa.nulls(len(stats), pa.int64())
    for path in _leaf_paths(bounds.type):
        low, high, nulls = (struct_leaf(stats, (member, *path)) for member in ("minValues", "maxValues", "nullCount"))
        if low is None or high is None or high.type != low.type or (nulls is not None and nulls.type != pa.int64()):
            return False
        found = contradictory(
            ColumnBounds(low, high, unknown if nulls is None else nulls, unknown if records is None else records)
        )
        if kernels.any(found).as_py() or (pa.types.is_string(high.type) and kernels.any(_is_cut_short(high)).as_py()):
            return False
        if pa.types.is_decimal(high.type) and any(kernels.any(_is_capped(end)).as_py() for end in (low, high)):
            return False
    return True


def _leaf_paths(data_type: pa.DataType) -> Iterator[tuple[str, ...]]:
    for field in data_type:
        if pa.types.is_struct(field.type):
            yield from ((field.name, *path) for path in _leaf_paths(field.type))
        else:
            yield (field.name,)


def null_counts(stats: pa.Array, column: ColumnReference, *, bounded: bool) -> list[int | None]:
    """Return how many nulls a column has in each file, ``None`` if the statistics lack them, or are not credible.

    :param stats: JSON documents.
    :param bounded: whether columns of the type have bounds.
    """
    found = credible(from_json(stats, {column: bounded})[column], column.data_type)
    counts: list[int | None] = found.null_count.to_pylist()
    return counts


def _credible_limits(data_type: DataType) -> tuple[pa.Scalar, pa.Scalar] | None:
    """Return the least and the greatest value of a type, ``None`` if bounds cannot be outside."""
    if isinstance(data_type, DecimalType):
        most = 10.0 ** (data_type.precision - data_type.scale) * _ROUNDED
        return scalar(-most), scalar(most)
    if (bits := _BITS.get(data_type.name)) is None:
        return None
    return scalar(-(1 << (bits - 1))), scalar((1 << (bits - 1)) - 1)


def _widened(bounds: ColumnBounds, data_type: DataType) -> ColumnBounds:
    """Return bounds that hold whatever a writer has cut off."""
    low, high = bounds[:2]
    if low is None or high is None:
        return bounds
    if isinstance(data_type, DecimalType) and data_type.precision - data_type.scale > _CAPPED_DIGITS:
        return bounds._replace(minimum=_without(low, _is_capped(low)), maximum=_without(high, _is_capped(high)))
    if data_type.name == "timestamp":
        return bounds._replace(minimum=_moved(low, -_SECONDS), maximum=_moved(high, _SECONDS))
    if pa.types.is_string(high.type):
        return bounds._replace(maximum=_without(high, _is_cut_short(high)))
    return bounds


def _is_cut_short(greatest: pa.Array) -> pa.BooleanArray:
    """Return which greatest texts may be too small: older versions of Delta end truncated ones with U+FFFD, below an emoji."""
    return kernels.fill_null(kernels.ends_with(greatest, _OLD_TIE_BREAKER), scalar(False))


def _is_capped(numbers: pa.Array) -> pa.BooleanArray:
    """Return which bounds of decimals may be what 64 bits hold of them."""
    return kernels.fill_null(kernels.equal(kernels.abs(kernels.cast(numbers, pa.float64())), scalar(_CAP)), scalar(False))


def _moved(moments: pa.Array, by: int) -> pa.Array:
    """Return timestamps with those before :data:`WHOLE_MINUTES` moved by microseconds."""
    counts = moments.view(pa.int64())
    least = scalar(-(2**63) + _SECONDS)
    moved = kernels.add(kernels.max_element_wise(counts, least, skip_nulls=False), scalar(by))
    return kernels.if_else(kernels.less(counts, scalar(microseconds(WHOLE_MINUTES))), moved, counts).view(moments.type)


def _without(values: Any, wrong: pa.BooleanArray) -> pa.Array:
    return kernels.if_else(wrong, scalar(None, values.type), values)


_BOUNDED = frozenset({*INTEGRAL, *FLOATING, "string", "date", "timestamp", "timestamp_ntz"})


def column_has_bounds(column: ast.ColumnReference) -> bool:
    """Return whether statistics have bounds for a column that are in the order in which its values are compared."""
    if column.char_length is not None:
        return False
    return isinstance(column.data_type, DecimalType) or column.data_type.name in _BOUNDED

"""Places of rows on a Z-curve or a Hilbert curve, as :mod:`airflow_delta.spark.zorder` computes them."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_delta.contract.curves import TEXT_PREFIX, hilbert_states, range_bits, takes_hilbert
from airflow_delta.log.arrow.arrays import array, repeated, scalar
from airflow_delta.log.arrow.values import to_pylist
from airflow_delta.log.schema.types import FLOATING, INTEGRAL, DecimalType, StructType
from airflow_delta.log.schema.walk import dotted
from airflow_delta.table.arrow.row_checks import needs_spark

if TYPE_CHECKING:
    from airflow_delta.contract.request import StageRequest
    from airflow_delta.log.schema.types import DataType

_LONGS = (*INTEGRAL, "boolean", "date", "timestamp", "timestamp_ntz")
_TEXTS = ("string", "binary")


class CurveColumns:
    """The columns that rows are ordered by.

    :param paths: as the schema spells them, the most important one first.
    :raises DeltaUnsupportedOperationException: if a column is of a type that is not ordered here.
    :ivar names: of the top-level columns to read.
    """

    def __init__(self, request: StageRequest, schema: StructType, paths: Sequence[tuple[str, ...]]) -> None:
        self._found = [_found(request, schema, path) for path in paths]
        self.names = tuple(dict.fromkeys(name for name, _, _ in self._found))

    def keys(self, rows: pa.RecordBatch) -> list[pa.Array]:
        """Return, for each column, its values as longs, doubles, texts or bytes of the same order."""
        return [_comparable(rows.column(name), inside, kind) for name, inside, kind in self._found]


def _found(request: StageRequest, schema: StructType, path: tuple[str, ...]) -> tuple[str, list[int], DataType]:
    at: Any = schema
    inside: list[int] = []
    for name in path:
        field = at.find(name) if isinstance(at, StructType) else None
        if field is None:
            raise needs_spark(request, f"is to be ordered by {dotted(path)}, which is not found")
        inside.append(at.fields.index(field))
        at = field.data_type
    if not isinstance(at, DecimalType) and at.name not in (*_LONGS, *FLOATING, *_TEXTS):
        raise needs_spark(request, f"is to be ordered by {dotted(path)}, which is of type {at}")
    return schema.fields[inside[0]].name, inside[1:], at


def _comparable(values: pa.Array, inside: Sequence[int], kind: DataType) -> pa.Array:
    for number in inside:
        values = pc.struct_field(values, [number])
    if kind.name in _LONGS:
        return (values.cast(pa.int32()) if kind.name in ("boolean", "date") else values).cast(pa.int64())
    if kind.name == "string":
        return pc.utf8_slice_codeunits(values, 0, TEXT_PREFIX)
    return pc.binary_slice(values, start=0, stop=TEXT_PREFIX) if kind.name == "binary" else values.cast(pa.float64())


class Curve:
    """Places on a curve through ranges of about equally many rows.

    :param sample: values of each column, as :meth:`CurveColumns.keys` returns them.
    :param hilbert: take the Hilbert curve, for 2 to 4 columns; else the Z-curve.
    """

    def __init__(self, sample: Sequence[pa.Array], *, hilbert: bool) -> None:
        self._columns = len(sample)
        self._bits = range_bits(self._columns)
        self._boundaries = [SortedValues(_boundaries(values, 1 << self._bits), values.type) for values in sample]
        self._spread = array([_spread(number, self._bits, self._columns) for number in range(1 << self._bits)], pa.int64())
        self._states = hilbert_states(self._columns) if takes_hilbert(self._columns, hilbert=hilbert) else None

    def places(self, keys: Sequence[pa.Array]) -> pa.Array:
        """Return the place of each row."""
        ids = [boundaries.reached(values) for boundaries, values in zip(self._boundaries, keys, strict=True)]
        crossed = repeated(0, len(keys[0]))
        for number, found in enumerate(ids):
            # The bits of the first column are the highest.
            spread = pc.shift_left(self._spread.take(found), scalar(self._columns - 1 - number))
            crossed = pc.bit_wise_or(crossed, spread)
        return crossed if self._states is None else self._along(crossed, self._states)

    def _along(self, crossed: pa.Array, states: Sequence[Sequence[tuple[int, int]]]) -> pa.Array:
        """Return places on the Hilbert curve, from the highest bit of all columns down."""
        count, corner_of = self._columns, scalar((1 << self._columns) - 1)
        steps = array([place for state in states for place, _ in state], pa.int64())
        following = array([after << count for state in states for _, after in state], pa.int64())
        place = state = repeated(0, len(crossed))
        for bit in reversed(range(self._bits)):
            corner = pc.bit_wise_and(pc.shift_right(crossed, scalar(bit * count)), corner_of)
            cell = pc.bit_wise_or(state, corner)
            place = pc.bit_wise_or(pc.shift_left(place, scalar(count)), steps.take(cell))
            state = following.take(cell)
        return place


def _spread(number: int, bits: int, columns: int) -> int:
    """Return a number with room for those of the other columns between its bits."""
    return sum((number >> bit & 1) << bit * columns for bit in range(bits))


def _boundaries(values: pa.Array, ranges: int) -> list[Any]:
    """Return distinct values in order that split a column into ranges; nulls are below all."""
    known = values.drop_null()
    ordered = known.take(pc.array_sort_indices(known))
    cuts = [int(number * len(ordered) / ranges) for number in range(1, ranges)] if len(ordered) else []
    found = dict.fromkeys(to_pylist(ordered.take(array(cuts, pa.int64()))))
    return [value for value in found if not isinstance(value, float) or isfinite(value)]


class SortedValues:
    """Distinct values in order, among which others are looked up by binary search."""

    def __init__(self, values: Sequence[Any], kind: pa.DataType) -> None:
        self._values = array(values, kind)
        self._bits = len(values).bit_length()

    def reached(self, values: pa.Array) -> pa.Array:
        """Return the number of those at or below each value: none for null, all for NaN."""
        position = repeated(0, len(values))
        length = len(self._values)
        for bit in reversed(range(self._bits)):
            further = pc.add(position, scalar(1 << bit))
            there = pc.min_element_wise(further, scalar(length))
            below = pc.less_equal(self._values.take(pc.subtract(there, scalar(1))), values)
            taken = pc.and_(pc.fill_null(below, scalar(False)), pc.less_equal(further, scalar(length)))
            position = pc.if_else(taken, further, position)
        if not pa.types.is_floating(values.type):
            return position
        return pc.if_else(pc.fill_null(pc.is_nan(values), scalar(False)), scalar(length), position)

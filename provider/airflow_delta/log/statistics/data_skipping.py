"""Data skipping: excluding files whose statistics prove that a predicate is true for none of their rows.

Missing, malformed or contradictory statistics never exclude a file. Statistics
may be wide (``tightBounds`` false, as for files with a deletion vector), which makes no difference here: all values are still
within the bounds, and ``nullCount`` is used only if it is zero or equals ``numRecords``, the number of rows before deletions.

Whether the statistics of a column may be believed: what contradicts itself decides nothing.

Other writers have written statistics that cannot be true. delta-rs up to 1.6.1 counts as many nulls as rows, or more, for
columns that are named ``item``, ``key``, ``value`` or ``element`` beside lists and maps, and caps bounds of ``decimal(p,0)`` at
64 bits; Delta Spark up to 3.3 cuts the seconds off the offsets of old timestamps (``+01:12`` for ``+01:12:12``). Everything that
skips files, proves that commits do not meet, or checks a constraint by statistics gets them through :func:`credible`.
"""

from __future__ import annotations

import datetime as dt
import decimal
import math
from collections.abc import Callable, Iterator
from functools import reduce
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_delta.log.arrow.arrays import microseconds, repeated, scalar
from airflow_delta.log.expressions import ast
from airflow_delta.log.expressions.ast import ColumnReference
from airflow_delta.log.schema.types import FLOATING, INTEGRAL, ArrayType, DataType, DecimalType, MapType, StructType
from airflow_delta.log.statistics.columns import ColumnBounds, from_json, from_partition_values, from_struct, struct_leaf

if TYPE_CHECKING:
    from airflow_delta.log.expressions.predicate import Predicate


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
        outside = [pc.less(end, limits[0]) for end in bounds[:2]] + [pc.greater(end, limits[1]) for end in bounds[:2]]
        wrong = pc.fill_null(reduce(pc.or_kleene, outside, wrong), scalar(False))
    if pc.any(wrong).as_py():
        bounds = ColumnBounds(*(None if values is None else _without(values, wrong) for values in bounds))
    return _widened(bounds, data_type)


def contradictory(bounds: ColumnBounds) -> pa.BooleanArray:
    """Return for each file whether the statistics of a column contradict themselves; what is unknown contradicts nothing."""
    low, high, nulls, records = bounds
    zero = scalar(0)
    tests = [pc.less(nulls, zero), pc.less(records, zero), pc.greater(nulls, records)]
    if low is not None and high is not None:
        some = pc.or_(pc.is_valid(low), pc.is_valid(high))
        tests += [pc.and_kleene(pc.equal(nulls, records), some), pc.greater(low, high)]
    return pc.fill_null(reduce(pc.or_kleene, tests), scalar(False))


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
        if pc.any(found).as_py() or (pa.types.is_string(high.type) and pc.any(_is_cut_short(high)).as_py()):
            return False
        if pa.types.is_decimal(high.type) and any(pc.any(_is_capped(end)).as_py() for end in (low, high)):
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
    return pc.fill_null(pc.ends_with(greatest, _OLD_TIE_BREAKER), scalar(False))


def _is_capped(numbers: pa.Array) -> pa.BooleanArray:
    """Return which bounds of decimals may be what 64 bits hold of them."""
    return pc.fill_null(pc.equal(pc.abs(numbers.cast(pa.float64())), scalar(_CAP)), scalar(False))


def _moved(moments: pa.Array, by: int) -> pa.Array:
    """Return timestamps with those before :data:`WHOLE_MINUTES` moved by microseconds."""
    counts = moments.view(pa.int64())
    least = scalar(-(2**63) + _SECONDS)
    moved = pc.add(pc.max_element_wise(counts, least, skip_nulls=False), scalar(by))
    return pc.if_else(pc.less(counts, scalar(microseconds(WHOLE_MINUTES))), moved, counts).view(moments.type)


def _without(values: Any, wrong: pa.BooleanArray) -> pa.Array:
    return pc.if_else(wrong, scalar(None, values.type), values)


_BOUNDED = frozenset({*INTEGRAL, *FLOATING, "string", "date", "timestamp", "timestamp_ntz"})
_MAX_LISTED = 16
_MILLISECOND = dt.timedelta(milliseconds=1)
# Some writers convert decimals to doubles for statistics.
_DECIMAL_MARGIN = 1e-14
_FLOAT_MARGIN = 1.2e-7
_LEAST_FLOAT = 2.0**-149  # the step between numbers below the normal ones


def statistics_columns(predicate: Predicate | None) -> list[ast.ColumnReference]:
    """Return the columns whose statistics can help to decide a predicate, without duplicates."""
    if predicate is None:
        return []
    return [c for c in predicate.widened.columns if not c.is_partition and not isinstance(c.data_type, StructType)]


def partition_columns(predicate: Predicate | None) -> list[ast.ColumnReference]:
    """Return the partition columns that can help to decide a predicate: those in disjunctions with data columns."""
    return [] if predicate is None else [c for c in predicate.widened.columns if c.is_partition]


def column_has_bounds(column: ast.ColumnReference) -> bool:
    """Return whether statistics have bounds for a column that are in the order in which its values are compared."""
    if column.char_length is not None:
        return False
    return isinstance(column.data_type, DecimalType) or column.data_type.name in _BOUNDED


def needed_stats(predicate: Predicate | None) -> list[tuple[str, ...]]:
    """Return the leaf columns of ``stats_parsed`` that :func:`skipping_mask` reads: ``minValues`` etc., then a column's path."""
    result: list[tuple[str, ...]] = [("numRecords",)]
    for column in statistics_columns(predicate):
        members = ("nullCount", "minValues", "maxValues") if column_has_bounds(column) else ("nullCount",)
        result += [(member, *column.physical_path) for member in members]
    return result


def skipping_mask(
    predicate: Predicate | None, stats: pa.Array | pa.ChunkedArray, partition_texts: Callable[[str], pa.Array] | None = None
) -> pa.BooleanArray:
    """Return for each file whether it may have rows that the predicate selects.

    :param predicate: the data part of a predicate (:attr:`airflow_delta.log.expressions.predicate.Predicate.data_part`).
    :param stats: statistics of the files: JSON documents, or ``stats_parsed`` structs (the leaves of :func:`needed_stats`,
        as far as the checkpoint has them).
    :param partition_texts: returns the files' values of a partition column, given its physical name; ``None`` to ignore them.
    """
    if isinstance(stats, pa.ChunkedArray):
        stats = stats.combine_chunks() if stats.num_chunks != 1 else stats.chunk(0)
    if isinstance(stats, pa.ChunkedArray):  # some versions of Arrow return a chunked array
        stats = pa.concat_arrays(stats.chunks) if stats.num_chunks else pa.nulls(0, pa.string())
    columns = statistics_columns(predicate)
    if predicate is None or (not columns and predicate.columns) or not len(stats):
        return _constant(True, len(stats))
    wanted = {column: column_has_bounds(column) for column in columns}
    read = from_struct if pa.types.is_struct(stats.type) else from_json
    known = {column: credible(bounds, column.data_type) for column, bounds in read(stats, wanted).items()}
    if partition_texts is not None:
        for column in partition_columns(predicate):
            known[column] = from_partition_values(partition_texts(column.physical_path[0]), column, column_has_bounds(column))
    mask = _Rules(known, len(stats)).may_hold(ast.push_down_not(predicate.expression))
    return pc.fill_null(mask, scalar(True))


def _constant(value: bool | None, length: int) -> pa.BooleanArray:
    return pa.nulls(length, pa.bool_()) if value is None else repeated(value, length)


class _Rules:
    """Decides an expression for each file: true, unknown (null), or provably false for all rows."""

    def __init__(self, known: dict[ast.ColumnReference, ColumnBounds], length: int) -> None:
        self.known = known
        self.length = length

    def may_hold(self, expression: ast.Expression) -> pa.BooleanArray:
        match expression:
            case ast.And(parts):
                return self._combine(parts, pc.and_kleene)
            case ast.Or(parts):
                return self._combine(parts, pc.or_kleene)
            case ast.Constant(value):
                return _constant(bool(value), self.length)
            case ast.Opaque() | ast.Not(ast.Opaque()):
                return _constant(None, self.length)
            case ast.IsNull(column) if column in self.known:
                return pc.greater(self.known[column].null_count, scalar(0))
            case ast.Not(ast.IsNull(column)) if column in self.known:
                return self._not_all_null(column)
            case ast.Compare("<=>", column, literal) if literal.value is None:
                return self.may_hold(ast.IsNull(column))
            case ast.Not(ast.Compare("<=>", _, _)):
                return _constant(None, self.length)
        return self._of_values(expression)

    def _combine(self, parts: tuple[ast.Expression, ...], operation: Callable[[Any, Any], Any]) -> pa.BooleanArray:
        result = self.may_hold(parts[0])
        for part in parts[1:]:
            result = operation(result, self.may_hold(part))
        return result

    def _not_all_null(self, column: ast.ColumnReference) -> pa.BooleanArray:
        bounds = self.known[column]
        return pc.less(bounds.null_count, bounds.num_records)

    def _of_values(self, expression: ast.Expression) -> pa.BooleanArray:
        """Decide an expression that is never true for nulls."""
        column = next(ast.columns(expression))
        if column not in self.known:
            return _constant(None, self.length)
        bounds = self.known[column]
        result = _constant(None, self.length)
        if bounds.minimum is not None and bounds.maximum is not None:
            match expression:
                case ast.Compare(operator, _, literal):
                    result = self._compare(operator, literal, bounds)
                case ast.In(_, literals):
                    result = self._in(literals, bounds)
                case ast.Like():
                    result = self._starts(expression.prefix, bounds)
        return pc.and_kleene(result, self._not_all_null(column))

    def _in(self, literals: tuple[ast.Literal, ...], bounds: ColumnBounds) -> pa.BooleanArray:
        values = [literal for literal in literals if literal.value is not None]
        if not values:
            return _constant(False, self.length)
        if len(values) > _MAX_LISTED and not any(_is_nan(literal.value) for literal in values):
            low, high = min(values, key=lambda v: v.value), max(values, key=lambda v: v.value)
            return pc.and_kleene(self._compare(">=", low, bounds), self._compare("<=", high, bounds))
        result = self._compare("=", values[0], bounds)
        for literal in values[1:]:
            result = pc.or_kleene(result, self._compare("=", literal, bounds))
        return result

    def _starts(self, prefix: str, bounds: ColumnBounds) -> pa.BooleanArray:
        if not prefix:
            return _constant(None, self.length)
        shortest = pc.utf8_slice_codeunits(bounds.minimum, 0, len(prefix))
        start = scalar(prefix)
        return pc.and_kleene(pc.less_equal(shortest, start), pc.greater_equal(bounds.maximum, start))

    def _compare(self, operator: str, literal: ast.Literal, bounds: ColumnBounds) -> pa.BooleanArray:
        if literal.value is None:
            return _constant(False, self.length)
        name = literal.data_type.name
        if _is_nan(literal.value) or (name in FLOATING and operator in (">", ">=", "<>")):
            # Many writers ignore NaN in bounds, and NaN is greater than all numbers.
            return _constant(None, self.length)
        limits = _limits(literal, operator)
        if limits is None:
            return _constant(None, self.length)
        low, high = limits  # the interval of values that count as equal to the literal
        match operator:
            case "=" | "<=>":
                return pc.and_kleene(pc.less_equal(bounds.minimum, high), pc.greater_equal(bounds.maximum, low))
            case "<":
                return pc.less(bounds.minimum, high) if low == high else pc.less_equal(bounds.minimum, high)
            case "<=":
                return pc.less_equal(bounds.minimum, high)
            case ">":
                return pc.greater(bounds.maximum, low) if low == high else pc.greater_equal(bounds.maximum, low)
            case ">=":
                return pc.greater_equal(bounds.maximum, low)
        if low != high:
            return _constant(None, self.length)
        single = pc.and_kleene(pc.equal(bounds.minimum, low), pc.equal(bounds.maximum, high))
        return pc.invert(single)


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _limits(literal: ast.Literal, operator: str) -> tuple[pa.Scalar, pa.Scalar] | None:
    """Return the lower and upper limit of a literal to compare bounds with; they differ if bounds are not exact.

    ``minimum <= high`` and ``maximum >= low`` must hold in a file with a value equal to the literal.
    """
    value, name = literal.value, literal.data_type.name
    if isinstance(literal.data_type, DecimalType):
        number = float(value)
        margin = abs(number) * _DECIMAL_MARGIN
        return scalar(number - margin, pa.float64()), scalar(number + margin, pa.float64())
    if name in INTEGRAL:
        return _integer_limits(value, operator)
    if name in FLOATING:
        # Floats are written as their shortest decimal text, which may differ from the value by up to half a digit.
        margin = abs(value) * _FLOAT_MARGIN + _LEAST_FLOAT if value and math.isfinite(value) else 0.0
        return scalar(value - margin, pa.float64()), scalar(value + margin, pa.float64())
    if name in ("timestamp", "timestamp_ntz"):
        kind = pa.timestamp("us", "UTC") if name == "timestamp" else pa.timestamp("us")
        try:  # the maximum was truncated to milliseconds
            return scalar(value - _MILLISECOND, kind), scalar(value, kind)
        except OverflowError:
            return None
    exact = scalar(value)
    return exact, exact


def _integer_limits(value: int | decimal.Decimal, operator: str) -> tuple[pa.Scalar, pa.Scalar] | None:
    if not -(2**63) <= value < 2**63 or (operator == "<>" and not isinstance(value, int)):
        return None
    low = scalar(math.ceil(value), pa.int64())
    return low, low if isinstance(value, int) else scalar(math.floor(value), pa.int64())

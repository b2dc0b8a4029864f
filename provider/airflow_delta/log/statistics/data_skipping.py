"""Data skipping: excluding files whose statistics prove that a predicate is true for none of their rows.

Missing, malformed or contradictory statistics never exclude a file. Statistics
may be wide (``tightBounds`` false, as for files with a deletion vector), which makes no difference here: all values are still
within the bounds, and ``nullCount`` is used only if it is zero or equals ``numRecords``, the number of rows before deletions.
"""

from __future__ import annotations

import datetime as dt
import decimal
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from airflow_delta.log.arrow import kernels
from airflow_delta.log.arrow.arrays import repeated, scalar
from airflow_delta.log.expressions import ast
from airflow_delta.log.schema.types import FLOATING, INTEGRAL, DecimalType, StructType
from airflow_delta.log.statistics.columns import ColumnBounds, from_json, from_partition_values, from_struct
from airflow_delta.log.statistics.credible import column_has_bounds, credible

if TYPE_CHECKING:
    from airflow_delta.log.expressions.predicate import Predicate


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
    return kernels.fill_null(mask, scalar(True))


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
                return self._combine(parts, kernels.and_kleene)
            case ast.Or(parts):
                return self._combine(parts, kernels.or_kleene)
            case ast.Constant(value):
                return _constant(bool(value), self.length)
            case ast.Opaque() | ast.Not(ast.Opaque()):
                return _constant(None, self.length)
            case ast.IsNull(column) if column in self.known:
                return kernels.greater(self.known[column].null_count, scalar(0))
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
        return kernels.less(bounds.null_count, bounds.num_records)

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
        return kernels.and_kleene(result, self._not_all_null(column))

    def _in(self, literals: tuple[ast.Literal, ...], bounds: ColumnBounds) -> pa.BooleanArray:
        values = [literal for literal in literals if literal.value is not None]
        if not values:
            return _constant(False, self.length)
        if len(values) > _MAX_LISTED and not any(_is_nan(literal.value) for literal in values):
            low, high = min(values, key=lambda v: v.value), max(values, key=lambda v: v.value)
            return kernels.and_kleene(self._compare(">=", low, bounds), self._compare("<=", high, bounds))
        result = self._compare("=", values[0], bounds)
        for literal in values[1:]:
            result = kernels.or_kleene(result, self._compare("=", literal, bounds))
        return result

    def _starts(self, prefix: str, bounds: ColumnBounds) -> pa.BooleanArray:
        if not prefix:
            return _constant(None, self.length)
        shortest = kernels.utf8_slice_codeunits(bounds.minimum, 0, len(prefix))
        start = scalar(prefix)
        return kernels.and_kleene(kernels.less_equal(shortest, start), kernels.greater_equal(bounds.maximum, start))

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
                return kernels.and_kleene(kernels.less_equal(bounds.minimum, high), kernels.greater_equal(bounds.maximum, low))
            case "<":
                return kernels.less(bounds.minimum, high) if low == high else kernels.less_equal(bounds.minimum, high)
            case "<=":
                return kernels.less_equal(bounds.minimum, high)
            case ">":
                return kernels.greater(bounds.maximum, low) if low == high else kernels.greater_equal(bounds.maximum, low)
            case ">=":
                return kernels.greater_equal(bounds.maximum, low)
        if low != high:
            return _constant(None, self.length)
        single = kernels.and_kleene(kernels.equal(bounds.minimum, low), kernels.equal(bounds.maximum, high))
        return kernels.invert(single)


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

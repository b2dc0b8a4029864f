"""Which rows of an Arrow table a predicate may select.

Exact, with the results of Spark, for comparisons, ``IN`` and null tests over integers, strings, dates, decimals and booleans and
their conjunctions, disjunctions and negations. Any other part may be true for every row.
"""

from __future__ import annotations

import decimal
from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any

import pyarrow as pa

from airflow_delta.log.arrow import kernels
from airflow_delta.log.arrow.arrays import array, repeated, scalar
from airflow_delta.log.expressions import ast
from airflow_delta.log.schema.types import INTEGRAL, DataType, DecimalType

Values = Callable[[ast.ColumnReference], "pa.Array | None"]
"""Function that gives the values of a column; ``None`` if they are unknown."""

_EXACT = frozenset({*INTEGRAL, "string", "date", "boolean"})
_MAX_PRECISION = 38
_WIDE = decimal.Context(prec=1000)


def is_compared_exactly(data_type: DataType) -> bool:
    """Return whether values of a type are compared here as in Spark."""
    return isinstance(data_type, DecimalType) or data_type.name in _EXACT


def decides(expression: ast.Expression) -> bool:
    """Tell whether every part of an expression is compared here as in Spark."""
    match expression:
        case ast.And(parts) | ast.Or(parts):
            return all(map(decides, parts))
        case ast.Not(part):
            return decides(part)
        case ast.Opaque() | ast.Like():
            return False
        case ast.Constant() | ast.IsNull():
            return True
    return all(is_compared_exactly(column.data_type) and column.char_length is None for column in ast.columns(expression))


def row_columns(expression: ast.Expression) -> list[ast.ColumnReference]:
    """Return the columns whose values can help to decide an expression."""
    return [column for column in dict.fromkeys(ast.columns(expression)) if len(column.physical_path) == 1]


def comparable(values: pa.Array, data_type: DataType) -> pa.Array | None:
    """Return values of a file in the form that they are compared in; ``None`` if they are not of the type.

    Integers may be narrower than the type, whose column may have been widened.
    """
    kind = values.type
    if pa.types.is_dictionary(kind):
        values, kind = values.dictionary_decode(), kind.value_type
    if data_type.name in INTEGRAL:
        return kernels.cast(values, pa.int64()) if pa.types.is_signed_integer(kind) else None
    if data_type.name == "string":
        return kernels.cast(values, pa.string()) if pa.types.is_string(kind) or pa.types.is_large_string(kind) else None
    if isinstance(data_type, DecimalType):
        if not pa.types.is_decimal(kind) or kind.scale != data_type.scale or kind.precision > data_type.precision:
            return None
        return kernels.cast(values, pa.decimal128(_MAX_PRECISION, kind.scale))
    known = {"date": pa.types.is_date32, "boolean": pa.types.is_boolean}.get(data_type.name)
    return values if known is not None and known(kind) else None


def may_select(expression: ast.Expression, values: Values, length: int) -> pa.BooleanArray:
    """Return for each row whether the expression may be true for it.

    :param values: gives a column in the form of :func:`comparable`.
    :param length: number of rows.
    """
    return _Rows(values, length).may_select(ast.push_down_not(expression))


class _Rows:
    def __init__(self, values: Values, length: int) -> None:
        self._values = values
        self._length = length

    def may_select(self, expression: ast.Expression) -> pa.BooleanArray:
        match expression:
            case ast.And(parts):
                return reduce(kernels.and_, map(self.may_select, parts))
            case ast.Or(parts):
                return reduce(kernels.or_, map(self.may_select, parts))
            case ast.Constant(value):
                return self._all(value is True)
        mask = self._leaf(expression)
        return self._all(True) if mask is None else _is_true(mask)

    def _all(self, value: bool) -> pa.BooleanArray:
        return repeated(value, self._length)

    def _leaf(self, expression: ast.Expression) -> pa.BooleanArray | None:
        """Return where a condition on one column is true, ``None`` if that is unknown; nulls in the mask are false."""
        if isinstance(expression, ast.Opaque) or (isinstance(expression, ast.Not) and isinstance(expression.part, ast.Opaque)):
            return None
        column = next(ast.columns(expression))
        values = self._values(column)
        if values is None:
            return None
        match expression:
            case ast.IsNull():
                return kernels.is_null(values)
            case ast.Not(ast.IsNull()):
                return kernels.is_valid(values)
        if not is_compared_exactly(column.data_type) or column.char_length is not None:
            return None
        match expression:
            case ast.Compare("<=>", _, literal):
                return _same(values, literal, column.data_type)
            case ast.Not(ast.Compare("<=>", _, literal)):
                same = _same(values, literal, column.data_type)
                return None if same is None else kernels.invert(_is_true(same))
            case ast.Compare(operator, _, literal):
                return self._compared(operator, values, literal, column.data_type)
            case ast.In(_, literals):
                return self._among(values, literals, column.data_type)
            case ast.Not(ast.In(_, literals)):
                if any(literal.value is None for literal in literals):
                    return self._all(False)
                among = self._among(values, literals, column.data_type)
                return None if among is None else kernels.and_(kernels.is_valid(values), kernels.invert(among))
        return None

    def _compared(self, operator: str, values: pa.Array, literal: ast.Literal, data_type: DataType) -> pa.BooleanArray | None:
        if literal.value is None:
            return self._all(False)
        wanted = literals_of([literal.value], data_type, values.type)
        return None if wanted is None else comparisons()[operator](values, wanted[0])

    def _among(self, values: pa.Array, literals: tuple[ast.Literal, ...], data_type: DataType) -> pa.BooleanArray | None:
        return is_among(values, [literal.value for literal in literals if literal.value is not None], data_type)


def is_among(values: pa.Array, wanted: list[Any], data_type: DataType) -> pa.BooleanArray | None:
    """Return where values equal one of some others, which are not null; ``None`` if that is unknown."""
    found = literals_of(wanted, data_type, values.type) if is_compared_exactly(data_type) else None
    return None if found is None else _is_true(kernels.is_in(values, value_set=found))


def literals_of(wanted: list[Any], data_type: DataType, kind: pa.DataType) -> pa.Array | None:
    """Return values of Python in the form of :func:`comparable`; ``None`` if one does not fit, so that nothing is known of it."""
    if data_type.name in INTEGRAL and not all(isinstance(value, int) for value in wanted):
        return None
    if isinstance(data_type, DecimalType) and not all(_fits(value, kind.scale) for value in wanted):
        return None
    try:
        return array(wanted, kind)
    except (OverflowError, TypeError, ValueError):
        return None


def _is_true(mask: pa.BooleanArray) -> pa.BooleanArray:
    return kernels.fill_null(mask, scalar(False))


def _fits(value: Any, scale: int) -> bool:
    exponent = decimal.Decimal(value).normalize(_WIDE).as_tuple().exponent
    return isinstance(exponent, int) and -exponent <= scale


def _same(values: pa.Array, literal: ast.Literal, data_type: DataType) -> pa.BooleanArray | None:
    if literal.value is None:
        return kernels.is_null(values)
    wanted = literals_of([literal.value], data_type, values.type)
    return None if wanted is None else kernels.equal(values, wanted[0])


def comparisons() -> Mapping[str, Callable[..., Any]]:
    """Return pyarrow's functions by the operators of :class:`~airflow_delta.log.expressions.ast.Compare`, without ``<=>``."""
    return {
        "=": kernels.equal,
        "<>": kernels.not_equal,
        "<": kernels.less,
        "<=": kernels.less_equal,
        ">": kernels.greater,
        ">=": kernels.greater_equal,
    }

"""The value of an expression for a row under SQL's three-valued logic, also where values are not known exactly.

Floating-point numbers compare as in Spark: NaN equals itself and is greater than all other numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from airflow_delta.log.expressions.ast import (
    And,
    ColumnReference,
    Compare,
    Constant,
    Expression,
    In,
    IsNull,
    Like,
    Literal,
    Not,
    Opaque,
    Or,
    Truth,
    columns,
)
from airflow_delta.log.expressions.like import like_pattern
from airflow_delta.log.schema.partition_values import Instants
from airflow_delta.log.schema.types import FLOATING

Row = Mapping[tuple[str, ...], Any]
"""Values by physical path; a missing path is null."""


def compile_expression(expression: Expression) -> Callable[[Row], Truth]:
    """Return a function that gives the value of the expression for a row."""
    match expression:
        case Constant(value):
            return lambda _row: value
        case Opaque():
            return lambda _row: None
        case And(parts):
            return _all([compile_expression(part) for part in parts])
        case Or(parts):
            return _any([compile_expression(part) for part in parts])
        case Not(part):
            inner = compile_expression(part)
            return lambda row: None if (value := inner(row)) is None else not value
        case IsNull(column):
            path = column.physical_path
            return lambda row: row.get(path) is None
        case Like(column, pattern):
            matches, path = like_pattern(pattern).matches, column.physical_path
            return lambda row: None if (value := row.get(path)) is None else matches(value)
        case In(column, literals):
            return _in(column, literals)
        case Compare(operator, column, literal):
            return _compare(operator, column, literal)


def _all(parts: list[Callable[[Row], Truth]]) -> Callable[[Row], Truth]:
    def evaluate(row: Row) -> Truth:
        result: Truth = True
        for part in parts:
            value = part(row)
            if value is False:
                return False
            if value is None:
                result = None
        return result

    return evaluate


def _any(parts: list[Callable[[Row], Truth]]) -> Callable[[Row], Truth]:
    def evaluate(row: Row) -> Truth:
        result: Truth = False
        for part in parts:
            value = part(row)
            if value:
                return True
            if value is None:
                result = None
        return result

    return evaluate


def _key(column: ColumnReference, literals: tuple[Literal, ...]) -> Callable[[Any], Any]:
    """Return a function that maps values to keys which Python compares as Spark compares the values.

    :param literals: what the column is compared with.
    """
    if column.char_length is not None:
        length = max([column.char_length, *(len(literal.value) for literal in literals if literal.value is not None)])
        return lambda value: value.ljust(length)
    if column.data_type.name in FLOATING:
        return lambda value: (1, 0.0) if math.isnan(value) else (0, value)
    return lambda value: value


def _in(column: ColumnReference, literals: tuple[Literal, ...]) -> Callable[[Row], Truth]:
    key, path = _key(column, literals), column.physical_path
    wanted = {key(literal.value) for literal in literals if literal.value is not None}
    missed: Truth = None if any(literal.value is None for literal in literals) else False

    def evaluate(row: Row) -> Truth:
        value = row.get(path)
        if value is None:
            return None
        return True if key(value) in wanted else missed

    return evaluate


_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "=": lambda a, b: bool(a == b),
    "<>": lambda a, b: bool(a != b),
    "<": lambda a, b: bool(a < b),
    "<=": lambda a, b: bool(a <= b),
    ">": lambda a, b: bool(a > b),
    ">=": lambda a, b: bool(a >= b),
}


def _compare(operator: str, column: ColumnReference, literal: Literal) -> Callable[[Row], Truth]:
    key, path = _key(column, (literal,)), column.physical_path
    if literal.value is None:
        return (lambda row: row.get(path) is None) if operator == "<=>" else (lambda _row: None)
    right = key(literal.value)
    if operator == "<=>":
        return lambda row: (value := row.get(path)) is not None and bool(key(value) == right)
    holds = _OPERATORS[operator]
    return lambda row: None if (value := row.get(path)) is None else holds(key(value), right)


def holds(expression: Expression, row: Row, *, surely: bool) -> bool:
    """Return whether an expression may be true for a row, or must be, where values may be :class:`Instants`.

    :param expression: from :func:`push_down_not`, without :class:`Opaque`.
    :param surely: whether it is true for every possible value, rather than for some.
    """
    match expression:
        case And(parts):
            return all(holds(part, row, surely=surely) for part in parts)
        case Or(parts):
            return any(holds(part, row, surely=surely) for part in parts)
        case Constant(value):
            return value is True
    instants = row.get(next(columns(expression)).physical_path)
    if not isinstance(instants, Instants):
        return compile_expression(expression)(row) is True
    low, high = instants
    match expression:
        case Not(IsNull()):
            return True
        case Compare(operator, _, literal):
            return _instants_hold(operator, instants, literal.value, surely=surely)
        case In(_, literals):
            return not surely and any(low <= literal.value <= high for literal in literals if literal.value is not None)
        case Not(Compare("<=>", _, literal)):
            return literal.value is None or not surely or not low <= literal.value <= high
        case Not(In(_, literals)):
            wanted = [literal.value for literal in literals]
            return None not in wanted and not (surely and any(low <= value <= high for value in wanted))
    return not surely and not isinstance(expression, IsNull)


def _instants_hold(operator: str, instants: Instants, value: Any, *, surely: bool) -> bool:
    if value is None:
        return False
    low, high = instants
    if operator in ("=", "<=>"):
        return not surely and low <= value <= high
    if operator == "<>":
        return not surely or not low <= value <= high
    # The end of the range that satisfies it first, or last.
    first = operator in ("<", "<=")
    return _OPERATORS[operator](low if first != surely else high, value)

"""Whether a predicate can be true in a row group of a checkpoint, by the minimum and maximum values in its footer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from airflow_delta.log.expressions import ast


class Range(NamedTuple):
    """The range of the values of a column in a row group, nulls aside."""

    low: Any
    high: Any


RangeOf = Callable[[ast.ColumnReference], Range | None]


def may_hold(expression: ast.Expression, range_of: RangeOf) -> bool:
    """Return whether an expression can be true for a row of the group; ``False`` is certain.

    :param range_of: returns a column's range, or ``None`` if it is unknown.
    """
    return _may_hold(ast.push_down_not(expression), range_of)


def _may_hold(expression: ast.Expression, range_of: RangeOf) -> bool:
    match expression:
        case ast.Constant(value):
            return value is True
        case ast.And(parts):
            return all(_may_hold(part, range_of) for part in parts)
        case ast.Or(parts):
            return any(_may_hold(part, range_of) for part in parts)
        case ast.Compare(operator, column, literal):
            return _compare(operator, literal.value, _range_of_group(column, range_of))
        case ast.In(column, literals):
            within = _range_of_group(column, range_of)
            return within is None or any(_compare("=", literal.value, within) for literal in literals)
    return True


def _range_of_group(column: ast.ColumnReference, range_of: RangeOf) -> Range | None:
    """Return a column's range in the order in which its values are compared; ``None`` if it is unknown."""
    return None if column.char_length is not None else range_of(column)


def _compare(operator: str, value: Any, within: Range | None) -> bool:
    if value is None:
        return operator == "<=>"  # a range says nothing about nulls; any other comparison with null is unknown
    if within is None:
        return True
    match operator:
        case "=" | "<=>":
            return bool(within.low <= value <= within.high)
        case "<>":
            return not within.low == within.high == value
        case "<":
            return bool(within.low < value)
        case "<=":
            return bool(within.low <= value)
        case ">":
            return bool(within.high > value)
        case ">=":
            return bool(within.high >= value)
    return True

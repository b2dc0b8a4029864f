"""Arithmetic with Spark's result types and ANSI errors."""

from __future__ import annotations

import decimal
import math
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_delta.log.arrow.arrays import scalar
from airflow_delta.log.expressions.literals import NULL
from airflow_delta.log.schema.types import DATE, DOUBLE, INTEGER, LONG, DecimalType
from airflow_delta.table.expressions.calendar import check_years
from airflow_delta.table.expressions.casts import rescaled
from airflow_delta.table.expressions.coercion import (
    bounded,
    common_type,
    decimal_operands,
    is_floating,
    is_integral,
    is_number,
    to_type,
    whole,
)
from airflow_delta.table.expressions.parts import TypedPart, by_row, strict
from airflow_delta.table.expressions.problems import NotDecided, RowError, RowNotDecided

_EXACT = decimal.Context(prec=400, Emax=10_000, Emin=-10_000)
_MULTIPLIED = decimal.Context(prec=39, rounding=decimal.ROUND_HALF_DOWN)
_NEGATED_DIGITS = 34  # that Scala keeps
_OVERFLOW = "a result does not fit its type (ARITHMETIC_OVERFLOW)"
_ZERO = "a division by zero (DIVIDE_BY_ZERO)"


def binary(operator: str, left: TypedPart, right: TypedPart) -> TypedPart:
    """Return the part ``left operator right`` for ``+``, ``-``, ``*``, ``/``, ``%`` and ``div``.

    :raises NotDecided: if it is not computed here.
    """
    if DATE in (left.data_type, right.data_type):
        return _days(operator, left, right)
    for part in (left, right):
        if part.data_type != NULL and not is_number(part.data_type):
            raise NotDecided(f"{operator} of a {part.data_type} is not computed here")
    if left.data_type == right.data_type == NULL:
        raise NotDecided(f"{operator} of two untyped nulls is not computed here")
    if isinstance(left.data_type, DecimalType) or isinstance(right.data_type, DecimalType):
        left, right = decimal_operands(left, right)
        if isinstance(left.data_type, DecimalType) and isinstance(right.data_type, DecimalType):
            return _decimals(operator, left, right)
    target = {"/": DOUBLE, "div": LONG}.get(operator) or common_type(left.data_type, right.data_type)
    if operator == "div" and (is_floating(left.data_type) or is_floating(right.data_type)):
        raise NotDecided("div of floating-point numbers is not computed here")
    left, right = to_type(left, target), to_type(right, target)
    floating = is_floating(target)
    if operator in ("+", "-", "*"):
        return strict(target, _checked(_KERNELS[operator][floating]), left, right, fails=not floating, present_only=not floating)
    if operator == "/":
        return strict(target, _divided, left, right, fails=True, present_only=True, order=(1, 0))
    if operator == "div":
        return strict(target, _checked(pc.divide_checked), left, right, fails=True, present_only=True, order=(1, 0))
    return _by_divisor(target, math.fmod if floating else _remainder, left, right)


_KERNELS: dict[str, tuple[Callable[..., pa.Array], Callable[..., pa.Array]]] = {
    "+": (pc.add_checked, pc.add),
    "-": (pc.subtract_checked, pc.subtract),
    "*": (pc.multiply_checked, pc.multiply),
}
"""For whole numbers and for floating-point numbers."""


def _checked(kernel: Callable[..., pa.Array]) -> Callable[..., pa.Array]:
    def compute(*arrays: pa.Array) -> pa.Array:
        try:
            return kernel(*arrays)
        except pa.ArrowInvalid as error:
            raise RowError(_ZERO if "zero" in str(error) else _OVERFLOW) from error

    return compute


def _divided(left: pa.Array, right: pa.Array) -> pa.Array:
    if pc.any(pc.equal(right, scalar(0.0))).as_py():
        raise RowError(_ZERO)
    return pc.divide(left, right)


def _remainder(left: int, right: int) -> int:
    found = abs(left) % abs(right)
    return -found if left < 0 else found


def _by_divisor(data_type: Any, function: Callable[[Any, Any], Any], left: TypedPart, right: TypedPart) -> TypedPart:
    def computed(one: Any, other: Any) -> Any:
        if other == 0:
            raise RowError("a remainder of a division by zero (REMAINDER_BY_ZERO)")
        if isinstance(one, float) and (math.isinf(one) or math.isnan(one) or math.isnan(other)):
            return math.nan
        return function(one, other)

    # The divisor is evaluated first.
    return by_row(data_type, lambda other, one: computed(one, other), right, left, fails=True)


def positive_remainder(left: TypedPart, right: TypedPart) -> TypedPart:
    """Return the part ``pmod(left, right)``."""
    for part in (left, right):
        if not is_integral(part.data_type):
            raise NotDecided(f"pmod of a {part.data_type} is not computed here")
    target = common_type(left.data_type, right.data_type)

    def positive(one: int, other: int) -> int:
        found = _remainder(one, other)
        return _remainder(found + other, other) if found < 0 else found

    return _by_divisor(target, positive, to_type(left, target), to_type(right, target))


# -- decimals -----------------------------------------------------------------------------------------------------------------


def _decimals(operator: str, left: TypedPart, right: TypedPart) -> TypedPart:
    one, other = left.data_type, right.data_type
    assert isinstance(one, DecimalType)
    assert isinstance(other, DecimalType)
    scale = max(one.scale, other.scale)
    if operator in ("+", "-"):
        digits = max(one.precision - one.scale, other.precision - other.scale) + scale + 1
        return _decimal(operator, bounded(digits, scale), digits, left, right)
    if operator == "*":
        digits = one.precision + other.precision + 1
        return _decimal(operator, bounded(digits, one.scale + other.scale), digits, left, right)
    if operator == "/":
        scale = max(6, one.scale + other.precision + 1)
        target = bounded(one.precision - one.scale + other.scale + scale, scale)
        return by_row(target, lambda divisor, value: _quotient(value, divisor, target), right, left, fails=True)
    if operator == "%":
        target = bounded(min(one.precision - one.scale, other.precision - other.scale) + scale, scale)
        return _by_divisor(target, lambda a, b: rescaled(_EXACT.remainder(a, b), target), left, right)
    raise NotDecided("div of decimals is not computed here")


def _decimal(operator: str, target: DecimalType, digits: int, left: TypedPart, right: TypedPart) -> TypedPart:
    if digits == target.precision:  # Arrow's results have the same type, and no rounding
        return strict(target, _KERNELS[operator][1], left, right)

    def computed(one: decimal.Decimal, other: decimal.Decimal) -> decimal.Decimal:
        if operator == "*":
            return rescaled(_MULTIPLIED.multiply(one, other), target)
        return rescaled(_EXACT.add(one, other) if operator == "+" else _EXACT.subtract(one, other), target)

    return by_row(target, computed, left, right, fails=True)


def _quotient(value: decimal.Decimal, divisor: decimal.Decimal, target: DecimalType) -> decimal.Decimal:
    if divisor == 0:
        raise RowError(_ZERO)
    exact = _EXACT.divide(value, divisor)
    found = rescaled(exact, target)
    if rescaled(_MULTIPLIED.plus(exact), target) != found:
        raise RowNotDecided(f"the quotient of {value} and {divisor} is rounded twice by Spark")
    return found


# -- one operand --------------------------------------------------------------------------------------------------------------


def negative(operand: TypedPart) -> TypedPart:
    """Return the part ``-operand``."""
    return _of_one(operand, "-", pc.negate, pc.negate_checked)


def absolute(operand: TypedPart) -> TypedPart:
    """Return the part ``abs(operand)``."""
    return _of_one(operand, "abs", pc.abs, pc.abs_checked)


def positive(operand: TypedPart) -> TypedPart:
    """Return the part ``+operand``."""
    return _of_one(operand, "+", lambda values: values, lambda values: values)


def _of_one(operand: TypedPart, name: str, plain: Callable[..., pa.Array], checked: Callable[..., pa.Array]) -> TypedPart:
    data_type = operand.data_type
    if not is_number(data_type):
        raise NotDecided(f"{name} of a {data_type} is not computed here")
    if is_integral(data_type):
        return strict(data_type, _checked(checked), operand, fails=True, present_only=True)
    if isinstance(data_type, DecimalType) and data_type.precision > _NEGATED_DIGITS and name != "+":
        return strict(data_type, lambda values: plain(_short(values)), operand, fails=True, present_only=True)
    return strict(data_type, plain, operand)


def _short(values: pa.Array) -> pa.Array:
    if any(len(value.as_tuple().digits) > _NEGATED_DIGITS for value in values.to_pylist()):
        raise RowNotDecided(f"a decimal of more than {_NEGATED_DIGITS} digits is rounded by Spark where its sign changes")
    return values


def bits(operator: str, left: TypedPart, right: TypedPart) -> TypedPart:
    """Return the part ``left operator right`` for ``&``, ``|`` and ``^``."""
    for part in (left, right):
        if not is_integral(part.data_type):
            raise NotDecided(f"{operator} of a {part.data_type} is not computed here")
    target = common_type(left.data_type, right.data_type)
    kernel = {"&": pc.bit_wise_and, "|": pc.bit_wise_or, "^": pc.bit_wise_xor}[operator]
    return strict(target, kernel, to_type(left, target), to_type(right, target))


def inverted_bits(operand: TypedPart) -> TypedPart:
    """Return the part ``~operand``."""
    if not is_integral(operand.data_type):
        raise NotDecided(f"~ of a {operand.data_type} is not computed here")
    return strict(operand.data_type, pc.bit_wise_not, operand)


# -- days ---------------------------------------------------------------------------------------------------------------------


def _days(operator: str, left: TypedPart, right: TypedPart) -> TypedPart:
    if operator == "+" and left.data_type != DATE:
        left, right = right, left
    if operator not in ("+", "-") or left.data_type != DATE or right.data_type in (DATE, NULL):
        raise NotDecided(f"{operator} of dates is not computed here")
    return add_days(left, whole(right), operator)


def add_days(day: TypedPart, days: TypedPart, operator: str = "+") -> TypedPart:
    """Return the part ``day operator days``."""

    def computed(dates: pa.Array, counts: pa.Array) -> pa.Array:
        kernel = _checked(_KERNELS[operator][0])
        try:
            return check_years(kernel(check_years(dates).cast(pa.int32()), counts).cast(pa.date32()))
        except RowError as error:
            raise RowNotDecided("a date is out of range") from error

    return strict(DATE, computed, day, days, fails=True, present_only=True)


def days_between(end: TypedPart, start: TypedPart) -> TypedPart:
    """Return the part ``datediff(end, start)``."""

    def computed(one: pa.Array, other: pa.Array) -> pa.Array:
        return pc.subtract(check_years(one).cast(pa.int32()), check_years(other).cast(pa.int32()))

    return strict(INTEGER, computed, end, start, fails=True, present_only=True)

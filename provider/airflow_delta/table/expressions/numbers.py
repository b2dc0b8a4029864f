"""Functions of numbers. Those whose last digit depends on a library of mathematics are Spark's."""

from __future__ import annotations

import decimal
import math
from typing import Any

import pyarrow.compute as pc

from airflow_delta.log.schema.types import DOUBLE, LONG, DecimalType
from airflow_delta.table.expressions.casts import rescaled
from airflow_delta.table.expressions.coercion import is_floating, is_integral, number, to_type
from airflow_delta.table.expressions.parts import TypedPart, by_row, strict
from airflow_delta.table.expressions.problems import NotDecided

_MAX_PRECISION = 38
_LONGS = (-(1 << 63), (1 << 63) - 1)
_WIDE = decimal.Context(prec=400)


def toward(operand: TypedPart, name: str) -> TypedPart:
    """Return the part ``ceil(operand)`` or ``floor(operand)``."""
    given = operand.data_type
    rounded: Any = math.ceil if name == "ceil" else math.floor
    if is_integral(given):
        return to_type(operand, LONG)
    if is_floating(given):
        return by_row(LONG, lambda value: _as_long(value, rounded), operand)
    if not isinstance(given, DecimalType):
        raise NotDecided(f"{name} of a {given} is not computed here")
    target = DecimalType(min(given.precision - given.scale + 1, _MAX_PRECISION), 0)
    if given.scale == 0:
        raise NotDecided(f"{name} of a decimal without digits after its point is not computed here")
    return by_row(target, lambda value: decimal.Decimal(rounded(value)), operand)


def _as_long(value: float, rounded: Any) -> int:
    if math.isnan(value):
        return 0
    if math.isinf(value):
        return _LONGS[value > 0]
    return int(min(max(rounded(value), _LONGS[0]), _LONGS[1]))


def rounded_number(operand: TypedPart, scale: TypedPart | None, *, to_even: bool) -> TypedPart:
    """Return the part ``round(operand, scale)`` or ``bround``, of exact numbers only.

    Those of floating-point numbers depend on how Java writes them.
    """
    if scale is not None and (scale.columns or scale.data_type.name != "integer" or scale.constant is None):
        raise NotDecided("numbers are rounded to a literal number of digits here")
    digits, given = 0 if scale is None else int(scale.constant), operand.data_type
    if digits < 0:
        raise NotDecided("numbers are not rounded before their decimal point here")
    if is_integral(given):
        return strict(given, lambda values: values, operand)
    if not isinstance(given, DecimalType):
        raise NotDecided(f"a {given} is not rounded here")
    kept = min(digits, given.scale)
    target = DecimalType(min(given.precision - given.scale + 1 + kept, _MAX_PRECISION), kept)
    mode = decimal.ROUND_HALF_EVEN if to_even else decimal.ROUND_HALF_UP
    quantum = decimal.Decimal(1).scaleb(-kept)
    return by_row(
        target, lambda value: rescaled(value.quantize(quantum, rounding=mode, context=_WIDE), target), operand, fails=True
    )


def sign(operand: TypedPart) -> TypedPart:
    """Return the part ``sign(operand)``."""
    return by_row(DOUBLE, lambda value: value if value == 0 or math.isnan(value) else math.copysign(1.0, value), number(operand))


def square_root(operand: TypedPart) -> TypedPart:
    """Return the part ``sqrt(operand)``."""
    return strict(DOUBLE, pc.sqrt, number(operand))

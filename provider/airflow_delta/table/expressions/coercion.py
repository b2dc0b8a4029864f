"""The common type of operands, as Spark finds it in ANSI mode (``AnsiTypeCoercion``), and the types of decimal arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from airflow_delta.log.expressions.literals import NULL
from airflow_delta.log.schema.types import (
    DOUBLE,
    FLOATING,
    INTEGRAL,
    LONG,
    STRING,
    TIMESTAMP,
    DataType,
    DecimalType,
    PrimitiveType,
)
from airflow_delta.table.expressions.casts import cast_part
from airflow_delta.table.expressions.parts import TypedPart, literal
from airflow_delta.table.expressions.problems import NotDecided

MAX_PRECISION = 38
_MIN_SCALE = 6  # that Spark keeps when a decimal would have too many digits
_DIGITS = {"byte": 3, "short": 5, "integer": 10, "long": 20}
_ORDER = (*INTEGRAL, *FLOATING)
_TIMES = ("date", "timestamp_ntz", "timestamp")


def is_integral(data_type: DataType) -> bool:
    """Return whether a type is one of whole numbers."""
    return data_type.name in INTEGRAL


def is_floating(data_type: DataType) -> bool:
    """Return whether a type is float or double."""
    return data_type.name in FLOATING


def is_number(data_type: DataType) -> bool:
    """Return whether a type is one of numbers."""
    return isinstance(data_type, DecimalType) or data_type.name in _ORDER


def decimal_of(data_type: DataType) -> DecimalType:
    """Return the decimal type that holds all values of an exact number's type."""
    return data_type if isinstance(data_type, DecimalType) else DecimalType(_DIGITS[data_type.name], 0)


def wider_decimal(left: DecimalType, right: DecimalType) -> DecimalType:
    """Return the decimal type that holds the values of two.

    :raises NotDecided: if there is none, and Spark would round them.
    """
    scale = max(left.scale, right.scale)
    precision = max(left.precision - left.scale, right.precision - right.scale) + scale
    if precision > MAX_PRECISION:
        raise NotDecided(f"{left} and {right} have no common type without rounding")
    return DecimalType(precision, scale)


def bounded(precision: int, scale: int) -> DecimalType:
    """Return the type of a decimal result (Spark's ``adjustPrecisionScale``)."""
    if precision <= MAX_PRECISION:
        return DecimalType(precision, scale)
    whole = precision - scale
    return DecimalType(MAX_PRECISION, max(MAX_PRECISION - whole, min(scale, _MIN_SCALE)))


def common_type(left: DataType, right: DataType) -> DataType:
    """Return the type that two operands are brought to.

    :raises NotDecided: if Spark has none, or it is not found here.
    """
    if left == right or right == NULL:
        return left
    if left == NULL:
        return right
    if is_number(left) and is_number(right):
        if isinstance(left, DecimalType) or isinstance(right, DecimalType):
            return DOUBLE if is_floating(left) or is_floating(right) else wider_decimal(decimal_of(left), decimal_of(right))
        wider = max(left, right, key=lambda data_type: _ORDER.index(data_type.name))
        return DOUBLE if wider.name == "float" else wider
    if left.name in _TIMES and right.name in _TIMES:
        return max(left, right, key=lambda data_type: _TIMES.index(data_type.name))
    raise NotDecided(f"{left} and {right} are not brought to one type here")


def compared_type(left: DataType, right: DataType) -> DataType:
    """Return the type that two operands are compared as: strings become what they are compared with.

    :raises NotDecided: as :func:`common_type`.
    """
    if STRING not in (left, right) or left == right:
        return common_type(left, right)
    other = right if left == STRING else left
    if is_integral(other):
        return LONG
    if is_number(other):
        return DOUBLE
    if other.name in ("date", "timestamp", "timestamp_ntz", "boolean", "binary"):
        return other
    return common_type(left, right)


def to_type(part: TypedPart, target: DataType) -> TypedPart:
    """Return a part, cast unless it is of the type."""
    if part.data_type == target:
        return part
    return literal(None, target, is_literal=False) if part.data_type == NULL else cast_part(part, target)


def to_common_type(parts: Sequence[TypedPart]) -> list[TypedPart]:
    """Return parts, all cast to the type common to them: of branches, and of the operands of many functions.

    :raises NotDecided: as :func:`common_type`.
    """
    target = reduce(common_type, (part.data_type for part in parts))
    return [to_type(part, target) for part in parts]


def to_compared_types(left: TypedPart, right: TypedPart) -> tuple[TypedPart, TypedPart]:
    """Return two parts as they are compared, see :func:`compared_type`."""
    if isinstance(left.data_type, DecimalType) or isinstance(right.data_type, DecimalType):
        left, right = decimal_operands(left, right)
    target = compared_type(left.data_type, right.data_type)
    return to_type(left, target), to_type(right, target)


def decimal_operands(left: TypedPart, right: TypedPart) -> tuple[TypedPart, TypedPart]:
    """Return two numbers of which one is a decimal: whole ones as decimals, of just their digits if they are literals."""
    if is_floating(left.data_type) or is_floating(right.data_type):
        return to_type(left, DOUBLE), to_type(right, DOUBLE)
    return _as_decimal(left, right), _as_decimal(right, left)


def _as_decimal(part: TypedPart, other: TypedPart) -> TypedPart:
    if part.data_type == NULL:
        return to_type(part, other.data_type)
    if not is_integral(part.data_type):
        return part
    if part.is_literal and part.data_type.name != "byte":
        return to_type(part, DecimalType(len(str(abs(part.constant))), 0))
    return to_type(part, decimal_of(part.data_type))


def typed_text(part: TypedPart) -> TypedPart:
    """Return a string operand of a function.

    :raises NotDecided: if it is of another type, which Spark may cast.
    """
    return exactly(part, STRING)


def exactly(part: TypedPart, *allowed: DataType) -> TypedPart:
    """Return an operand that must be of one of some types; ``NULL`` becomes the first one.

    :raises NotDecided: if it is of another type, which Spark may cast.
    """
    if part.data_type == NULL:
        return to_type(part, allowed[0])
    if part.data_type not in allowed:
        raise NotDecided(f"an operand of type {part.data_type} is not cast to {allowed[0]} here")
    return part


def whole(part: TypedPart) -> TypedPart:
    """Return an operand of a function as an int.

    :raises NotDecided: if it is of a type with other values.
    """
    integer = PrimitiveType("integer")
    if part.data_type == NULL or part.data_type.name in ("byte", "short"):
        return to_type(part, integer)
    return exactly(part, integer)


def number(part: TypedPart) -> TypedPart:
    """Return an operand of a function as a double.

    :raises NotDecided: if it is not a number.
    """
    if part.data_type != NULL and not is_number(part.data_type):
        raise NotDecided(f"a {part.data_type} is not a number")
    return to_type(part, DOUBLE)


def timed(part: TypedPart) -> TypedPart:
    """Return an operand of a function as a timestamp.

    :raises NotDecided: if it is neither a date nor a timestamp.
    """
    return exactly(part if part.data_type.name not in ("date", "timestamp_ntz") else cast_part(part, TIMESTAMP), TIMESTAMP)

"""Constants of a predicate: their types in Spark, their casts, and their values when they are compared with a column.

What Spark computes differently with ``spark.sql.ansi.enabled`` and without, what it rounds, and where it would convert the
column instead (a string compared with a number), is left to Spark: evaluated here, it could select files by one rule and rows
by another.
"""

from __future__ import annotations

import datetime as dt
import decimal
import math
import re
import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from airflow_delta.lazy_patterns import lazy_pattern
from airflow_delta.log.schema.partition_values import parse_timestamp, to_float32
from airflow_delta.log.schema.types import FLOATING, INTEGRAL, DataType, DecimalType, PrimitiveType

MAX_DIGITS = 400
"""Numbers with more digits or larger exponents are left to Spark; no column type can hold them."""

NULL = PrimitiveType("void")
"""Type of ``NULL``, until it is compared with something."""

_MAX_PRECISION = 38
_BITS = {"byte": 8, "short": 16, "integer": 32, "long": 64}
_DECIMAL_DIGITS = {"byte": 3, "short": 5, "integer": 10, "long": 20}  # of the decimals that Spark compares them as
_EXACT_DIGITS = 15  # decimals with no more have different doubles, in the same order
_EXACT_FLOAT = 1 << 24  # whole numbers up to this are floats

_DATE = lazy_pattern(r"([+-]?[0-9]{4,7})(?:-([0-9]{1,2})(?:-([0-9]{1,2})(?:[ T].*)?)?)?", re.DOTALL)
_WHOLE = lazy_pattern(r"[+-]?[0-9]+")
_PLAIN = lazy_pattern(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)")
_FLOAT = lazy_pattern(rf"{_PLAIN.pattern}(?:[eE][+-]?[0-9]+)?")
_SPECIAL = {"nan": math.nan}
_SPECIAL |= {sign + name: float(sign + "inf") for sign in ("", "+", "-") for name in ("inf", "infinity")}
_TRUE = frozenset({"t", "true", "y", "yes", "1"})
_FALSE = frozenset({"f", "false", "n", "no", "0"})
TRUTHS = _TRUE | _FALSE
"""Strings that are cast to booleans, in lower case."""


class NotComparableError(ValueError):
    """A constant cannot be compared or cast here, but perhaps by Spark."""


class TypedLiteral(NamedTuple):
    """A constant and its type in Spark.

    :param value: ``None`` is null.
    :param data_type: :data:`NULL`, or the type of the literal or cast.
    :param is_literal: whether it is a literal rather than a cast. Spark compares whole numbers that are literals with decimals as
        decimals of just their digits.
    """

    value: Any
    data_type: DataType
    is_literal: bool = True


def number_literal(text: str, suffix: str = "") -> TypedLiteral:
    """Return a literal number of Spark SQL.

    :param text: with its sign, without its suffix.
    :param suffix: in upper case.
    :raises NotComparableError: if it does not fit its type; Spark refuses it.
    """
    if len(text) > MAX_DIGITS:
        raise NotComparableError("it has too many digits")
    if suffix == "F":
        return TypedLiteral(_float32(float(text)), PrimitiveType("float"))
    if suffix == "D" or (not suffix and "e" in text.lower()):
        return TypedLiteral(_finite(float(text)), PrimitiveType("double"))
    if suffix == "BD" or not _WHOLE.fullmatch(text):
        return _decimal_literal(decimal.Decimal(text))
    value = int(text)
    for name in {"Y": ["byte"], "S": ["short"], "L": ["long"], "": ["integer", "long"]}[suffix]:
        if _in_range(value, name):
            return TypedLiteral(value, PrimitiveType(name))
    if suffix:
        raise NotComparableError("it is out of range")
    return _decimal_literal(decimal.Decimal(value))


def _decimal_literal(value: decimal.Decimal) -> TypedLiteral:
    digits, exponent = len(value.as_tuple().digits), int(value.as_tuple().exponent)
    if exponent > MAX_DIGITS:
        raise NotComparableError("its exponent is too large")
    scale = max(-exponent, 0)
    precision = max(digits + max(exponent, 0), scale)
    if precision > _MAX_PRECISION:
        raise NotComparableError("it has too many digits")
    return TypedLiteral(value, DecimalType(precision, scale))


def _in_range(value: int, name: str) -> bool:
    return -(1 << (_BITS[name] - 1)) <= value < 1 << (_BITS[name] - 1)


def _finite(value: float) -> float:
    if math.isinf(value):
        raise NotComparableError("it is out of range")
    return value


def _float32(value: float) -> float:
    """Return a number rounded to a 32-bit float, if rounding it to a 64-bit one first cannot have changed that."""
    if struct.unpack("<Q", struct.pack("<d", value))[0] & 0x1FFFFFFF == 0x10000000:  # halfway between two floats
        raise NotComparableError("its float depends on how it is rounded")
    return _finite(to_float32(value))


def trimmed(text: str) -> str:
    """Return a text without the white space that all casts of Spark ignore.

    :raises NotComparableError: if it has other white space or control characters at its ends, which some ignore.
    """
    text = text.strip(" \t\r\n")
    if text and any(letter <= " " or letter == "\x7f" or letter.isspace() for letter in (text[0], text[-1])):
        raise NotComparableError("it has white space around it that not every cast ignores")
    return text


def parse_date(text: str) -> dt.date:
    """Parse a date as Spark does: ``yyyy``, ``yyyy-MM`` or ``yyyy-MM-dd``, with or without a time after it.

    :raises ValueError: if the text is not a date.
    """
    match = _DATE.fullmatch(trimmed(text))
    if match is None:
        raise ValueError(f"{text!r} is not a date")
    if len(match[1]) != 4 or match[1] == "0000":
        raise NotComparableError("its year is not between 1 and 9999")
    return dt.date(int(match[1]), int(match[2] or 1), int(match[3] or 1))


def is_beyond_long(value: Any, data_type: DataType) -> bool:
    """Return whether a number that is compared with a column of integers is below or above all 64-bit integers."""
    return value is not None and data_type.name in INTEGRAL and not _in_range(int(value), "long")


# -- comparisons --------------------------------------------------------------------------------------------------------------


def coerce(constant: TypedLiteral, data_type: DataType) -> Any:
    """Return the value of a constant when it is compared with a column of a type.

    :raises ValueError: if they cannot be compared; the message says why.
    """
    if constant.value is None:
        _check_null(constant.data_type, data_type, listed=False)
        return None
    value = _coerced(constant, data_type)
    if _is_exact(data_type) and not isinstance(constant.value, str):
        _check_precision([_digits(constant, value)], data_type)
    elif isinstance(data_type, DecimalType):
        _check_precision([_digits_of(decimal.Decimal(value))], data_type)
    return value


def coerce_listed(constants: Sequence[TypedLiteral], data_type: DataType) -> list[Any]:
    """Return the values of constants that are compared with a column of a type by ``IN``, for which Spark takes one common type.

    Errors as for :func:`coerce`.
    """
    digits: list[tuple[int, int]] = []
    values: list[Any] = []
    for constant in constants:
        if constant.value is None:
            _check_null(constant.data_type, data_type, listed=True)
            values.append(None)
            continue
        value = _coerced(constant, data_type)
        if isinstance(constant.value, str) and data_type.name not in ("string", "timestamp", "timestamp_ntz"):
            _check_spelling(constant.value, value, data_type)
        if _is_exact(data_type) and not isinstance(constant.value, str):
            # Its type, and the one that it has when it is written down again.
            digits += [_digits(constant._replace(is_literal=False), value), _digits_written(value)]
        values.append(value)
    kinds = {str(constant.data_type) for constant in constants if constant.value is not None}
    if "string" in kinds and any(isinstance(value, decimal.Decimal) for value in values):
        raise NotComparableError("Spark compares numbers and strings in one list as it is configured to")
    _check_precision(digits, data_type)
    return values


def _check_null(null_type: DataType, data_type: DataType, *, listed: bool) -> None:
    numbers = not listed and all(_is_exact(one) or one.name in FLOATING for one in (null_type, data_type))
    if null_type not in (NULL, data_type) and not numbers:
        raise NotComparableError("a null of another type makes Spark compare in another type, or not at all")


def _check_spelling(text: str, value: Any, data_type: DataType) -> None:
    """Refuse a string in a list unless it is how Spark spells the value: without ANSI mode it compares the column as a string.

    :raises NotComparableError: if it is spelled in another way.
    """
    if data_type.name not in (*INTEGRAL, "date") or str(value) != text:
        raise NotComparableError("Spark compares strings in a list with other columns as it is configured to")


def _is_exact(data_type: DataType) -> bool:
    return isinstance(data_type, DecimalType) or data_type.name in INTEGRAL


def _digits_of(number_literal: decimal.Decimal) -> tuple[int, int]:
    """Return how many digits a number has before and after its decimal point."""
    exponent = int(number_literal.as_tuple().exponent)
    return max(number_literal.adjusted() + 1, 0) if number_literal else 0, max(-exponent, 0)


def _digits(constant: TypedLiteral, value: Any) -> tuple[int, int]:
    """Return how many digits Spark gives a number before and after its decimal point to compare it with a decimal."""
    given = constant.data_type
    if isinstance(given, DecimalType):
        return given.precision - given.scale, given.scale
    if constant.is_literal and given.name != "byte":
        return _digits_of(decimal.Decimal(value))
    return _DECIMAL_DIGITS[given.name], 0


def _digits_written(value: Any) -> tuple[int, int]:
    if isinstance(value, int):
        fitting = next((name for name in ("integer", "long") if _in_range(value, name)), None)
        if fitting is not None:
            return _DECIMAL_DIGITS[fitting], 0
    return _digits_of(decimal.Decimal(value))


def _check_precision(digits: list[tuple[int, int]], data_type: DataType) -> None:
    """Refuse a comparison for which Spark would have to round: the common decimal type would need more than 38 digits.

    :param digits: of the constants, before and after the decimal point; nothing is refused if there are none.
    :raises NotComparableError: if it would.
    """
    if not digits:
        return
    if isinstance(data_type, DecimalType):
        own = (data_type.precision - data_type.scale, data_type.scale)
    else:
        own = (_DECIMAL_DIGITS[data_type.name], 0)
    before, after = (max(part) for part in zip(own, *digits, strict=True))
    if before + after > _MAX_PRECISION:
        raise NotComparableError("Spark rounds to compare them")


def _coerced(constant: TypedLiteral, data_type: DataType) -> Any:
    name = data_type.name
    if _is_exact(data_type):
        return _exact(constant, data_type)
    if name in FLOATING:
        return _floating(constant, data_type)
    convert = {
        "string": _string,
        "boolean": _boolean,
        "date": _date,
        "timestamp": _timestamp,
        "timestamp_ntz": _timestamp_ntz,
        "binary": _binary,
    }.get(name)
    if convert is None:
        raise NotComparableError("columns of this type cannot be compared")
    return convert(constant)


def _refuse(constant: TypedLiteral) -> Any:
    raise NotComparableError(f"it cannot be compared with a {constant.data_type}")


def _exact(constant: TypedLiteral, data_type: DataType) -> Any:
    """Return an int for a whole number, else a Decimal: both compare exactly with ints and Decimals."""
    value = constant.value
    if isinstance(value, str):
        return _exact_text(value, data_type)
    if not _is_exact(constant.data_type):  # a double or float: Spark converts the column
        return _refuse(constant)
    return int(value) if value == int(value) else value


def _exact_text(text: str, data_type: DataType) -> Any:
    spelled = trimmed(text)
    if len(spelled) > MAX_DIGITS:
        raise NotComparableError("it has too many digits")
    if isinstance(data_type, DecimalType) and spelled.lower() in _SPECIAL:
        raise NotComparableError("Spark compares a decimal and a string as doubles")
    if not _FLOAT.fullmatch(spelled):
        raise ValueError(f"{text!r} is not a number")
    if not isinstance(data_type, DecimalType):
        if not _WHOLE.fullmatch(spelled) or not _in_range(int(spelled), data_type.name):
            raise NotComparableError("Spark makes of such a string what it is configured to")
        return int(spelled)
    # Spark compares both as doubles.
    value = decimal.Decimal(spelled)
    if not _PLAIN.fullmatch(spelled) or max(len(value.as_tuple().digits), data_type.precision) > _EXACT_DIGITS:
        raise NotComparableError("Spark compares a decimal and a string as doubles")
    return int(value) if value == int(value) else value


def _floating(constant: TypedLiteral, data_type: DataType) -> float:
    value, given = constant.value, constant.data_type
    if isinstance(value, str):
        return _float_of_text(value)
    if given.name in INTEGRAL:
        # Without ANSI mode Spark compares a float and an integer as floats.
        if data_type.name == "float" and abs(value) > _EXACT_FLOAT:
            raise NotComparableError("it is not exactly a float")
        return float(value)
    if isinstance(given, DecimalType) or given.name in FLOATING:
        return float(value)
    return float(_refuse(constant))


def _float_of_text(text: str) -> float:
    spelled = trimmed(text)
    if len(spelled) > MAX_DIGITS:
        raise NotComparableError("it has too many digits")
    if (special := _SPECIAL.get(spelled.lower())) is not None:
        return special
    if not _FLOAT.fullmatch(spelled):
        if re.match(r"[+-]?(?:[0-9.]|NaN)", spelled):  # 1.5d, 0x1p3 and +NaN are numbers to Java
            raise NotComparableError("it is not a plain number")
        raise ValueError(f"{text!r} is not a number")
    return float(spelled)


def _string(constant: TypedLiteral) -> str:
    if constant.data_type.name != "string":
        raise NotComparableError(f"it is a string column; compare it with a quoted literal, not with a {constant.data_type}")
    return str(constant.value)


def _boolean(constant: TypedLiteral) -> bool:
    if constant.data_type.name == "boolean":
        return bool(constant.value)
    if constant.data_type.name == "string":
        folded = trimmed(constant.value).lower()
        if folded in TRUTHS:
            return folded in _TRUE
    return bool(_refuse(constant))


def _date(constant: TypedLiteral) -> dt.date:
    if constant.data_type.name == "date":
        return constant.value  # type: ignore[no-any-return]
    if constant.data_type.name == "string":
        return parse_date(constant.value)
    return _refuse(constant)  # type: ignore[no-any-return]


def _timestamp(constant: TypedLiteral) -> dt.datetime:
    value, name = constant.value, constant.data_type.name
    if name == "string":
        return parse_timestamp(trimmed(value), zoned=True)
    if name == "timestamp":
        return value  # type: ignore[no-any-return]
    if name == "date":
        return dt.datetime(value.year, value.month, value.day, tzinfo=dt.UTC)
    return _refuse(constant)  # type: ignore[no-any-return]


def _timestamp_ntz(constant: TypedLiteral) -> dt.datetime:
    value, name = constant.value, constant.data_type.name
    if name == "string":
        return parse_timestamp(trimmed(value), zoned=False)
    if name == "timestamp_ntz":
        return value  # type: ignore[no-any-return]
    if name == "date":
        return dt.datetime(value.year, value.month, value.day)
    return _refuse(constant)  # type: ignore[no-any-return]


def _binary(constant: TypedLiteral) -> bytes:
    if constant.data_type.name == "binary":
        return bytes(constant.value)
    if constant.data_type.name == "string":
        return str(constant.value).encode()
    return _refuse(constant)  # type: ignore[no-any-return]


# -- casts --------------------------------------------------------------------------------------------------------------------


def cast(constant: TypedLiteral, target: DataType) -> TypedLiteral:
    """Return the constant that ``CAST(constant AS target)`` is.

    :raises NotComparableError: if it is not cast here, or its result depends on Spark's settings.
    :raises ValueError: if it cannot be cast.
    """
    if isinstance(target, DecimalType) and not 0 <= target.scale <= target.precision <= _MAX_PRECISION:
        raise NotComparableError("there is no such decimal")
    if constant.value is None and (isinstance(target, DecimalType) or target.name in _CASTS):
        return TypedLiteral(None, target, is_literal=False)
    if constant.data_type == target:
        return constant._replace(is_literal=False)
    if isinstance(target, DecimalType):
        return TypedLiteral(_to_decimal(constant, target), target, is_literal=False)
    convert = _CASTS.get(target.name)
    if convert is None:
        raise NotComparableError(f"nothing is cast to {target} here")
    return TypedLiteral(convert(constant, target), target, is_literal=False)


def _to_integral(constant: TypedLiteral, target: DataType) -> int:
    value = constant.value
    if isinstance(value, str):
        spelled = trimmed(value)
        if not _FLOAT.fullmatch(spelled):
            raise ValueError(f"{value!r} is not a number")
        if not _WHOLE.fullmatch(spelled):
            raise ValueError(f"{value!r} is not a whole number")
        value = spelled if len(spelled) <= MAX_DIGITS else _refuse(constant)
    elif not _is_exact(constant.data_type) or value != int(value):
        raise NotComparableError(f"it is not cast to {target} here")
    if not _in_range(int(value), target.name):
        raise NotComparableError("it is out of range")
    return int(value)


def _to_decimal(constant: TypedLiteral, target: DecimalType) -> decimal.Decimal:
    value = constant.value
    if isinstance(value, str):
        spelled = trimmed(value)
        if not _FLOAT.fullmatch(spelled):
            raise ValueError(f"{value!r} is not a number")
        value = spelled if _PLAIN.fullmatch(spelled) and len(spelled) <= MAX_DIGITS else _refuse(constant)
    elif not _is_exact(constant.data_type):
        raise NotComparableError(f"it is not cast to {target} here")
    with decimal.localcontext(prec=2 * MAX_DIGITS):
        rounded = decimal.Decimal(value).quantize(decimal.Decimal(1).scaleb(-target.scale), decimal.ROUND_HALF_UP)
    if len(rounded.as_tuple().digits) > target.precision:
        raise NotComparableError("it is out of range")
    return abs(rounded) if rounded == 0 else rounded


def _to_floating(constant: TypedLiteral, target: DataType) -> float:
    number_literal = _floating(constant, target)
    return number_literal if target.name == "double" or not math.isfinite(number_literal) else _float32(number_literal)


def _to_string(constant: TypedLiteral, _target: DataType) -> str:
    if constant.data_type.name not in INTEGRAL:
        raise NotComparableError(f"a {constant.data_type} is not cast to a string here")
    return str(constant.value)


_CASTS: dict[str, Callable[[TypedLiteral, Any], Any]] = {
    **dict.fromkeys(INTEGRAL, _to_integral),
    **dict.fromkeys(FLOATING, _to_floating),
    "string": _to_string,
    "boolean": lambda constant, _target: _boolean(constant),
    "date": lambda constant, _target: _date(constant),
    "timestamp": lambda constant, _target: _timestamp(constant),
    "timestamp_ntz": lambda constant, _target: _timestamp_ntz(constant),
    "binary": lambda constant, _target: _binary(constant),
}

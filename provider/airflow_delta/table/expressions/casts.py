"""``CAST`` in ANSI mode, and ``TRY_CAST``. Strings are read by the rules of the literals of predicates."""

from __future__ import annotations

import datetime as dt
import decimal
import math
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_delta.log.arrow.arrays import scalar
from airflow_delta.log.expressions import literals
from airflow_delta.log.schema.types import (
    BOOLEAN,
    FLOATING,
    INTEGRAL,
    STRING,
    DataType,
    DecimalType,
    arrow_type,
)
from airflow_delta.table.expressions.calendar import check_years, in_utc, midnight, utc_days, without_zone
from airflow_delta.table.expressions.parts import TypedPart, by_value, holds_everywhere, literal, strict
from airflow_delta.table.expressions.problems import NotDecided, RowError, RowNotDecided

Convert = Callable[["pa.Array"], "pa.Array"]

_BITS = {"byte": 8, "short": 16, "integer": 32, "long": 64}
_WIDE = decimal.Context(prec=400, rounding=decimal.ROUND_HALF_UP)
_READ = frozenset({*INTEGRAL, *FLOATING, "boolean", "date", "timestamp", "timestamp_ntz", "binary"})


def cast_part(operand: TypedPart, target: DataType, *, tries: bool = False) -> TypedPart:
    """Return an operand cast to a type; Spark's implicit casts are the same.

    :param tries: what cannot be cast becomes null.
    :raises NotDecided: if Spark has no such cast, or it is not made here.
    """
    given = operand.data_type
    if isinstance(target, DecimalType) and not 0 <= target.scale <= target.precision <= 38:
        raise NotDecided(f"there is no type {target}")
    if given == literals.NULL:
        return literal(None, target, is_literal=False)
    if given == target:
        return strict(target, lambda values: values, operand)
    convert, fails = _conversion(given, target)
    if tries and fails:
        return strict(target, lambda values: _tried(convert, values, arrow_type(target)), operand, fails=True, present_only=True)
    return strict(target, convert, operand, fails=fails, present_only=fails)


def _tried(convert: Convert, values: pa.Array, kind: pa.DataType) -> pa.Array:
    try:
        return convert(values)
    except RowError:
        if len(values) == 1:
            return pa.nulls(1, kind)
    half = len(values) // 2
    return pa.concat_arrays([_tried(convert, part, kind) for part in (values.slice(0, half), values.slice(half))])


def _conversion(given: DataType, target: DataType) -> tuple[Convert, bool]:
    """Return the conversion between two types, and whether it may fail."""
    kind = arrow_type(target)
    if given == STRING:
        if isinstance(target, DecimalType) or target.name in _READ:
            return _reader(target), target.name != "binary"
    elif target == STRING:
        if (write := _WRITERS.get(given.name) or (_plain if isinstance(given, DecimalType) else None)) is not None:
            return lambda values: write(values), given.name in ("date", "timestamp", "timestamp_ntz")
    elif given == BOOLEAN and target.name in (*INTEGRAL, *FLOATING):
        return lambda values: values.cast(pa.int8()).cast(kind), False
    elif isinstance(given, DecimalType):
        return _from_decimal(target, kind)
    elif given.name in INTEGRAL:
        return _from_integral(target, kind)
    elif given.name in FLOATING:
        return _from_floating(target, kind)
    elif (between := _TIMES.get((given.name, target.name))) is not None:
        return between, given.name == "date"
    raise NotDecided(f"a {given} is not cast to {target} here")


# -- strings ------------------------------------------------------------------------------------------------------------------


def _reader(target: DataType) -> Convert:
    def read(text: str) -> Any:
        try:
            if target == BOOLEAN and literals.trimmed(text).lower() not in literals.TRUTHS:
                raise ValueError(text)
            return literals.cast(literals.TypedLiteral(text, STRING), target).value
        except literals.NotComparableError as error:
            raise RowNotDecided(f"the string {text[:100]!r} is not cast to {target} here: {error}") from error
        except (ValueError, OverflowError) as error:
            if target.name in ("timestamp", "timestamp_ntz"):  # Spark reads more forms
                raise RowNotDecided(f"the string {text[:100]!r} is not read as a {target} here") from error
            raise RowError(f"the string {text[:100]!r} cannot be cast to {target} (CAST_INVALID_INPUT)") from error

    return lambda values: by_value(read, values, arrow_type(target))


def _time_text(moment: dt.datetime) -> str:
    text = moment.replace(tzinfo=None).isoformat(sep=" ", timespec="microseconds").rjust(26, "0")
    return text.rstrip("0").rstrip(".") if moment.microsecond else text[:19]


def _plain(values: pa.Array) -> pa.Array:
    return by_value(lambda value: f"{value:f}", values, pa.string())


def _date_text(values: pa.Array) -> pa.Array:
    return by_value(dt.date.isoformat, check_years(values), pa.string())


def _timestamp_text(values: pa.Array) -> pa.Array:
    return by_value(_time_text, check_years(without_zone(values)), pa.string())


_WRITERS: dict[str, Convert] = {
    **dict.fromkeys(INTEGRAL, lambda values: values.cast(pa.string())),
    "boolean": lambda values: values.cast(pa.string()),
    "date": _date_text,
    "timestamp": _timestamp_text,
    "timestamp_ntz": _timestamp_text,
}


# -- numbers ------------------------------------------------------------------------------------------------------------------


def _from_integral(target: DataType, kind: pa.DataType) -> tuple[Convert, bool]:
    if target == BOOLEAN:
        return lambda values: pc.not_equal(values, scalar(0, values.type)), False
    if target.name in FLOATING:
        return lambda values: values.cast(kind, safe=False), False
    if target.name in INTEGRAL:
        return lambda values: _narrowed(values, kind, target), True
    if isinstance(target, DecimalType):
        return lambda values: by_value(lambda value: rescaled(value, target), values, kind), True
    raise NotDecided(f"a whole number is not cast to {target} here")


def _narrowed(values: pa.Array, kind: pa.DataType, target: DataType) -> pa.Array:
    try:
        return values.cast(kind)
    except pa.ArrowInvalid as error:
        raise RowError(f"a number does not fit {target} (CAST_OVERFLOW)") from error


def _from_floating(target: DataType, kind: pa.DataType) -> tuple[Convert, bool]:
    if target == BOOLEAN:
        return lambda values: pc.not_equal(values, scalar(0.0, values.type)), False
    if target.name in FLOATING:
        return lambda values: values.cast(kind, safe=False), False
    if target.name in INTEGRAL:
        return lambda values: _truncated(values, kind, target.name), True
    raise NotDecided(f"a floating-point number is not cast to {target} here")


def _truncated(values: pa.Array, kind: pa.DataType, name: str) -> pa.Array:
    doubles = values.cast(pa.float64())
    top = 1 << (_BITS[name] - 1)
    if name == "long":
        inside = pc.and_(pc.less(doubles, scalar(float(top))), pc.greater_equal(doubles, scalar(-float(top))))
        if holds_everywhere(pc.or_(inside, pc.equal(doubles, scalar(float(top))))) and not holds_everywhere(inside):
            raise RowNotDecided("the number 9223372036854775808 becomes one less in Spark")
    else:
        inside = pc.and_(pc.less(doubles, scalar(float(top))), pc.greater(doubles, scalar(-float(top) - 1)))
    if not holds_everywhere(inside):
        raise RowError(f"a number does not fit {name} (CAST_OVERFLOW)")
    return pc.trunc(doubles).cast(kind, safe=False)


def rescaled(value: decimal.Decimal | int, target: DecimalType) -> decimal.Decimal:
    """Return a number with the digits of a decimal type, rounded half up.

    :raises RowError: if it has too many.
    """
    rounded = decimal.Decimal(value).quantize(decimal.Decimal(1).scaleb(-target.scale), context=_WIDE)
    if rounded and rounded.adjusted() >= target.precision - target.scale:
        raise RowError(f"the number {value} does not fit {target} (NUMERIC_VALUE_OUT_OF_RANGE)")
    return rounded


def _from_decimal(target: DataType, kind: pa.DataType) -> tuple[Convert, bool]:
    if isinstance(target, DecimalType):
        return lambda values: _to_decimal(values, target, kind), True
    if target == BOOLEAN:
        return lambda values: by_value(bool, values, kind), False
    if target.name == "double":
        return lambda values: by_value(float, values, kind), False
    if target.name in INTEGRAL:
        return lambda values: by_value(lambda value: _whole(value, target.name), values, kind), True
    raise NotDecided(f"a decimal is not cast to {target} here")


def _to_decimal(values: pa.Array, target: DecimalType, kind: pa.DataType) -> pa.Array:
    given = values.type
    if target.scale >= given.scale and target.precision - target.scale >= given.precision - given.scale:
        return values.cast(kind)
    return by_value(lambda value: rescaled(value, target), values, kind)


def _whole(value: decimal.Decimal, name: str) -> int:
    found = int(value)
    if not -(1 << (_BITS[name] - 1)) <= found < 1 << (_BITS[name] - 1):
        raise RowError(f"the number {value} does not fit {name} (CAST_OVERFLOW)")
    if name != "long" and math.trunc(float(value)) != found:
        raise RowNotDecided(f"the number {value} is rounded by Spark before its digits are cut off")
    return found


# -- dates and times ----------------------------------------------------------------------------------------------------------

_TIMES: dict[tuple[str, str], Convert] = {
    ("date", "timestamp"): lambda values: in_utc(midnight(values)),
    ("date", "timestamp_ntz"): midnight,
    ("timestamp", "date"): lambda values: utc_days(without_zone(values)),
    ("timestamp_ntz", "date"): utc_days,
    ("timestamp", "timestamp_ntz"): without_zone,
    ("timestamp_ntz", "timestamp"): in_utc,
}

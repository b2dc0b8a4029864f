"""The operators and functions that are decided here, by the number of their operands."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from airflow_delta.log.schema.types import STRING
from airflow_delta.table.expressions import arithmetic, comparisons, conditions, nested, numbers, strings, times
from airflow_delta.table.expressions.coercion import whole
from airflow_delta.table.expressions.parts import TypedPart, literal
from airflow_delta.table.expressions.problems import NotDecided

Make = Callable[..., TypedPart]
_SPACE = literal(" ", STRING)


def _any_number(make: Make) -> Make:
    return lambda *operands: make(operands)


def _between(value: TypedPart, low: TypedPart, high: TypedPart) -> TypedPart:
    return conditions.connected("and", [comparisons.comparison(">=", value, low), comparisons.comparison("<=", value, high)])


def _padded(before: bool) -> Make:
    return lambda text, count, filling=_SPACE: strings.padded(text, count, filling, before=before)


def _trimmed(*, start: bool = False, end: bool = False) -> Make:
    return lambda operand: strings.trimmed_text(operand, start=start, end=end)


def _add_days(operator: str) -> Make:
    return lambda day, days: arithmetic.add_days(times.day_of(day), whole(days), operator)


def _days_between(end: TypedPart, start: TypedPart) -> TypedPart:
    return arithmetic.days_between(times.day_of(end), times.day_of(start))


def _two(*operands: TypedPart) -> TypedPart:
    if len(operands) != 2:
        raise NotDecided("it takes two values")
    return conditions.first_present(operands)


OPERATORS: Mapping[str, Make] = {
    **{name: partial(comparisons.comparison, name) for name in comparisons.OPERATORS},
    **{name: partial(arithmetic.binary, name) for name in ("+", "-", "*", "/", "%", "div")},
    **{name: partial(arithmetic.bits, name) for name in ("&", "|", "^")},
    "~": arithmetic.inverted_bits,
    "negative": arithmetic.negative,
    "positive": arithmetic.positive,
    "||": lambda *operands: strings.concatenated(operands),
    "and": lambda *operands: conditions.connected("and", operands),
    "or": lambda *operands: conditions.connected("or", operands),
    "not": conditions.negated,
    "in": lambda value, *listed: comparisons.among(value, listed),
    "between": _between,
    "like": strings.like,
    "ilike": partial(strings.like, folded=True),
    "is null": conditions.is_null,
    "is unknown": conditions.is_unknown,
    "is true": conditions.is_truth,
    "extract": times.extracted,
}
"""By what the parser calls them."""

_DATE_PARTS: dict[str, Make] = {name: partial(times.date_part, name) for name in times.DATE_PARTS}
_TIME_PARTS: dict[str, Make] = {name: partial(times.time_part, name) for name in times.TIME_PARTS}

FUNCTIONS: Mapping[str, Make] = {
    "if": lambda condition, one, other: conditions.branches([condition], [one], other),
    "coalesce": _any_number(conditions.first_present),
    "nvl": _two,
    "ifnull": _two,
    "nvl2": lambda value, one, other: conditions.branches([conditions.is_present(value)], [one], other),
    "nullif": conditions.null_if,
    "greatest": lambda *operands: comparisons.extreme(">", operands),
    "least": lambda *operands: comparisons.extreme("<", operands),
    "isnull": conditions.is_null,
    "isnotnull": conditions.is_present,
    "isnan": conditions.is_nan,
    "nanvl": conditions.not_nan,
    "concat": _any_number(strings.concatenated),
    "upper": strings.upper,
    "ucase": strings.upper,
    "lower": strings.lower,
    "lcase": strings.lower,
    "trim": _trimmed(start=True, end=True),
    "btrim": _trimmed(start=True, end=True),
    "ltrim": _trimmed(start=True),
    "rtrim": _trimmed(end=True),
    **dict.fromkeys(("length", "len", "char_length", "character_length"), strings.length),
    "substring": strings.substring,
    "substr": strings.substring,
    "left": strings.left,
    "right": strings.right,
    "replace": strings.replaced,
    "lpad": _padded(True),
    "rpad": _padded(False),
    "reverse": strings.reversed_text,
    "instr": strings.position_in,
    "startswith": strings.starts,
    "endswith": strings.ends,
    "contains": strings.contains,
    "md5": partial(strings.digest, name="md5"),
    "sha": partial(strings.digest, name="sha1"),
    "sha1": partial(strings.digest, name="sha1"),
    "sha2": strings.sha2,
    "crc32": strings.checksum,
    "abs": arithmetic.absolute,
    "negative": arithmetic.negative,
    "positive": arithmetic.positive,
    "mod": partial(arithmetic.binary, "%"),
    "pmod": arithmetic.positive_remainder,
    "ceil": partial(numbers.toward, name="ceil"),
    "ceiling": partial(numbers.toward, name="ceil"),
    "floor": partial(numbers.toward, name="floor"),
    "round": lambda value, scale=None: numbers.rounded_number(value, scale, to_even=False),
    "bround": lambda value, scale=None: numbers.rounded_number(value, scale, to_even=True),
    "sign": numbers.sign,
    "signum": numbers.sign,
    "sqrt": numbers.square_root,
    **_DATE_PARTS,
    **_TIME_PARTS,
    "date_add": _add_days("+"),
    "date_sub": _add_days("-"),
    "datediff": _days_between,
    "date_diff": _days_between,
    "add_months": times.add_months,
    "last_day": times.last_day,
    "make_date": times.make_date,
    "to_date": times.to_date,
    "trunc": times.truncated_date,
    "date_trunc": times.truncated_time,
    "named_struct": _any_number(nested.struct),
    "size": nested.size_of,
    "cardinality": nested.size_of,
    "array_contains": nested.list_contains,
}
"""By their names in lower case."""


def make(name: str, operands: tuple[TypedPart, ...]) -> TypedPart:
    """Return the part that an operator or a function makes of its operands.

    :raises NotDecided: if it is not decided here.
    """
    found: Any = OPERATORS.get(name) or FUNCTIONS.get(name)
    if found is None:
        raise NotDecided(f"{name}() is a function that only Spark evaluates")
    try:
        inspect.signature(found).bind(*operands)
    except TypeError as error:
        raise NotDecided(f"{name} with {len(operands)} operands is not evaluated here") from error
    made: TypedPart = found(*operands)
    return made

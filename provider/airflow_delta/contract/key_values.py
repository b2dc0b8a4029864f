"""The values that the rows of a source have in key columns: which rows of the table a MERGE has looked for.

Only types whose values compare alike on Spark, in statistics and in Python, and whose JSON form loses nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import date
from typing import Any

from airflow_delta.contract.casts import DIGITS
from airflow_delta.contract.char_lengths import DECLARED
from airflow_delta.contract.delta_names import COLLATIONS
from airflow_delta.contract.payloads import Json, Payload
from airflow_delta.contract.schema import find_field, type_name
from airflow_delta.lazy_patterns import lazy_pattern
from airflow_delta.light_dataclasses import dataclass

MAX_ROWS = 100_000
"""Maximum number of rows whose values are reported."""

MAX_CHARACTERS = 8 * 1024 * 1024
"""Maximum length of the JSON of these values."""

MAX_TEXT = 512
"""Maximum number of bytes of a text; a column with a longer one is not reported."""

_DECIMAL = lazy_pattern(r"decimal\(([0-9]+),([0-9]+)\)")
_DATE = lazy_pattern(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_NUMBER = lazy_pattern(r"-?([0-9]+)(?:\.([0-9]+))?")


@dataclass(frozen=True, kw_only=True, slots=True)
class KeyValues(Payload):
    """What the rows of a source have in the columns that they are compared by.

    Integers are numbers, all else is text: dates as ``YYYY-MM-DD``, decimals in plain notation.

    :param columns: columns of the table.
    :param null_safe: for each column, whether null equals null (``<=>``) or nothing (``=``).
    :param low: least value of each column; ``None`` if it has none but nulls.
    :param high: greatest value.
    :param nulls: whether there are nulls.
    :param rows: the values, a list for each distinct row; ``None`` if they are too many.
    """

    columns: tuple[str, ...]
    null_safe: tuple[bool, ...]
    low: tuple[Any, ...]
    high: tuple[Any, ...]
    nulls: tuple[bool, ...]
    rows: tuple[Any, ...] | None = None


def is_stored_plainly(field: Json) -> bool:
    """Return whether values of a field are compared as stored: no collation, no padding of ``char``."""
    metadata = field.get("metadata") or {}
    return not metadata.get(COLLATIONS) and not str(metadata.get(DECLARED, "")).strip().lower().startswith("char")


def is_key_type(data_type: Any) -> bool:
    """Return whether values of a type can be key values."""
    return isinstance(data_type, str) and (data_type in ("string", "date", *DIGITS) or bool(_DECIMAL.fullmatch(data_type)))


def same_exact_type(one: Json, other: Json) -> bool:
    """Return whether values of two fields can be compared as key values: integers of any size, else values of one type."""
    if not (is_stored_plainly(one) and is_stored_plainly(other) and is_key_type(one["type"])):
        return False
    return one["type"] == other["type"] or {one["type"], other["type"]} <= DIGITS.keys()


def problem_with(keys: KeyValues, schema: Json) -> str | None:
    """Return what is wrong with key values of a table, ``None`` if they fit it."""
    columns = keys.columns
    known = [find_field(schema, name) for name in columns]
    if not columns or len({name.lower() for name in columns}) < len(columns):
        return f"it names the columns {', '.join(columns) or 'none'}"
    if any(len(values) != len(columns) for values in (keys.null_safe, keys.low, keys.high, keys.nulls)):
        return f"it does not say the same of all of {', '.join(columns)}"
    for name, field in zip(columns, known, strict=True):
        if field is None or not is_stored_plainly(field) or not is_key_type(field["type"]):
            return f"{name} is not a column" if field is None else f"{name} is {type_name(field['type'])}, which is not exact"
    checks = [_check_of(field["type"]) for field in known if field is not None]
    for row in _all_rows(keys):
        if not isinstance(row, list | tuple) or len(row) != len(columns):
            return f"{row!r} has not a value for each of {', '.join(columns)}"
        for name, value, fits in zip(columns, row, checks, strict=True):
            if value is not None and not fits(value):
                return f"{value!r} is not a value of {name}"
    return None


def _all_rows(keys: KeyValues) -> Iterator[Any]:
    yield keys.low
    yield keys.high
    yield from keys.rows or ()


def _check_of(data_type: str) -> Callable[[Any], bool]:
    """Return the check of a value that is not null."""
    if data_type in DIGITS:
        return lambda value: type(value) is int and -(1 << 63) <= value < 1 << 63
    if data_type == "string":
        return _is_text
    if data_type == "date":
        return _is_date
    precision, scale = map(int, data_type[len("decimal(") : -1].split(","))
    return lambda value: _is_decimal(value, precision - scale, scale)


def _is_text(value: Any) -> bool:
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_date(value: Any) -> bool:
    if not isinstance(value, str) or not _DATE.fullmatch(value):
        return False
    try:
        date.fromisoformat(value)
    except ValueError:
        return False
    return True


def _is_decimal(value: Any, digits: int, scale: int) -> bool:
    match = _NUMBER.fullmatch(value) if isinstance(value, str) else None
    return match is not None and len(match[1].lstrip("0")) <= digits and len(match[2] or "") <= scale

"""Named parameters of SQL texts (``:day``): values that stay values, whatever text they hold.

A text gets its values as literals, before the worker, the log or Spark read it, so that all of them read the same. One function
writes literals: of a text it escapes every character that could mean anything to a parser.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

from airflow_delta.contract.kinds import Kind, taken
from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.lazy_patterns import lazy_pattern

SQL_TEXTS = {
    *("checks", "clauses", "condition", "deleted", "effective_at", "merge_source", "partitions", "predicate"),
    *("read", "replace_on", "replace_where", "set", "sql", "where"),
}
"""Parameters of tasks with SQL: text in every Dag, since as a Python value ``'done'`` would lose its quotes and be a column."""

_NAME = lazy_pattern(r"[A-Za-z_][A-Za-z0-9_]*")
_TOKEN = lazy_pattern(
    r"""
      `[^`]*` | --(?:\\\n|[^\r\n])* | /\*.*?\*/ | \b[rR](?:'[^']*'|"[^"]*")
    | '[^'\\]*(?:(?:\\.|'')[^'\\]*)*' | "[^"\\]*(?:(?:\\.|"")[^"\\]*)*"
    | (?<![\w:)\]`'"]) : (?P<name>[A-Za-z_][A-Za-z0-9_]*)
    """,
    re.VERBOSE | re.DOTALL,
)
"""What is skipped, and a parameter: no cast (``::``), and no field of a value (``a:b``)."""

_PLAIN = lazy_pattern(r"[^\w .,/@%&\[\]<>=+?!|~-]")
"""Every other character of a text is written as it is."""
_DECIMAL, _DATETIME, _DATE = "decimal", "datetime", "date"
_LEAST, _MOST = -(1 << 63), (1 << 63) - 1


def with_parameters(text: str, values: Mapping[str, Any], *, whose: str) -> str:
    """Return a text of SQL with a literal in the place of each named parameter.

    :param whose: what the text is, for the error.
    :raises DeltaIllegalArgumentException: if a parameter has no value.
    """

    def put(match: re.Match[str]) -> str:
        if (name := match["name"]) is None:
            return match[0]
        if name not in values:
            raise DeltaIllegalArgumentException(
                f"{whose} names the parameter :{name}, which has no value. Give it one: parameters={{{name!r}: ...}}."
            )
        return literal_of(values[name])

    return _TOKEN.sub(put, text)


def literal_of(value: Any) -> str:
    """Return a value as a literal of Spark SQL.

    :raises ValueError: if there is none.
    """
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, datetime):
        return _timestamp(value)
    if isinstance(value, date):
        return f"DATE'{value.isoformat()}'"
    if isinstance(value, int | float | Decimal):
        number = _number(value)
        return f"({number})" if number.startswith("-") else number
    raise ValueError(f"{type(value).__name__} has no literal")


def _text(value: str) -> str:
    # As code points, which mean the same in every setting of quotes and backslashes that Spark and the log have.
    return f"'{_PLAIN.sub(lambda found: _code_point(found[0]), value)}'"


def _code_point(character: str) -> str:
    number = ord(character)
    if 0xD800 <= number <= 0xDFFF:
        raise ValueError("half of a surrogate pair is not a character")
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def _timestamp(value: datetime) -> str:
    if value.tzinfo is None:
        return f"TIMESTAMP_NTZ'{value.isoformat(sep=' ')}'"
    return f"TIMESTAMP'{value.astimezone(timezone.utc).isoformat(sep=' ')}'"


def _number(value: float | Decimal) -> str:
    if isinstance(value, int):
        if not _LEAST <= value <= _MOST:
            raise ValueError(f"{value} has more than 64 bits; give a Decimal")
        return str(int(value))
    if not (value.is_finite() if isinstance(value, Decimal) else math.isfinite(value)):
        raise ValueError(f"{value} is not a finite number")
    if isinstance(value, Decimal):
        text = format(value, "f")
        return text if "." in text else f"{text}.0"
    text = repr(float(value))
    return text if "e" in text else f"{text}E0"


def _parameters(given: Any) -> Any:
    if given is None:
        return None
    if not isinstance(given, Mapping):
        raise TypeError
    for name, value in given.items():
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ValueError
        if not hasattr(type(value), "iter_references"):
            literal_of(value)
    return given


SQL_PARAMETERS = Kind(
    "a mapping of names to strings, numbers (Decimal, too), booleans, dates, datetimes or None",
    _parameters,
)


def parameters_as_json(values: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return values of parameters as JSON, with the types that it lacks: the same values wherever they are read."""

    def plain(value: Any) -> Any:
        if isinstance(value, Decimal):
            return {_DECIMAL: str(value)}
        if isinstance(value, datetime):
            return {_DATETIME: value.isoformat()}
        return {_DATE: value.isoformat()} if isinstance(value, date) else value

    return {name: plain(value) for name, value in (values or {}).items()}


def parameters_of_json(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of :func:`parameters_as_json`."""
    makers: dict[str, Callable[[str], Any]] = {_DECIMAL: Decimal, _DATETIME: datetime.fromisoformat, _DATE: date.fromisoformat}

    def value(found: Any) -> Any:
        if not isinstance(found, Mapping):
            return found
        ((kind, text),) = found.items()
        return makers[kind](text)

    return {name: value(found) for name, found in given.items()}


def with_given(text: str | None, parameters: Any, *, whose: str) -> str | None:
    """Return SQL text with the given values in place of its named parameters; unchanged without ``parameters``.

    :param whose: what the text is, for errors.
    """
    values = taken("parameters", parameters, SQL_PARAMETERS)
    return text if text is None or values is None else with_parameters(text, values, whose=whose)

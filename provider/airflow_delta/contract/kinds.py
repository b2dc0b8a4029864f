"""What kinds of values parameters take: checked where the Dag file names the value, and again when the task runs.

Templates, XComs and API calls often give another type than the parameter has: text for a number, or a number for text. A kind
takes those that can only mean one thing, and refuses the others by name, before any work is done.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from airflow_delta.contract.byte_sizes import bytes_of
from airflow_delta.contract.choices import is_literal
from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.light_dataclasses import dataclass
from airflow_delta.masking import masked

_SHOWN = 200
_PLAIN = frozenset((type(None), bool, int, float))


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of value.

    :param expected: what fits, for errors.
    :param take: returns a value as the task uses it; raises ``TypeError`` or ``ValueError`` if it does not fit.
    """

    expected: str
    take: Callable[[Any], Any]


Kinds = Mapping[str, Kind]
"""Kinds by parameter."""


def taken(name: str, value: Any, kind: Kind) -> Any:
    """Return the value of a parameter as the task uses it.

    :raises DeltaIllegalArgumentException: if it does not fit.
    """
    try:
        return kind.take(value)
    except (ArithmeticError, TypeError, ValueError) as error:
        why = f" ({error})" if isinstance(error, _Refusal) else ""
        raise DeltaIllegalArgumentException(f"{name} must be {kind.expected}, got {_shown(value)}{why}.") from None


class _Refusal(ValueError):
    """A reason that the error repeats."""


def _shown(value: Any) -> str:
    text = masked(repr(value))
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def is_settled(value: Any) -> bool:
    """Return whether a value is in the Dag file: it has no template, and no XCom or parameter of a run."""
    if isinstance(value, str):
        return is_literal(value)
    if type(value) in _PLAIN:  # most parameters are not given, and to ask for abstract classes takes long
        return True
    if isinstance(value, Mapping):
        return all(is_settled(part) for item in value.items() for part in item)
    if isinstance(value, list | tuple | set | frozenset):
        return all(map(is_settled, value))
    if is_path(value):
        return is_literal(str(value))
    return not comes_from_run(value) and not callable(value)


def comes_from_run(value: Any) -> bool:
    """Return whether a value is an XCom, a parameter of the run, or the value of a mapped group."""
    return hasattr(type(value), "iter_references")


def value_problem(name: str, value: Any, kind: Kind, *, templated: bool) -> str | None:
    """Return what is wrong with a parameter, as far as the Dag file shows it; ``None`` if nothing is.

    :param templated: whether Airflow renders the parameter.
    """
    if is_settled(value) or (not templated and callable(value)):
        try:
            taken(name, value, kind)
        except DeltaIllegalArgumentException as error:
            return str(error.message)
        return None
    if templated:
        return None
    return f"{name} is {_shown(value)}, but {name} is not templated: its value must be in the Dag file, as {kind.expected}."


# -- kinds ----------------------------------------------------------------------------------------------------------------------


def is_path(value: Any) -> bool:
    """Return whether a value is a path: of the file system, or Airflow's ``ObjectStoragePath``; an asset is not a path."""
    if isinstance(value, str) or type(value) in _PLAIN:
        return False
    return (isinstance(value, os.PathLike) and not hasattr(value, "uri")) or any(
        base.__module__.partition(".")[0] == "upath" for base in type(value).__mro__
    )


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool | int | float | Decimal | date | time | UUID):
        return str(value)
    raise TypeError


def _json_text(value: Any) -> str | None:
    if isinstance(value, Mapping):
        return json.dumps(dict(value), ensure_ascii=False, allow_nan=False)
    if isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray):
        return json.dumps(list(value), ensure_ascii=False, allow_nan=False)
    return _text(value)


def _truth(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    text = value.strip().lower() if isinstance(value, str) else ""
    if text not in ("true", "false"):
        raise ValueError
    return text == "true"


def _number(value: Any) -> float:
    number = float(value) if isinstance(value, int | float | str | Decimal) and not isinstance(value, bool) else math.nan
    if not math.isfinite(number):
        raise ValueError
    return number


def _seconds(value: Any) -> float | None:
    if value is None or value == "":
        return None
    seconds = value.total_seconds() if isinstance(value, timedelta) else _number(value)
    if seconds <= 0:
        raise ValueError
    return seconds


def _hours(value: Any) -> float | None:
    if value is None or value == "":
        return None
    return value / timedelta(hours=1) if isinstance(value, timedelta) else _number(value)


def _count(value: Any) -> int | None:
    if value is None or value == "":
        return None
    number = int(value) if isinstance(value, str) else value
    if not isinstance(number, int) or isinstance(number, bool) or number < 1:
        raise ValueError
    return number


def _bytes(value: Any) -> int | None:
    if value is None or value == "":
        return None
    return bytes_of(value) or _count(value) if isinstance(value, str) else _count(value)


def _whole_number(value: Any) -> int | None:
    if value is None or value == "":
        return None
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    return int(str(value))


def _time(value: Any) -> datetime | None:
    if not value or isinstance(value, datetime):
        return value or None
    return datetime.fromisoformat(value)


def _names(value: Any) -> tuple[str, ...]:
    if value is None or isinstance(value, str):
        return (value,) if value else ()
    if not isinstance(value, Sequence) or isinstance(value, bytes | bytearray):
        raise TypeError
    if not all(isinstance(name, str) for name in value):
        raise TypeError
    return tuple(value)


def _names_as_given(value: Any) -> tuple[str, ...]:
    return ("",) if value in ("", []) else _names(value)


def _location(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if not is_path(value):
        raise TypeError
    if (conn_id := getattr(value, "conn_id", None)) is not None:
        raise _Refusal(f"it names the connection {conn_id!r}: pass that as the parameter for the connection, and the URI as text")
    text = os.fspath(value) if isinstance(value, os.PathLike) else str(value)
    if not isinstance(text, str):
        raise TypeError
    return text


def _locations(value: Any) -> tuple[str | None, ...]:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return tuple(map(_location, value))
    return (_location(value),) if value else ()


def _options(value: Any) -> Any:
    if isinstance(value, str):
        value = json.loads(value)
    if value is not None and not isinstance(value, Mapping):
        raise TypeError
    return value


def _properties(value: Any) -> Any:
    given = _options(value)
    return given if given is None else {key: _property(each) for key, each in given.items()}


def _property(value: Any) -> Any:
    if isinstance(value, bool):
        return str(value).lower()
    # As text, a number means the same; of all else the table says what it takes.
    return str(value) if isinstance(value, int | float | Decimal) else value


def _schema(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, Mapping):
        raise TypeError
    return json.dumps(dict(value))


TEXT = Kind("text", _text)
JSON_TEXT = Kind("text, or what JSON can hold", _json_text)
TRUTH = Kind("true or false", _truth)
MAYBE_TRUTH = Kind("true or false", lambda value: None if value is None else _truth(value))
SECONDS = Kind("a timedelta, or a number of seconds above 0", _seconds)
HOURS = Kind("a timedelta, or a number of hours", _hours)
WHOLE_NUMBER = Kind("a whole number", _whole_number)
NUMBER = Kind("a number", _number)
TIME = Kind("an ISO 8601 time", _time)
COUNT = Kind("a whole number above 0", _count)
BYTES = Kind("bytes, as a whole number above 0 or with a unit such as '2 GiB'", _bytes)
NAMES = Kind("a name or a list of names", _names)
NAMES_AS_GIVEN = Kind("a name or a list of names", _names_as_given)
"""For a parameter whose empty text or list comes from a template without a value, and must not count as left out."""
LOCATION = Kind("a URI, a path or a name, as text or as a path", _location)
LOCATIONS = Kind("a table or a list of tables: URIs, paths or names, as text or as paths", _locations)
OPTIONS = Kind("a mapping, or JSON of one", _options)
PROPERTIES = Kind("a mapping, or JSON of one", _properties)
SCHEMA = Kind("columns as in SQL, or Spark's JSON form of a schema, as text or as a mapping", _schema)


def table_text(table: Any, *, name: str = "table") -> Any:
    """Return a table, or another location, that a path names as text; templates and XComs are left as they are.

    :param name: of the parameter.
    """
    return taken(name, table, LOCATION) if is_path(table) or is_settled(table) else table


def tables_text(tables: Any) -> Any:
    """Return tables, one or several, as :func:`table_text` does; what names no table is refused later."""
    if isinstance(tables, list | tuple):
        return [tables_text(table) for table in tables]
    return table_text(tables) if is_path(tables) else tables


def kinds_of(operator_class: Any) -> Kinds:
    """Return the kinds by parameter; there are none of a class of others."""
    return getattr(operator_class, "kinds", {})

"""Values of parameters that a template may have turned into text, or that may be one or several."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from airflow_delta.contract.kinds import HOURS, taken
from airflow_delta.exceptions import DeltaIllegalArgumentException


def column_names(value: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the names in an argument that is one name or several."""
    return (value,) if isinstance(value, str) and value else tuple(value or ())


def schema_text(schema: str | Mapping[str, Any] | None) -> str | None:
    """Return a schema that a start task was given, in Spark's JSON form."""
    return json.dumps(schema) if isinstance(schema, Mapping) else schema


def true_or_false(name: str, value: bool | str) -> bool:
    """Return a truth value that a template may have turned into text.

    :raises DeltaIllegalArgumentException: if it is neither true nor false.
    """
    text = str(value).strip().lower()
    if text not in ("true", "false"):
        raise DeltaIllegalArgumentException(f"{name} must be true or false, got {value!r}.")
    return text == "true"


def whole_number(name: str, value: int | str | None) -> int | None:
    """Return a whole number that a template may have turned into text.

    :raises DeltaIllegalArgumentException: if it is not a whole number.
    """
    if value is None or value == "":
        return None
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    try:
        return int(str(value))
    except ValueError:
        raise DeltaIllegalArgumentException(f"{name} must be a whole number, got {value!r}") from None


def hours(value: timedelta | float | str | None, name: str = "retention_hours") -> float | None:
    """Return a number of hours that a template may have turned into text.

    :raises DeltaIllegalArgumentException: if it is not a number.
    """
    found: float | None = taken(name, value, HOURS)
    return found


def moment(value: str | datetime | None) -> datetime | None:
    if value is None or isinstance(value, datetime):
        return value
    if not value:
        return None
    try:
        return datetime.fromisoformat(value)
    except ValueError:
        raise DeltaIllegalArgumentException(f"timestamp must be an ISO 8601 time, got {value!r}") from None


def missing_share(value: float | str) -> float:
    """Return a share that a template may have turned into text."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        raise DeltaIllegalArgumentException(f"max_missing_share must be a number, got {value!r}.") from None

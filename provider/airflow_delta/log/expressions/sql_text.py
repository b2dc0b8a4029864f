"""Names and literals as Spark SQL that means the same in every session."""

from __future__ import annotations

import datetime as dt
import decimal
import math
from typing import Any

from airflow_delta.log.schema.types import INTEGRAL, DataType


def quote_name(name: str) -> str:
    """Return a name in backticks, so that Spark SQL accepts any name."""
    return "`" + name.replace("`", "``") + "`"


_ESCAPES = {"\\": "\\\\", "'": "\\'", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\0": "\\0", "\b": "\\b", "\x1a": "\\Z"}


def quote_text(text: str) -> str:
    """Return a string literal of Spark SQL."""
    quoted = "".join(_ESCAPES.get(letter, letter) for letter in text)
    return "'" + quoted.replace("${", "$\\{") + "'"  # Spark substitutes variables for ${...} even inside strings


def literal_text(value: Any, data_type: DataType) -> str:
    """Return a literal of Spark SQL that means the same in any session time zone."""
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return quote_text(value)
    if isinstance(value, bytes):
        return f"X'{value.hex().upper()}'"
    if isinstance(value, dt.datetime):
        text = value.replace(tzinfo=None).isoformat(sep=" ", timespec="microseconds").rjust(26, "0")
        return f"TIMESTAMP '{text} UTC'" if value.tzinfo else f"TIMESTAMP_NTZ '{text}'"
    if isinstance(value, dt.date):
        return f"DATE '{value.isoformat()}'"
    if isinstance(value, float):
        if math.isnan(value) or math.isinf(value):
            return f"CAST('{'NaN' if math.isnan(value) else 'Infinity' if value > 0 else '-Infinity'}' AS DOUBLE)"
        return f"{value!r}D"
    if isinstance(value, decimal.Decimal):
        return f"{value:f}BD"
    if -(2**31) <= value < 2**31:
        return str(value)
    return f"{value}L" if data_type.name in INTEGRAL and -(2**63) <= value < 2**63 else f"{value}BD"

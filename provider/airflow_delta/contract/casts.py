"""The one table of casts between atomic types: which lose nothing, which a column may take over, which are refused.

Types have Spark's JSON names (``integer``, ``decimal(10,2)``). Both sides read it: :mod:`airflow_delta.contract.schema` where a
DataFrame is written, :mod:`airflow_delta.log.features` where schemas are merged.
"""

from __future__ import annotations

import re

from airflow_delta.lazy_patterns import lazy_pattern

KEEPS = "keeps"
"""Every value can be stored in the other type: no fraction, digit, time of day or instant is lost."""

WIDENS = "widens"
"""The same, and a column may change its type without its files being rewritten (protocol, "Type Widening")."""

DIGITS = {"byte": 3, "short": 5, "integer": 10, "long": 20}
"""Decimal digits of integers, as in Spark."""

DECIMAL = lazy_pattern(r"decimal\((\d+),(-?\d+)\)")

_WIDENS = {
    "byte": {"short", "integer", "long", "double"},
    "short": {"integer", "long", "double"},
    "integer": {"long", "double"},
    "float": {"double"},
    "date": {"timestamp_ntz"},
}

_KEEPS = {"byte": {"float"}, "short": {"float"}, "date": {"timestamp"}}

_DIGITS_TO_WIDEN = {"byte": 10, "short": 10, "integer": 10, "long": 20}

# A timestamp as text, or without its zone, depends on a time zone, in which an hour may occur twice. Bytes may not be text.
_TEXT = {"boolean", "date", "timestamp_ntz", "float", "double", *DIGITS}


def cast_of(given: str, target: str) -> str | None:
    """Return :data:`KEEPS`, :data:`WIDENS`, or ``None`` if values of one type could be lost in the other."""
    if given in ("void", target):
        return KEEPS
    one, other = DECIMAL.fullmatch(given), DECIMAL.fullmatch(target)
    if other:
        return _to_decimal(given, one, int(other[1]) - int(other[2]), int(other[2]))
    if target in _WIDENS.get(given, ()):
        return WIDENS
    kept = target in _KEEPS.get(given, ()) or (target == "string" and (one is not None or given in _TEXT))
    return KEEPS if kept else None


def _to_decimal(given: str, one: re.Match[str] | None, room: int, scale: int) -> str | None:
    """Return the answer for a decimal with ``room`` digits before the point."""
    if one:
        return WIDENS if scale >= int(one[2]) and room >= int(one[1]) - int(one[2]) else None
    if given not in DIGITS or room < DIGITS[given]:
        return None
    return WIDENS if room >= _DIGITS_TO_WIDEN[given] else KEEPS

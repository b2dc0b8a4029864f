"""How the pages write numbers, sizes, times, operations and keys."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from markupsafe import Markup, escape

UNKNOWN = "\u2013"
"""Shown for an unknown value: a dash."""

_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB")

_SPANS = (("year", 365 * 86_400), ("month", 30 * 86_400), ("day", 86_400), ("hour", 3600), ("minute", 60))

# Colour and glyph of an operation on the pages, by the first word of its name.
_KINDS = {
    "WRITE": "write",
    "STREAMING": "write",
    "CREATE": "create",
    "REPLACE": "create",
    "CLONE": "create",
    "CONVERT": "create",
    "MERGE": "change",
    "UPDATE": "change",
    "DELETE": "remove",
    "TRUNCATE": "remove",
    "RESTORE": "remove",
    "FSCK": "remove",
    "OPTIMIZE": "upkeep",
    "REORG": "upkeep",
    "VACUUM": "upkeep",
    "COMPUTE": "upkeep",
    "ANALYZE": "upkeep",
}


def operation_group(operation: str | None) -> str:
    """Return the kind of an operation: write, create, change, remove, upkeep or metadata."""
    first = (operation or "").upper().split(" ")[0]
    return _KINDS.get(first, "metadata")


def keys_of_their_own(keys: Iterable[str], run: Mapping[str, Any] | None) -> list[str]:
    """Return transaction keys that say more than the Dag run: default keys hold its id."""
    return [key for key in keys if run is None or run["run_id"] not in key]


def format_number(value: Any) -> str:
    """Return a whole number with thin separators: ``12 345``; a dash for ``None``."""
    if value is None:
        return UNKNOWN
    return f"{int(value):,}".replace(",", "\u202f")


def count_of(value: Any, thing: str, things: str | None = None) -> str:
    """Return a count with its noun: ``1 file``, ``12 files``."""
    return f"{format_number(value)} {thing if value == 1 else things or thing + 's'}"


def compact(value: Any) -> str:
    """Return a number in a short form: ``1.2M``."""
    number = float(value)
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(number) >= size:
            return f"{number / size:.1f}".removesuffix(".0") + unit
    return f"{number:g}"


def format_bytes(value: Any) -> str:
    """Return a size with its unit: ``3.4 MiB``; a dash for ``None``."""
    if value is None:
        return UNKNOWN
    size = float(value)
    for unit in _UNITS:
        if abs(size) < 1024 or unit == _UNITS[-1]:
            break
        size /= 1024
    return f"{size:.0f} {unit}" if unit == "bytes" or size >= 100 else f"{size:.1f} {unit}"


def format_time(milliseconds: Any) -> Markup:
    """Return a time as an element that the script converts to the user's time zone; UTC without the script."""
    if not milliseconds:
        return escape(UNKNOWN)
    try:
        moment = datetime.fromtimestamp(int(milliseconds) / 1000, UTC)
    except (OverflowError, OSError, ValueError):
        return escape(UNKNOWN)
    ahead = int(milliseconds) / 1000 - time.time()
    title = f"in {_span(ahead)}" if ahead > 0 else f"{ago(milliseconds)} ago"
    return Markup('<time datetime="{}" title="{}">{}</time>').format(
        moment.isoformat(timespec="milliseconds"), title, moment.strftime("%Y-%m-%d %H:%M:%S UTC")
    )


def format_interval(interval: Any) -> Markup:
    """Return a data interval as two times that the script converts, or one if it has no length: dates if both are midnights.

    Their zone comes once, at the end.
    """
    if not interval:
        return escape(UNKNOWN)
    try:
        start, end = (datetime.fromtimestamp(int(milliseconds) / 1000, UTC) for milliseconds in interval)
    except (OverflowError, OSError, ValueError):
        return escape(UNKNOWN)
    shown = [start] if start == end else [start, end]
    short = all((moment.hour, moment.minute, moment.second) == (0, 0, 0) for moment in shown)
    times = [
        Markup('<time datetime="{}">{}</time>').format(
            moment.isoformat(timespec="milliseconds"), moment.strftime("%Y-%m-%d" if short else "%Y-%m-%d %H:%M")
        )
        for moment in shown
    ]
    return Markup('<span class="interval">{} <span class="zone">UTC</span></span>').format(Markup(" \u2192 ").join(times))


def ago(milliseconds: Any) -> str:
    """Return how long ago a time was: ``3 hours``."""
    if not milliseconds:
        return UNKNOWN
    return _span(max(time.time() - int(milliseconds) / 1000, 0))


def _span(seconds: float) -> str:
    for unit, length in _SPANS:
        if seconds >= length:
            count = int(seconds // length)
            return f"{count} {unit}{'s' if count > 1 else ''}"
    return "less than a minute"


def row_count(value: Any) -> str:
    """Return a count of rows: ``1 row``."""
    return count_of(value, "row")

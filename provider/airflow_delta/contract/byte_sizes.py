"""Sizes in bytes as people write them: ``128mb``, ``2 GiB``. All units are powers of 1024, as in Spark."""

from __future__ import annotations

from airflow_delta.lazy_patterns import lazy_pattern

_SIZE = lazy_pattern(r"([0-9]{1,19})\s*([kmgt]?)i?b?")
_SHIFTS = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}


def bytes_of(text: str) -> int | None:
    """Return a size in bytes; ``None`` if the text is not a whole number above 0, with or without a unit."""
    match = _SIZE.fullmatch(text.strip().lower())
    return int(match[1]) << _SHIFTS[match[2]] if match is not None and int(match[1]) else None


def size_text(size: int) -> str:
    """Return a size as people read it, in MiB or GiB."""
    if size < 1 << 20:
        return f"{size:,} bytes"
    return f"{size / (1 << 20):,.0f} MiB" if size < 10 << 30 else f"{size / (1 << 30):,.0f} GiB"

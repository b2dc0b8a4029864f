"""Wide bounds: the statistics of a file some of whose rows a deletion vector marks."""

from __future__ import annotations

import json

import msgspec


def with_wide_bounds(stats: str | None, before: object | None = None) -> str:
    """Return statistics whose bounds may be wider than the remaining rows (``tightBounds`` false).

    A column of only nulls has as many nulls as the file has rows, whatever a deletion vector marks; other null counts stay and
    tell readers nothing (Delta protocol, "Per-file Statistics").

    :param before: the deletion vector that exact statistics took into account.
    """
    parts = msgspec.json.decode(stats or "{}", type=dict[str, msgspec.Raw])  # values keep their digits
    was_tight = bytes(parts.get("tightBounds", b"true")) != b"false"
    cardinality = getattr(before, "cardinality", 0)
    if was_tight and cardinality and "nullCount" in parts:
        total = int(bytes(parts["numRecords"]))
        nulls = _all_null(json.loads(bytes(parts["nullCount"])), total - cardinality, total)
        parts["nullCount"] = msgspec.Raw(json.dumps(nulls, separators=(",", ":"), ensure_ascii=False).encode())
    parts["tightBounds"] = msgspec.Raw(b"false")
    return msgspec.json.encode(parts).decode()


def _all_null(value: object, live: int, total: int) -> object:
    if isinstance(value, dict):
        return {name: _all_null(item, live, total) for name, item in value.items()}
    return total if value == live else value

"""How closely a commit checks concurrent commits since the version it read, and what its log entry says about that.

Apart from the limits of a commit: a Dag file needs only the words.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, get_args

import msgspec

from airflow_delta.contract.tags import RESOLVED_TAG
from airflow_delta.exceptions import DeltaIllegalArgumentException

ConflictDetection = Literal["delta", "statistics", "rows"]
"""``delta``: by partition values and file paths, as Delta. ``statistics``: also by bounds of columns. ``rows``: also by rows."""

LEVELS: tuple[ConflictDetection, ...] = get_args(ConflictDetection)


STATISTICS, KEYS, ROWS, MOVED, DROPPED = "statistics", "keys", "rows", "moved", "dropped"
"""What showed it: bounds of columns; columns that were read; positions of rows; rows that only moved to other files; or nothing
had to, because a compaction left out the files that others have compacted or changed."""


def check_level(level: str) -> ConflictDetection:
    """Return a level.

    :raises DeltaIllegalArgumentException: if there is no such level.
    """
    for known in LEVELS:
        if level == known:
            return known
    raise DeltaIllegalArgumentException(f"conflict_detection must be one of {', '.join(LEVELS)}, got {level!r}")


def in_ranges(versions: Iterable[int]) -> str:
    """Return versions as text such as ``3-12,15``."""
    found: list[list[int]] = []
    for version in sorted(set(versions)):
        if found and version == found[-1][1] + 1:
            found[-1][1] = version
        else:
            found.append([version, version])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in found)


def resolved_text(resolved: Mapping[str, str]) -> str:
    """Return the value of :data:`RESOLVED_TAG`.

    :param resolved: how, to versions as :func:`in_ranges` gives them.
    """
    return msgspec.json.encode(dict(sorted(resolved.items()))).decode()


def resolved_by(tags: Mapping[str, object] | None) -> dict[str, str]:
    """Return what a commit's tags say about resolved conflicts: how, to versions; empty if they say nothing that parses."""
    text = (tags or {}).get(RESOLVED_TAG)
    if not isinstance(text, str):
        return {}
    try:
        return msgspec.json.decode(text, type=dict[str, str])
    except msgspec.DecodeError:
        return {}

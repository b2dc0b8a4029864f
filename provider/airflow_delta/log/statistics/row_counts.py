"""How many rows a file has by its statistics, and how many of them its deletion vector leaves."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from airflow_delta.log.actions.actions import AddFile, RemoveFile


class _Rows(msgspec.Struct, rename="camel"):
    num_records: int | None = None


_rows = msgspec.json.Decoder(_Rows)


def num_records(stats: str | None) -> int | None:
    """Return the number of rows in a file's statistics, deleted ones included; ``None`` if they lack it.

    It is a claim of whoever wrote the file: nothing that removes rows rests on it alone.
    """
    try:
        rows = _rows.decode(stats).num_records if stats else None
    except (msgspec.MsgspecError, UnicodeError):
        return None
    return rows if rows is not None and rows >= 0 else None


def live_records(file: AddFile | RemoveFile) -> int | None:
    """Return the rows of a file that no deletion vector marks, ``None`` if its statistics lack the number."""
    rows = num_records(file.stats)
    return rows if rows is None or file.deletion_vector is None else rows - file.deletion_vector.cardinality


def total(counts: Iterable[int | None]) -> int | None:
    """Return the sum, ``None`` if a count is unknown."""
    known = list(counts)
    return None if any(count is None for count in known) else sum(count or 0 for count in known)

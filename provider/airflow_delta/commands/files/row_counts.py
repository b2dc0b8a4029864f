"""How many rows a file has, by its statistics."""

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
    """Return the number of rows in a file's statistics, ``None`` if they do not tell."""
    try:
        return _rows.decode(stats).num_records if stats else None
    except msgspec.DecodeError:
        return None


def live_records(file: AddFile | RemoveFile) -> int | None:
    """Return the rows of a file that no deletion vector marks, ``None`` if its statistics do not tell."""
    rows = num_records(file.stats)
    return rows if rows is None or file.deletion_vector is None else rows - file.deletion_vector.cardinality


def total(counts: Iterable[int | None]) -> int | None:
    """Return the sum, ``None`` if a count is unknown."""
    known = list(counts)
    return None if any(count is None for count in known) else sum(count or 0 for count in known)

"""How many rows a file has, by its statistics."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from airflow_delta.log.statistics.num_records import num_records

if TYPE_CHECKING:
    from airflow_delta.log.actions.actions import AddFile, RemoveFile


__all__ = ["live_records", "num_records", "total"]


def live_records(file: AddFile | RemoveFile) -> int | None:
    """Return the rows of a file that no deletion vector marks, ``None`` if its statistics lack the number."""
    rows = num_records(file.stats)
    return rows if rows is None or file.deletion_vector is None else rows - file.deletion_vector.cardinality


def total(counts: Iterable[int | None]) -> int | None:
    """Return the sum, ``None`` if a count is unknown."""
    known = list(counts)
    return None if any(count is None for count in known) else sum(count or 0 for count in known)

"""How the rows before a commit differ from those after it, as far as they may be read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from airflow_delta.table.effects.compare import RowDifference, TooManyRowsError, compare
from airflow_delta.table.effects.sides import all_columns

if TYPE_CHECKING:
    from airflow_delta.table.effects.read_limits import ReadLimits
    from airflow_delta.table.effects.sides import Side


def difference(
    before: Side, after: Side, *, keys: Sequence[str] = (), sample: int, limit: int, bounds: ReadLimits | None
) -> RowDifference:
    """Return how the rows differ: no more than counts that are upper bounds if there are too many to compare.

    :param keys: columns that identify a row.
    :param sample: number of rows of each kind to return.
    :param limit: rows of each side that may be compared.
    :param bounds: what may be read; default: everything, several times.
    """
    counts = before.count, after.count
    if (before.is_empty or after.is_empty) and None not in counts:
        return RowDifference(
            added=counts[1],
            removed=counts[0],
            changed=0 if keys else None,
            added_rows=after.head(sample, bounds),
            removed_rows=before.head(sample, bounds),
        )
    columns = all_columns(before, after)
    if bounds is not None:
        limit = min(limit, bounds.rows(len(columns)))
    readable = not (before.unread or after.unread)
    allowed = readable and (bounds is None or bounds.hold([*before.all_files, *after.all_files]))
    if allowed and all(count is None or count <= limit for count in counts):
        try:
            old, new = (before, after) if bounds is None else (before.kept(limit), after.kept(limit))
            return compare(old, new, columns, keys=keys, sample=sample, limit=limit)
        except TooManyRowsError:
            pass
    return RowDifference(exact=False, added=counts[1], removed=counts[0])

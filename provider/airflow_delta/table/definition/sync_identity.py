"""SYNC IDENTITY: the high-water mark of an identity column brought in line with the rows (Delta's ``IdentityColumn``)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from airflow_delta.contract.changes import SyncIdentity
from airflow_delta.contract.sql_types import parse_column_path
from airflow_delta.log.features.identity_columns import (
    IdentityColumn,
    identity_columns,
    is_identity,
    with_high_water_marks,
)
from airflow_delta.log.schema.types import StructField
from airflow_delta.table.definition.altered_table import AlteredTable, column_document
from airflow_delta.table.definition.column_paths import missing_column
from airflow_delta.transaction import Operation

if TYPE_CHECKING:
    from airflow_delta.log import AddFile


def sync_identity(table: AlteredTable, change: SyncIdentity) -> AlteredTable:
    """Move the high-water mark of an identity column to the furthest value in the table, if it lies beyond.

    Values that the statistics of files show are looked up here, whatever the change says.
    """
    field, column = identity_column(table, change.column)
    files = [] if table.snapshot is None else table.snapshot.add_files()
    found, _undecided = furthest_in_statistics(files, field, column.step)
    value = furthest([found, change.value], column.step)
    mark = None if value is None else rounded(value, column)
    metadata = table.metadata
    if mark is not None and column.is_beyond(mark):
        metadata = with_high_water_marks(metadata, {column.name: mark})
    operation = Operation.change_column(column_document(field.name, field))  # as it was, in Delta's log too
    return table.done(operation, metadata=metadata, sets_metadata=True, reads_table=True, syncs_identity=True)


def identity_column(table: AlteredTable, name: str) -> tuple[StructField, IdentityColumn]:
    """Return an identity column of a table.

    :raises DeltaAnalysisException: if there is no such column, or it is not an identity column.
    """
    path = parse_column_path(name)
    field = table.schema.find(path[0]) if len(path) == 1 else None
    if field is None:
        raise missing_column(table, path)
    if not is_identity(field):
        raise table.refuse(f"{name} is not an identity column (DELTA_IDENTITY_COLUMNS_ALTER_NON_IDENTITY_COLUMN)")
    return field, next(column for column in identity_columns(table.schema) if column.name == field.name)


def furthest(values: Iterable[int | None], step: int) -> int | None:
    """Return the value that lies furthest in the direction of the step; ``None`` if there is none."""
    known = [value for value in values if value is not None]
    return (max if step > 0 else min)(known) if known else None


def rounded(value: int, column: IdentityColumn) -> int | None:
    """Return the first value of the column from ``value`` on; ``None`` if that lies before the start."""
    steps, rest = divmod(value - column.start, column.step)
    if steps < 0:
        return None
    return column.start + (steps + bool(rest)) * column.step


def furthest_in_statistics(files: Sequence[AddFile], field: StructField, step: int) -> tuple[int | None, list[AddFile]]:
    """Return the furthest value that the statistics of files show, and the files of which only the rows can tell.

    These have no bounds, or a deletion vector: the bound may be that of a deleted row.
    """
    found: list[int | None] = []
    undecided = []
    for file in files:
        decided, value = _bound(file, field.physical_name, step)
        if decided:
            found.append(value)
        else:
            undecided.append(file)
    return furthest(found, step), undecided


def _bound(file: AddFile, name: str, step: int) -> tuple[bool, int | None]:
    if file.deletion_vector is not None or file.stats is None:
        return False, None
    try:
        stats: Any = json.loads(file.stats)
        low, high = stats.get("minValues", {}).get(name), stats.get("maxValues", {}).get(name)
        empty = stats.get("nullCount", {}).get(name) == stats["numRecords"]
    except (ValueError, KeyError, AttributeError):
        return False, None
    if type(low) is int and type(high) is int and low <= high and not empty and stats.get("tightBounds", True) is True:
        return True, high if step > 0 else low
    return empty and low is None and high is None, None

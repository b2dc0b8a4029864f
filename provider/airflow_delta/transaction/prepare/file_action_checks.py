"""Checks of a commit's file actions against the table (part of Delta's ``prepareCommit``)."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from airflow_delta.contract.delta_names import COLUMN_MAPPING_MODE, ENABLE_DELETION_VECTORS
from airflow_delta.exceptions import AppendOnlyException, DeltaIllegalArgumentException, DeltaIllegalStateException
from airflow_delta.log.actions.actions import Action, AddCDCFile, AddFile, Metadata, Protocol, RemoveFile
from airflow_delta.log.features import column_mapping
from airflow_delta.log.features import protocol as table_protocol
from airflow_delta.log.table_definition import TableDefinition
from airflow_delta.transaction.operations import Operation

REPLACES = frozenset(f"{head}REPLACE TABLE{tail}" for head in ("", "CREATE OR ") for tail in ("", " AS SELECT"))
"""Operations that put another table in the place of an existing one."""


def check_file_actions(
    table: str,
    actions: Sequence[Action],
    metadata: Metadata,
    protocol: Protocol,
    operation: Operation,
    *,
    read_metadata: Metadata | None = None,
    large: bool = False,
) -> None:
    """Check partitioning and deletion vectors, and that nothing is deleted from an append-only table.

    :param read_metadata: of the version that was read; a commit that deletes cannot itself lift ``delta.appendOnly``.
    :param large: of a ``commitLarge``, which replaces the state of the table and so is exempt from append-only.
    :raises DeltaIllegalStateException: if a file's partition columns are not the table's, or its deletion vector is not allowed.
    :raises AppendOnlyException: if a file of an append-only table is removed.
    """
    columns = partition_value_names(metadata)
    # A table that replaces another is only held to what that one asked for, as in Delta.
    asked = (read_metadata,) if operation.name in REPLACES else (read_metadata, metadata)
    append_only = (
        [] if large else [known for known in asked if known is not None and TableDefinition.of(known).properties.append_only]
    )
    for action in actions:
        if isinstance(action, AddFile):
            if action.partition_values.keys() != columns:
                raise _wrong_partitioning(table, action, columns)
            if action.deletion_vector is not None:
                _check_deletion_vector(table, action, metadata, protocol, operation)
        elif isinstance(action, RemoveFile):
            if append_only and action.data_change:
                way = "To allow deletes, unset the property first" if read_metadata in append_only else "Set the property later"
                raise AppendOnlyException(
                    f"{operation.name} would remove {action.path}, but table {table} only allows appends "
                    f"(delta.appendOnly=true, DELTA_CANNOT_MODIFY_APPEND_ONLY). {way}, in a commit of its own.",
                    table=table,
                )
        elif isinstance(action, AddCDCFile) and action.data_change:
            raise DeltaIllegalArgumentException(
                f"The change data file {action.path} must have dataChange=false (table {table}).", table=table
            )


def partition_value_names(metadata: Metadata) -> set[str]:
    """Return the names of partition columns in the log; without column mapping those of the schema."""
    if metadata.configuration.get(COLUMN_MAPPING_MODE, "none").lower() == "none":
        return set(metadata.partition_columns)
    return set(column_mapping.physical_partition_columns(metadata))


def _wrong_partitioning(table: str, action: AddFile, columns: Collection[str]) -> DeltaIllegalStateException:
    return DeltaIllegalStateException(
        f"The file {action.path} has the partition columns {sorted(action.partition_values)}, but table {table} is partitioned "
        f"by {sorted(columns)} (DELTA_INVALID_PARTITIONING_SCHEMA).",
        table=table,
    )


class _Bounds(msgspec.Struct, rename="camel"):
    num_records: int | None = None
    tight_bounds: bool | None = None


def _check_deletion_vector(table: str, action: AddFile, metadata: Metadata, protocol: Protocol, operation: Operation) -> None:
    enabled = metadata.configuration.get(ENABLE_DELETION_VECTORS, "false").lower() == "true"
    if "deletionVectors" not in table_protocol.features(protocol) or not (enabled or operation.updates_in_place):
        raise DeltaIllegalStateException(
            f"The file {action.path} comes with a deletion vector, which table {table} does not allow "
            "(DELTA_ADDING_DELETION_VECTORS_DISALLOWED). Set delta.enableDeletionVectors=true, or rewrite the file.",
            table=table,
        )
    try:
        bounds = msgspec.json.decode(action.stats or "{}", type=_Bounds)
    except msgspec.DecodeError:
        bounds = _Bounds()
    if bounds.num_records is None:
        raise DeltaIllegalStateException(
            f"The file {action.path} comes with a deletion vector but without numRecords (table {table}, "
            "DELTA_DELETION_VECTOR_MISSING_NUM_RECORDS).",
            table=table,
        )
    if operation.checks_loose_bounds and bounds.tight_bounds is not False:
        raise DeltaIllegalStateException(
            f"The file {action.path} comes with a deletion vector, so its statistics must say tightBounds=false (table {table}, "
            "DELTA_ADDING_DELETION_VECTORS_WITH_TIGHT_BOUNDS_DISALLOWED).",
            table=table,
        )

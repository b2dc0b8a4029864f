"""ALTER TABLE: changes applied in order, each to the result of the one before."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow_delta.contract.changes import Change, SyncIdentity, change_from_dict
from airflow_delta.contract.payloads import StagedWrite, TransactionHandle
from airflow_delta.exceptions import DeltaError
from airflow_delta.log.features.identity_columns import with_values
from airflow_delta.log.table_definition import TableDefinition
from airflow_delta.table.definition.alter_columns import COLUMN_CHANGES
from airflow_delta.table.definition.alter_properties import PROPERTY_CHANGES
from airflow_delta.table.definition.altered_table import AlteredTable, is_alter, protocol_with
from airflow_delta.table.definition.evolve import evolved
from airflow_delta.table.definition.sync_identity import sync_identity
from airflow_delta.transaction import Operation

if TYPE_CHECKING:
    from airflow_delta.log.actions.actions import Metadata

_CHANGES: Mapping[type, Callable[[AlteredTable, Any], AlteredTable]] = {
    **COLUMN_CHANGES,
    **PROPERTY_CHANGES,
    SyncIdentity: sync_identity,
}


def apply_changes(table: AlteredTable, changes: Iterable[Change | dict[str, Any]]) -> AlteredTable:
    """Return the table after changes, each applied to the result of the one before."""
    for change in changes:
        table = apply_change(table, change if isinstance(change, Change) else change_from_dict(change))
    return table


def apply_change(table: AlteredTable, change: Change) -> AlteredTable:
    """Return the table after one change.

    :raises DeltaError: if the change is not possible; names table and version.
    """
    try:
        return _CHANGES[type(change)](table, change)
    except DeltaError as error:
        if error.table is None:
            error.table, error.version = table.table, table.version
            error.message = f"{error.message} (table {table.table} version {table.version})"
        raise


def after_writes(handle: TransactionHandle, table: AlteredTable, writes: Iterable[StagedWrite]) -> AlteredTable:
    """Return the table after stages: their changes, the columns that they add (``merge_schema``) and the identity values used.

    :param writes: each after those that it was planned on top of.
    """
    for write in writes:
        if is_alter(write):
            table = apply_changes(table, write.changes)
            continue
        metadata = evolved(handle, table.metadata, [write])
        if metadata is not table.metadata:
            known = table.operations
            table = replace(table.with_metadata(metadata, Operation("WRITE")), operations=known)
        if write.identity_high_water_marks:  # under the names of now: a later change may rename the columns, or drop them
            table = replace(table, metadata=with_written_identities(table.metadata, write))
    return table


def with_written_identities(metadata: Metadata, write: StagedWrite) -> Metadata:
    """Return the metadata with the identity values of a stage used."""
    return with_values(metadata, {name: [last] for name, last in write.identity_high_water_marks.items()})


def altered_definition(table: TableDefinition, write: StagedWrite, changes_before: int = 0, *, seed: str) -> TableDefinition:
    """Return what the table is as an earlier stage that alters it leaves it.

    :param changes_before: number of changes by stages before this one.
    :param seed: id of the transaction, which names new columns.
    """
    altered = AlteredTable(
        table=table.table,
        version=table.version,
        seed=seed,
        metadata=table.metadata,
        protocol=protocol_with(table.features),
        clustering=None,
        operations=tuple(Operation("") for _ in range(changes_before)),
    )
    return apply_changes(altered, write.changes).definition

"""The table at the version that a transaction reads.

A handle travels through XCom, which is not believed: what the table is comes from its log, and the handle must agree with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from airflow_delta.contract.payloads import TransactionHandle
from airflow_delta.exceptions import (
    DeltaIllegalStateException,
    HandleMismatchException,
    MetadataChangedException,
    VersionNotFoundException,
)
from airflow_delta.log.table_definition import TableDefinition

if TYPE_CHECKING:
    from airflow_delta.log import Snapshot
    from airflow_delta.log.delta_log import DeltaLog


def snapshot_of_transaction(log: DeltaLog, handle: TransactionHandle) -> Snapshot:
    """Return the table at the version that the transaction reads; a snapshot of version -1 if it did not exist.

    :raises VersionNotFoundException: if the log no longer holds that version.
    :raises DeltaIllegalStateException: if another table is at the location now.
    """
    if handle.read_version < 0:
        from airflow_delta.log.snapshot import Snapshot

        return Snapshot(log, None)
    latest = log.snapshot
    if latest.version < handle.read_version:
        latest = log.update()
    if latest.version < handle.read_version:
        raise handle.error(
            DeltaIllegalStateException,
            f"Table {log.uri} has version {latest.version}, but the transaction read version {handle.read_version}: the "
            "table has since been deleted or restored from a backup. Clear the start task.",
        )
    try:
        return log.snapshot_at(handle.read_version)
    except VersionNotFoundException as error:
        raise handle.error(
            VersionNotFoundException,
            f"The transaction read version {handle.read_version} of table {log.uri}, which its log no longer holds (earliest "
            f"{error.earliest}, latest {error.latest}): it was cleaned up, so conflicts since then cannot be checked. "
            "Clear the start task, and raise delta.logRetentionDuration above the longest Dag run.",
            earliest=error.earliest,
            latest=error.latest,
        ) from error


def table_fields(snapshot: Snapshot) -> dict[str, Any]:
    """Return what a handle says about the table of a version: the fields of its metadata and protocol."""
    found = {name: getattr(snapshot.definition, name) for name in _FIELDS}
    return {**found, "features": tuple(sorted(found["features"]))}


def definition_read(handle: TransactionHandle, snapshot: Callable[[], Snapshot]) -> TableDefinition:
    """Return what the table is to a transaction: what its log says at the version that the transaction reads.

    The handle says it only of a table that does not exist: there it repeats the Dag file.

    :param snapshot: returns that version.
    """
    if handle.read_version >= 0 and handle.committed is None:
        return snapshot().definition
    return TableDefinition(  # of a committed transaction, only for people: it stages nothing
        table=handle.table,
        version=handle.read_version,
        table_id=handle.table_id,
        schema_string=handle.schema_string,
        partition_columns=handle.partition_columns,
        configuration=handle.configuration,
        features=frozenset(handle.features),
        name=handle.name,
        description=handle.description,
    )


def check_handle(handle: TransactionHandle, snapshot: Snapshot) -> None:
    """Check that a handle says about an existing table what its log says at the version that the transaction reads.

    :param snapshot: that version.
    :raises MetadataChangedException: if another table is at the location.
    :raises HandleMismatchException: if a field differs.
    """
    if snapshot.version < 0:
        return
    for name, found in table_fields(snapshot).items():
        given = getattr(handle, name)
        if given == found:
            continue
        if name == "table_id" and given is not None:
            raise MetadataChangedException(
                f"Table {handle.table} has the id {found} at version {snapshot.version}, the transaction read a table with the "
                f"id {given}: it was deleted and created again. Clear the start task.",
                table=handle.table,
                winning_version=snapshot.version,
            )
        raise handle.error(
            HandleMismatchException,
            f"The handle of transaction {handle.transaction_id} has other {_FIELDS[name]} than the log of table {handle.table} "
            f"at version {snapshot.version}: {_shown(given, found)}. Nothing was written. If the start task ran in an earlier "
            "release, or the log was changed, clear it. Otherwise its XCom was altered.",
            version=snapshot.version,
        )


_FIELDS = {
    "table_id": "id (tableId)",
    "schema_string": "columns (schemaString)",
    "partition_columns": "partition columns (partitionColumns)",
    "configuration": "properties (configuration)",
    "name": "name (name)",
    "description": "description (description)",
    "features": "table features (features)",
}
_SHOWN = 300


def _shown(given: Any, found: Any) -> str:
    if isinstance(given, Mapping) and isinstance(found, Mapping):
        keys = sorted({*given, *found}, key=str)
        given, found = ({key: side.get(key) for key in keys if given.get(key) != found.get(key)} for side in (given, found))
    return f"{str(given)[:_SHOWN]} instead of {str(found)[:_SHOWN]}"

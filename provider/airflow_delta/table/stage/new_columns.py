"""New columns of a stage, checked against the latest schema: a conflict shows before anybody approves the rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_delta.contract.payloads import StagedWrite
from airflow_delta.exceptions import MetadataChangedException
from airflow_delta.log.features.change_data_feed import check_column_mapping
from airflow_delta.table.definition.altered_table import is_alter, table_as_read
from airflow_delta.table.definition.apply_changes import after_writes
from airflow_delta.table.definition.evolve import new_metadata
from airflow_delta.table.stage.view import TransactionView
from airflow_delta.transaction import OptimisticTransaction
from airflow_delta.transaction.conflicts.metadata import adds_columns_of, only_adds_columns

if TYPE_CHECKING:
    from airflow_delta.log.actions.actions import Metadata


def check_metadata(view: TransactionView, write: StagedWrite) -> None:
    """Check that the table can get the metadata that the commit of a stage, and of those before it, would give it."""
    handle, read = view.handle, view.snapshot if view.handle.read_version >= 0 else None
    evolves = (write.merge_schema or write.overwrite_schema) and not write.definition
    if not (evolves or view.stages or read is None or write.definition or write.changes):
        return  # the table stays as it is
    writes = [*(stage.write for stage in view.stages), write]
    has_file_actions = any(other.num_files or other.num_removed_files for other in writes)
    if write.already_committed or not (evolves or has_file_actions):
        return
    metadata: Metadata | None
    if any(map(is_alter, writes)):
        metadata = after_writes(handle, table_as_read(handle, view.snapshot), writes).metadata
    elif evolves or read is None or write.definition or any(other.definition or other.overwrite_schema for other in writes):
        metadata = new_metadata(handle, view.definition, None if read is None else read.metadata, writes)
    else:
        return
    if metadata is None:
        return
    if read is not None and evolves and not any(other.definition or is_alter(other) for other in writes):
        txn = OptimisticTransaction(view.log, read, txn_id=handle.transaction_id)
        if write.overwrite_schema:
            txn.update_metadata_for_table_overwrite(metadata)
        else:
            txn.update_metadata(metadata)
            _check_latest_columns(view, write, txn.metadata)
    check_column_mapping(
        metadata,
        None if read is None else read.metadata,
        has_file_actions=has_file_actions,
        operation=write.operation,
    )


def _check_latest_columns(view: TransactionView, write: StagedWrite, metadata: Metadata) -> None:
    log, read = view.log, view.snapshot
    latest = log.update()
    if write.after or latest.version == read.version or latest.metadata.schema_string == read.metadata.schema_string:
        return
    if only_adds_columns(read.metadata, metadata) and adds_columns_of(metadata, latest.metadata):
        return
    raise MetadataChangedException(
        f"Stage {write.stage} adds columns to table {log.uri}, whose schema has changed since version {read.version}, "
        f"which the transaction reads (the table is at version {latest.version} now): the commit would conflict. "
        "Clear the start task.",
        table=log.uri,
        winning_version=latest.version,
    )

"""New columns of a stage, checked against the latest schema: a conflict shows before anybody approves the rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_delta.exceptions import MetadataChangedException
from airflow_delta.staging.contract import StagedWrite

if TYPE_CHECKING:
    from airflow_delta.commands.stage.view import TransactionView


def check_new_columns(view: TransactionView, write: StagedWrite) -> None:
    """Check that the schema still lets a stage that adds columns be committed.

    :raises MetadataChangedException: if the schema has changed since, other than by these very columns.
    """
    log, handle = view.log, view.handle
    if not write.merge_schema or write.overwrite_schema or write.after or write.definition or handle.read_version < 0:
        return
    from airflow_delta.commands.definition.evolve import new_metadata
    from airflow_delta.transaction import OptimisticTransaction
    from airflow_delta.transaction.conflicts.metadata import adds_columns_of, only_adds_columns

    read = view.snapshot
    metadata = new_metadata(handle, read, [write])
    latest = log.update()
    if metadata is None or latest.version == read.version or latest.metadata.schema_string == read.metadata.schema_string:
        return
    txn = OptimisticTransaction(log, read, txn_id=handle.transaction_id)
    txn.update_metadata(metadata)
    if only_adds_columns(read.metadata, txn.metadata) and adds_columns_of(txn.metadata, latest.metadata):
        return
    raise MetadataChangedException(
        f"Stage {write.stage} adds columns to table {log.uri}, whose schema has changed since version {handle.read_version}, "
        f"which the transaction reads (the table is at version {latest.version} now): the commit would conflict. "
        "Clear the start task.",
        table=log.uri,
        winning_version=latest.version,
    )

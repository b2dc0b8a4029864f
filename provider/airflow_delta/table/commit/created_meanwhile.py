"""A table that another transaction created after this one began.

To Delta that is a conflict, which would fail all but one of the first runs of a backfill. It is safe to continue if the other
created exactly the table that this one would have created: the transaction is then based on that first version, and everything
committed since is checked as usual.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_delta.contract.payloads import TransactionHandle
from airflow_delta.exceptions import (
    ConcurrentAppendException,
    ConcurrentTransactionException,
    MetadataChangedException,
    ProtocolChangedException,
    VersionNotFoundException,
)
from airflow_delta.log.actions.actions import Metadata
from airflow_delta.log.features import protocol
from airflow_delta.log.table_definition import TableDefinition
from airflow_delta.table.stage.load import StageActions
from airflow_delta.table.stage.view import ReadVersion, TransactionView
from airflow_delta.transaction import OptimisticTransaction
from airflow_delta.transaction.conflicts.errors import creator_of

if TYPE_CHECKING:
    from airflow_delta.log.delta_log import DeltaLog


def adopt_created_table(view: TransactionView, wanted: Metadata) -> TransactionView | None:
    """Return the view as if the transaction had read the first version of the table; CREATE TABLE has nothing left to do.

    ``None`` if it is not the table that this transaction would have created (equal schema, partitioning and properties, with the
    features), or its first version is gone from the log.
    """
    # As a commit would write it: with the protocol that the properties ask for.
    wanted, asked = protocol.apply_feature_properties(wanted, None)
    log, handle = view.log, view.handle
    log.update()
    try:
        snapshot = log.snapshot_at(0)
    except VersionNotFoundException:
        return None
    found = snapshot.metadata
    if found.partition_columns != wanted.partition_columns or found.configuration != wanted.configuration:
        return None
    if snapshot.schema != TableDefinition.of(wanted).schema:
        return None
    if not protocol.features(asked) <= protocol.features(snapshot.protocol):
        return None
    rebased = replace(handle, read_version=0)
    stages = tuple(stage for stage in view.stages if not stage.write.definition)
    return replace(view, handle=rebased, read=ReadVersion(log, rebased, snapshot), stages=stages)


def check_nothing_replaced(txn: OptimisticTransaction, handle: TransactionHandle, stages: Sequence[StageActions]) -> None:
    """Check that the first version holds nothing that this transaction assumed absent, and record that as read.

    :raises ConcurrentTransactionException: if it was committed by another execution of the same transaction key.
    :raises ConcurrentAppendException: if it holds rows that an overwrite, planned on no table, replaces, or that a stage would
        have read.
    """
    if txn.txn_version(handle.app_id) >= 0:
        who, info = creator_of(txn.log)
        raise ConcurrentTransactionException(
            f"Table {handle.table} was created by another execution of the transaction {handle.app_id!r}, after this one began: "
            f"{who}. Nothing more was committed. Clear the start task: it will see that commit and apply its rerun policy.",
            table=handle.table,
            winning_version=0,
            winning_commit=info,
        )
    for stage in stages:
        write = stage.write
        has_read = write.reads.whole_table or bool(write.reads.predicates)
        if write.mode == "append" and not has_read:
            continue
        if has_read:  # a table that it took for empty
            found = txn.filter_files()
        elif write.mode == "dynamic":
            found = txn.filter_files_for_partitions(stage.adds)
        elif write.replace_where is None:
            found = txn.filter_files()
        else:
            found = txn.filter_files(write.replace_where)
        if found.num_rows:
            verb = "has read" if has_read else "replaces"
            who, info = creator_of(txn.log)
            raise ConcurrentAppendException(
                f"Stage {write.stage} {verb} {write.replace_where or 'rows'} of table {handle.table}, which did not exist "
                f"when the transaction began. Another transaction has since created it, with {found.num_rows} files of such "
                f"rows: {who}. Clear the start task to run the transaction on the new version.",
                table=handle.table,
                winning_version=0,
                winning_commit=info,
            )


def created_otherwise(
    error: ProtocolChangedException | MetadataChangedException, log: DeltaLog
) -> ProtocolChangedException | MetadataChangedException:
    return type(error)(
        f"{error.message} The table did not exist when this transaction began, and was created with another schema, partitioning "
        "or other properties than this one would give it. Clear the start task.",
        table=log.uri,
        winning_version=error.winning_version,
        winning_commit=error.winning_commit,
        partition=error.partition,
    )

"""A table that did not exist when the transaction began, and that another one created before it could.

To Delta that is a conflict, which would fail all but one of the first runs of a backfill. Nothing is lost by going on when the
other one created exactly the table that this one would have created: the transaction is then based on that first version, and
everything committed since is checked as usual.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_delta.commands.stage.load import StageActions
from airflow_delta.exceptions import ConcurrentAppendException, ConcurrentTransactionException, VersionNotFoundException
from airflow_delta.log.actions.actions import Metadata
from airflow_delta.staging.contract import TransactionHandle

if TYPE_CHECKING:
    from airflow_delta.log import DeltaLog, Snapshot
    from airflow_delta.transaction import OptimisticTransaction


def adopt_created_table(log: DeltaLog, handle: TransactionHandle, wanted: Metadata) -> tuple[Snapshot, TransactionHandle] | None:
    """Return the first version of the table, and the handle as if it had read that one.

    ``None`` when it is not the table that this transaction would have created (schema, partitioning and properties have to be
    equal, features there), or when its first version is gone from the log.
    """
    from airflow_delta.log.features import protocol
    from airflow_delta.log.schema.types import parse_schema

    # As a commit would write it: properties that ask for features stand in the protocol then.
    wanted, asked = protocol.apply_feature_properties(wanted, None)
    log.update()
    try:
        snapshot = log.snapshot_at(0)
    except VersionNotFoundException:
        return None
    found = snapshot.metadata
    if found.partition_columns != wanted.partition_columns or found.configuration != wanted.configuration:
        return None
    if parse_schema(found.schema_string) != parse_schema(wanted.schema_string):
        return None
    if not protocol.features(asked) <= protocol.features(snapshot.protocol):
        return None
    return snapshot, replace(
        handle,
        read_version=0,
        table_id=found.id,
        schema_string=found.schema_string,
        partition_columns=tuple(found.partition_columns),
    )


def check_nothing_replaced(txn: OptimisticTransaction, handle: TransactionHandle, stages: Sequence[StageActions]) -> None:
    """Check that the first version holds nothing that this transaction relied on not being there, and record that as read.

    :raises ConcurrentTransactionException: it was committed by another execution of the same transaction key.
    :raises ConcurrentAppendException: it holds rows that an overwrite replaces, which saw an empty table.
    """
    if txn.txn_version(handle.app_id) >= 0:
        raise ConcurrentTransactionException(
            f"Table {handle.table} was created by another execution of the transaction {handle.app_id!r}, after this one began. "
            "Nothing more was committed. Clear the start task: it will see that commit and apply its rerun policy.",
            table=handle.table,
            winning_version=0,
        )
    for stage in stages:
        write = stage.write
        if write.mode == "append":
            continue
        if write.mode == "dynamic":
            found = txn.filter_files_for_partitions(stage.adds)
        elif write.replace_where is None:
            found = txn.filter_files()
        else:
            found = txn.filter_files(write.replace_where)
        if found.num_rows:
            raise ConcurrentAppendException(
                f"Stage {write.stage} replaces {write.replace_where or 'rows'} of table {handle.table}, which did not exist "
                f"when the transaction began. Another one has created it since, with {found.num_rows} files of such rows in "
                "version 0. Clear the start task to run the transaction on the new version.",
                table=handle.table,
                winning_version=0,
            )

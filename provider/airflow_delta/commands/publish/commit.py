"""The commit of staged writes as one optimistic transaction: metadata, reads and actions."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from airflow_delta.commands.definition.altered_table import AlteredTable, is_alter
from airflow_delta.commands.definition.create import clustering_domain, definition_of
from airflow_delta.commands.definition.evolve import new_metadata
from airflow_delta.commands.files.row_counts import total
from airflow_delta.commands.outcome.commit_result import result_of_transaction
from airflow_delta.commands.publish.alter import adopt_altered, altered_table, operation_tags, operation_with, with_altered_reads
from airflow_delta.commands.publish.compaction_request import request_as_json
from airflow_delta.commands.publish.created_meanwhile import adopt_created_table, check_nothing_replaced
from airflow_delta.commands.publish.feature_actions import changes_to_commit, feature_tags, identity_marks
from airflow_delta.commands.publish.operation import operation_of
from airflow_delta.commands.stage.load import StageActions
from airflow_delta.commands.stage.net_effect import find_replaced
from airflow_delta.exceptions import MetadataChangedException, ProtocolChangedException
from airflow_delta.log.actions.actions import Action, Metadata, SetTransaction
from airflow_delta.staging.contract import CommitResult, TransactionHandle
from airflow_delta.transaction.policy.events import CONFLICT, held_back

if TYPE_CHECKING:
    from airflow_delta.commands.stage.view import TransactionView
    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.staging.contract import Json
    from airflow_delta.transaction import CommitPolicy, OptimisticTransaction, PostCommitHook

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitOptions:
    """What the caller of a commit decides; see :func:`airflow_delta.commands.publish.publish.publish`."""

    policy: CommitPolicy | None = None
    tags: Mapping[str, str] | None = None
    user_metadata: str | None = None
    hooks: Sequence[PostCommitHook] = ()


def commit_stages(view: TransactionView, options: CommitOptions) -> CommitResult:
    """Commit stages as one version on top of the one that the transaction reads.

    :param view: with stages that are checked against each other and storage.
    :raises MetadataChangedException: if there is a table by now with other columns or properties.
    :raises DeltaConcurrentModificationException: if another commit conflicts.
    :raises CommitStateUnknownException: if the store did not say whether the entry was written.
    """
    handle = view.handle
    altered = altered_table(view)
    if altered is not None:
        return _attempt(with_altered_reads(view, altered), options, altered=altered)
    writes = [stage.write for stage in view.stages]
    metadata = new_metadata(handle, view.snapshot, writes)
    if handle.read_version >= 0 or metadata is None:
        return _attempt(view, options, metadata=metadata)
    definition = definition_of(handle, writes)
    with held_back(CONFLICT) as conflicts:
        try:
            return _attempt(view, options, metadata=metadata)
        except (ProtocolChangedException, MetadataChangedException) as error:
            if definition is not None and definition["mode"] != "create_if_not_exists":
                raise
            created = adopt_created_table(view, metadata)
            if created is None:
                raise _created_otherwise(error, view.log) from error
            conflicts.forget()
    logger.info("Table %s was created by another transaction; continuing from its version 0.", view.log.uri)
    return _attempt(created, options, created=True)


def _attempt(
    view: TransactionView,
    options: CommitOptions,
    *,
    metadata: Metadata | None = None,
    altered: AlteredTable | None = None,
    created: bool = False,
) -> CommitResult:
    """Commit the table as the stages leave it.

    :param metadata: for stages that add columns, or create or replace the table; ``None``: unchanged.
    :param altered: of stages that alter the table.
    :param created: another transaction created the table since this one began.
    """
    from airflow_delta.transaction import OptimisticTransaction

    handle, stages = view.handle, view.stages
    txn = OptimisticTransaction(
        view.log, view.snapshot, txn_id=handle.transaction_id, policy=options.policy, isolation_level=handle.isolation_level
    )
    for hook in options.hooks:
        txn.register_post_commit_hook(hook)
    # The key was looked up by start: a concurrent commit of the same key is a conflict.
    txn.txn_version(handle.app_id)
    if altered is not None:
        adopt_altered(txn, altered)
    else:
        _set_metadata(txn, handle, metadata, stages)
    data = [stage for stage in stages if not is_alter(stage.write)]
    txn.update_identity_high_water_marks(identity_marks(handle, data))
    if created:
        check_nothing_replaced(txn, handle, data)
    replaced = find_replaced(view, txn)
    now = int(time.time() * 1000)
    removes = [msgspec.structs.replace(remove, deletion_timestamp=now) for remove in replaced.removes]
    key = SetTransaction(app_id=handle.app_id, version=handle.txn_version, last_updated=now)
    actions: list[Action] = [key, *replaced.adds, *removes, *changes_to_commit(handle, data, replaced)]
    tags = {**(options.tags or {}), **feature_tags(txn, data), "airflow.appId": handle.app_id}
    if altered is None:
        operation = operation_of(txn.metadata, data, replaced)
    else:
        written = operation_of(txn.metadata, data, replaced) if data else None
        operation = operation_with(altered, written, view.snapshot.metadata.partition_columns)
        tags |= operation_tags(altered, written)
    txn.commit(actions, operation, tags=tags, user_metadata=options.user_metadata)
    asked = txn.outcome.auto_compaction if txn.outcome is not None else None
    return result_of_transaction(
        txn,
        operation.name,
        replaced.adds,
        handle=handle,
        num_removed_files=len(removes),
        num_records=total(stage.write.num_records for stage in data),
        auto_compaction=None if asked is None else request_as_json(asked),
    )


def _set_metadata(
    txn: OptimisticTransaction, handle: TransactionHandle, metadata: Metadata | None, stages: Sequence[StageActions]
) -> None:
    """Set the metadata that writes, CREATE and REPLACE TABLE give the table, and the clustering of a new one."""
    if metadata is None:
        return
    definition: Json | None = definition_of(handle, [stage.write for stage in stages])
    if txn.read_version < 0:
        txn.update_metadata_for_new_table(metadata)
    elif definition is not None:
        txn.update_metadata_for_new_table_in_replace(metadata)
    elif any(stage.write.overwrite_schema for stage in stages):
        txn.update_metadata_for_table_overwrite(metadata)
    else:
        txn.update_metadata(metadata)
    if definition is not None and (definition["clusterBy"] or "clustering" in handle.features):
        txn.cluster_new_table(clustering_domain(definition, txn.metadata))


def _created_otherwise(
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

"""The commit of staged writes as one optimistic transaction: metadata, reads and actions."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING

import msgspec

from airflow_delta.contract.payloads import CommitResult
from airflow_delta.contract.tags import APP_ID_TAG
from airflow_delta.exceptions import MetadataChangedException, ProtocolChangedException
from airflow_delta.light_dataclasses import dataclass
from airflow_delta.log.actions.actions import Action, AddFile, Metadata, RemoveFile, SetTransaction
from airflow_delta.log.statistics.row_counts import total
from airflow_delta.table.commit.alter import adopt_altered, altered_table, with_altered_reads
from airflow_delta.table.commit.created_meanwhile import adopt_created_table, check_nothing_replaced, created_otherwise
from airflow_delta.table.commit.features import changes_to_commit, feature_tags, identity_marks
from airflow_delta.table.commit.operation import operation_of, operation_tags, operation_with
from airflow_delta.table.commit.rules import commit_rules
from airflow_delta.table.definition.altered_table import AlteredTable, is_alter
from airflow_delta.table.definition.create import clustering_domain
from airflow_delta.table.definition.evolve import new_metadata
from airflow_delta.table.definition.staged_definition import definition_of
from airflow_delta.table.stage.load import StageActions
from airflow_delta.table.stage.net_effect import NetEffect, find_replaced
from airflow_delta.table.stage.view import TransactionView
from airflow_delta.table.state.commit_result import request_as_json, result_of_transaction
from airflow_delta.transaction import Operation, OptimisticTransaction
from airflow_delta.transaction.conflicts.winning_commit import WinningCommit
from airflow_delta.transaction.events import CONFLICT, held_back
from airflow_delta.transaction.policy import check_user_metadata
from airflow_delta.transaction.reads.app_ids import LOOKED_UP, AppIdConflict

if TYPE_CHECKING:
    from airflow_delta.contract.payloads import Json
    from airflow_delta.transaction import CommitPolicy, PostCommitHook, TransactionObserver


logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitOptions:
    """What the caller of a commit decides; see :func:`airflow_delta.table.commit.publish.publish`.

    :param transactions: further applications whose versions the commit sets; a concurrent commit of one of them is a conflict.
    :param observer: called in each phase of the commit.
    """

    policy: CommitPolicy | None = None
    tags: Mapping[str, str] | None = None
    user_metadata: str | None = None
    hooks: Sequence[PostCommitHook] = ()
    transactions: Mapping[str, int] = field(default_factory=dict)
    observer: TransactionObserver | None = None

    def __post_init__(self) -> None:
        check_user_metadata(self.user_metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedCommit:
    """What the stages of a transaction amount to, ready to be committed.

    :param txn: with the metadata that the stages set and what they have read.
    :param actions: without those that the transaction itself writes (``commitInfo``, metadata, protocol).
    """

    txn: OptimisticTransaction
    view: TransactionView
    data: Sequence[StageActions]
    replaced: NetEffect
    actions: list[Action]
    operation: Operation
    tags: dict[str, str]
    keeps: tuple[Callable[[], None], ...]


def staged_commit(view: TransactionView, policy: CommitPolicy | None = None) -> StagedCommit:
    """Return what :func:`commit_stages` commits, without committing it.

    :param view: as for :func:`commit_stages`.
    """
    options, altered = CommitOptions(policy=policy), altered_table(view)
    if altered is not None:
        return _prepared(with_altered_reads(view, altered), options, altered=altered)
    current = view.snapshot.metadata if view.handle.read_version >= 0 else None
    metadata = new_metadata(view.handle, view.definition, current, [stage.write for stage in view.stages])
    return _prepared(view, options, metadata=metadata)


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
        return _commit(_prepared(with_altered_reads(view, altered), options, altered=altered), options)
    writes = [stage.write for stage in view.stages]
    current = view.snapshot.metadata if handle.read_version >= 0 else None
    metadata = new_metadata(handle, view.definition, current, writes)
    if handle.read_version >= 0 or metadata is None:
        return _commit(_prepared(view, options, metadata=metadata), options)
    definition = definition_of(handle, writes)
    with held_back(CONFLICT) as conflicts:
        try:
            return _commit(_prepared(view, options, metadata=metadata), options)
        except (ProtocolChangedException, MetadataChangedException) as error:
            if definition is not None and definition["mode"] != "create_if_not_exists":
                raise
            created = adopt_created_table(view, metadata)
            if created is None:
                raise created_otherwise(error, view.log) from error
            conflicts.forget()
    logger.info("Table %s was created by another transaction; continuing from its version 0.", view.log.uri)
    staged = _prepared(created, options, created=True)
    if options.policy is not None and options.policy.check_winners is not None:
        [first] = view.log.read_commit_range(range(1))
        options.policy.check_winners([WinningCommit(first, table=view.log.uri)], staged.actions)
    return _commit(staged, options)


def create_empty(view: TransactionView, policy: CommitPolicy, operation: Callable[[Metadata], Operation]) -> None:
    """Create the table that the stages would create, without their rows; somebody else may be faster.

    :param operation: returns what ``commitInfo`` says, for the metadata of the table.
    :raises DeltaConcurrentModificationException: if another table was created there.
    """
    writes = [stage.write for stage in view.stages]
    metadata = new_metadata(view.handle, view.definition, None, writes)
    txn = _transaction(view, policy)
    _set_metadata(txn, view, metadata)
    try:
        txn.commit([], operation(txn.metadata))
    except (ProtocolChangedException, MetadataChangedException) as error:
        if metadata is None or adopt_created_table(view, metadata) is None:
            raise created_otherwise(error, view.log) from error


def _prepared(
    view: TransactionView,
    options: CommitOptions,
    *,
    metadata: Metadata | None = None,
    altered: AlteredTable | None = None,
    created: bool = False,
) -> StagedCommit:
    """Return the table as the stages leave it.

    :param metadata: for stages that add columns, or create or replace the table; ``None``: unchanged.
    :param altered: of stages that alter the table.
    :param created: another transaction created the table since this one began.
    """
    handle, stages = view.handle, view.stages
    txn = _transaction(view, options.policy, txn_id=handle.transaction_id, observer=options.observer)
    # The key was looked up by start: a concurrent commit of the same key is a conflict.
    txn.txn_version(handle.app_id)
    if altered is not None:
        adopt_altered(txn, altered)
    else:
        _set_metadata(txn, view, metadata)
    data = [stage for stage in stages if not is_alter(stage.write)]
    marks = identity_marks(handle, data)
    for given in marks if altered is None else ():  # otherwise they are in its metadata
        txn.update_identity_high_water_marks(given)
    if created:
        check_nothing_replaced(txn, handle, data)
    replaced = find_replaced(view, txn)
    now = int(time.time() * 1000)
    removes = [msgspec.structs.replace(remove, deletion_timestamp=now) for remove in replaced.removes]
    key = SetTransaction(app_id=handle.app_id, version=handle.txn_version, last_updated=now)
    versions, conflicts, keeps = dict(options.transactions), dict[str, AppIdConflict](), list[Callable[[], None]]()
    for asked in commit_rules():
        found = asked.to_commit(view, created=created)
        versions |= found.versions
        conflicts |= found.conflicts
        keeps.append(found.keep)
        for rule in found.rules:
            txn.track_app_ids_by(rule)
    for app_id, version in versions.items():
        txn.txn_version(app_id, conflicts.get(app_id, LOOKED_UP))
        txn.update_set_transaction(SetTransaction(app_id=app_id, version=version, last_updated=now))
    actions: list[Action] = [key, *replaced.adds, *removes, *changes_to_commit(handle, data, replaced)]
    tags = {**(options.tags or {}), **feature_tags(txn, data), APP_ID_TAG: handle.app_id}
    if altered is None:
        operation = operation_of(txn.metadata, data, replaced)
    else:
        written = operation_of(txn.metadata, data, replaced) if data else None
        operation = operation_with(altered, written, view.snapshot.metadata.partition_columns)
        tags |= operation_tags(altered, written)
    return StagedCommit(
        txn=txn,
        view=view,
        data=data,
        replaced=replaced,
        actions=actions,
        operation=operation,
        tags=tags,
        keeps=tuple(keeps),
    )


def _commit(staged: StagedCommit, options: CommitOptions) -> CommitResult:
    """Commit what the stages amount to."""
    txn = staged.txn
    for keep in staged.keeps:
        keep()
    for hook in options.hooks:
        txn.register_post_commit_hook(hook)
    txn.commit(staged.actions, staged.operation, tags=staged.tags, user_metadata=options.user_metadata)
    asked = txn.outcome.auto_compaction if txn.outcome is not None else None
    return result_of_transaction(
        txn,
        staged.operation.name,
        [action for action in txn.committed_actions if isinstance(action, AddFile)],
        handle=staged.view.handle,
        num_removed_files=sum(isinstance(action, RemoveFile) for action in txn.committed_actions),
        num_records=total(stage.write.num_records for stage in staged.data),
        auto_compaction=None if asked is None else request_as_json(asked),
    )


def _transaction(
    view: TransactionView,
    policy: CommitPolicy | None,
    *,
    txn_id: str | None = None,
    observer: TransactionObserver | None = None,
) -> OptimisticTransaction:
    level = view.handle.isolation_level
    return OptimisticTransaction(view.log, view.snapshot, txn_id=txn_id, policy=policy, isolation_level=level, observer=observer)


def _set_metadata(txn: OptimisticTransaction, view: TransactionView, metadata: Metadata | None) -> None:
    """Set the metadata that writes, CREATE and REPLACE TABLE give the table, and the clustering of a new one."""
    if metadata is None:
        return
    definition: Json | None = definition_of(view.handle, [stage.write for stage in view.stages])
    if txn.read_version < 0:
        txn.update_metadata_for_new_table(metadata)
    elif definition is not None:
        txn.update_metadata_for_new_table_in_replace(metadata)
    elif any(stage.write.overwrite_schema for stage in view.stages):
        txn.update_metadata_for_table_overwrite(metadata)
    else:
        txn.update_metadata(metadata)
    if definition is not None and (definition["clusterBy"] or "clustering" in view.definition.features):
        txn.cluster_new_table(clustering_domain(definition, txn.metadata))

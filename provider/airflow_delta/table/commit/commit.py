"""The commit of staged writes as one optimistic transaction: metadata, reads and actions.

The operation that a commit of staged writes records in ``commitInfo``, with its parameters and metrics.

A table that another transaction created after this one began.

To Delta that is a conflict, which would fail all but one of the first runs of a backfill. It is safe to continue if the other
created exactly the table that this one would have created: the transaction is then based on that first version, and everything
committed since is checked as usual.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import msgspec

from airflow_delta.contract.payloads import CommitResult, StagedWrite, TransactionHandle
from airflow_delta.contract.tags import APP_ID_TAG
from airflow_delta.exceptions import (
    ConcurrentAppendException,
    ConcurrentTransactionException,
    MetadataChangedException,
    ProtocolChangedException,
    VersionNotFoundException,
)
from airflow_delta.log.actions.actions import Action, AddFile, Metadata, RemoveFile, SetTransaction
from airflow_delta.log.features import protocol
from airflow_delta.log.statistics.statistics import live_records, total
from airflow_delta.log.table_definition import TableDefinition
from airflow_delta.table.commit.alter import (
    adopt_altered,
    altered_table,
    changes_to_commit,
    feature_tags,
    identity_marks,
    operation_tags,
    operation_with,
    with_altered_reads,
)
from airflow_delta.table.definition.altered_table import AlteredTable, is_alter
from airflow_delta.table.definition.create import clustering_domain, defined_operation, definition_of
from airflow_delta.table.definition.evolve import new_metadata
from airflow_delta.table.stage.file_loads import LOADED_BY_OTHERS, keep_records, loads_to_commit
from airflow_delta.table.stage.load import StageActions
from airflow_delta.table.stage.net_effect import NetEffect, find_replaced
from airflow_delta.table.stage.source_positions import MOVED_BY_OTHERS, positions_to_commit
from airflow_delta.table.stage.view import ReadVersion, TransactionView
from airflow_delta.table.state.commit_result import request_as_json, result_of_transaction
from airflow_delta.transaction import Operation, OptimisticTransaction
from airflow_delta.transaction.conflicts.errors import creator_of
from airflow_delta.transaction.conflicts.winning_commit import WinningCommit
from airflow_delta.transaction.events import CONFLICT, held_back
from airflow_delta.transaction.policy import check_user_metadata
from airflow_delta.transaction.reads.app_ids import LOOKED_UP

if TYPE_CHECKING:
    from airflow_delta.contract.payloads import Json
    from airflow_delta.log.actions.actions import Metadata
    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.table.stage.view import TransactionView
    from airflow_delta.transaction import CommitPolicy, PostCommitHook


_JOINS: dict[str, Callable[[Iterable[int]], int]] = {"minFileSize": min, "maxFileSize": max}
_PERCENTILES = ("p25FileSize", "p50FileSize", "p75FileSize")  # unknown for several stages together


def operation_of(metadata: Metadata, stages: Sequence[StageActions], replaced: NetEffect) -> Operation:
    """Return the one operation of all stages that change something; of several operations, ``WRITE``."""
    definition = next((stage.write.definition for stage in stages if stage.write.definition), None)
    if definition is not None:
        return defined_operation(definition, metadata, [stage.write for stage in stages], replaced.adds, replaced.removes)
    # A CREATE TABLE that found its table, or an append without rows, does not name what the others do.
    deciding = [stage for stage in stages if not _appends_nothing(stage)] or stages
    operations = {stage.write.operation for stage in deciding}
    if len(operations) == 1 and operations != {"WRITE"}:
        return _other([stage.write for stage in deciding])
    return _write(metadata, stages, replaced)


def _appends_nothing(stage: StageActions) -> bool:
    write = stage.write
    is_append = write.operation == "WRITE" and write.mode == "append" and not write.merge_schema
    return is_append and not (stage.adds or stage.removes or stage.changes)


def _other(writes: Sequence[StagedWrite]) -> Operation:
    """Return an operation whose stages counted their metrics: they add up, and lists of parameters are joined."""
    parameters: dict[str, Any] = {}
    metrics: dict[str, Any] = {}
    for write in writes:
        for name, value in write.parameters.items():
            known = parameters.setdefault(name, value)
            if known != value and isinstance(known, list) and isinstance(value, list):
                parameters[name] = [*known, *(item for item in value if item not in known)]
        for name, count in write.metrics.items():
            join = _JOINS.get(name, sum)
            metrics[name] = join((metrics[name], count)) if name in metrics else count
    if len(writes) > 1:
        metrics = {name: count for name, count in metrics.items() if name not in _PERCENTILES}
    return Operation(writes[0].operation, parameters, metrics)


def _write(metadata: Metadata, stages: Sequence[StageActions], replaced: NetEffect) -> Operation:
    """Return the ``WRITE`` as ``commitInfo`` records it (Delta's ``DeltaOperations.Write`` and its metrics)."""
    writes = [stage.write for stage in stages]
    adds = replaced.adds
    rows = [write.num_records for write in writes]
    overwrite = any(write.mode != "append" for write in writes)
    predicates = list(dict.fromkeys(write.replace_where for write in writes if write.replace_where is not None))
    metrics: dict[str, Any] = {"numFiles": len(adds), "numOutputBytes": sum(add.size for add in adds)}
    if not any(count is None for count in rows):
        metrics["numOutputRows"] = sum(count or 0 for count in rows)
    if overwrite or replaced.removes:
        metrics["numRemovedFiles"] = len(replaced.removes)
        metrics["numRemovedBytes"] = sum(remove.size or 0 for remove in replaced.removes)
    copied = sum(write.num_copied_records for write in writes)
    replacing = next((write.parameters for write in writes if write.operation == "WRITE" and write.parameters), {})
    if replacing and "numOutputRows" in metrics:  # here, Delta counts copied rows too
        metrics["numOutputRows"] += copied
    if predicates or replacing:
        deleted = [live_records(remove) for remove in replaced.removes]
        metrics["numCopiedRows"] = copied
        metrics["numAddedChangeFiles"] = sum(len(stage.changes) for stage in stages)
        if not any(count is None for count in deleted):
            metrics["numDeletedRows"] = sum(count or 0 for count in deleted) - copied
    return Operation.write(
        "Overwrite" if overwrite else "Append",
        list(metadata.partition_columns),
        predicate=predicates[0] if len(predicates) == 1 else " OR ".join(f"({p})" for p in predicates) or None,
        dynamic_partition_overwrite=True if any(write.mode == "dynamic" for write in writes) else None,
        can_overwrite_schema=True if any(write.overwrite_schema for write in writes) else None,
        can_merge_schema=True if any(write.merge_schema for write in writes) else None,
        replace_on=replacing.get("replaceOnCond"),
        replace_using=replacing.get("replaceUsingCols"),
        metrics=metrics,
    )


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


logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitOptions:
    """What the caller of a commit decides; see :func:`airflow_delta.table.commit.publish.publish`.

    :param transactions: further applications whose versions the commit sets; a concurrent commit of one of them is a conflict.
    """

    policy: CommitPolicy | None = None
    tags: Mapping[str, str] | None = None
    user_metadata: str | None = None
    hooks: Sequence[PostCommitHook] = ()
    transactions: Mapping[str, int] = field(default_factory=dict)

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
                raise _created_otherwise(error, view.log) from error
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
            raise _created_otherwise(error, view.log) from error


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
    txn = _transaction(view, options.policy, txn_id=handle.transaction_id)
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
    positions = {source.app_id: source.version for source in positions_to_commit(view)}
    loads = loads_to_commit(view, created=created)
    read_for = dict.fromkeys(positions, MOVED_BY_OTHERS) | dict.fromkeys(loads.versions, LOADED_BY_OTHERS)
    positions |= loads.versions
    if loads.unshared:
        txn.track_app_ids_by(loads.conflict_with)
    for app_id, version in {**options.transactions, **positions}.items():
        txn.txn_version(app_id, read_for.get(app_id, LOOKED_UP))
        txn.update_set_transaction(SetTransaction(app_id=app_id, version=version, last_updated=now))
    actions: list[Action] = [key, *replaced.adds, *removes, *changes_to_commit(handle, data, replaced)]
    tags = {**(options.tags or {}), **feature_tags(txn, data), APP_ID_TAG: handle.app_id}
    if altered is None:
        operation = operation_of(txn.metadata, data, replaced)
    else:
        written = operation_of(txn.metadata, data, replaced) if data else None
        operation = operation_with(altered, written, view.snapshot.metadata.partition_columns)
        tags |= operation_tags(altered, written)
    return StagedCommit(txn=txn, view=view, data=data, replaced=replaced, actions=actions, operation=operation, tags=tags)


def _commit(staged: StagedCommit, options: CommitOptions) -> CommitResult:
    """Commit what the stages amount to."""
    txn = staged.txn
    keep_records(staged.view)
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


def _transaction(view: TransactionView, policy: CommitPolicy | None, *, txn_id: str | None = None) -> OptimisticTransaction:
    level = view.handle.isolation_level
    return OptimisticTransaction(view.log, view.snapshot, txn_id=txn_id, policy=policy, isolation_level=level)


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

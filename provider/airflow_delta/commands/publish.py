"""Publish what the stages of a transaction wrote: one commit or nothing."""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from airflow_delta.commands.alter_publish import adopt_altered, altered_table, data_stages, operation_tags, operation_with
from airflow_delta.commands.alter_table import AlteredTable, handle_of
from airflow_delta.commands.committed import find_commit, result_without_commit, touched_partitions
from airflow_delta.commands.created import adopt_created_table, check_nothing_replaced
from airflow_delta.commands.definition import clustering_domain, definition_of
from airflow_delta.commands.earlier import in_order
from airflow_delta.commands.feature_commits import changes_to_commit, feature_tags, identity_marks
from airflow_delta.commands.metadata import new_metadata
from airflow_delta.commands.operation import operation_of
from airflow_delta.commands.optimize_result import request_as_json
from airflow_delta.commands.replaced import find_replaced
from airflow_delta.commands.stage_conflicts import check_stages
from airflow_delta.commands.staged import StageActions, check_files, load_actions, parse_staged
from airflow_delta.commands.table import read_snapshot
from airflow_delta.exceptions import (
    CommitStateUnknownException,
    DeltaError,
    MetadataChangedException,
    ProtocolChangedException,
    TransactionAbortedException,
    TransactionAlreadyCommittedException,
)
from airflow_delta.log.actions import Action, AddFile, Metadata, SetTransaction
from airflow_delta.staging.contract import CommitResult, StagedWrite, TransactionHandle
from airflow_delta.staging.paths import (
    ABORT_MARKER,
    COMMIT_MARKER_PREFIX,
    REPORT_DIRECTORY,
    REQUEST_NAME,
    SCAN_DIRECTORY,
    attempt_directory,
    transaction_directory,
)

if TYPE_CHECKING:
    from airflow_delta.log import DeltaLog, Snapshot
    from airflow_delta.transaction import CommitPolicy, Operation, OptimisticTransaction, PostCommitHook

logger = logging.getLogger(__name__)


def publish(
    log: DeltaLog,
    handle: TransactionHandle,
    staged: Sequence[StagedWrite | Mapping[str, Any]],
    *,
    attempt: str,
    expected: Mapping[str, int] | int | None = None,
    policy: CommitPolicy | None = None,
    tags: Mapping[str, str] | None = None,
    user_metadata: str | None = None,
    hooks: Sequence[PostCommitHook] = (),
) -> CommitResult:
    """Check the staged writes, check for conflicts, and commit them as one version.

    A transaction that the log already holds is returned as it was committed (``committed_before``).

    :param staged: results of the stages, in any order.
    :param attempt: unique name of this execution of the commit (:func:`airflow_delta.staging.paths.new_attempt`).
    :param expected: how many stages must have reported: by task id, or in total.
    :param tags: ``commitInfo.tags``: who commits (Dag, run, task, try).
    :param hooks: run after the commit, beside those of the table.
    :raises ForeignTransactionException: a staged write belongs to another execution of start.
    :raises MissingStageException: a stage did not report.
    :raises ManifestException: a manifest is missing, truncated or altered.
    :raises StagedFileException: a listed file is gone or has another size.
    :raises StageConflictException: two stages contradict each other.
    :raises TransactionAbortedException: the transaction was aborted.
    :raises VersionNotFoundException: the log no longer holds the version that was read.
    :raises DeltaConcurrentModificationException: another commit conflicts; final for this transaction.
    :raises CommitStateUnknownException: the store did not say whether the entry was written. Nothing is cleaned up.
    """
    if handle.committed is not None:
        return replace(handle.committed, committed_before=True)
    if (before := committed_before(log, handle)) is not None:
        _clean_up(log, handle, [])
        return before
    writes = parse_staged(handle, staged, expected)
    with _fence(log, handle, attempt):
        stages = in_order(handle, load_actions(log, handle, writes))
        check_stages(handle, stages)
        check_files(log.store, handle, stages)
        result = _commit(log, handle, stages, policy, tags, user_metadata, hooks)
    _clean_up(log, handle, writes)
    return result


def committed_before(log: DeltaLog, handle: TransactionHandle) -> CommitResult | None:
    """Return the result of this transaction when the log holds it: an earlier attempt committed it and could not say so.

    Under ``skip`` a commit of the same key by another execution of start counts as well.

    :raises TransactionAlreadyCommittedException: another execution committed the key, and the policy is ``fail``.
    """
    snapshot = log.update()
    last = snapshot.transaction_version(handle.app_id) if snapshot.version >= 0 else None
    if last is None or last < handle.txn_version:
        return None
    since = max(handle.read_version + 1, 0)
    own = find_commit(log, app_id=handle.app_id, transaction_id=handle.transaction_id, since=since)
    if own is not None or handle.rerun_policy in ("append", "replace"):
        return own
    other = find_commit(log, app_id=handle.app_id, txn_version=handle.txn_version) or result_without_commit(log, handle)
    if handle.rerun_policy == "fail":
        raise TransactionAlreadyCommittedException(
            f"Another execution of transaction {handle.app_id!r} committed it to table {log.uri} in version "
            f"{other.version}, after this "
            f"one read version {handle.read_version}. Nothing more is committed.",
            table=log.uri,
            version=other.version,
        )
    return other


def _commit(
    log: DeltaLog,
    handle: TransactionHandle,
    stages: Sequence[StageActions],
    policy: CommitPolicy | None,
    tags: Mapping[str, str] | None,
    user_metadata: str | None,
    hooks: Sequence[PostCommitHook],
) -> CommitResult:
    snapshot = read_snapshot(log, handle)
    _check_same_table(handle, snapshot)
    altered = altered_table(handle, snapshot, stages)
    if altered is not None:
        return _attempt(log, handle, snapshot, None, stages, policy, tags, user_metadata, hooks, altered=altered)
    metadata = new_metadata(handle, snapshot, [stage.write for stage in stages])
    try:
        return _attempt(log, handle, snapshot, metadata, stages, policy, tags, user_metadata, hooks)
    except (ProtocolChangedException, MetadataChangedException) as error:
        if handle.read_version >= 0 or metadata is None:
            raise
        definition = definition_of(handle, [stage.write for stage in stages])
        if definition is not None and definition["mode"] != "create_if_not_exists":
            raise
        created = adopt_created_table(log, handle, metadata)
        if created is None:
            raise _created_otherwise(error, log) from error
    snapshot, rebased = created
    logger.info("Table %s was created by another transaction; going on from its version 0.", log.uri)
    stages = [stage for stage in stages if not stage.write.definition]
    return _attempt(log, rebased, snapshot, None, stages, policy, tags, user_metadata, hooks, created=True)


def _attempt(
    log: DeltaLog,
    handle: TransactionHandle,
    snapshot: Snapshot,
    metadata: Metadata | None,
    stages: Sequence[StageActions],
    policy: CommitPolicy | None,
    tags: Mapping[str, str] | None,
    user_metadata: str | None,
    hooks: Sequence[PostCommitHook],
    *,
    created: bool = False,
    altered: AlteredTable | None = None,
) -> CommitResult:
    from airflow_delta.transaction import OptimisticTransaction

    txn = OptimisticTransaction(
        log, snapshot, txn_id=handle.transaction_id, policy=policy, isolation_level=handle.isolation_level
    )
    for hook in hooks:
        txn.register_post_commit_hook(hook)
    # The key was looked up by start: a concurrent commit of the same key is a conflict.
    txn.txn_version(handle.app_id)
    definition = definition_of(handle, [stage.write for stage in stages])
    if metadata is not None and snapshot.version < 0:
        txn.update_metadata_for_new_table(metadata)
    elif metadata is not None and definition is not None:
        txn.update_metadata_for_new_table_in_replace(metadata)
    elif metadata is not None and any(stage.write.overwrite_schema for stage in stages):
        txn.update_metadata_for_table_overwrite(metadata)
    elif metadata is not None:
        txn.update_metadata(metadata)
    elif altered is not None:
        adopt_altered(txn, altered)
        stages, handle = data_stages(handle, stages), handle_of(handle, altered)
    if definition is not None and (definition["clusterBy"] or "clustering" in handle.features):
        txn.cluster_new_table(clustering_domain(definition, txn.metadata))
    txn.update_identity_high_water_marks(identity_marks(handle, stages))
    if created:
        check_nothing_replaced(txn, handle, stages)
    replaced = find_replaced(log, txn, handle, stages)
    now = int(time.time() * 1000)
    removes = [msgspec.structs.replace(remove, deletion_timestamp=now) for remove in replaced.removes]
    adds = replaced.adds
    changes = changes_to_commit(handle, stages, replaced)
    key = SetTransaction(app_id=handle.app_id, version=handle.txn_version, last_updated=now)
    actions: list[Action] = [key, *adds, *removes, *changes]
    all_tags = {**(tags or {}), **feature_tags(txn, stages), "airflow.appId": handle.app_id}
    if altered is None:
        operation = operation_of(txn.metadata, stages, replaced)
    else:
        data = operation_of(txn.metadata, stages, replaced) if stages else None
        operation = operation_with(altered, data, snapshot.metadata.partition_columns)
        all_tags |= operation_tags(altered, data)
    txn.commit(actions, operation, tags=all_tags, user_metadata=user_metadata)
    return _result(log, handle, txn, stages, adds, len(removes), operation)


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


def _check_same_table(handle: TransactionHandle, snapshot: Snapshot) -> None:
    if snapshot.version >= 0 and handle.table_id is not None and snapshot.metadata.id != handle.table_id:
        raise MetadataChangedException(
            f"Table {handle.table} has the id {snapshot.metadata.id} at version {snapshot.version}, the transaction read "
            "a table with "
            f"the id {handle.table_id}: it was deleted and created again. Clear the start task.",
            table=handle.table,
            winning_version=snapshot.version,
        )


def _result(
    log: DeltaLog,
    handle: TransactionHandle,
    txn: OptimisticTransaction,
    stages: Sequence[StageActions],
    adds: Sequence[AddFile],
    num_removed: int,
    operation: Operation,
) -> CommitResult:
    outcome = txn.outcome
    if outcome is None:
        raise CommitStateUnknownException(f"The commit to table {log.uri} returned without an outcome", table=log.uri)
    counts = [stage.write.num_records for stage in stages]
    return CommitResult(
        table=log.uri,
        table_id=txn.metadata.id,
        version=outcome.version,
        read_version=handle.read_version,
        transaction_id=handle.transaction_id,
        app_id=handle.app_id,
        txn_version=handle.txn_version,
        operation=operation.name,
        attempts=outcome.attempts,
        versions_checked=outcome.versions_checked,
        isolation_level=outcome.commit_info.isolation_level,
        is_blind_append=outcome.commit_info.is_blind_append,
        timestamp=outcome.timestamp,
        num_files=len(adds),
        num_removed_files=num_removed,
        num_records=None if any(count is None for count in counts) else sum(count or 0 for count in counts),
        num_bytes=sum(add.size for add in adds),
        partitions=touched_partitions(adds),
        auto_compaction=None if outcome.auto_compaction is None else request_as_json(outcome.auto_compaction),
    )


@contextmanager
def _fence(log: DeltaLog, handle: TransactionHandle, attempt: str) -> Iterator[None]:
    """Hold the commit marker of this attempt, unless the transaction was aborted.

    The marker goes first, the look for the abort marker second; abort does it the other way round. It is left where it is when
    it is not certain that nothing was written: then nobody may delete the staged files.

    :raises TransactionAbortedException: the transaction was aborted.
    """
    directory = transaction_directory(handle.transaction_id)
    marker = f"{directory}/{COMMIT_MARKER_PREFIX}{attempt}"
    with contextlib.suppress(FileExistsError):
        log.store.put_if_absent(marker, json.dumps({"startedAt": int(time.time() * 1000)}).encode(), durable=False)
    try:
        if log.store.head(f"{directory}/{ABORT_MARKER}") is not None:
            raise TransactionAbortedException(
                f"Transaction {handle.transaction_id} on table {handle.table} (read version {handle.read_version}) was "
                "aborted; its "
                "staged files may be gone. Clear the start task to begin a new one.",
                table=handle.table,
                version=handle.read_version,
            )
        yield
    except CommitStateUnknownException:
        raise
    except DeltaError:
        _delete_quietly(log, [marker])
        raise
    _delete_quietly(log, [marker])


def _clean_up(log: DeltaLog, handle: TransactionHandle, writes: Sequence[StagedWrite]) -> None:
    """Delete what only the way to the commit needed; what is left of it harms nobody, and the commit stands."""
    try:
        paths = [write.manifest.path for write in writes if write.manifest is not None]
        for write in writes:
            directory = attempt_directory(handle.transaction_id, write.stage, write.attempt)
            if log.store.head(f"{directory}/{REQUEST_NAME}") is not None:
                paths.append(f"{directory}/{REQUEST_NAME}")
                log.store.delete_tree(f"{directory}/{REPORT_DIRECTORY}")
        if "deletionVectors" in handle.features:  # hidden, so that no VACUUM would collect it
            log.store.delete_tree(f"{transaction_directory(handle.transaction_id)}/{SCAN_DIRECTORY}")
        _delete_quietly(log, paths)
    except Exception as error:  # noqa: BLE001 - as there
        logger.warning("Could not clean up after transaction %s on table %s: %s", handle.transaction_id, log.uri, error)


def _delete_quietly(log: DeltaLog, paths: Sequence[str]) -> None:
    if not paths:
        return
    try:
        log.store.delete(paths)
    except Exception as error:  # noqa: BLE001 - the outcome of the commit stands; maintenance deletes leftovers
        logger.warning("Could not delete %s of table %s: %s", ", ".join(paths), log.uri, error)

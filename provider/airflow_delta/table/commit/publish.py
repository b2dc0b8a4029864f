"""Publish what the stages of a transaction wrote: one commit or nothing."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_delta.contract.payloads import CommitResult, StagedWrite, TransactionHandle
from airflow_delta.contract.staging_directory import (
    KEYS_NAME,
    REPORT_DIRECTORY,
    REQUEST_NAME,
    SCAN_DIRECTORY,
    attempt_directory,
    transaction_directory,
)
from airflow_delta.exceptions import TransactionAlreadyCommittedException
from airflow_delta.log.intent_rules import taken_back_error
from airflow_delta.table.commit.commit import CommitOptions, commit_stages
from airflow_delta.table.commit.rules import commit_rules
from airflow_delta.table.definition.altered_table import is_alter
from airflow_delta.table.stage.conflicts import check_stages
from airflow_delta.table.stage.load import check_staged_files
from airflow_delta.table.stage.staged_writes import Expected, check_reported, parse_staged
from airflow_delta.table.stage.view import view_of
from airflow_delta.table.state.commit_result import result_without_commit
from airflow_delta.table.state.ended import own_commit
from airflow_delta.table.state.find_commit import committed_earlier, find_commit, standing_version, stands
from airflow_delta.table.state.key_users import KeyUser, check_key_of_run, check_key_of_table
from airflow_delta.table.state.markers import delete_quietly, fence, mark_committed

if TYPE_CHECKING:
    from airflow_delta.log import Snapshot
    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.table.stage.view import ReadVersion
    from airflow_delta.transaction import CommitPolicy, PostCommitHook

logger = logging.getLogger(__name__)


def publish(
    log: DeltaLog,
    handle: TransactionHandle,
    staged: Sequence[StagedWrite | Mapping[str, Any]],
    *,
    attempt: str,
    expected: Expected | None = None,
    check: Callable[[], Mapping[str, str] | None] | None = None,
    policy: CommitPolicy | None = None,
    tags: Mapping[str, str] | None = None,
    user_metadata: str | None = None,
    hooks: Sequence[PostCommitHook] = (),
    user: KeyUser | None = None,
) -> CommitResult:
    """Check the staged writes, check for conflicts, and commit them as one version.

    If the log already holds the transaction, its commit is returned (``committed_before``).

    :param staged: results of the stages, in any order.
    :param attempt: unique name of this execution of the commit (:func:`airflow_delta.contract.staging_directory.new_attempt`).
    :param expected: the stages that must have reported, by task id and map index; ``None``: not checked.
    :param check: called before anything is published, unless the log holds the transaction; raises what forbids it, and
        returns tags that say what was checked.
    :param tags: ``commitInfo.tags``: who commits (Dag, run, task, try).
    :param hooks: run after the commit, beside those of the table.
    :param user: who commits, for :mod:`airflow_delta.table.state.key_users`: by now another run may have committed the key,
        or this run under another one.
    :raises TransactionAlreadyCommittedException: if another execution has committed the key, and the policy is ``fail`` or the
        user of the key does not share it, or if the run has committed under another key.
    :raises HandleMismatchException: if the handle says that the key is committed and the log does not.
    :raises ForeignTransactionException: if a staged write belongs to another execution of start.
    :raises MissingStageException: if a stage did not report.
    :raises ManifestException: if a manifest is missing, truncated or altered.
    :raises StagedFileException: if a listed file is gone or has another size.
    :raises StageConflictException: if two stages contradict each other.
    :raises NonEmptyLocationException: if the commit would create the table where other files are by now.
    :raises TransactionAbortedException: if the transaction was aborted.
    :raises VersionNotFoundException: if the log no longer holds the version that was read.
    :raises DeltaConcurrentModificationException: if another commit conflicts; final for this transaction.
    :raises CommitStateUnknownException: if the store did not say whether the entry was written. Nothing is cleaned up.
    """
    if handle.committed is not None:
        return committed_earlier(log, handle)
    reports = [write if isinstance(write, StagedWrite) else StagedWrite.from_dict(write) for write in staged]
    if (before := committed_before(log, handle)) is not None:
        if before.transaction_id == handle.transaction_id:  # the attempt that committed may have died before this
            mark_committed(log, handle.transaction_id, before.version)
        else:
            check_key_of_table(log.uri, handle, before, user)
        clean_up(log, handle, [], log.snapshot)
        return before
    if expected is not None:  # only now: a stage that the Dag file has since does not undo a commit
        check_reported(handle, reports, expected)
    if handle.rerun_policy != "append" and log.snapshot.version >= 0:
        check_key_of_run(log, log.snapshot, handle.app_id, user, after=handle.read_version)
    checked = check() if check is not None else None
    writes = parse_staged(handle, reports)
    with fence(log, handle, attempt) as held:
        told = {**(tags or {}), **(checked or {})}
        options = CommitOptions(policy=held.policy(policy), tags=told, user_metadata=user_metadata, hooks=hooks)
        view = view_of(log, handle, writes)
        check_stages(view)
        check_staged_files(log.store, handle, view.stages)
        if handle.read_version < 0 and log.update().version < 0:
            from airflow_delta.table.start.location import check_location

            check_location(log)
        result = commit_stages(view, options)
        held.version = result.version
    clean_up(log, handle, writes, view.read)
    return result


def committed_before(log: DeltaLog, handle: TransactionHandle, snapshot: Snapshot | None = None) -> CommitResult | None:
    """Return the result of this transaction if the log holds it: an earlier attempt committed it and could not say so.

    Under ``skip``, a commit of the same key by another execution of start counts too.

    :param snapshot: the latest version, if the log has just been looked at.
    :raises TransactionAlreadyCommittedException: if another execution committed the key, and the policy is ``fail``.
    :raises DeltaConcurrentModificationException: if its commit was taken back.
    """
    snapshot = snapshot if snapshot is not None else log.update()
    last = snapshot.transaction_version(handle.app_id) if snapshot.version >= 0 else None
    if last is None:
        return own_commit(log, handle) if _may_have_expired(snapshot, handle) else None
    if last < handle.txn_version:
        return None
    own = own_commit(log, handle)
    if own is not None and not stands(snapshot, handle.app_id, handle.txn_version):
        raise taken_back_error(log.uri, handle.transaction_id, own.version)
    if own is not None or handle.rerun_policy in ("append", "replace"):
        return own
    standing = standing_version(snapshot, handle.app_id, last)
    if standing is None or standing < handle.txn_version:
        return None  # others committed the key, and it was taken back: whoever read the table before conflicts with that
    other = find_commit(log, app_id=handle.app_id, txn_version=handle.txn_version, until=standing)
    other = other or result_without_commit(log, handle)
    if handle.rerun_policy == "fail":
        raise log.error(
            TransactionAlreadyCommittedException,
            f"Another execution of transaction {handle.app_id!r} committed it to table {log.uri} in version "
            f"{other.version}, after this one read version {handle.read_version}. Nothing more is committed.",
            version=other.version,
        )
    return other


def _may_have_expired(snapshot: Snapshot, handle: TransactionHandle) -> bool:
    """Return whether a commit of this transaction may be older than the keys that the table keeps.

    The time of the version that was read tells, if it is the store's: an in-commit timestamp is what a writer claims.
    """
    retention = snapshot.properties.set_transaction_retention if snapshot.version > handle.read_version else None
    if retention is None:
        return False
    claimed = snapshot.properties.enable_in_commit_timestamps
    return claimed or (handle.timestamp or 0) < int(time.time() * 1000) - retention


def clean_up(log: DeltaLog, handle: TransactionHandle, writes: Sequence[StagedWrite], version: Snapshot | ReadVersion) -> None:
    """Delete files that only the commit itself needed; leftovers do no harm, and the commit is valid.

    :param version: of the table, for its features.
    """
    try:
        paths = [write.manifest.path for write in writes if write.manifest is not None]
        for write in writes:
            directory = attempt_directory(handle.transaction_id, write.stage, write.attempt)
            for rule in commit_rules():
                paths += rule.leftovers(write)
            if any(key.file is not None for key in write.reads.keys):
                paths.append(f"{directory}/{KEYS_NAME}")
            if log.store.head(f"{directory}/{REQUEST_NAME}") is not None:
                paths.append(f"{directory}/{REQUEST_NAME}")
                log.store.delete_tree(f"{directory}/{REPORT_DIRECTORY}")
        changes_table = any(is_alter(write) or write.definition for write in writes)
        if changes_table or "deletionVectors" in version.definition.features:  # hidden, so VACUUM would not collect it
            log.store.delete_tree(f"{transaction_directory(handle.transaction_id)}/{SCAN_DIRECTORY}")
        delete_quietly(log, paths)
    except Exception as error:  # noqa: BLE001 - as there
        logger.warning("Could not clean up after transaction %s on table %s: %s", handle.transaction_id, log.uri, error)

"""Begin, stage and commit an operation in one call: on Spark, or in the worker (RESTORE, CLONE, CONVERT, COMPUTE STATS)."""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow_delta.contract.payloads import CommitResult, StagedWrite, TransactionHandle
from airflow_delta.contract.staging_directory import transaction_directory
from airflow_delta.contract.tags import APP_ID_TAG
from airflow_delta.exceptions import (
    CommitStateUnknownException,
    DeltaConcurrentModificationException,
    TransactionAlreadyCommittedException,
)
from airflow_delta.log.actions.actions import Action, AddFile, RemoveFile, SetTransaction
from airflow_delta.table.abort import abort
from airflow_delta.table.commit.publish import publish
from airflow_delta.table.start.begin import begin
from airflow_delta.table.state.commit_result import result_of_nothing, result_of_transaction
from airflow_delta.table.state.find_commit import own_after_conflict
from airflow_delta.table.state.markers import fence, has_abort_marker, read_markers
from airflow_delta.table.state.read_snapshot import snapshot_of_transaction
from airflow_delta.transaction import OptimisticTransaction
from airflow_delta.transaction.commit.hooks import run_hooks
from airflow_delta.transaction.policy import check_user_metadata

if TYPE_CHECKING:
    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.table.state.markers import Fence
    from airflow_delta.transaction import CommitPolicy, Operation, PostCommitHook


logger = logging.getLogger(__name__)


def run_transaction(
    log: DeltaLog,
    stage: Callable[[TransactionHandle], Sequence[StagedWrite] | None],
    *,
    attempt: str,
    max_restarts: int = 0,
    policy: CommitPolicy | None = None,
    tags: Mapping[str, str] | None = None,
    user_metadata: str | None = None,
    hooks: Sequence[PostCommitHook] = (),
    **start: Any,
) -> CommitResult:
    """Run an operation as its own transaction and return its commit.

    An identity that the log already holds does not run again (``rerun_policy``). Staged files that can no longer be committed are
    deleted.

    :param stage: stages the operation for a transaction; runs once, and again for every restart. It returns ``None`` if there is
        nothing to do and it has staged nothing: then nothing is committed, and the identity runs again.
    :param attempt: unique name of this execution (:func:`airflow_delta.contract.staging_directory.new_attempt`).
    :param max_restarts: how often the operation starts over, on the newest version, after a logical conflict.
    :param start: parameters of :func:`airflow_delta.table.start.begin.begin`: the identity, the rerun policy, ...
    :raises DeltaConcurrentModificationException: if another commit conflicts, and no restart is left.
    """
    check_user_metadata(user_metadata)
    restarts = 0
    while True:
        handle = begin(log, **start)
        try:
            staged = [] if handle.committed is not None else stage(handle)
            if staged is None:
                return result_of_nothing(_transaction(log, handle, policy, ()), handle)
            return publish(
                log,
                handle,
                staged,
                attempt=attempt,
                policy=policy,
                tags=tags,
                user_metadata=user_metadata,
                hooks=hooks,
                user=start.get("user"),
            )
        except CommitStateUnknownException:
            raise
        except (DeltaConcurrentModificationException, TransactionAlreadyCommittedException) as conflict:
            _give_up(log, handle)
            if (own := own_after_conflict(log, handle.app_id, start.get("tries"))) is not None:
                return own  # two tries were running: Airflow had given one of them up
            if restarts >= max_restarts or isinstance(conflict, TransactionAlreadyCommittedException):
                raise
            restarts += 1
            logger.info(
                "Transaction %s: given up after a conflict; starting over on the newest version of %s (%s of %s): %s",
                handle.transaction_id,
                log.uri,
                restarts,
                max_restarts,
                conflict.message,
            )
        except BaseException:
            _give_up(log, handle)
            raise


def _give_up(log: DeltaLog, handle: TransactionHandle) -> None:
    with contextlib.suppress(Exception):  # the error that led here says more; maintenance deletes what is left
        abort(log, handle)


Operate = Callable[[TransactionHandle, "OptimisticTransaction"], "tuple[Sequence[Action], Operation] | None"]
"""Function that returns the actions and the name of an operation, or ``None`` if there is nothing to do."""


def run_large(
    log: DeltaLog,
    operate: Operate,
    *,
    attempt: str,
    large: bool = True,
    nothing: Callable[[], Operation] | None = None,
    stages: str | None = None,
    max_restarts: int = 0,
    policy: CommitPolicy | None = None,
    tags: Mapping[str, str] | None = None,
    user_metadata: str | None = None,
    hooks: Sequence[PostCommitHook] = (),
    **start: Any,
) -> CommitResult:
    """Run an operation in the worker as its own transaction and return its commit.

    An identity that the log already holds does not run again (``rerun_policy``); ``replace`` has nothing to take back here and
    runs it again, like ``append``.

    :param operate: computes the actions; runs once, and again for every restart.
    :param attempt: name of this execution (:func:`airflow_delta.contract.staging_directory.new_attempt`), for the task's log.
    :param large: commit as Delta's ``commitLarge``: right after the version that was read, or not at all.
    :param nothing: returns the operation to commit with the identity alone if there is nothing to do; default: commit nothing,
        so that the identity runs again.
    :param stages: what the files are of that ``operate`` writes below the staging path, if it writes any. A later try of the same
        identity has the same staging path, and may use those that it finds; an abort of the transaction keeps it from committing.
    :param max_restarts: how often the operation starts over, on the newest version, after a conflict.
    :param start: parameters of :func:`airflow_delta.table.start.begin.begin`: the identity, the rerun policy, ...
    :raises DeltaConcurrentModificationException: if another commit conflicts, and no restart is left.
    """
    check_user_metadata(user_metadata)
    restarts = 0
    while True:
        handle = begin(log, takes_back=False, **start)
        if handle.committed is not None:
            return replace(handle.committed, committed_before=True)
        if stages is not None:
            handle = _of_every_try(log, handle, stages)
        logger.info("Attempt %s of transaction %s on table %s", attempt, handle.transaction_id, log.uri)
        try:
            with nullcontext() if stages is None else fence(log, handle, attempt) as held:
                txn = _transaction(log, handle, policy if held is None else held.policy(policy), hooks)
                done = operate(handle, txn)
                # With nothing to do, it need not be the very next version.
                at_once = large and done is not None
                if done is None and nothing is not None:
                    done = (), nothing()
                if done is None:
                    result = result_of_nothing(txn, handle)
                else:
                    if held is not None:
                        held.claim()  # the work may have taken long
                    options: dict[str, Any] = {"tags": tags, "user_metadata": user_metadata, "hooks": hooks}
                    result = commit_operation(handle, txn, *done, large=at_once, **options)
                if held is not None:
                    _end(held, result)
                return result
        except DeltaConcurrentModificationException as conflict:
            if (own := own_after_conflict(log, handle.app_id, start.get("tries"))) is not None:
                return own  # two tries were running: Airflow had given one of them up
            if restarts >= max_restarts:
                raise
            restarts += 1
            logger.info(
                "Starting over on the newest version of %s (%s of %s): %s", log.uri, restarts, max_restarts, conflict.message
            )


def _transaction(
    log: DeltaLog, handle: TransactionHandle, policy: CommitPolicy | None, hooks: Sequence[PostCommitHook]
) -> OptimisticTransaction:
    snapshot = snapshot_of_transaction(log, handle)
    txn = OptimisticTransaction(
        log, snapshot, txn_id=handle.transaction_id, policy=policy, isolation_level=handle.isolation_level
    )
    for hook in hooks:
        txn.register_post_commit_hook(hook)
    return txn


def _end(held: Fence, result: CommitResult) -> None:
    if result.operation:
        held.version = result.version
    else:
        held.end_without_commit()


def _of_every_try(log: DeltaLog, handle: TransactionHandle, stages: str) -> TransactionHandle:
    """Return the handle with the transaction id that every try of its identity has, until that one is committed or aborted."""
    for number in itertools.count():
        name = json.dumps([handle.app_id, handle.txn_version, stages, number])
        transaction_id = str(uuid.uuid5(uuid.NAMESPACE_URL, name))
        # VACUUM takes what else a committed transaction has written for unused.
        if not has_abort_marker(log.store, transaction_id) and not read_markers(log.store, transaction_id).committed:
            break
    directory = transaction_directory(transaction_id)
    return replace(handle, transaction_id=transaction_id, staging_path=f"{log.uri}/{directory}")


def commit_operation(
    handle: TransactionHandle,
    txn: OptimisticTransaction,
    actions: Sequence[Action],
    operation: Operation,
    *,
    large: bool = True,
    tags: Mapping[str, str] | None = None,
    user_metadata: str | None = None,
    hooks: Sequence[PostCommitHook] = (),
) -> CommitResult:
    """Commit the actions of an operation with the identity of its transaction, and return the result.

    :param txn: transaction on the version that ``handle`` read, with its id.
    :param actions: without the ``txn`` action of the identity, which is added here.
    :param large: commit as Delta's ``commitLarge``.
    :param hooks: run after a ``commitLarge``, which itself only writes a checkpoint.
    """
    txn.txn_version(handle.app_id)  # a concurrent commit of the same identity is a conflict
    key = SetTransaction(app_id=handle.app_id, version=handle.txn_version, last_updated=int(time.time() * 1000))
    everything: list[Action] = [key, *actions]
    all_tags = {**(tags or {}), APP_ID_TAG: handle.app_id}
    commit = txn.commit_large if large else txn.commit
    version = commit(everything, operation, tags=all_tags, user_metadata=user_metadata)
    if large and hooks:
        run_hooks(hooks, txn, version, everything)
    adds = [action for action in actions if isinstance(action, AddFile)]
    num_removed_files = sum(isinstance(action, RemoveFile) for action in actions)
    return result_of_transaction(txn, operation.name, adds, handle=handle, num_removed_files=num_removed_files)

"""Begin an operation on the whole table and commit it at once: RESTORE, CLONE, CONVERT, COMPUTE STATS."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow_delta.commands.begin.begin import begin
from airflow_delta.commands.begin.read_snapshot import read_snapshot
from airflow_delta.commands.outcome.find_commit import own_after_conflict, touched_partitions
from airflow_delta.exceptions import CommitStateUnknownException, DeltaConcurrentModificationException
from airflow_delta.log.actions.actions import Action, AddFile, RemoveFile, SetTransaction
from airflow_delta.staging.contract import CommitResult, TransactionHandle

if TYPE_CHECKING:
    from airflow_delta.log import DeltaLog
    from airflow_delta.transaction import CommitPolicy, Operation, OptimisticTransaction, PostCommitHook

logger = logging.getLogger(__name__)

Operate = Callable[[TransactionHandle, "OptimisticTransaction"], "tuple[Sequence[Action], Operation] | None"]
"""What an operation does in its transaction: returns its actions and its name, or ``None`` when there is nothing to do."""


def run_large(
    log: DeltaLog,
    operate: Operate,
    *,
    attempt: str,
    large: bool = True,
    nothing: Callable[[], Operation] | None = None,
    max_restarts: int = 0,
    policy: CommitPolicy | None = None,
    tags: Mapping[str, str] | None = None,
    user_metadata: str | None = None,
    hooks: Sequence[PostCommitHook] = (),
    **start: Any,
) -> CommitResult:
    """Run an operation in the worker as a transaction of its own, and return its commit.

    An identity that the log already holds is not run again (``rerun_policy``); ``replace`` has nothing to take back here and does
    it again, as ``append`` does.

    :param operate: computes the actions; runs once, and again for every restart.
    :param attempt: name of this execution (:func:`airflow_delta.staging.paths.new_attempt`), for the task's log.
    :param large: commit as Delta's ``commitLarge``: right after the version that was read, or not at all.
    :param nothing: name of the operation to commit with the identity alone when there is nothing to do; default: nothing is
        committed then, and the identity runs again.
    :param max_restarts: how often the operation is begun anew, on the newest version, after a conflict.
    :param start: parameters of :func:`airflow_delta.commands.begin.begin.begin`: the identity, the rerun policy, ...
    :raises DeltaConcurrentModificationException: another commit conflicts, and no restart is left.
    """
    from airflow_delta.transaction import OptimisticTransaction

    restarts = 0
    while True:
        handle = begin(log, **start)
        if handle.committed is not None:
            return replace(handle.committed, committed_before=True)
        logger.info("Attempt %s of transaction %s on table %s", attempt, handle.transaction_id, log.uri)
        snapshot = read_snapshot(log, handle)
        txn = OptimisticTransaction(
            log, snapshot, txn_id=handle.transaction_id, policy=policy, isolation_level=handle.isolation_level
        )
        for hook in hooks:
            txn.register_post_commit_hook(hook)
        try:
            done = operate(handle, txn)
            # Whatever others commit meanwhile, there was nothing to do: that need not be the very next version.
            at_once = large and done is not None
            if done is None:
                if nothing is None:
                    return _nothing(log, handle)
                done = (), nothing()
            actions, operation = done
            return commit_operation(
                log, handle, txn, actions, operation, large=at_once, tags=tags, user_metadata=user_metadata, hooks=hooks
            )
        except DeltaConcurrentModificationException as conflict:
            if (own := own_after_conflict(log, handle.app_id, start.get("tries"))) is not None:
                return own  # two tries were at work: Airflow had given one of them up
            if restarts >= max_restarts:
                raise
            restarts += 1
            logger.warning(
                "Begin again on the newest version of %s (%s of %s): %s", log.uri, restarts, max_restarts, conflict.message
            )


def commit_operation(
    log: DeltaLog,
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
    """Commit the actions of an operation together with the identity of its transaction, and return the result.

    :param txn: transaction on the version that ``handle`` read, with its id.
    :param actions: without the ``txn`` action of the handle's identity, which is added here.
    :param large: commit as Delta's ``commitLarge``.
    :param hooks: run after a ``commitLarge``, which runs none of its own but the checkpoint.
    :raises ConcurrentWriteException: ``large``, and another writer has the next version.
    :raises DeltaConcurrentModificationException: not ``large``, and another commit conflicts.
    :raises CommitStateUnknownException: the store did not say whether the entry was written.
    """
    txn.txn_version(handle.app_id)  # a concurrent commit of the same identity is a conflict
    key = SetTransaction(app_id=handle.app_id, version=handle.txn_version, last_updated=int(time.time() * 1000))
    everything: list[Action] = [key, *actions]
    all_tags = {**(tags or {}), "airflow.appId": handle.app_id}
    commit = txn.commit_large if large else txn.commit
    version = commit(everything, operation, tags=all_tags, user_metadata=user_metadata)
    if large and hooks:
        from airflow_delta.transaction.commit.hooks import run_hooks

        run_hooks(hooks, txn, version, everything)
    outcome = txn.outcome
    if outcome is None:
        raise CommitStateUnknownException(f"The commit to table {log.uri} returned without an outcome", table=log.uri)
    adds = [action for action in actions if isinstance(action, AddFile)]
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
        num_removed_files=sum(isinstance(action, RemoveFile) for action in actions),
        num_bytes=sum(add.size for add in adds),
        partitions=touched_partitions(adds),
    )


def _nothing(log: DeltaLog, handle: TransactionHandle) -> CommitResult:
    """Return the result of an operation that found nothing to do: no version, no identity in the log."""
    return CommitResult(
        table=log.uri,
        table_id=handle.table_id,
        version=handle.read_version,
        read_version=handle.read_version,
        transaction_id=handle.transaction_id,
        app_id=handle.app_id,
        txn_version=handle.txn_version,
        operation="",
        attempts=0,
    )

"""Begin, stage and commit an operation in one call."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_delta.commands.begin.begin import begin
from airflow_delta.commands.outcome.find_commit import own_after_conflict
from airflow_delta.commands.publish.abort import abort
from airflow_delta.commands.publish.publish import publish
from airflow_delta.exceptions import (
    CommitStateUnknownException,
    DeltaConcurrentModificationException,
    TransactionAlreadyCommittedException,
)
from airflow_delta.staging.contract import CommitResult, StagedWrite, TransactionHandle

if TYPE_CHECKING:
    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.transaction import CommitPolicy, PostCommitHook

logger = logging.getLogger(__name__)


def run_transaction(
    log: DeltaLog,
    stage: Callable[[TransactionHandle], Sequence[StagedWrite]],
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

    :param stage: stages the operation for a transaction; runs once, and again for every restart.
    :param attempt: unique name of this execution (:func:`airflow_delta.staging.paths.new_attempt`).
    :param max_restarts: how often the operation starts over, on the newest version, after a logical conflict.
    :param start: parameters of :func:`airflow_delta.commands.begin.begin.begin`: the identity, the rerun policy, ...
    :raises DeltaConcurrentModificationException: if another commit conflicts, and no restart is left.
    """
    restarts = 0
    while True:
        handle = begin(log, **start)
        try:
            staged = [] if handle.committed is not None else stage(handle)
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

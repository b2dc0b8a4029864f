"""Batches of a streaming query: the application id is the query's, the version the batch's, and the checkpoint says what it is.

Unlike other positions it is the key of the transaction, as Delta's own sink has it, and a clone does not have its source's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_delta.contract.payloads import CommitResult
from airflow_delta.exceptions import DeltaIllegalStateException
from airflow_delta.log.actions.decode import CommitFile
from airflow_delta.table.state.commit_result import result_of_commit
from airflow_delta.table.state.commit_times import CommitTimes
from airflow_delta.table.state.find_commit import commits_of
from airflow_delta.table.state.transaction_retention import clone_info

if TYPE_CHECKING:
    from airflow_delta.exceptions import DeltaError
    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.table.state.transaction_retention import PossibleSince


def committed_batches(log: DeltaLog, query_id: str, *, since: int = 0) -> list[CommitResult]:
    """Return the commits of a query, oldest first; ``txn_version`` is the id of the batch.

    :param query_id: ``appId`` of its commits.
    :param since: the oldest version to read.
    """
    if log.update().version < since:
        return []
    commits = list(commits_of(log, query_id, since=since))
    return [result_of_commit(log, commit, app_id=query_id, committed_before=False) for commit in reversed(commits)]


def check_batch_not_cloned(log: DeltaLog, query_id: str, batch_id: int, planned: PossibleSince) -> None:
    """Refuse a batch that may have come with a clone: it was planned before the table began as one.

    Both times are of files, so that no worker's clock counts.

    :param log: as of the version that the transaction reads.
    :param planned: returns when the batch was planned, in milliseconds since the epoch; ``None``: recently.
    :raises DeltaIllegalStateException: if it may have.
    """
    snapshot = log.snapshot
    if snapshot.version < 0 or snapshot.set_transaction(query_id, expired=True) is not None or clone_info(log) is None:
        return
    since, cloned = planned(), CommitTimes(log).stored(CommitFile(0, b""))
    if since is not None and (cloned is None or since <= cloned):
        why = "the table began as a clone, which does not have the batches of its source's queries"
        raise unknown_batch(DeltaIllegalStateException, log, query_id, batch_id, why)


def unknown_batch(kind: type[DeltaError], log: DeltaLog, query_id: str, batch_id: int, why: str) -> DeltaError:
    """Return the error of a batch that may have been committed."""
    return log.error(
        kind,
        f"It cannot be known whether table {log.uri} has batch {batch_id} of query {query_id}: {why}. Nothing is committed. If "
        f"the table lacks the rows of the batch, pass assume_new_batch={batch_id}; if it has them, start a new query (checkpoint "
        "and query_id) where this one stopped.",
    )

"""Batches of a streaming query: the application id is the query's, the version the batch's, and the checkpoint says what it is.

Unlike other positions it is the key of the transaction, as Delta's own sink has it, and a clone does not have its source's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_delta.contract.payloads import CommitResult
from airflow_delta.exceptions import DeltaIllegalStateException
from airflow_delta.log.actions.decode import CommitFile, read_commit_info
from airflow_delta.table.state.commit_result import result_of_commit
from airflow_delta.table.state.commit_times import CommitTimes
from airflow_delta.table.state.find_commit import commits_of, newest_first

if TYPE_CHECKING:
    from airflow_delta.exceptions import DeltaError
    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.table.state.transaction_retention import PossibleSince

_READ_FIRST = 4
"""Commits that are read at once, and more later: few are younger than the plan of a batch."""


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
    """Refuse a batch that may have come with a clone: the table became one, or the clone was brought up to date, since its plan.

    Both times are of files, so that no worker's clock counts.

    :param log: as of the version that the transaction reads, which does not know the batch.
    :param planned: returns when the batch was planned, in milliseconds since the epoch; ``None``: recently; 0: it is unknown, and
        a query that the table knows is believed.
    :raises DeltaIllegalStateException: if it may have.
    """
    snapshot, since = log.snapshot, planned()
    if snapshot.version < 0 or since is None or (since == 0 and snapshot.set_transaction(query_id, expired=True) is not None):
        return
    times = CommitTimes(log)
    newest = times.stored(CommitFile(snapshot.version, b""))
    if newest is not None and newest < since:  # as a rule: nothing has to be read
        return
    for commit in newest_first(log, at_once=_READ_FIRST):
        info = read_commit_info(commit.version, commit.data, table=log.uri) or {}
        if times.all_before(commit, since, info):
            return
        if info.get("operation") == "CLONE":
            why = f"version {commit.version} made it a clone of another table, which may have had it"
            raise unknown_batch(DeltaIllegalStateException, log, query_id, batch_id, why)


def unknown_batch(kind: type[DeltaError], log: DeltaLog, query_id: str, batch_id: int, why: str) -> DeltaError:
    """Return the error of a batch that may have been committed."""
    return log.error(
        kind,
        f"It cannot be known whether table {log.uri} has batch {batch_id} of query {query_id}: {why}. Nothing is committed. If "
        f"the table lacks the rows of the batch, pass assume_new_batch={batch_id}; if it has them, start a new query (checkpoint "
        "and query_id) where this one stopped.",
    )

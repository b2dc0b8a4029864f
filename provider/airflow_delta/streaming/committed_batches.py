"""Commits of a streaming query in a table's log, from any process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_delta.contract.payloads import CommitResult
from airflow_delta.table.state.commit_result import result_of_commit
from airflow_delta.table.state.find_commit import commits_of

if TYPE_CHECKING:
    from airflow_delta.log.delta_log import DeltaLog


def committed_batches(log: DeltaLog, query_id: str, *, since: int = 0) -> list[CommitResult]:
    """Return the commits of a query, oldest first; ``txn_version`` is the id of the batch.

    :param query_id: ``appId`` of its commits.
    :param since: the oldest version to read.
    """
    if log.update().version < since:
        return []
    commits = list(commits_of(log, query_id, since=since))
    return [result_of_commit(log, commit, app_id=query_id, committed_before=False) for commit in reversed(commits)]

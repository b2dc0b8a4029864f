"""The contents of a table's asset events: the ``extra`` of a task that commits, and the payload of a watcher."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_delta.contract.payloads import CommitResult
    from airflow_delta.table.observe.watch import Match

_MAX_PARTITIONS_IN_EVENT = 100

_MAX_PARTITIONS_OF_COMMITS = 1000


def dedupe_key(table_id: str | None, version: int) -> str:
    """Return the key that events of the same commit share: the table's id (not its location) and the version."""
    return f"{table_id}/{version}"


def names_its_commit(result: CommitResult) -> bool:
    """Return whether the version of a result is that of its own commit."""
    if result.committed_before:
        return bool(result.operation or result.transaction_id)
    return not result.committed_nothing


def event_extra(result: CommitResult) -> dict[str, Any]:
    """Return the ``extra`` of a commit's asset event, with at most 100 partitions.

    ``dedupe_key`` is ``None`` if the version is not a commit of this task: nothing had changed, or its commit has left the log.
    """
    return {
        "version": result.version,
        "read_version": result.read_version,
        "operation": result.operation,
        "timestamp": result.timestamp,
        "table": result.table,
        "table_id": result.table_id,
        "transaction_id": result.transaction_id,
        "app_id": result.app_id,
        "txn_version": result.txn_version,
        "attempts": result.attempts,
        "versions_checked": result.versions_checked,
        "resolved": dict(result.resolved),
        "isolation_level": result.isolation_level,
        "is_blind_append": result.is_blind_append,
        "num_files": result.num_files,
        "num_removed_files": result.num_removed_files,
        "num_records": result.num_records,
        "num_bytes": result.num_bytes,
        "num_partitions": len(result.partitions),
        "partitions": [dict(partition) for partition in result.partitions[:_MAX_PARTITIONS_IN_EVENT]],
        "committed_before": result.committed_before,
        "dedupe_key": dedupe_key(result.table_id, result.version) if names_its_commit(result) else None,
    }


def events_extra(results: Sequence[CommitResult]) -> dict[str, Any]:
    """Return the ``extra`` of the asset event of a task that made several commits to one table.

    The keys of :func:`event_extra` describe the last one; ``commits`` has all of them, oldest first. If they touched very many
    partitions in total, only the number is given for each.

    :param results: one or more commits, in the order of their versions.
    """
    return _of_several([event_extra(result) for result in results])


def watched_extras(matches: Sequence[Match]) -> dict[str, Any]:
    """Return the payload of a watcher's event for the commits of one poll, in the form of :func:`events_extra`.

    One event for all of them: Airflow gives a run the events up to the one that triggered it, so later ones of the same poll
    would wait for the next commit.

    :param matches: one or more, in the order of their versions.
    """
    return _of_several([watched_extra(match) for match in matches])


def _of_several(commits: list[dict[str, Any]]) -> dict[str, Any]:
    last = dict(commits[-1])
    if len(commits) == 1:
        return last
    if sum(len(commit["partitions"]) for commit in commits) > _MAX_PARTITIONS_OF_COMMITS:
        for commit in commits:
            commit["partitions"] = []
    return {**last, "commits": commits}


def watched_extra(match: Match) -> dict[str, Any]:
    """Return the payload of a watcher's event for one commit, with at most 100 partitions."""
    summary = match.summary
    return {
        "version": summary.version,
        "read_version": summary.read_version,
        "observed_version": match.observed_version,
        "table": match.table,
        "table_identity": match.table_id,
        "operation": summary.operation,
        "timestamp": summary.timestamp,
        "transaction_id": summary.txn_id,
        "num_files": summary.num_added_files,
        "num_removed_files": summary.num_removed_files,
        "num_records": summary.num_records,
        "num_bytes": summary.bytes_added,
        "num_partitions": summary.num_partitions,
        "partitions": [dict(partition) for partition in summary.partitions],
        "data_change": summary.data_change,
        "dedupe_key": dedupe_key(match.table_id, summary.version),
    }

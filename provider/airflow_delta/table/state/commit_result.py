"""What a commit did, as its task returns it: taken from the transaction that made it, or from the log."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_delta.contract.payloads import CommitResult, TransactionHandle
from airflow_delta.contract.tags import INSTANCE_TAGS, SCHEDULED_FOR_TAG, TAG_PREFIX
from airflow_delta.exceptions import CommitStateUnknownException
from airflow_delta.log.actions.actions import AddFile
from airflow_delta.log.actions.decode import DecodedCommit
from airflow_delta.log.statistics.row_counts import num_records as rows_of
from airflow_delta.log.statistics.row_counts import total
from airflow_delta.transaction.conflict_detection import resolved_by

if TYPE_CHECKING:
    from airflow_delta.log import Snapshot
    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.log.segment.commit_files import CommitFiles
    from airflow_delta.transaction import OptimisticTransaction
    from airflow_delta.transaction.policy import AutoCompactionRequest


MAX_PARTITIONS = 1000
"""Partitions that a result lists; a commit that touches more lists the first ones."""


def result_of_transaction(
    txn: OptimisticTransaction,
    operation: str,
    adds: Sequence[AddFile],
    *,
    handle: TransactionHandle | None = None,
    num_removed_files: int = 0,
    num_records: int | None = None,
    auto_compaction: dict[str, Any] | None = None,
) -> CommitResult:
    """Return the result of a transaction that has committed.

    :param adds: files that it has added.
    :param handle: has the identity of the transaction; ``None`` if it has none in the log.
    :param num_records: rows of the added files that are new.
    :raises CommitStateUnknownException: if the transaction does not know its outcome.
    """
    outcome = txn.outcome
    if outcome is None:
        raise txn.log.error(CommitStateUnknownException, f"The commit to table {txn.log.uri} returned without an outcome")
    return _result(
        txn.log,
        outcome.version,
        adds,
        table_id=txn.metadata.id,
        read_version=txn.read_version if handle is None else handle.read_version,
        transaction_id=txn.txn_id,
        app_id=None if handle is None else handle.app_id,
        txn_version=None if handle is None else handle.txn_version,
        operation=operation,
        attempts=outcome.attempts,
        versions_checked=outcome.versions_checked,
        isolation_level=outcome.commit_info.isolation_level,
        is_blind_append=outcome.commit_info.is_blind_append,
        timestamp=outcome.timestamp,
        num_removed_files=num_removed_files,
        num_records=num_records,
        auto_compaction=auto_compaction,
        resolved=dict(outcome.resolved),
    )


def result_of_nothing(txn: OptimisticTransaction, handle: TransactionHandle | None = None) -> CommitResult:
    """Return the result of an operation that found nothing to do: no version, no identity in the log."""
    return _result(
        txn.log,
        txn.read_version,
        table_id=txn.snapshot.metadata.id if txn.read_version >= 0 else None,
        read_version=txn.read_version,
        transaction_id=txn.txn_id,
        app_id=None if handle is None else handle.app_id,
        txn_version=None if handle is None else handle.txn_version,
        operation="",
        attempts=0,
    )


def result_of_commit(log: DeltaLog, commit: DecodedCommit, *, app_id: str | None, committed_before: bool = True) -> CommitResult:
    """Return the result of a commit as the log has it."""
    info = commit.commit_info or {}
    txn = next((txn for txn in commit.txns if txn.app_id == app_id), None)
    return _result(
        log,
        commit.version,
        commit.adds,
        table_id=log.snapshot.metadata.id,
        read_version=integer(info.get("readVersion"), -1),
        transaction_id=str(info.get("txnId") or ""),
        app_id=app_id,
        txn_version=txn.version if txn is not None else None,
        operation=str(info.get("operation") or ""),
        committed_before=committed_before,
        isolation_level=info.get("isolationLevel"),
        is_blind_append=info.get("isBlindAppend"),
        timestamp=integer(info.get("timestamp"), 0) or None,
        num_removed_files=len(commit.removes),
        num_records=_records(info.get("operationMetrics") or {}, commit.adds),
        resolved=resolved_by(info.get("tags")),
        committed_by=_committed_by(info.get("tags")) if committed_before else None,
    )


def _committed_by(tags: Any) -> dict[str, str] | None:
    """Return the task that made a commit, by its tags; ``None`` if they name none."""
    given = tags if isinstance(tags, Mapping) else {}
    found = {name.removeprefix(TAG_PREFIX): given.get(name) for name in (*INSTANCE_TAGS, SCHEDULED_FOR_TAG)}
    return {name: str(value) for name, value in found.items() if value is not None} or None


def result_without_commit(log: DeltaLog, handle: TransactionHandle) -> CommitResult:
    """Return the result of a transaction whose commit has left the log: the latest version contains it."""
    txn = log.snapshot.set_transaction(handle.app_id, expired=True)
    return _result(
        log,
        log.snapshot.version,
        table_id=log.snapshot.metadata.id,
        read_version=handle.read_version,
        transaction_id="",
        app_id=handle.app_id,
        txn_version=txn.version if txn is not None else handle.txn_version,
        operation="",
        committed_before=True,
        timestamp=txn.last_updated if txn is not None else None,
    )


def result_of_existing(snapshot: Snapshot) -> CommitResult:
    """Return the result of CREATE TABLE IF NOT EXISTS for a table that is there."""
    return _result(
        snapshot.log,
        snapshot.version,
        table_id=snapshot.metadata.id,
        read_version=snapshot.version,
        transaction_id="",
        operation="CREATE TABLE",
        committed_before=True,
    )


def _result(log: CommitFiles, version: int, adds: Sequence[AddFile] = (), **fields: Any) -> CommitResult:
    return CommitResult(
        table=log.uri,
        version=version,
        num_files=len(adds),
        num_bytes=sum(add.size for add in adds),
        partitions=_partitions(adds),
        **fields,
    )


def _partitions(adds: Iterable[AddFile]) -> tuple[dict[str, Any], ...]:
    """Return the distinct partitions of files, in order of appearance."""
    found: dict[tuple[tuple[str, str | None], ...], dict[str, Any]] = {}
    for add in adds:
        if add.partition_values and len(found) < MAX_PARTITIONS:
            found.setdefault(tuple(add.partition_values.items()), dict(add.partition_values))
    return tuple(found.values())


def _records(metrics: Mapping[str, Any], adds: Iterable[AddFile]) -> int | None:
    rows = integer(metrics.get("numOutputRows"), -1)
    if rows >= 0:
        return rows
    return total(rows_of(add.stats) for add in adds)


def integer(value: Any, default: int) -> int:
    """Return a number that another writer may have written as text; ``default`` if it is not one."""
    try:
        return int(value)
    except (TypeError, ValueError):
        return default


def request_as_json(request: AutoCompactionRequest) -> dict[str, Any]:
    """Return a request as it travels in ``CommitResult.autoCompaction``."""
    return {
        "version": request.version,
        "partitions": [dict(values) for values in request.partitions],
        "numSmallFiles": request.num_small_files,
        "smallFileBytes": request.small_file_bytes,
        "minFileSize": request.min_file_size,
        "maxFileSize": request.max_file_size,
    }

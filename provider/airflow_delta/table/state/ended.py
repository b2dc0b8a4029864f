"""Whether a transaction has ended. A task checks this before it stages files that could not be published."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_delta.contract.staging_directory import ABORT_MARKER, COMMIT_MARKER_PREFIX, transaction_directory
from airflow_delta.light_dataclasses import dataclass
from airflow_delta.table.state.commit_result import result_without_commit
from airflow_delta.table.state.find_commit import commit_of_transaction, find_commit, stands
from airflow_delta.table.state.markers import read_marker, read_markers

if TYPE_CHECKING:
    from airflow_delta.contract.payloads import CommitResult, TransactionHandle
    from airflow_delta.log.delta_log import DeltaLog
from airflow_delta.table.state.evidence import is_referenced


@dataclass(frozen=True, slots=True)
class Ended:
    """How a transaction has ended.

    :param committed: its commit; ``None``: it was aborted, or its commit was taken back.
    """

    committed: CommitResult | None = None


def ended(log: DeltaLog, handle: TransactionHandle, *, runs_again: bool) -> Ended | None:
    """Return how a transaction has ended; ``None`` while it is open, as far as markers and log show.

    In the first try of a task that takes two look-ups. The log is read, back to the version that the transaction read, only if
    there is a marker, or if the task runs again: maintenance deletes the markers of old commits.

    :param runs_again: the task ran before, so its transaction may have ended meanwhile.
    """
    aborted = is_marked_aborted(log, handle.transaction_id)
    first_number = f"{transaction_directory(handle.transaction_id)}/{COMMIT_MARKER_PREFIX}0"
    if not (aborted or runs_again or log.store.head(first_number) is not None):
        return None
    log.update()
    # The log comes first: the marker of an abort stays if an attempt of the commit was faster.
    if (committed := own_commit(log, handle)) is not None:
        is_there = log.snapshot.version < 0 or stands(log.snapshot, handle.app_id, handle.txn_version)
        return Ended(committed) if is_there else Ended()
    return Ended() if aborted else None


def is_marked_aborted(log: DeltaLog, transaction_id: str) -> bool:
    """Return whether there is an abort marker that can be read and is this transaction's: enough not to begin work for it."""
    path = f"{transaction_directory(transaction_id)}/{ABORT_MARKER}"
    marker = None if log.store.head(path) is None else read_marker(log.store, path)
    return marker is not None and "abortedAt" in marker


def own_commit(log: DeltaLog, handle: TransactionHandle) -> CommitResult | None:
    """Return the result of this execution: from its commit or, if that has left the log, from its marker or its files.

    Whether it was taken back, :func:`~airflow_delta.table.state.find_commit.stands` tells.
    """
    since = max(handle.read_version + 1, 0)
    found = commit_of_transaction(log, handle.transaction_id, since=since)
    if found.version is None and found.complete:
        return None
    own = find_commit(log, app_id=handle.app_id, transaction_id=handle.transaction_id, since=since)
    if own is not None or found.complete:
        return own
    markers = read_markers(log.store, handle.transaction_id)
    if not markers.committed and not is_referenced(log.snapshot, handle.transaction_id):
        return None
    result = result_without_commit(log, handle)
    return result if markers.version is None else replace(result, version=markers.version)

"""Whether the log holds a transaction: its commits, the state of its key, and the files that the table consists of.

Each of the three has a horizon, or may be damaged. Not finding something proves nothing: files are deleted only if the log shows
that nothing was committed, never if it cannot tell.

Whether a transaction has ended. A task checks this before it stages files that could not be published.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from urllib.parse import unquote

from airflow_delta.contract.files import ABORT_MARKER, COMMIT_MARKER_PREFIX, transaction_directory
from airflow_delta.exceptions import DeltaError
from airflow_delta.log.features import protocol
from airflow_delta.table.state.commit_result import result_without_commit
from airflow_delta.table.state.find_commit import commit_of_transaction, find_commit, stands
from airflow_delta.table.state.markers import read_marker, read_markers

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_delta.contract.payloads import CommitResult, TransactionHandle
    from airflow_delta.log import Snapshot
    from airflow_delta.log.delta_log import DeltaLog


@dataclass(frozen=True, slots=True)
class LogEvidence:
    """What is known about a transaction.

    :param committed: the log holds it, or may hold it; ``None``: unknown.
    :param version: version that holds it, if a commit or a marker shows it.
    :param reason: one sentence: how it is known, or why not.
    :param undone: its commit was taken back; files of it are needed by earlier versions.
    """

    committed: bool | None
    version: int | None = None
    reason: str = ""
    undone: bool = False


NOT_COMMITTED = LogEvidence(False)


def evidence(log: DeltaLog, handle: TransactionHandle, *, files: bool = True) -> LogEvidence:
    """Ask the log for a transaction.

    :param files: if no commit holds it, also look at the state of its key and the table's files.
    """
    snapshot = log.update()
    if snapshot.version < handle.read_version:
        there = f"is at version {snapshot.version}" if snapshot.version >= 0 else "is gone"
        return LogEvidence(None, reason=f"It read version {handle.read_version}, and the table {there}.")
    found = commit_of_transaction(log, handle.transaction_id, since=max(handle.read_version + 1, 0))
    if found.version is not None and not stands(snapshot, handle.app_id, handle.txn_version):
        return LogEvidence(
            True, found.version, "The log holds this transaction, and its publication was taken back.", undone=True
        )
    if found.version is not None:
        return LogEvidence(True, found.version, "The log holds this transaction.")
    if not files or snapshot.version < 0:
        return NOT_COMMITTED
    if (named := _named(snapshot, handle.transaction_id)) is not NOT_COMMITTED:
        return named
    if found.complete:
        return NOT_COMMITTED
    last = snapshot.transaction_version(handle.app_id)
    if last is not None and last >= handle.txn_version and stands(snapshot, handle.app_id, handle.txn_version):
        return LogEvidence(
            True, reason=f"The key {handle.app_id!r} is committed with version {last}, and the log no longer holds that commit."
        )
    return LogEvidence(
        None,
        reason=f"The log no longer holds every commit since version {handle.read_version}, the version read; a deleted one may "
        "have been this transaction's.",
    )


def _named(snapshot: Snapshot, transaction_id: str) -> LogEvidence:
    try:
        if is_referenced(snapshot, transaction_id):
            return LogEvidence(True, reason="Files of it are in the table.")
    except DeltaError as error:
        return LogEvidence(None, reason=f"The files of the table cannot be read: {error.message}")
    return NOT_COMMITTED


def is_referenced(snapshot: Snapshot, transaction_id: str) -> bool:
    """Return whether the table names a file of a transaction: a live or a removed one, or a deletion vector.

    Works on columns: only paths with the transaction's id, or with encoded characters, are looked at one by one.
    """
    if snapshot.version < 0:
        return False
    protocol.check_can_read(snapshot.protocol, snapshot.log.uri, snapshot.version, catalog=snapshot.log.catalog)
    return any(
        _names(snapshot, paths, transaction_id)
        for table in (snapshot.files(columns=["path", "deletion_vector"]), snapshot.tombstones())
        for paths in _paths(table)
    )


def _paths(table: pa.Table) -> tuple[pa.ChunkedArray, pa.ChunkedArray]:
    import pyarrow as pa
    import pyarrow.compute as pc

    vectors = pc.struct_field(table.column("deletion_vector"), "path_or_inline_dv")
    return table.column("path").cast(pa.string()), vectors.cast(pa.string())


def _names(snapshot: Snapshot, paths: pa.ChunkedArray, transaction_id: str) -> bool:
    import pyarrow.compute as pc

    from airflow_delta.log.storage.table_paths import keys_to_keep

    prefix = f"{transaction_directory(transaction_id)}/"
    for mark in (transaction_id, "%"):
        for path in paths.filter(pc.match_substring(paths, mark)).to_pylist():
            text = unquote(path)
            if transaction_id not in text:
                continue
            if prefix in text or any(key.startswith(prefix) for key in keys_to_keep(snapshot.log.store, path)):
                return True
    return False


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

"""Whether the log holds a transaction: its commits, the state of its key, and the files that the table consists of.

Each of the three has a horizon, or may be damaged. Not finding something proves nothing: files are deleted only if the log shows
that nothing was committed, never if it cannot tell.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import unquote

from airflow_delta.contract.staging_directory import transaction_directory
from airflow_delta.exceptions import DeltaError
from airflow_delta.light_dataclasses import dataclass
from airflow_delta.log.features import protocol
from airflow_delta.table.state.find_commit import commit_of_transaction, stands

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_delta.contract.payloads import TransactionHandle
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
        return LogEvidence(True, found.version, "The log holds this transaction, and it was taken back.", undone=True)
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
    protocol.check_can_read(snapshot.protocol, snapshot.log.uri, snapshot.version, provided=snapshot.log.provided)
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

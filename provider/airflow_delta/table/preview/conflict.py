"""What a conflict was about, for whoever looks at the preview of a transaction that failed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow_delta.contract.payloads import StagedWrite, TransactionHandle
from airflow_delta.contract.staging_directory import PREVIEW_DIRECTORY, transaction_directory
from airflow_delta.exceptions import DeltaConcurrentModificationException, VersionsNotContiguousException
from airflow_delta.log.actions.decode import decode_commits
from airflow_delta.log.actions.reconciliation import canonical_path, file_key
from airflow_delta.table.stage.view import view_of

if TYPE_CHECKING:
    from airflow_delta.log.actions.actions import AddFile
    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.log.table_definition import TableDefinition

CONFLICT_NAME = "_conflict.json"
_LISTED = 1000


def note_conflict(
    log: DeltaLog, handle: TransactionHandle, staged: Sequence[StagedWrite], error: DeltaConcurrentModificationException
) -> list[dict[str, str]]:
    """Write beside a preview with which commit, and over which files, the transaction conflicts; return these files.

    Each has ``path``, as in the table's log, and ``change``: ``removed`` by the other commit while this transaction read or
    removes it, or ``added`` by the other where this one has read. At most 1,000 are listed; none if the other commit has left
    the log.

    :param staged: the staged writes of the transaction.
    """
    files = _files(log, handle, staged, error)[:_LISTED]
    note: dict[str, Any] = {
        "transactionId": handle.transaction_id,
        "table": handle.table,
        "readVersion": handle.read_version,
        "error": type(error).__name__,
        "message": error.message,
        "winningVersion": error.winning_version,
        "winningCommit": None if error.winning_commit is None else dict(error.winning_commit),
        "partition": error.partition,
        "files": files,
    }
    path = f"{transaction_directory(handle.transaction_id)}/{PREVIEW_DIRECTORY}/{CONFLICT_NAME}"
    log.store.put(path, json.dumps(note, indent=2, default=str).encode())
    return files


def _files(
    log: DeltaLog, handle: TransactionHandle, staged: Sequence[StagedWrite], error: DeltaConcurrentModificationException
) -> list[dict[str, str]]:
    version = error.winning_version
    if version is None or version < 0:
        return []
    try:
        (winner,) = decode_commits(log.read_commit_range(range(version, version + 1)), table=log.uri)
    except VersionsNotContiguousException:  # it has left the log
        return []
    own = {canonical_path(path) for write in staged for path in write.reads.files}
    view = view_of(log, handle, staged)
    whole = [remove.as_add() for remove in winner.removes if remove.extended_file_metadata]
    for stage in view.stages:
        own |= {canonical_path(remove.path) for remove in stage.removes}
        gone = set(view.gone(whole, stage))
        own |= {canonical_path(file.path) for file in whole if file_key(file) in gone}
    found = [{"path": remove.path, "change": "removed"} for remove in winner.removes if canonical_path(remove.path) in own]
    if any(_has_read(write) for write in staged):
        changed = [add for add in winner.adds if add.data_change and _is_within(add, error, view.definition)]
        found += [{"path": add.path, "change": "added"} for add in changed]
    return found


def _has_read(write: StagedWrite) -> bool:
    return write.mode != "append" or write.reads.whole_table or bool(write.reads.predicates)


def _is_within(add: AddFile, error: DeltaConcurrentModificationException, table: TableDefinition) -> bool:
    """Return whether a file may be in the partition of the conflict."""
    values, named = error.partition_values or {}, table.named_partition(add.partition_values)
    return all(named.get(name, value) == value for name, value in values.items())

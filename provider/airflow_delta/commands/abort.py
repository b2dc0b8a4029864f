"""Give up a transaction: fence off its commit, and delete only what no live attempt can still publish."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

from airflow_delta.commands.committed import find_commit
from airflow_delta.staging.contract import TransactionHandle
from airflow_delta.staging.paths import ABORT_MARKER, COMMIT_MARKER_PREFIX, transaction_directory
from airflow_delta.staging.report import AbortResult

if TYPE_CHECKING:
    from airflow_delta.log import DeltaLog


def abort(log: DeltaLog, handle: TransactionHandle) -> AbortResult:
    """Abort a transaction unless it is committed; safe to call again, and in any order with a commit that is running.

    Puts the abort marker first and lists the commit markers then; a commit puts its own marker first and looks for the abort
    marker then. Whichever order, at least one of the two sees the other. The marker stays: it is what keeps a commit that comes
    later from publishing files that are gone.
    """
    if handle.committed is not None:
        return _result(handle, "committed", version=handle.committed.version, reason="An earlier run had committed this key.")
    if (version := _committed_version(log, handle)) is not None:
        return _result(handle, "committed", version=version, reason="The log holds this transaction; nothing was deleted.")
    directory = transaction_directory(handle.transaction_id)
    marker = f"{directory}/{ABORT_MARKER}"
    log.store.put(marker, json.dumps({"abortedAt": int(time.time() * 1000)}).encode())
    alive = [status.name for status in log.store.list_from(directory, COMMIT_MARKER_PREFIX, stat=False)]
    alive = [name for name in alive if name.startswith(COMMIT_MARKER_PREFIX)]
    # Again: a commit may have ended between the first look and the marker.
    if (version := _committed_version(log, handle)) is not None:
        log.store.delete([marker])
        return _result(handle, "committed", version=version, reason="The log holds this transaction; nothing was deleted.")
    if alive:
        reason = (
            f"{len(alive)} attempts of the commit may still be alive or ended in an unknown state "
            f"({', '.join(alive[:5])}): the "
            "transaction is marked as aborted and its staged files stay until maintenance deletes them after the grace time."
        )
        return _result(handle, "marked", reason=reason)
    return _result(
        handle,
        "deleted",
        num_deleted_files=_delete_staged(log, directory),
        reason="No attempt of the commit is alive and the log does not hold the transaction: its staged files were deleted.",
    )


def _committed_version(log: DeltaLog, handle: TransactionHandle) -> int | None:
    log.update()
    found = find_commit(log, app_id=handle.app_id, transaction_id=handle.transaction_id, since=max(handle.read_version + 1, 0))
    return found.version if found is not None else None


def _delete_staged(log: DeltaLog, directory: str) -> int:
    """Delete everything of the transaction but the abort marker; return the number of files."""
    files: list[str] = []
    children: set[str] = set()
    for status in log.store.list_recursive(directory):
        child, nested, _ = status.path.removeprefix(f"{directory}/").partition("/")
        if nested:
            children.add(child)
        elif child != ABORT_MARKER:
            files.append(status.path)
    log.store.delete(files)
    return len(files) + sum(log.store.delete_tree(f"{directory}/{child}") for child in sorted(children))


def _result(
    handle: TransactionHandle, outcome: str, *, version: int | None = None, num_deleted_files: int = 0, reason: str
) -> AbortResult:
    return AbortResult(
        transaction_id=handle.transaction_id,
        table=handle.table,
        outcome=outcome,
        version=version,
        num_deleted_files=num_deleted_files,
        reason=reason,
    )

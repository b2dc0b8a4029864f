"""Give up a transaction: fence off its commit, and delete only what no live attempt can still publish."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

from airflow_delta.commands.committed import find_commit
from airflow_delta.exceptions import DeltaIllegalArgumentException, DeltaIllegalStateException
from airflow_delta.staging.contract import TransactionHandle
from airflow_delta.staging.paths import ABORT_MARKER, COMMIT_MARKER_PREFIX, STAGING_DIRECTORY, transaction_directory
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
        return _committed(
            handle.table, handle.transaction_id, handle.committed.version, reason="An earlier run had committed this key."
        )
    if (version := _committed_version(log, handle)) is not None:
        return _committed(handle.table, handle.transaction_id, version)
    return _give_up(log, handle.transaction_id, partial(_committed_version, log, handle), table=handle.table)


def abort_transaction(
    log: DeltaLog, transaction_id: str, *, force: bool = False, abandoned_after: timedelta | None = None
) -> AbortResult:
    """Abort a transaction of which only the id is known.

    Fences it off as :func:`abort` does. Files of a transaction that the log holds are never deleted, nor, whatever ``force``
    says, those that an attempt of its commit which may be alive could publish: then it is marked as aborted, and VACUUM deletes
    the files after the grace time.

    :param force: also one that may still be at work. Its commit is refused then.
    :param abandoned_after: how long nothing of it may change until it counts as given up; default: 7 days.
    :raises DeltaIllegalArgumentException: nothing of it is under ``staged/``.
    :raises DeltaIllegalStateException: it may still be at work, and ``force`` is not given.
    :raises StagingException: the id cannot be one.
    """
    from airflow_delta.commands.transactions import ABANDONED_AFTER, find_commits, transaction_state

    grace = abandoned_after if abandoned_after is not None else ABANDONED_AFTER
    found = transaction_state(log, transaction_id, abandoned_after=grace)
    if found is None:
        raise DeltaIllegalArgumentException(
            f"Nothing of a transaction {transaction_id!r} is under {log.uri}/{STAGING_DIRECTORY}. Its files may be deleted "
            "already; list the table's transactions to see which there are.",
            table=log.uri,
        )
    if found.state == "open" and not force:
        raise DeltaIllegalStateException(
            f"Transaction {transaction_id} on table {log.uri} may still be at work: {found.reason} Nothing was deleted. Fail its "
            "Dag run, whose abort task cleans up, or force the abort: its commit is refused then.",
            table=log.uri,
        )
    if found.state == "committed" or _is_referenced(log, transaction_id):
        return _committed(log.uri, transaction_id, found.version)

    def committed_version() -> int | None:
        commit = find_commits(log, {transaction_id: found.first_modified or 0}).get(transaction_id)
        return commit.version if commit is not None else None

    dead_before = int(time.time() * 1000) - grace // timedelta(milliseconds=1)
    return _give_up(log, transaction_id, committed_version, table=log.uri, dead_before=dead_before)


def _give_up(
    log: DeltaLog, transaction_id: str, committed_version: Callable[[], int | None], *, table: str, dead_before: int | None = None
) -> AbortResult:
    """Put the abort marker and delete the staged files, unless a commit has ended meanwhile or may be alive.

    :param dead_before: milliseconds since the epoch; a commit that began earlier is not alive. ``None``: it may be.
    """
    directory = transaction_directory(transaction_id)
    marker = f"{directory}/{ABORT_MARKER}"
    log.store.put(marker, json.dumps({"abortedAt": int(time.time() * 1000)}).encode())
    listed = log.store.list_from(directory, COMMIT_MARKER_PREFIX, stat=dead_before is not None)
    alive = [
        status.name
        for status in listed
        if status.name.startswith(COMMIT_MARKER_PREFIX) and (dead_before is None or status.modification_time >= dead_before)
    ]
    # Again: a commit may have ended between the first look and the marker.
    if (version := committed_version()) is not None:
        log.store.delete([marker])
        return _committed(table, transaction_id, version)
    if alive:
        reason = (
            f"{len(alive)} attempts of the commit may still be alive or ended in an unknown state "
            f"({', '.join(alive[:5])}): the transaction is marked as aborted and its staged files stay until maintenance deletes "
            "them after the grace time."
        )
        return AbortResult(transaction_id=transaction_id, table=table, outcome="marked", reason=reason)
    return AbortResult(
        transaction_id=transaction_id,
        table=table,
        outcome="deleted",
        num_deleted_files=_delete_staged(log, directory),
        reason="No attempt of the commit is alive and the log does not hold the transaction: its staged files were deleted.",
    )


def _committed_version(log: DeltaLog, handle: TransactionHandle) -> int | None:
    log.update()
    found = find_commit(log, app_id=handle.app_id, transaction_id=handle.transaction_id, since=max(handle.read_version + 1, 0))
    return found.version if found is not None else None


def _is_referenced(log: DeltaLog, transaction_id: str) -> bool:
    """Say whether the log names a file of the transaction, however its writer spelled the path."""
    from airflow_delta.commands.vacuum.valid import valid_files

    snapshot = log.update()
    prefix = f"{transaction_directory(transaction_id)}/"
    return snapshot.version >= 0 and any(path.startswith(prefix) for path in valid_files(snapshot, deleted_before=0))


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


def _committed(
    table: str,
    transaction_id: str,
    version: int | None,
    *,
    reason: str = "The log holds this transaction; nothing was deleted.",
) -> AbortResult:
    return AbortResult(transaction_id=transaction_id, table=table, outcome="committed", version=version, reason=reason)

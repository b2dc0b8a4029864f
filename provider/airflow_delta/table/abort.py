"""Abort a transaction: fence off its commit and delete only what no live attempt can still publish."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

from airflow_delta.contract.payloads import AbortResult, TransactionHandle
from airflow_delta.contract.staging_directory import STAGING_DIRECTORY, is_marker, transaction_directory
from airflow_delta.exceptions import (
    DeltaIllegalArgumentException,
    DeltaIllegalStateException,
    HandleMismatchException,
    LocationNotWritableException,
)
from airflow_delta.log.intent_rules import check_not_needed
from airflow_delta.table.state.evidence import LogEvidence, evidence, is_referenced
from airflow_delta.table.state.find_commit import committed_earlier
from airflow_delta.table.state.markers import fence_off

if TYPE_CHECKING:
    from airflow_delta.log.delta_log import DeltaLog


def abort(log: DeltaLog, handle: TransactionHandle) -> AbortResult:
    """Abort a transaction unless it is committed; safe to repeat, and to run beside a commit.

    It fences off later attempts of the commit, and sees those that have begun (:mod:`airflow_delta.table.state.markers`).
    The markers stay: they keep a later commit from publishing files that are gone.

    Files are deleted only if the log can tell, and nothing says that the transaction is committed: not its marker, a commit, the
    state of its key, or the files of the table.
    """
    if handle.committed is not None:
        with contextlib.suppress(HandleMismatchException):  # a claim about the log decides nothing
            earlier = LogEvidence(True, committed_earlier(log, handle).version, "An earlier run had committed this key.")
            return _committed(handle.table, handle.transaction_id, earlier)
    first = evidence(log, handle, files=False)
    if first.committed:
        return _committed(handle.table, handle.transaction_id, first)
    # Again: a commit may end between the first look and the marker.
    return _give_up(log, handle.transaction_id, partial(evidence, log, handle), table=handle.table)


def abort_transaction(
    log: DeltaLog, transaction_id: str, *, force: bool = False, abandoned_after: timedelta | None = None
) -> AbortResult:
    """Abort a transaction by its id alone.

    Fences it off as :func:`abort` does. Files of a committed transaction are never deleted. If an attempt of its commit may be
    alive, or the log cannot tell, the transaction is only marked as aborted, whatever ``force`` says, and VACUUM deletes the
    files after the grace time.

    :param force: abort even if it may still be running; its commit is refused then.
    :param abandoned_after: idle time after which it counts as abandoned; default: 7 days.
    :raises DeltaIllegalArgumentException: if it has no files under ``staged/``.
    :raises DeltaIllegalStateException: if it may still be running and ``force`` is not given; or if an intent
        may need it (:mod:`airflow_delta.log.intent_rules`).
    :raises StagingException: if the id is not valid.
    """
    from airflow_delta.table.state.open_transactions import ABANDONED_AFTER, search_commits, transaction_state

    grace = abandoned_after if abandoned_after is not None else ABANDONED_AFTER
    found = transaction_state(log, transaction_id, abandoned_after=grace)
    if found is None:
        raise log.error(
            DeltaIllegalArgumentException,
            f"There is nothing of transaction {transaction_id!r} under {log.uri}/{STAGING_DIRECTORY}. Its files may already "
            "be deleted; list the table's transactions to see which there are.",
        )
    if found.state == "open" and not force:
        raise log.error(
            DeltaIllegalStateException,
            f"Transaction {transaction_id} on table {log.uri} may still be running: {found.reason} Nothing was deleted. Fail its "
            "Dag run, whose abort task cleans up, or force the abort; its commit is refused then.",
        )
    if found.state == "committed":
        return _committed(log.uri, transaction_id, LogEvidence(True, found.version, found.reason))
    check_not_needed(log, log.snapshot, transaction_id)
    dead_before = int(time.time() * 1000) - grace // timedelta(milliseconds=1)
    oldest = found.first_modified or 0

    def look() -> LogEvidence:
        commits, complete = search_commits(log, {transaction_id: oldest})
        if (commit := commits.get(transaction_id)) is not None:
            return LogEvidence(True, commit.version, "The log holds this transaction.")
        if is_referenced(log.snapshot, transaction_id):
            return LogEvidence(True, reason="Files of it are in the table.")
        # For what was idle for the grace time, the files of the table say enough, as for VACUUM.
        if complete or (found.last_modified or 0) < dead_before:
            return LogEvidence(False)
        return LogEvidence(None, reason="The log no longer holds every commit since its oldest file was written.")

    return _give_up(log, transaction_id, look, table=log.uri, dead_before=dead_before)


def _give_up(
    log: DeltaLog, transaction_id: str, look: Callable[[], LogEvidence], *, table: str, dead_before: int | None = None
) -> AbortResult:
    """Fence off the commit and delete the staged files, unless the transaction is, or may be, committed.

    :param dead_before: milliseconds since the epoch; a commit that began earlier is not alive. ``None``: it may be.
    """
    try:
        markers, own = fence_off(log.store, transaction_id, dead_before=dead_before)
    except LocationNotWritableException as error:
        # Nothing of the transaction is there that a commit could publish, and nothing can come.
        if look().committed is not False or any(True for _ in log.store.list_recursive(transaction_directory(transaction_id))):
            raise
        return AbortResult(
            transaction_id=transaction_id,
            table=table,
            outcome="deleted",
            reason=f"Nothing of it is there, so there is nothing to delete. {error.message}",
        )
    found = look()
    if found.committed is not True and markers.committed:
        found = LogEvidence(True, markers.version, "Its marker says that it is committed.")
    if found.committed:
        log.store.delete(own)
        return _committed(table, transaction_id, found)
    if markers.alive or found.committed is None:
        reason = (
            f"{len(markers.alive)} attempts of the commit may still be alive or ended in an unknown state "
            f"({', '.join(markers.alive[:5])})"
            if markers.alive
            else f"It is not certain whether it is committed. {found.reason.removesuffix('.')}"
        )
        return AbortResult(
            transaction_id=transaction_id,
            table=table,
            outcome="marked",
            reason=f"{reason}: the transaction is marked as aborted and its staged files stay until maintenance deletes those "
            "that the table does not name, after the grace time.",
        )
    return AbortResult(
        transaction_id=transaction_id,
        table=table,
        outcome="deleted",
        num_deleted_files=_delete_staged(log, transaction_directory(transaction_id)),
        reason="No attempt of the commit is alive and the log does not hold the transaction: its staged files were deleted.",
    )


def _delete_staged(log: DeltaLog, directory: str) -> int:
    """Delete everything of the transaction except its markers; return the number of files."""
    files: list[str] = []
    children: set[str] = set()
    for status in log.store.list_recursive(directory):
        child, nested, _ = status.path.removeprefix(f"{directory}/").partition("/")
        if nested:
            children.add(child)
        elif not is_marker(child):
            files.append(status.path)
    log.store.delete(files)
    return len(files) + sum(log.store.delete_tree(f"{directory}/{child}") for child in sorted(children))


def _committed(table: str, transaction_id: str, found: LogEvidence) -> AbortResult:
    return AbortResult(
        transaction_id=transaction_id,
        table=table,
        outcome="undone" if found.undone else "committed",
        version=found.version,
        reason=f"{found.reason} Nothing was deleted.",
    )

"""The markers of a transaction in its staging directory, by which a commit and a deletion see each other.

A commit puts the marker of its attempt, then looks for the abort marker; a deletion puts the abort marker, then looks for
attempts. Whichever order the store saw, at least one of them sees the other. All markers are read by name: a listing may be stale
(NFS, eventually consistent stores) and can only add to what the names tell.

An attempt's marker is never removed before the transaction is known to be over; an attempt that certainly wrote nothing says
so in its marker.
"""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from airflow_delta.commands.outcome.find_commit import commit_of_transaction
from airflow_delta.exceptions import CommitStateUnknownException, DeltaError, TransactionAbortedException
from airflow_delta.log.storage.create import creates
from airflow_delta.staging.paths import ABORT_MARKER, COMMIT_MARKER_PREFIX, COMMITTED_MARKER, transaction_directory

if TYPE_CHECKING:
    from airflow_delta.log import DeltaLog
    from airflow_delta.log.storage.base import LogStore
    from airflow_delta.staging.contract import TransactionHandle
    from airflow_delta.transaction import CommitPolicy

logger = logging.getLogger(__name__)

LOOK_AGAIN_AFTER = 60.0
"""Seconds after which a commit looks for the abort marker again before putting the log entry."""


@dataclass(frozen=True, slots=True)
class Markers:
    """What the markers of a transaction say.

    :param committed: the log holds it, or once did.
    :param version: version that holds it, when the marker tells.
    :param alive: attempts of its commit that may still be running, or ended in an unknown state.
    """

    committed: bool
    version: int | None
    alive: tuple[str, ...]


NO_MARKERS = Markers(False, None, ())


def read_markers(store: LogStore, transaction_id: str, *, dead_before: int | None = None) -> Markers:
    """Read the markers of a transaction.

    :param dead_before: milliseconds since the epoch; an attempt that began earlier is not alive. ``None``: it may be.
    """
    directory = transaction_directory(transaction_id)
    alive: list[str] = []
    numbered = 0
    while (status := store.head(f"{directory}/{COMMIT_MARKER_PREFIX}{numbered}")) is not None:
        if _may_live(store, status.path, status.modification_time, dead_before):
            alive.append(status.name)
        numbered += 1
    # Those of earlier releases have unpredictable names.
    for status in store.list_from(directory, COMMIT_MARKER_PREFIX, stat=dead_before is not None):
        number = status.name.removeprefix(COMMIT_MARKER_PREFIX)
        if number == status.name or (number.isdecimal() and int(number) < numbered):
            continue
        if _may_live(store, status.path, status.modification_time, dead_before):
            alive.append(status.name)
    # Last: an attempt puts this one before removing its own.
    content = _read(store, f"{directory}/{COMMITTED_MARKER}")
    version = None if content is None else content.get("version")
    return Markers(content is not None, version if isinstance(version, int) else None, tuple(alive))


def is_aborted(store: LogStore, transaction_id: str) -> bool:
    """Return whether the transaction has the abort marker."""
    return store.head(f"{transaction_directory(transaction_id)}/{ABORT_MARKER}") is not None


def put_abort_marker(store: LogStore, transaction_id: str) -> str:
    """Put the abort marker, replacing an earlier one, and return its path."""
    path = f"{transaction_directory(transaction_id)}/{ABORT_MARKER}"
    store.put(path, json.dumps({"abortedAt": _now()}).encode())
    return path


def mark_committed(log: DeltaLog, transaction_id: str, version: int) -> bool:
    """Put the marker of a committed transaction and return whether it is there now. Never fails: the commit stands."""
    path = f"{transaction_directory(transaction_id)}/{COMMITTED_MARKER}"
    try:
        with contextlib.suppress(FileExistsError):
            log.store.put_if_absent(path, json.dumps({"version": version, "committedAt": _now()}).encode(), durable=False)
    except Exception as error:  # noqa: BLE001 - what it says can be found in the log for long
        logger.warning("Could not put %s of table %s: %s", path, log.uri, error)
        return False
    return True


class Fence:
    """An attempt of a commit that an abort can see; made by :func:`fence`.

    :ivar marker: the attempt's marker.
    :ivar version: version that the attempt committed; set it when known.
    """

    def __init__(self, log: DeltaLog, handle: TransactionHandle, marker: str) -> None:
        self.marker = marker
        self.version: int | None = None
        self._log = log
        self._handle = handle
        self._looked = time.monotonic()

    def check(self) -> None:
        """Look for the abort marker.

        :raises TransactionAbortedException: if it is there.
        """
        self._looked = time.monotonic()
        handle = self._handle
        if is_aborted(self._log.store, handle.transaction_id):
            raise TransactionAbortedException(
                f"Transaction {handle.transaction_id} on table {handle.table} (read version {handle.read_version}) was "
                "aborted, or abandoned for so long that VACUUM gave it up; its staged files may be gone. "
                "Clear the start task to begin a new one.",
                table=handle.table,
                version=handle.read_version,
            )

    def policy(self, policy: CommitPolicy | None) -> CommitPolicy:
        """Return the policy of a commit that looks for the abort marker again if its put comes late.

        A marker counts as dead after a while, so an attempt that was halted for days must not simply continue.
        """
        from airflow_delta.transaction import CommitPolicy

        policy = policy if policy is not None else CommitPolicy()
        asked = policy.cancelled

        def cancelled() -> bool:
            if asked is not None and asked():
                return True
            if time.monotonic() - self._looked > LOOK_AGAIN_AFTER:
                self.check()
            return False

        return replace(policy, cancelled=cancelled)


@contextmanager
def fence(log: DeltaLog, handle: TransactionHandle, attempt: str) -> Iterator[Fence]:
    """Hold a marker of an attempt of the commit, unless the transaction was aborted.

    When the attempt ends and certainly wrote nothing, its marker says so; after a commit, the marker of the committed transaction
    replaces it. In doubt it stays as it is, and the staged files are not deleted.

    :param attempt: name of this execution of the commit, for readers of the marker.
    :raises TransactionAbortedException: if the transaction was aborted.
    """
    started = {"attempt": attempt, "startedAt": _now()}
    held = Fence(log, handle, _claim(log.store, handle.transaction_id, started))
    try:
        held.check()
        yield held
    except CommitStateUnknownException:
        raise
    except DeltaError:
        with contextlib.suppress(Exception):  # the error says more; the marker keeps the files
            _end(log, handle, held, started)
        raise
    if held.version is not None and mark_committed(log, handle.transaction_id, held.version):
        delete_quietly(log, [held.marker])


def _end(log: DeltaLog, handle: TransactionHandle, held: Fence, started: dict[str, Any]) -> None:
    """Note how an attempt that raised an error ended: a user's hook may fail after the log entry."""
    log.update()
    found = commit_of_transaction(log, handle.transaction_id, since=max(handle.read_version + 1, 0))
    if found.version is not None:
        mark_committed(log, handle.transaction_id, found.version)
    elif found.complete:
        log.store.put(held.marker, json.dumps({**started, "failedAt": _now()}).encode())


def delete_quietly(log: DeltaLog, paths: list[str]) -> None:
    """Delete what is no longer needed; maintenance deletes leftovers."""
    if not paths:
        return
    try:
        log.store.delete(paths)
    except Exception as error:  # noqa: BLE001 - the outcome of the commit stands
        logger.warning("Could not delete %s of table %s: %s", ", ".join(paths), log.uri, error)


def _claim(store: LogStore, transaction_id: str, content: dict[str, Any]) -> str:
    """Put the marker of an attempt under the first free number."""
    directory = transaction_directory(transaction_id)
    number = 0
    while True:
        path = f"{directory}/{COMMIT_MARKER_PREFIX}{number}"
        # One that is there may be ours: a put was repeated.
        if not creates(store, path, json.dumps(content).encode()) and _read(store, path) != content:
            number += 1
            continue
        return path


def _may_live(store: LogStore, path: str, modification_time: int, dead_before: int | None) -> bool:
    if dead_before is not None and modification_time < dead_before:
        return False
    content = _read(store, path)
    return content is None or "failedAt" not in content


def _read(store: LogStore, path: str) -> dict[str, Any] | None:
    """Return what a marker says: nothing if it is damaged, ``None`` if there is none."""
    try:
        value = json.loads(store.read(path))
    except FileNotFoundError:
        return None
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _now() -> int:
    return int(time.time() * 1000)

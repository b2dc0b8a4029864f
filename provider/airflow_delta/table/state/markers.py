"""The markers of a transaction in its staging directory, by which a commit and a deletion exclude each other.

Attempts of the commit and deletions take the numbers ``_commit-0``, ``_commit-1``, ... with puts that fail if one is taken.
That answer is never stale, while listings and lookups may be (NFS, eventually consistent stores): whoever comes second meets the
number of the first.

An attempt's marker is never removed before the transaction is known to be over. One that committed, or certainly wrote nothing,
says so in its marker. The abort marker, and those that earlier releases put, are looked for besides.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow_delta.contract.read_versions import read_version_name
from airflow_delta.contract.staging_directory import ABORT_MARKER, COMMIT_MARKER_PREFIX, COMMITTED_MARKER, transaction_directory
from airflow_delta.exceptions import CommitStateUnknownException, DeltaError, StagingException, TransactionAbortedException
from airflow_delta.light_dataclasses import dataclass
from airflow_delta.log.storage.puts import creates
from airflow_delta.table.state.find_commit import commit_of_transaction
from airflow_delta.transaction import CommitPolicy

if TYPE_CHECKING:
    from airflow_delta.contract.payloads import TransactionHandle
    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.log.storage.base import LogStore

logger = logging.getLogger(__name__)

LOOK_AGAIN_AFTER = 60.0
"""Seconds after which a commit takes another number before putting the log entry."""


@dataclass(frozen=True, slots=True)
class Markers:
    """What the markers of a transaction say.

    :param committed: the log holds it, or once did.
    :param version: version that holds it, if the marker has it.
    :param alive: attempts of its commit that may still be running, or ended in an unknown state.
    """

    committed: bool
    version: int | None
    alive: tuple[str, ...]


NO_MARKERS = Markers(False, None, ())

_UNREADABLE_PAUSES = (0.1, 0.4, 1.0, 3.0, 6.0, 10.0, 20.0, 30.0)
"""Seconds between attempts to read a marker that is there and is not found: a look-up may be a minute old."""


def read_markers(store: LogStore, transaction_id: str, *, dead_before: int | None = None) -> Markers:
    """Read the markers of a transaction. What is not found may be there: before deleting anything, call :func:`fence_off`.

    :param dead_before: milliseconds since the epoch; an attempt that began earlier is not alive. ``None``: it may be.
    """
    found = _Found(store, transaction_id, dead_before)
    while (status := store.head(found.path)) is not None:
        found.add(status.path, status.modification_time)
    return found.markers()


def fence_off(store: LogStore, transaction_id: str, *, dead_before: int | None = None) -> tuple[Markers, list[str]]:
    """Keep commits that have not begun from publishing the transaction, and return the markers and the paths of its own.

    If no attempt is alive, none can publish it any more.

    :param dead_before: as for :func:`read_markers`.
    """
    abort_marker = f"{transaction_directory(transaction_id)}/{ABORT_MARKER}"
    content = {"transactionId": transaction_id, "abortedAt": _now(), "by": uuid.uuid4().hex}
    data = json.dumps(content).encode()
    store.put(abort_marker, data)
    found = _Found(store, transaction_id, dead_before)
    while not creates(store, path := found.path, data):
        there = read_marker(store, path)
        if there is not None and "abortedAt" in there:
            break
        status = store.head(path)
        found.add(path, None if status is None else status.modification_time, there)
        if found.committed is not None:
            return found.markers(), [abort_marker]
    return found.markers(), [abort_marker, path]


def has_abort_marker(store: LogStore, transaction_id: str) -> bool:
    """Return whether the transaction has the abort marker."""
    return store.head(f"{transaction_directory(transaction_id)}/{ABORT_MARKER}") is not None


class _Found:
    """What has been found while the numbers are gone through.

    :ivar path: of the next number.
    :ivar committed: what the marker of a committed attempt says.
    """

    def __init__(self, store: LogStore, transaction_id: str, dead_before: int | None) -> None:
        self.committed: dict[str, Any] | None = None
        self._store, self._dead_before = store, dead_before
        self._directory = transaction_directory(transaction_id)
        self._alive: list[str] = []
        self._number = 0

    @property
    def path(self) -> str:
        return f"{self._directory}/{COMMIT_MARKER_PREFIX}{self._number}"

    def add(self, path: str, modification_time: int | None, content: dict[str, Any] | None = None) -> None:
        """Note the marker of the present number, and go on to the next.

        :param modification_time: milliseconds since the epoch; ``None``: unknown.
        """
        self._note(path, modification_time, content)
        self._number += 1

    def _note(self, path: str, modification_time: int | None, content: dict[str, Any] | None = None) -> None:
        content = content if content is not None else read_marker(self._store, path)
        if content is not None and "committedAt" in content:
            self.committed = content
        elif content is None or not ("failedAt" in content or "abortedAt" in content):
            before = self._dead_before
            if before is None or modification_time is None or modification_time >= before:
                self._alive.append(path.rpartition("/")[2])

    def markers(self) -> Markers:
        """Return them all."""
        # Those of earlier releases have unpredictable names.
        for status in self._store.list_from(self._directory, COMMIT_MARKER_PREFIX, stat=self._dead_before is not None):
            number = status.name.removeprefix(COMMIT_MARKER_PREFIX)
            if number != status.name and not (number.isdecimal() and int(number) <= self._number):
                self._note(status.path, status.modification_time)
        # Last: an attempt of an earlier release puts this one before removing its own.
        named = read_marker(self._store, f"{self._directory}/{COMMITTED_MARKER}")
        content = self.committed if self.committed is not None else named  # a damaged one says that there was a commit, too
        version = None if content is None else content.get("version")
        return Markers(content is not None, version if isinstance(version, int) else None, tuple(self._alive))


def mark_committed(log: DeltaLog, transaction_id: str, version: int) -> None:
    """Put the marker of a committed transaction whose attempt could not. Never fails: the commit is valid."""
    path = f"{transaction_directory(transaction_id)}/{COMMITTED_MARKER}"
    try:
        with contextlib.suppress(FileExistsError):
            content = {"transactionId": transaction_id, "version": version, "committedAt": _now()}
            log.store.put_if_absent(path, json.dumps(content).encode(), durable=False)
    except Exception as error:  # noqa: BLE001 - what it says can be found in the log for long
        logger.warning("Could not put %s of table %s: %s", path, log.uri, error)


class Fence:
    """An attempt of a commit that an abort can see; made by :func:`fence`.

    :ivar version: version that the attempt committed; set it when known.
    """

    def __init__(self, log: DeltaLog, handle: TransactionHandle, attempt: str) -> None:
        self.version: int | None = None
        self._log = log
        self._handle = handle
        self._attempt = attempt
        self._markers: dict[str, dict[str, Any]] = {}
        self._is_closed = False
        self._looked = -math.inf

    def claim(self) -> None:
        """Take a number, unless the transaction was aborted.

        :raises TransactionAbortedException: if it was.
        :raises StagingException: if an earlier number is taken and cannot be read. Nothing was written.
        """
        began = time.monotonic()
        of = {"transactionId": self._handle.transaction_id, "attempt": self._attempt}
        started = {**of, "startedAt": _now(), "claim": uuid.uuid4().hex}
        marker = _claim(self._log, self._handle, started)
        self._markers[marker] = started
        if has_abort_marker(self._log.store, self._handle.transaction_id):  # by an earlier release, which takes no number
            raise aborted_error(self._handle)
        self._looked = began  # last: a look that failed says nothing

    def end(self, **how: int) -> None:
        """Add to what the markers say."""
        for marker, started in self._markers.items():
            # Without waiting for the disk: if the machine crashes now, the marker looks like that of an attempt which died
            # before it could say this, and the log still has the commit.
            self._log.store.put(marker, json.dumps({**started, **how}).encode(), durable=False)

    def close(self) -> None:
        """Let the markers say which version the attempt committed, if it has. Never fails: the commit stands."""
        if self._is_closed or self.version is None:
            return
        self._is_closed = True
        try:
            self.end(version=self.version, committedAt=_now())
        except Exception as error:  # noqa: BLE001 - as said
            logger.warning("Could not mark transaction %s as committed: %s", self._handle.transaction_id, error)

    def end_without_commit(self) -> None:
        """Note that nothing was put, so that the staged files can be deleted."""
        with contextlib.suppress(Exception):  # then they are kept, and maintenance deletes them
            self.end(failedAt=_now())

    def policy(self, policy: CommitPolicy | None) -> CommitPolicy:
        """Return the policy of a commit that takes another number if its put comes late.

        A marker counts as dead after a while, so an attempt that was halted for days must not simply continue.
        """
        policy = policy if policy is not None else CommitPolicy()
        asked = policy.cancelled

        def cancelled() -> bool:
            if asked is not None and asked():
                return True
            if time.monotonic() - self._looked > LOOK_AGAIN_AFTER:
                self.claim()
            return False

        return replace(policy, cancelled=cancelled)


@contextmanager
def fence(log: DeltaLog, handle: TransactionHandle, attempt: str) -> Iterator[Fence]:
    """Hold a marker of an attempt of the commit, unless the transaction was aborted.

    When the attempt has committed, or certainly wrote nothing, its marker says so. In doubt it stays as it is, and the staged
    files are not deleted.

    :param attempt: name of this execution of the commit, for readers of the marker.
    """
    held = Fence(log, handle, attempt)
    try:
        held.claim()
        yield held
    except CommitStateUnknownException:
        raise
    except DeltaError:
        with contextlib.suppress(Exception):  # the error says more; the marker keeps the files
            _end(log, handle, held)
        raise
    held.close()


def _end(log: DeltaLog, handle: TransactionHandle, held: Fence) -> None:
    """Note how an attempt that raised an error ended: a user's hook may fail after the log entry."""
    log.update()
    found = commit_of_transaction(log, handle.transaction_id, since=max(handle.read_version + 1, 0))
    if found.version is not None:
        held.end(version=found.version, committedAt=_now())
    elif found.complete:
        held.end(failedAt=_now())


def delete_quietly(log: DeltaLog, paths: list[str]) -> None:
    """Delete what is no longer needed; maintenance deletes leftovers."""
    if not paths:
        return
    try:
        log.store.delete(paths)
    except Exception as error:  # noqa: BLE001 - the outcome of the commit stands
        logger.warning("Could not delete %s of table %s: %s", ", ".join(paths), log.uri, error)


def _claim(log: DeltaLog, handle: TransactionHandle, content: dict[str, Any]) -> str:
    """Put the marker of an attempt under the first free number."""
    directory = transaction_directory(handle.transaction_id)
    data = json.dumps(content).encode()
    pauses = iter(_UNREADABLE_PAUSES)
    number = 0
    while not creates(log.store, path := f"{directory}/{COMMIT_MARKER_PREFIX}{number}", data):
        found = read_marker(log.store, path)
        if found == content:  # ours: the put was repeated
            break
        if found is None:
            if (pause := next(pauses, None)) is None:
                raise handle.error(
                    StagingException,
                    f"The marker {path} of table {log.uri} exists and cannot be read, so it cannot be known whether transaction "
                    f"{handle.transaction_id} was aborted: lookups of the store are stale. Nothing was written. Run the commit "
                    "again.",
                )
            time.sleep(pause)
        elif "abortedAt" in found:
            raise aborted_error(handle)
        else:
            number += 1
    return path


def aborted_error(handle: TransactionHandle) -> TransactionAbortedException:
    """Return the error of a task that works for an aborted transaction."""
    return handle.error(
        TransactionAbortedException,
        f"Transaction {handle.transaction_id} on table {handle.table} ({read_version_name(handle.read_version)}) was "
        "aborted, or abandoned for so long that VACUUM gave it up; its staged files may be gone. Clear the start task with "
        "everything downstream to begin a new one.",
    )


def read_marker(store: LogStore, path: str) -> dict[str, Any] | None:
    """Return what a marker says: nothing if it is damaged or of another transaction, ``None`` if there is none."""
    try:
        value = json.loads(store.read(path))
    except FileNotFoundError:
        return None
    except ValueError:
        return {}
    if not isinstance(value, dict):
        return {}
    owner = path.split("/")[-2]
    return value if value.get("transactionId", owner) == owner else {}  # those of earlier releases do not say whose they are


def _now() -> int:
    return int(time.time() * 1000)

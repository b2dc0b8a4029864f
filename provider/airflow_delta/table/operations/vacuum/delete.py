"""Delete what VACUUM found, in batches, each after a last look.

The last look before VACUUM deletes: what has been, or is being, committed since it decided what to delete.

Before unpublished files of a transaction are deleted, its commit is fenced off: a later attempt refuses; an earlier one is seen,
and its files stay.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import msgspec

from airflow_delta.contract.files import ABORT_MARKER, STAGING_DIRECTORY, is_marker
from airflow_delta.exceptions import StagingException, VersionsNotContiguousException
from airflow_delta.log.actions.decode import decode_commit
from airflow_delta.log.storage.base import FileStatus
from airflow_delta.log.storage.local import LocalStore
from airflow_delta.log.storage.progress import Progress
from airflow_delta.log.storage.table_paths import keys_to_keep
from airflow_delta.table.operations.vacuum.listing import Listing, parents
from airflow_delta.table.operations.vacuum.valid_files import StagedTransactions, kept_vectors, transaction_of, valid_files
from airflow_delta.table.state.markers import fence_off, read_markers

if TYPE_CHECKING:
    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.log.storage.base import FileStatus


COMMIT_MAY_LAST = 24 * 3_600_000
"""Milliseconds for which an attempt of a commit counts as alive, even with a shorter grace time."""


class LastLook:
    """Decides which files of a batch may be deleted now; thread-safe.

    :param version: version of the table that was decided on.
    :param over: tells whether a staged transaction is committed; its other files are unused.
    :param deleted_before: milliseconds since the epoch; files removed before that are not kept.
    :param dead_before: the same; attempts of commits that began before are dead.
    """

    def __init__(
        self, log: DeltaLog, version: int, *, over: Callable[[str], bool], deleted_before: int, dead_before: int, now: int
    ) -> None:
        self._log = log
        self._version = version
        self._over = over
        self._deleted_before = deleted_before
        self._dead_before = min(dead_before, now - COMMIT_MAY_LAST)
        self._kept: set[str] = set()
        self._given_up: dict[str, bool] = {}
        self._lock = threading.Lock()

    def __call__(self, files: Collection[FileStatus]) -> list[FileStatus]:
        """Return those that may be deleted; nothing may happen between this and the deletion."""
        with self._lock:
            for transaction in {transaction_of(status.path) for status in files} - self._given_up.keys():
                if transaction is not None:
                    self._given_up[transaction] = self._over(transaction) or self._give_up(transaction)
            self._read_new_commits()
            return [status for status in files if self._may_go(status.path)]

    def _may_go(self, path: str) -> bool:
        transaction = transaction_of(path)
        return path not in self._kept and (transaction is None or self._given_up[transaction])

    def _give_up(self, transaction: str) -> bool:
        """Announce that the files of a transaction will be deleted; return whether no commit can publish them."""
        store = self._log.store
        try:
            if read_markers(store, transaction, dead_before=self._dead_before).committed:
                return True
        except StagingException:  # not a name that a transaction can have
            return True
        markers, _ = fence_off(store, transaction, dead_before=self._dead_before)
        return markers.committed or not markers.alive

    def _read_new_commits(self) -> None:
        """Keep what commits since the last look have added or removed: RESTORE brings removed files back."""
        newest = self._log.update()
        if newest.version <= self._version:
            return
        try:
            commits = self._log.read_commit_range(range(self._version + 1, newest.version + 1))
        except VersionsNotContiguousException:
            self._kept |= valid_files(newest, deleted_before=self._deleted_before)
        else:
            for entry in commits:
                commit = decode_commit(entry.version, entry.data, table=self._log.uri)
                self._keep(action.path for action in commit.adds)
                self._keep(action.path for action in commit.removes)
                self._keep(action.path for action in commit.cdcs)
                vectors = [*(add.deletion_vector for add in commit.adds), *(r.deletion_vector for r in commit.removes)]
                described = [msgspec.structs.asdict(vector) for vector in vectors if vector is not None]
                self._kept |= kept_vectors(self._log.store, described)
        self._version = newest.version

    def _keep(self, paths: Iterable[str]) -> None:
        for path in paths:
            self._kept |= keys_to_keep(self._log.store, path)


_BATCH = 1_000
_THREADS = 8


@dataclass(frozen=True)
class Found:
    """What is to be deleted: files, then markers of transactions with nothing else left, then empty directories."""

    files: list[FileStatus]
    directories: list[str]
    num_listed_directories: int
    staged: StagedTransactions
    markers: list[FileStatus] = field(default_factory=list)

    @property
    def num_bytes(self) -> int:
        """Return the bytes of its files."""
        return sum(status.size for status in (*self.files, *self.markers))

    @property
    def paths(self) -> tuple[str, ...]:
        """Return the paths of all of it."""
        return (*(status.path for status in (*self.files, *self.markers)), *self.directories)


def with_markers_last(listing: Listing, found: Found) -> Found:
    """Separate the markers of transactions and leave out those that must stay.

    They go with the last file of their transaction, the abort marker only when nothing else is left: as long as a commit could
    find files, it finds the marker.
    """
    data = [status for status in found.files if not _is_marker(status.path)]
    going = {status.path for status in data}
    held: set[str | None] = set()
    begun: set[str | None] = set()
    for status in listing.files:
        transaction = transaction_of(status.path)
        if transaction is not None and not _is_marker(status.path):
            (begun if status.path in going else held).add(transaction)
    markers = [
        status
        for status in found.files
        if _is_marker(status.path)
        and (transaction := transaction_of(status.path)) not in held
        and not (transaction in begun and status.name == ABORT_MARKER)
    ]
    return replace(found, files=data, markers=markers)


def _is_marker(path: str) -> bool:
    directory, _, name = path.rpartition("/")
    return transaction_of(path) is not None and directory.count("/") == 1 and is_marker(name)


def delete(log: DeltaLog, found: Found, look: LastLook) -> Found:
    """Delete the files, the markers, then the empty directories, innermost first; return what was deleted."""
    files = _delete_files(log, found.files, look)
    kept = {transaction_of(status.path) for status in set(found.files) - set(files)}
    markers = _delete_files(log, [s for s in found.markers if transaction_of(s.path) not in kept], look)
    store = log.store
    if not isinstance(store, LocalStore):
        return replace(found, files=files, markers=markers, directories=[])
    directories = [directory for directory in found.directories if store.remove_directory(directory)]
    _remove_staging_directories(store, [status.path for status in (*files, *markers)])
    return replace(found, files=files, markers=markers, directories=directories)


def _delete_files(log: DeltaLog, files: Sequence[FileStatus], look: LastLook) -> list[FileStatus]:
    """Delete what the last look leaves of each batch, and return it."""
    local = log.store.local_root is not None

    def delete_batch(batch: Sequence[FileStatus]) -> list[FileStatus]:
        going = look(batch)
        paths = [status.path for status in going]
        log.store.delete([*paths, *map(_checksum, paths)] if local else paths)
        return going

    batches = [files[start : start + _BATCH] for start in range(0, len(files), _BATCH)]
    with Progress(f"Deleting from {log.uri}", len(files)) as progress, ThreadPoolExecutor(1 if local else _THREADS) as pool:
        done = map(delete_batch, batches) if local else pool.map(delete_batch, batches)
        deleted: list[FileStatus] = []
        for batch, going in zip(batches, done, strict=True):
            deleted += going
            progress.advance(len(batch))
    return deleted


def _checksum(path: str) -> str:
    """Return the checksum file that Hadoop keeps beside a local file and deletes with it."""
    directory, slash, name = path.rpartition("/")
    return f"{directory}{slash}.{name}.crc"


def _remove_staging_directories(store: LocalStore, paths: Sequence[str]) -> None:
    """Delete directories below ``staged/`` that this run emptied: thousands of transactions would leave as many."""
    emptied = {
        directory
        for path in paths
        if path.startswith(f"{STAGING_DIRECTORY}/")
        for directory in parents(path)
        if directory != STAGING_DIRECTORY
    }
    for directory in sorted(emptied, reverse=True):
        store.remove_directory(directory)

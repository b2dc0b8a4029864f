"""Delete what VACUUM found, in batches, each after a last look."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import field, replace
from typing import TYPE_CHECKING

from airflow_delta.contract.staging_directory import ABORT_MARKER, STAGING_DIRECTORY, is_marker
from airflow_delta.light_dataclasses import dataclass
from airflow_delta.log.storage.base import FileStatus
from airflow_delta.log.storage.local import LocalStore
from airflow_delta.log.storage.progress import Progress
from airflow_delta.table.operations.vacuum.last_look import LastLook
from airflow_delta.table.operations.vacuum.listing import Listing, parents
from airflow_delta.table.operations.vacuum.staged_transactions import StagedTransactions, transaction_of

if TYPE_CHECKING:
    from airflow_delta.log.delta_log import DeltaLog


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

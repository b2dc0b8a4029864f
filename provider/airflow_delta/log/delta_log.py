"""The log of one table: its latest snapshot, its commits, and writing to it (Delta's DeltaLog)."""

from __future__ import annotations

import importlib
import logging
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any

from airflow_delta.exceptions import VersionNotFoundException, VersionsNotContiguousException
from airflow_delta.log.commits import CommitFile
from airflow_delta.log.file_names import COMMIT_SUFFIX, LOG_DIRECTORY, checksum_file, commit_file, commit_version, version_prefix
from airflow_delta.log.segment import LogSegment, earliest_version, list_log, load_segment, missing_versions
from airflow_delta.log.snapshot import Snapshot
from airflow_delta.log.store import UNKNOWN, FileStatus, LogStore, store_for

if TYPE_CHECKING:
    from airflow_delta.log.history import CommitRecord
    from airflow_delta.transaction import OptimisticTransaction

logger = logging.getLogger(__name__)

_ANCHOR_INTERVAL = 100
"""After how many new commits a newer checkpoint is looked for."""
_RECENT = 60.0
"""Seconds for which a listing proves that the latest version has not been cleaned up: retention is counted in days."""
_OWN_COMMITS = 32
_OWN_COMMIT_BYTES = 1 << 20


class DeltaLog:
    """The log of one table.

    :param store: storage of the table.
    """

    def __init__(self, store: LogStore) -> None:
        self.store = store
        self._lock = threading.RLock()
        self._snapshot: Snapshot | None = None
        self._latest_status: FileStatus | None = None
        self._own_commits: dict[int, bytes] = {}
        self._anchored_at = -1
        self._seen_at = 0.0

    @classmethod
    def for_table(cls, table_uri: str, storage_options: Mapping[str, str] | None = None) -> DeltaLog:
        """Open the log of a table; nothing is read yet, and the table need not exist.

        :param table_uri: path or URI of the table.
        :param storage_options: see :func:`airflow_delta.log.store.store_for`.
        """
        return cls(store_for(table_uri, storage_options))

    def __repr__(self) -> str:
        return f"DeltaLog({self.uri!r})"

    @property
    def uri(self) -> str:
        """Return the table's URI as it was given, without trailing slash."""
        return self.store.root

    # -- snapshots ------------------------------------------------------------------------------------------------------------

    @property
    def snapshot(self) -> Snapshot:
        """Return the snapshot last read, reading the latest one the first time."""
        with self._lock:
            return self._snapshot if self._snapshot is not None else self._load()

    def update(self) -> Snapshot:
        """Return the latest snapshot; only commits that are new since the last one are read.

        :raises VersionsNotContiguousException: a commit between two others is missing.
        """
        with self._lock:
            current = self._snapshot
            if current is None or current.version < 0:
                return self._load()
            newer = self._newer_commits(current)
            if newer is None:  # the commit that we stand on is gone or was replaced: another table, or a restored one
                return self._load()
            commits, statuses = newer
            self._seen_at = time.monotonic()
            if not commits:
                return current
            version = commits[-1].version
            self._snapshot = current.advanced(commits, self._later_segment(current, version, statuses))
            self._latest_status = statuses.get(version) or self.store.head(commit_file(version))
            return self._snapshot

    def advance(self, commits: Sequence[CommitFile]) -> None:
        """Take over commits that are known to be in the log, so that the cached snapshot needs no reading to be at the last one.

        Does nothing when they do not follow the cached snapshot without a gap.

        :param commits: oldest first; those that the snapshot has already are left out.
        """
        with self._lock:
            current = self._snapshot
            if current is None:
                return
            newer = [commit for commit in commits if commit.version > current.version]
            if current.version < 0 or not newer or newer[0].version != current.version + 1:
                return
            version, data = newer[-1].version, newer[-1].data
            self._snapshot = current.advanced(newer, self._later_segment(current, version, {}))
            path = commit_file(version)
            self._latest_status = self.store.head(path) if self.store.probes else FileStatus(path, len(data), UNKNOWN)

    def _is_replaced(self, found: FileStatus | None) -> bool:
        """Tell whether the commit that we stand on is no longer the file that was read or written."""
        latest = self._latest_status
        if latest is not None and latest.modification_time == UNKNOWN:
            return found is None or found.size != latest.size
        return found != latest

    def _later_segment(self, current: Snapshot, version: int, statuses: Mapping[int, FileStatus]) -> LogSegment:
        """Return the segment of a version after the current one, from time to time on a newer checkpoint."""
        if version - self._anchored_at >= _ANCHOR_INTERVAL:
            self._anchored_at = version
            segment = load_segment(self.store, version, exclude=current.corrupt_checkpoints)
            if segment is not None:
                return segment
        return current.segment.advanced(version, statuses)

    def table_exists(self) -> bool:
        """Tell whether there is a table, as of now."""
        return self.update().version >= 0

    def snapshot_at(self, version: int) -> Snapshot:
        """Return the snapshot of a version.

        :raises VersionNotFoundException: the log does not hold it (any more); says which versions it does hold.
        """
        snapshot = self.snapshot
        if version > snapshot.version:
            snapshot = self.update()
        if version == snapshot.version:
            return snapshot
        if snapshot.version < 0:
            raise VersionNotFoundException(
                f"There is no version {version} at {self.uri}: no table is there (yet).", table=self.uri, version=version
            )
        return Snapshot(self, load_segment(self.store, version))

    def snapshot_at_timestamp(self, timestamp: datetime | int) -> Snapshot:
        """Return the last snapshot that was committed at a time or before it.

        :param timestamp: a datetime (naive: UTC), or milliseconds since the epoch.
        :raises VersionNotFoundException: the time is before the earliest or after the latest version.
        """
        from airflow_delta.log.time_travel import version_at_timestamp

        return self.snapshot_at(version_at_timestamp(self, timestamp))

    def _load(self) -> Snapshot:
        self._seen_at = time.monotonic()
        self._own_commits.clear()  # what was written may have been of a table that is gone
        segment = load_segment(self.store)
        self._snapshot = Snapshot(self, segment)
        self._latest_status = None
        self._anchored_at = self._snapshot.version
        if segment is not None:
            self._latest_status = segment.statuses.get(segment.version) or self.store.head(commit_file(segment.version))
        return self._snapshot

    def _newer_commits(self, current: Snapshot) -> tuple[list[CommitFile], dict[int, FileStatus]] | None:
        version = current.version
        if self.store.probes:
            if self._is_replaced(self.store.head(commit_file(version))):
                return None
            return list(self._probe(version + 1, None)), {}
        statuses = self._list_commits(version)
        if self._is_replaced(statuses.pop(version, None)):
            return None
        return self._read_listed(version + 1, statuses), statuses

    # -- commits --------------------------------------------------------------------------------------------------------------

    def read_commit(self, version: int) -> bytes:
        """Return a commit's content.

        :raises FileNotFoundError: it does not exist.
        """
        own = self._own_commits.get(version)
        return own if own is not None else self.store.read(commit_file(version))

    def read_commit_range(self, versions: range) -> list[CommitFile]:
        """Return commits that are known to exist, concurrently on an object store.

        :raises VersionsNotContiguousException: one of them is gone.
        """
        own = self._own_commits
        wanted = [version for version in versions if version not in own]
        try:
            read = dict(zip(wanted, self.store.read_many([commit_file(version) for version in wanted]), strict=True))
        except FileNotFoundError as error:
            raise VersionsNotContiguousException(
                f"A commit between {versions.start} and {versions.stop - 1} of table {self.uri} is gone ({error}). It was "
                "deleted while it was needed; read the table again, and if it stays away restore it from a backup.",
                table=self.uri,
                version=versions.stop - 1,
            ) from error
        return [CommitFile(version, read[version] if version in read else own[version]) for version in versions]

    def read_commits(self, start: int, end: int | None = None) -> list[CommitFile]:
        """Return all commits from a version on, without a gap; empty when there is none yet.

        :param end: last version wanted.
        :raises VersionNotFoundException: ``start`` was there and has been cleaned up, so what was committed since is not known.
        :raises VersionsNotContiguousException: a later commit exists and one before it is missing.
        """
        if self.store.probes:
            commits = list(self._probe(start, end))
            if not commits:
                self._refuse_cleaned_up(start)
            return commits
        statuses = self._list_commits(max(start - 1, 0))
        if start > 0 and statuses.pop(start - 1, None) is None:
            self._refuse_cleaned_up(start)
        if end is not None:
            statuses = {version: status for version, status in statuses.items() if version <= end}
        return self._read_listed(start, statuses)

    def write_commit(self, version: int, data: bytes) -> None:
        """Put a commit, unless its version is taken.

        :raises FileExistsError: the version is taken.
        :raises VersionNotFoundException: the commit before it is not in the log (any more); nothing was written.
        :raises AmbiguousPutError: the store did not say whether it was written.
        """
        self._check_predecessor(version)
        self.store.put_if_absent(commit_file(version), data)
        if len(data) <= _OWN_COMMIT_BYTES:
            self._own_commits[version] = data
            while len(self._own_commits) > _OWN_COMMITS:
                del self._own_commits[next(iter(self._own_commits))]

    def _check_predecessor(self, version: int) -> None:
        """Refuse a commit that would not follow the latest one: its place may be free only because the log was cleaned up.

        A transaction may be open for days. Its version, deleted as expired since, could be put a second time, and nobody
        would ever read it. Nor may a commit bring the log of a deleted table back to life.
        """
        if version == 0 or self._recently_latest(version - 1) or self.store.head(commit_file(version - 1)) is not None:
            return
        listing = list_log(self.store, version - 1)
        if listing.latest() == version - 1:  # only its checkpoint is left
            return
        raise VersionNotFoundException(
            f"Version {version} of table {self.uri} was not written: the version before, which it would follow, is not in its log"
            + (f" (which goes on to version {listing.latest()})" if listing.latest() >= 0 else "")
            + ". It was cleaned up or the table was deleted meanwhile. Start the transaction again.",
            latest=listing.latest() if listing.latest() >= 0 else None,
            table=self.uri,
            version=version - 1,
        )

    def _recently_latest(self, version: int) -> bool:
        """Tell whether an object store listed the version as the latest a moment ago; local files are simply asked for."""
        if self.store.probes or self._snapshot is None or self._snapshot.version != version:
            return False
        return time.monotonic() - self._seen_at < _RECENT

    def _probe(self, start: int, end: int | None) -> Iterator[CommitFile]:
        version = start
        while end is None or version <= end:
            try:
                data = self.store.read(commit_file(version))
            except FileNotFoundError:
                if self.store.head(commit_file(version + 1)) is None:
                    return
                if self.store.head(commit_file(version)) is not None:  # both were put since
                    continue
                if version == start:
                    self._refuse_cleaned_up(start)
                raise self._gap(version, version + 1) from None
            yield CommitFile(version, data)
            version += 1

    def _list_commits(self, start: int) -> dict[int, FileStatus]:
        statuses = {}
        for status in self.store.list_from(LOG_DIRECTORY, version_prefix(start) + COMMIT_SUFFIX):
            version = commit_version(status.name)
            if version is not None:
                statuses[version] = status
        return statuses

    def _read_listed(self, start: int, statuses: Mapping[int, FileStatus]) -> list[CommitFile]:
        versions = range(start, max(statuses, default=start - 1) + 1)
        missing = missing_versions(statuses, start, versions.stop - 1)
        if missing:
            raise self._gap(missing[0], versions[-1])
        commits = self.read_commit_range(versions)
        return [commit._replace(modification_time=statuses[commit.version].modification_time) for commit in commits]

    def _gap(self, missing: int, later: int) -> VersionsNotContiguousException:
        return VersionsNotContiguousException(
            f"Commit {missing} of table {self.uri} is missing, although commit {later} is there. Restore "
            f"{commit_file(missing)} from a backup; nothing may be committed to the table until then.",
            table=self.uri,
            version=missing,
        )

    def _refuse_cleaned_up(self, start: int) -> None:
        """Raise when nothing at ``start`` means that it has been deleted rather than not been written yet."""
        if start > 0 and self.store.head(commit_file(start - 1)) is not None:
            return
        listing = list_log(self.store, start)
        known = [*listing.commits, *listing.checkpoint_versions(), *listing.v2]
        if start in listing.commits or not known:
            return
        full = list_log(self.store)
        earliest = earliest_version(self.store, full)
        raise VersionNotFoundException(
            f"Commit {start} of table {self.uri} is no longer in its log, which goes on to version {max(known)}: it was cleaned "
            "up, so what was committed since cannot be known. Start the transaction again; keep the log longer than the "
            "longest transaction with the table property delta.logRetentionDuration.",
            earliest=earliest,
            latest=max(known),
            table=self.uri,
            version=start,
        )

    def history(self, limit: int | None = None) -> list[CommitRecord]:
        """Return the commits that the log still holds, newest first; only as many as asked for are read.

        :param limit: how many.
        :raises DeltaTableNotFoundException: there is no table.
        """
        from airflow_delta.log.history import read_history

        return read_history(self, limit)

    # -- transactions ---------------------------------------------------------------------------------------------------------

    def start_transaction(self, snapshot: Snapshot | None = None, **options: Any) -> OptimisticTransaction:
        """Start an optimistic transaction.

        :param snapshot: version to read; default: the latest.
        :param options: further arguments of :class:`airflow_delta.transaction.OptimisticTransaction`.
        """
        transaction: type[OptimisticTransaction] = importlib.import_module("airflow_delta.transaction").OptimisticTransaction
        return transaction(self, snapshot if snapshot is not None else self.update(), **options)

    @contextmanager
    def with_new_transaction(self, snapshot: Snapshot | None = None, **options: Any) -> Iterator[OptimisticTransaction]:
        """Start a transaction that is the thread's active one inside the ``with`` block."""
        active = importlib.import_module("airflow_delta.transaction").OptimisticTransaction
        transaction = self.start_transaction(snapshot, **options)
        active.set_active(transaction)
        try:
            yield transaction
        finally:
            active.clear_active()

    # -- after a commit -------------------------------------------------------------------------------------------------------

    def checkpoint(self, snapshot: Snapshot | None = None) -> None:
        """Write a classic checkpoint of a snapshot, and ``_last_checkpoint``.

        :param snapshot: default: the latest.
        """
        from airflow_delta.log.checkpoint_writer import write_checkpoint

        snapshot = snapshot if snapshot is not None else self.update()
        write_checkpoint(snapshot)
        # Where the chain of checksums was broken (another engine's commits), it starts anew here: the list of files has been
        # read anyway, so that the next start need not open the checkpoint.
        if not self.store.head(checksum_file(snapshot.version)):
            snapshot.complete_state()
            self.write_checksum(snapshot)
        with self._lock:
            self._anchored_at = -_ANCHOR_INTERVAL  # the next update looks for it

    def write_checksum(self, snapshot: Snapshot) -> bool:
        """Write ``<version>.crc`` of a snapshot when that costs no more than its last commits; return whether it was written.

        Nothing is written when the totals cannot be derived from an earlier checksum, or when there is a file already.
        """
        from airflow_delta.log.checksum_writer import write_snapshot_checksum

        return write_snapshot_checksum(snapshot)

    def clean_up_expired_logs(self, snapshot: Snapshot | None = None) -> None:
        """Delete commits and checkpoints older than ``delta.logRetentionDuration`` that no version still needs."""
        from airflow_delta.log.cleanup import clean_up_expired_logs

        clean_up_expired_logs(snapshot if snapshot is not None else self.update())

"""The log of one table: its latest snapshot, its commits, and writing to it (Delta's DeltaLog).

:class:`airflow_delta.log.DeltaLog` adds transactions, which are a floor above: :mod:`airflow_delta.transaction.delta_log`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Self

from airflow_delta.exceptions import (
    InvalidCommittedVersionException,
    VersionNotFoundException,
    VersionsNotContiguousException,
)
from airflow_delta.log import heavy
from airflow_delta.log.actions.decode import CommitFile
from airflow_delta.log.segment.commit_files import CommitFiles, now
from airflow_delta.log.segment.segment import LogSegment, load_segment
from airflow_delta.log.snapshot import Snapshot
from airflow_delta.log.storage.base import UNKNOWN, FileStatus, LogStore
from airflow_delta.log.storage.factory import store_for
from airflow_delta.log.storage.file_names import checksum_file, commit_file

if TYPE_CHECKING:
    from airflow_delta.log.checksum_validation import ChecksumValidation
    from airflow_delta.log.history import CommitRecord

logger = logging.getLogger(__name__)

_FORCED_VALIDATION_INTERVAL = 400
_ANCHOR_INTERVAL = 100
"""Number of new commits after which to look for a newer checkpoint."""


class DeltaLog(CommitFiles):
    """The log of one table.

    Threads may share it. On an object store, transactions that do so and take turns (``CommitPolicy(commit_lock=True)``) need not
    look for each other's commits: each costs its log entry and checksum, two requests.

    :param store: storage of the table.
    :param checksum_validation: when a starting transaction verifies the state it reads; by default as in Delta.
    """

    def __init__(self, store: LogStore, *, checksum_validation: ChecksumValidation | None = None) -> None:
        super().__init__(store)
        self._checksum_validation = checksum_validation
        self._validated_at: int | None = None
        self._lock = threading.RLock()
        self._snapshot: Snapshot | None = None
        self._latest_status: FileStatus | None = None
        self._anchored_at = -1

    @classmethod
    def for_table(
        cls,
        table_uri: str,
        storage_options: Mapping[str, str] | None = None,
        *,
        checksum_validation: ChecksumValidation | None = None,
        connection: str | None = None,
    ) -> Self:
        """Open the log of a table, without reading anything; the table need not exist.

        :param table_uri: path or URI of the table.
        :param storage_options: see :func:`airflow_delta.log.storage.factory.store_for`.
        :param connection: name of the connection that the options come from, for errors.
        :param checksum_validation: when a starting transaction verifies the state it reads; by default as in Delta.
        """
        return cls(store_for(table_uri, storage_options, connection=connection), checksum_validation=checksum_validation)

    stale_listing_pauses: tuple[float, ...] = (1.0, 2.0, 4.0)
    """Seconds to wait before each further listing until our own commit shows (Delta's ``commit.inconsistentList.maxRetries``)."""

    def __repr__(self) -> str:
        return f"DeltaLog({self.uri!r})"

    # -- snapshots ------------------------------------------------------------------------------------------------------------

    @property
    def snapshot(self) -> Snapshot:
        """Return the last snapshot that was read; the first time, read the latest one."""
        with self._lock:
            return self._snapshot if self._snapshot is not None else self._load()

    def update(self) -> Snapshot:
        """Return the latest snapshot, reading only commits that are newer than the last one."""
        with self._lock:
            current = self._snapshot
            if current is None or current.version < 0:
                return self._load()
            newer = self._newer_commits(current)
            if newer is None:  # our current commit is gone or was replaced: the table was recreated or restored
                return self._load()
            commits, statuses = newer
            if not commits:
                return current
            version = commits[-1].version
            self._snapshot = current.advanced(commits, self._later_segment(current, version, statuses))
            self._latest_status = statuses.get(version) or self.store.head(commit_file(version))
            return self._snapshot

    def update_after_commit(self, version: int, commits: Sequence[CommitFile] = ()) -> Snapshot:
        """Return a snapshot at or after a version that was just committed (Delta's ``updateAfterCommit``).

        If the listing does not show the commit yet, it is repeated a few times with growing pauses.

        :param version: the committed version.
        :param commits: commits that are known to be in the log, the new one last; they need not be read.
        :raises InvalidCommittedVersionException: if the log still does not show the commit, which is valid nevertheless.
        """
        self.advance(commits)
        current = self._snapshot
        if current is not None and current.version >= version:
            return current
        pauses = iter(self.stale_listing_pauses)
        while True:
            problem: Exception | None = None
            try:
                found = self.update().version
                if found >= version:
                    return self.snapshot
            except (OSError, VersionsNotContiguousException) as error:
                found, problem = self._snapshot.version if self._snapshot is not None else -1, error
            pause = next(pauses, None)
            if pause is None:
                raise self._not_listed(version, found, problem) from problem
            logger.info(
                "Version %s of %s is committed, but the listing shows %s as the latest; listing again", version, self.uri, found
            )
            time.sleep(pause)

    def _not_listed(self, version: int, found: int, problem: Exception | None) -> InvalidCommittedVersionException:
        shown = f"shows version {found} as the latest" if found >= 0 else "shows no table"
        return self.error(
            InvalidCommittedVersionException,
            f"Version {version} of table {self.uri} IS committed, but the log {shown}, even after listing it again"
            + (f" ({problem})" if problem is not None else "")
            + ". Do not commit it again. Either the listing is stale or the log was changed: check whether "
            f"{commit_file(version)} exists. The checksum and checkpoint of the version were not written.",
            version=version,
        )

    def validate_at_start(self, snapshot: Snapshot) -> None:
        """Verify the state that a transaction is about to read against its checksum, if that is due (Delta's rule at start).

        Nothing is read if it is not due. After a verification, this log does not verify again until the interval has passed.
        """
        validation = self._checksum_validation
        if validation is None and snapshot.version < _FORCED_VALIDATION_INTERVAL:
            return
        validation = validation if validation is not None else heavy.ChecksumValidation()
        verified = self._validated_at
        recently = verified is not None and 0 <= snapshot.version - verified < validation.interval
        if (validation.mode == "when_due" and recently) or not validation.is_due(snapshot):
            return
        snapshot.validate_checksum(fatal=validation.fatal)
        self._validated_at = snapshot.version

    def advance(self, commits: Sequence[CommitFile]) -> None:
        """Advance the cached snapshot by commits that are known to be in the log, without reading them.

        Does nothing if they do not follow the cached snapshot without a gap.

        :param commits: oldest first; those already in the snapshot are skipped.
        """
        with self._lock:
            current = self._snapshot
            if current is None:
                return
            newer = [commit for commit in commits if commit.version > current.version]
            if current.version < 0 or not newer or newer[0].version != current.version + 1:
                return
            version = newer[-1].version
            self._snapshot = current.advanced(newer, self._later_segment(current, version, {}))
            self._latest_status = self._status_of(newer[-1])

    def _status_of(self, commit: CommitFile) -> FileStatus | None:
        """Return the status of a commit that is in the log; a store that fails now must not turn the commit into an error."""
        path = commit_file(commit.version)
        if self.store.probes:
            try:
                return self.store.head(path)
            except OSError as error:
                logger.warning("Table %s: the status of version %s is not known: %s", self.uri, commit.version, error)
        return FileStatus(path, len(commit.data), UNKNOWN)

    def _is_replaced(self, found: FileStatus | None) -> bool:
        """Tell whether our current commit is no longer the file that was read or written."""
        latest = self._latest_status
        if latest is not None and latest.modification_time == UNKNOWN:
            return found is None or found.size != latest.size
        return found != latest

    def _later_segment(self, current: Snapshot, version: int, statuses: Mapping[int, FileStatus]) -> LogSegment:
        """Return the segment of a later version, from time to time based on a newer checkpoint.

        A newer checkpoint only saves work: a failed or stale listing must not turn a commit into an error.
        """
        if version - self._anchored_at >= _ANCHOR_INTERVAL:
            try:
                segment = load_segment(self.store, version, exclude=current.corrupt_checkpoints)
            except (OSError, VersionNotFoundException) as error:
                logger.warning("Table %s: not looking for a newer checkpoint now: %s", self.uri, error)
                segment = None
            if segment is not None:
                self._anchored_at = version
                return segment
        return current.segment.advanced(version, statuses)

    def table_exists(self) -> bool:
        """Tell whether there is a table now."""
        return self.update().version >= 0

    def snapshot_at(self, version: int) -> Snapshot:
        """Return the snapshot of a version.

        :raises VersionNotFoundException: if the version is not (or no longer) in the log; says which versions are.
        """
        snapshot = self.snapshot
        if version > snapshot.version:
            snapshot = self.update()
        if version == snapshot.version:
            return snapshot
        if snapshot.version < 0:
            raise self.error(
                VersionNotFoundException, f"There is no version {version} at {self.uri}: there is no table.", version=version
            )
        return Snapshot(self, load_segment(self.store, version))

    def snapshot_at_timestamp(self, timestamp: datetime | int) -> Snapshot:
        """Return the last snapshot committed at or before a time; the latest if the time is after it.

        :param timestamp: a datetime (naive: UTC), or milliseconds since the epoch.
        """
        return self.snapshot_at(heavy.version_at_timestamp(self.update(), timestamp))

    def _load(self) -> Snapshot:
        begun = now()
        self._kept.clear()  # they may belong to a deleted table
        segment = load_segment(self.store)
        self._snapshot = Snapshot(self, segment)
        self._ends_at(self._snapshot.version, begun)
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
            return list(self._probe(version + 1)), {}
        begun = now()
        statuses = self._list_commits(version)
        if self._is_replaced(statuses.pop(version, None)):
            return None
        commits = self._read_listed(version + 1, statuses)
        self._ends_at(version + len(commits), begun)
        return commits, statuses

    # -- history --------------------------------------------------------------------------------------------------------------

    def history(self, limit: int | None = None) -> list[CommitRecord]:
        """Return the commits that are still in the log, newest first; reads only as many as requested.

        :param limit: maximum number of commits.
        """
        return heavy.read_history(self.update(), limit)

    # -- after a commit -------------------------------------------------------------------------------------------------------

    def checkpoint(self, snapshot: Snapshot | None = None) -> None:
        """Write a checkpoint of a snapshot, classic or V2 as ``delta.checkpointPolicy`` says, and ``_last_checkpoint``.

        :param snapshot: by default the latest.
        """
        snapshot = snapshot if snapshot is not None else self.update()
        believed = snapshot.derived_totals()
        heavy.write_checkpoint(snapshot)
        counted = snapshot.derived_totals()
        if believed is not None and counted is not None and counted.num_files != believed.num_files:
            # A commit added or removed a file twice, so the sums are wrong. Nobody may build on that checksum.
            self.store.delete([checksum_file(snapshot.version)])
            snapshot.set_totals(snapshot.count_totals())
        # If the chain of checksums is broken (by commits of another engine), it starts again here: the list of files has been
        # read anyway, and the next start need not open the checkpoint.
        if not self.store.head(checksum_file(snapshot.version)):
            snapshot.complete_state()
            self.write_checksum(snapshot)
        with self._lock:
            self._anchored_at = -_ANCHOR_INTERVAL  # the next update looks for the checkpoint

    def write_checksum(self, snapshot: Snapshot) -> bool:
        """Write ``<version>.crc`` of a snapshot if its last commits are enough to derive it; return whether it was written.

        Nothing is written if the totals cannot be derived from an earlier checksum, or if the file exists.
        """
        return heavy.write_snapshot_checksum(snapshot)

    def clean_up_expired_logs(self, snapshot: Snapshot | None = None) -> None:
        """Delete commits and checkpoints older than ``delta.logRetentionDuration`` that no version needs any more."""
        self.store.committer.check_allowed("LOG CLEANUP")
        heavy.clean_up_expired_logs(snapshot if snapshot is not None else self.update())

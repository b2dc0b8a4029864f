"""Find the files that show what a range of commits did to rows.

A commit with change data files is read from these alone; others from the files added and removed with changed data. In a
file whose deletion vector changed, only the rows that one of the two vectors marks have changed (Delta's ``CDCReader``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import field
from datetime import datetime
from typing import TYPE_CHECKING

import msgspec
from pyroaring import BitMap64

from airflow_delta.exceptions import (
    DeltaIllegalStateException,
    DeltaTableNotFoundException,
    VersionNotFoundException,
    VersionsNotContiguousException,
)
from airflow_delta.light_dataclasses import dataclass
from airflow_delta.log.actions.actions import AddFile, Metadata, RemoveFile
from airflow_delta.log.actions.decode import DecodedCommit, decode_commits, timestamp_of_info
from airflow_delta.log.actions.deletion_vectors import inline_deletion_vector, read_deletion_vector
from airflow_delta.log.actions.reconciliation import canonical_path
from airflow_delta.log.features.change_data_feed import is_feed_enabled
from airflow_delta.log.features.protocol import check_can_read
from airflow_delta.log.statistics.row_counts import num_records
from airflow_delta.log.storage.file_names import COMMIT_SUFFIX, LOG_DIRECTORY, commit_version, version_prefix
from airflow_delta.log.time_travel import first_recorded_version, monotonic_timestamps
from airflow_delta.table.changes.schema import check_readable, check_removed, read_schema
from airflow_delta.table.changes.version_range import change_range

if TYPE_CHECKING:
    from airflow_delta.log import Snapshot
    from airflow_delta.log.delta_log import DeltaLog


_CHUNK = 64
_UNORDERED_TIMES = 100
"""Number of commits before the first one whose times are read, since its own must be later (Delta's constant)."""

_COUNTED = ("numTargetRowsInserted", "numTargetRowsUpdated", "numTargetRowsDeleted")


@dataclass(frozen=True, slots=True)
class Changes:
    """The changes between two versions, both included.

    :ivar read: the version whose schema the rows are read with.
    """

    read: Snapshot
    start: int
    end: int
    commits: list[ChangedFiles]


@dataclass(slots=True)
class ChangedFiles:
    """The files of one commit, by what they show.

    :ivar changes: files whose rows say what kind of change they are.
    :ivar inserted_rows: files of which only the rows that the deletion vector marks were inserted.
    :ivar deleted_rows: files of which only these were deleted.
    """

    version: int
    timestamp: int
    changes: list[AddFile] = field(default_factory=list)
    inserts: list[AddFile] = field(default_factory=list)
    deletes: list[AddFile] = field(default_factory=list)
    inserted_rows: list[AddFile] = field(default_factory=list)
    deleted_rows: list[AddFile] = field(default_factory=list)

    def kinds(self) -> dict[str, list[AddFile]]:
        names = ("changes", "inserts", "deletes", "inserted_rows", "deleted_rows")
        return {name: files for name in names if (files := getattr(self, name))}


def find_changes(
    log: DeltaLog,
    *,
    starting_version: int | None = None,
    starting_timestamp: datetime | int | None = None,
    ending_version: int | None = None,
    ending_timestamp: datetime | int | None = None,
    snapshot: Snapshot | None = None,
) -> Changes:
    """Return the files that show the changes between two versions, both included.

    :param starting_version: the first version; or
    :param starting_timestamp: the first version committed at this time or later (a datetime, naive: UTC, or milliseconds).
    :param ending_version: the last version, at most the latest one; or
    :param ending_timestamp: the last version committed at this time or before. Default: the latest version.
    :param snapshot: the table to read; later commits do not count. Default: the latest version.
    :raises DeltaTableNotFoundException: if there is no table.
    :raises DeltaIllegalArgumentException: if not exactly one start is given, or the end is before the start.
    :raises VersionNotFoundException: if the log does not hold the versions, or no longer does.
    :raises DeltaIllegalStateException: if changes were not recorded in the whole range (Delta: DELTA_MISSING_CHANGE_DATA).
    :raises InvalidProtocolVersionException: if a version needs a newer reader version; or
        :class:`~airflow_delta.exceptions.DeltaUnsupportedTableFeatureException`.
    :raises DeltaAnalysisException: if no single schema can read the whole range.
    :raises DeltaFileNotFoundException: if a deletion vector is gone.
    """
    snapshot = log.update() if snapshot is None else snapshot
    if snapshot.version < 0:
        raise log.error(
            DeltaTableNotFoundException,
            f"There is no Delta table at {log.uri}, so there are no changes to read. Check the location, the connection, and "
            "that an earlier task has created it.",
        )
    start, end = change_range(log, snapshot, starting_version, starting_timestamp, ending_version, ending_timestamp)
    if end < start:  # both times between the same two commits
        return Changes(snapshot, start, end, [])
    first = log.snapshot_at(start)
    first.check_readable()
    _check_recorded(log, first.metadata, start, (start, end))
    read = read_schema(log, snapshot, first, end)
    read.check_readable()
    found: list[ChangedFiles] = []
    times = _times(log, snapshot, start, end)
    for commit in commits_between(log, start, end):
        for protocol in commit.protocol:
            check_can_read(protocol, log.uri, commit.version, provided=log.provided)
        for metadata in commit.metadata:
            _check_recorded(log, metadata, commit.version, (start, end))
            if commit.version > start:
                check_readable(log.uri, read, metadata, commit.version, (start, end))
        files = change_files(log, commit, _time_of(log, snapshot, commit, times))
        if commit.version == start > 0 and commit.metadata and (files.deletes or files.changes):
            check_removed(log.uri, read, log.snapshot_at(start - 1).metadata, start)
        if files.kinds():
            found.append(files)
    check_readable(log.uri, read, first.metadata, start, (start, end))
    return Changes(read, start, end, found)


def commits_between(log: DeltaLog, start: int, end: int) -> Iterator[DecodedCommit]:
    """Yield the commits of a range, both ends included.

    :raises VersionNotFoundException: if the log no longer holds one of them.
    """
    for first in range(start, end + 1, _CHUNK):
        versions = range(first, min(first + _CHUNK, end + 1))
        try:
            files = log.read_commit_range(versions)
        except VersionsNotContiguousException as error:
            raise log.error(
                VersionNotFoundException,
                f"The changes of table {log.uri} from version {start} to {end} cannot be read: commits between {versions[0]} and "
                f"{versions[-1]} are no longer in its log. They were cleaned up; start later, and raise "
                "delta.logRetentionDuration above the time between two reads.",
                latest=log.snapshot.version,
                version=versions[0],
            ) from error
        yield from decode_commits(files, table=log.uri)


def _check_recorded(log: DeltaLog, metadata: Metadata, version: int, versions: tuple[int, int]) -> None:
    if not is_feed_enabled(metadata):
        raise log.error(
            DeltaIllegalStateException,
            f"Table {log.uri} did not record changes at version {version}, so those from version {versions[0]} to {versions[1]} "
            "cannot be read (DELTA_MISSING_CHANGE_DATA). Choose a range in which delta.enableChangeDataFeed is true.",
            version=version,
        )


def _times(log: DeltaLog, snapshot: Snapshot, start: int, end: int) -> dict[int, int]:
    """Return the times of commit files; empty if all commits carry their own time."""
    recorded = first_recorded_version(snapshot)
    if recorded is not None and start >= recorded:
        return {}
    listed = log.store.list_from(LOG_DIRECTORY, version_prefix(max(start - _UNORDERED_TIMES, 0)) + COMMIT_SUFFIX)
    versions = sorted(v for status in listed if (v := commit_version(status.name)) is not None and v <= end)
    return monotonic_timestamps(log, versions, listed)


def _time_of(log: DeltaLog, snapshot: Snapshot, commit: DecodedCommit, times: dict[int, int]) -> int:
    recorded = first_recorded_version(snapshot)
    if recorded is not None and commit.version >= recorded:
        return timestamp_of_info(commit.version, commit.commit_info, table=log.uri)
    return times[commit.version]


def change_files(log: DeltaLog, commit: DecodedCommit, timestamp: int) -> ChangedFiles:
    """Return the files that show the changes of a commit."""
    files = ChangedFiles(commit.version, timestamp)
    if commit.cdcs:
        files.changes = [
            AddFile(path=c.path, partition_values=c.partition_values, size=c.size, modification_time=0, data_change=False)
            for c in commit.cdcs
        ]
        return files
    if _changed_nothing(commit):
        return files
    add_rewritten(
        log,
        files,
        [add for add in commit.adds if add.data_change],
        [_as_add(log, commit, remove) for remove in commit.removes if remove.data_change],
    )
    return files


def add_rewritten(log: DeltaLog, files: ChangedFiles, added: Iterable[AddFile], removed: Iterable[AddFile]) -> None:
    """Add files that leave the table and files that come; of a file that does both, the rows that differ."""
    adds = {canonical_path(add.path): add for add in added}
    removes = {canonical_path(remove.path): remove for remove in removed}
    files.inserts = [add for path, add in adds.items() if path not in removes]
    files.deletes = [remove for path, remove in removes.items() if path not in adds]
    for path, add in adds.items():
        if path in removes:
            _add_difference(log, files, removes[path], add)


def _changed_nothing(commit: DecodedCommit) -> bool:
    """Return whether a MERGE says that it changed no row; then its rewrites are not changes (Delta's hotfix)."""
    info = commit.commit_info or {}
    metrics = info.get("operationMetrics") or {}
    return info.get("operation") == "MERGE" and all(metrics.get(name) == "0" for name in _COUNTED)


def _as_add(log: DeltaLog, commit: DecodedCommit, remove: RemoveFile) -> AddFile:
    """Return the file as it was in the table."""
    if not remove.extended_file_metadata:
        raise log.error(
            DeltaIllegalStateException,
            f"Version {commit.version} of table {log.uri} removes {remove.path} without its metadata "
            "(extendedFileMetadata), so its rows are unknown. Choose a range without this version.",
            version=commit.version,
        )
    return remove.as_add()


def _add_difference(log: DeltaLog, files: ChangedFiles, before: AddFile, after: AddFile) -> None:
    """Add the rows of a file that only one of its two deletion vectors marks."""
    marked = [
        BitMap64()
        if file.deletion_vector is None
        else read_deletion_vector(log.store, file.deletion_vector, num_records=num_records(file.stats))
        for file in (before, after)
    ]
    for rows, into in ((marked[0] - marked[1], files.inserted_rows), (marked[1] - marked[0], files.deleted_rows)):
        if rows:
            into.append(msgspec.structs.replace(after, deletion_vector=inline_deletion_vector(rows)))

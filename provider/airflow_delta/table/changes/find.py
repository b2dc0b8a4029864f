"""Find the files that show what a range of commits did to rows.

A commit with change data files is read from these alone; others from the files added and removed with changed data. In a
file whose deletion vector changed, only the rows that one of the two vectors marks have changed (Delta's ``CDCReader``).

The version range of a read of the change data feed (Delta's ``CDCReader.getVersionForCDC``).

The schema to read changes of a table with, and whether it fits every version of the range.

Delta's rules (``CDCReader``): the latest schema, or for a table with column mapping that of the last version of the range.
Between it and the range, columns may only have been added or become nullable.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec
from pyroaring import BitMap64

from airflow_delta.exceptions import (
    DeltaAnalysisException,
    DeltaIllegalArgumentException,
    DeltaIllegalStateException,
    DeltaTableNotFoundException,
    VersionNotFoundException,
    VersionsNotContiguousException,
)
from airflow_delta.log.actions.actions import AddFile, Metadata, RemoveFile
from airflow_delta.log.actions.decode import DecodedCommit, decode_commits, timestamp_of_info
from airflow_delta.log.actions.deletion_vectors import inline_deletion_vector, read_deletion_vector
from airflow_delta.log.actions.reconciliation import canonical_path
from airflow_delta.log.features import column_mapping
from airflow_delta.log.features.protocol import check_can_read
from airflow_delta.log.features.schema_checks import is_feed_enabled
from airflow_delta.log.schema.types import ArrayType, DataType, MapType, StructType, folded, walk_fields
from airflow_delta.log.statistics.statistics import num_records
from airflow_delta.log.storage.file_names import COMMIT_SUFFIX, LOG_DIRECTORY, commit_version, version_prefix
from airflow_delta.log.table_definition import TableDefinition
from airflow_delta.log.time_travel import first_recorded_version, monotonic_timestamps, to_milliseconds, version_at_timestamp

if TYPE_CHECKING:
    from airflow_delta.log import Snapshot
    from airflow_delta.log.delta_log import DeltaLog


def read_schema(log: DeltaLog, snapshot: Snapshot, start: Snapshot, end: int) -> Snapshot:
    """Return the version whose schema the changes are read with.

    :param snapshot: the table as it is.
    :param start: the first version of the range.
    :param end: its last version.
    """
    if end == snapshot.version:
        return snapshot
    last = log.snapshot_at(end)
    mapped = any(column_mapping.mode(s.metadata.configuration) != "none" for s in (snapshot, start, last))
    return last if mapped else snapshot


def check_readable(table: str, read: Snapshot, metadata: Metadata, version: int, versions: tuple[int, int]) -> None:
    """Check that data of a version can be read with another version's schema.

    :param metadata: metadata that ``version`` has.
    :param versions: the range, for the message.
    :raises DeltaAnalysisException: if they cannot (Delta: DELTA_CHANGE_DATA_FEED_INCOMPATIBLE_SCHEMA_CHANGE).
    """
    older, newer = (metadata, read.metadata) if version <= read.version else (read.metadata, metadata)
    before, now = (TableDefinition.of(one).schema for one in (older, newer))
    fits = _is_readable(before, now, tighten=version > read.version)
    if fits and _same_columns(newer, older) and _same_partitioning(newer, older):
        return
    raise DeltaAnalysisException(
        f"The changes of table {table} from version {versions[0]} to {versions[1]} cannot be read with one schema: the "
        f"schema of version {version} differs from that of version {read.version} in more than added columns "
        "(DELTA_CHANGE_DATA_FEED_INCOMPATIBLE_SCHEMA_CHANGE). Read the versions before the change of the schema, up to "
        "ending_version, and those after it separately.",
        table=table,
        version=version,
    )


def check_removed(table: str, read: Snapshot, before: Metadata, version: int) -> None:
    """Check that rows removed by the first commit of a range can be read if that commit also changes the schema.

    Their files belong to the version before the range: RESTORE and schema overwrites can change the partitioning or physical
    names, and Delta would read nulls.

    :param before: metadata that the files were written under.
    :raises DeltaAnalysisException: if they cannot be read.
    """
    names, now = _physical_names(before), _physical_names(read.metadata)
    if _same_partitioning(read.metadata, before) and all(names[path] == now[path] for path in names.keys() & now.keys()):
        return
    raise DeltaAnalysisException(
        f"Version {version} of table {table} removes files that were written under another partitioning or other physical names "
        f"than those of version {read.version}, which the changes would be read with "
        "(DELTA_CHANGE_DATA_FEED_INCOMPATIBLE_SCHEMA_CHANGE). Read the rows of the version before, with time travel.",
        table=table,
        version=version,
    )


def _physical_names(metadata: Metadata) -> dict[tuple[str, ...], tuple[str, ...]]:
    """Return the names of columns in files, at any depth, by path."""
    table = TableDefinition.of(metadata)
    schema = table.schema
    physical = column_mapping.physical_schema(schema, table.column_mapping)
    return {folded(path): other for (path, _), (other, _) in zip(walk_fields(schema), walk_fields(physical), strict=True)}


def _same_columns(new: Metadata, old: Metadata) -> bool:
    """Return whether column mapping stayed on, without dropped or renamed columns."""
    before, now = (column_mapping.mode(metadata.configuration) for metadata in (old, new))
    if now == "none":
        return before == "none"
    return not column_mapping.drops_or_renames(new, old)


def _same_partitioning(new: Metadata, old: Metadata) -> bool:
    names: list[Sequence[str]] = [column_mapping.physical_partition_columns(m) for m in (new, old)]
    return list(names[0]) == list(names[1])


def _is_readable(existing: StructType, read: StructType, *, tighten: bool) -> bool:
    """Return whether data of one schema can be read with another (Delta's ``SchemaUtils.isReadCompatible``).

    :param tighten: columns that may be null may be ``NOT NULL`` in the other schema, rather than the other way round.
    """

    def nulls(before: bool, now: bool) -> bool:
        return before or not now if tighten else now or not before

    def struct(before: StructType, now: StructType) -> bool:
        known = {field.name.lower(): field for field in before}
        if not known.keys() <= {field.name.lower() for field in now}:
            return False
        pairs = [(known[field.name.lower()], field) for field in now if field.name.lower() in known]
        return all(a.name == b.name and nulls(a.nullable, b.nullable) and types(a.data_type, b.data_type) for a, b in pairs)

    def types(before: DataType, now: DataType) -> bool:
        match before, now:
            case StructType(), StructType():
                return struct(before, now)
            case ArrayType(), ArrayType():
                return nulls(before.contains_null, now.contains_null) and types(before.element_type, now.element_type)
            case MapType(), MapType():
                values = nulls(before.value_contains_null, now.value_contains_null)
                return values and types(before.key_type, now.key_type) and types(before.value_type, now.value_type)
        return before == now

    return struct(existing, read)


def change_range(
    log: DeltaLog,
    snapshot: Snapshot,
    starting_version: int | None,
    starting_timestamp: datetime | int | None,
    ending_version: int | None,
    ending_timestamp: datetime | int | None,
) -> tuple[int, int]:
    """Return the first and the last version; the last may be just before the first if both are times.

    :raises DeltaIllegalArgumentException: if not exactly one start is given, or the end is before the start.
    :raises VersionNotFoundException: if the start is after the latest version, or the end before the log's first.
    """
    if (starting_version is None) == (starting_timestamp is None):
        raise _refusal(log, "Give either starting_version or starting_timestamp.")
    if ending_version is not None and ending_timestamp is not None:
        raise _refusal(log, "Give ending_version or ending_timestamp, not both.")
    for name, value in (("starting_version", starting_version), ("ending_version", ending_version)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
            raise _refusal(log, f"{name} must be a whole number, 0 or more, got {value!r}.")
    start = starting_version if starting_version is not None else _first_since(log, starting_timestamp)
    if start > snapshot.version:
        raise log.error(
            VersionNotFoundException,
            f"The changes of table {log.uri} cannot be read from version {start} on: the latest version is {snapshot.version}. "
            "Wait for a newer commit, or start earlier.",
            latest=snapshot.version,
            version=start,
        )
    end = snapshot.version if ending_version is None else min(ending_version, snapshot.version)
    if ending_timestamp is not None:
        end = min(version_at_timestamp(log.update(), ending_timestamp), snapshot.version)
    between = starting_timestamp is not None and ending_timestamp is not None and end == start - 1
    if between and _milliseconds(starting_timestamp) <= _milliseconds(ending_timestamp):
        return start, end
    if end < start:
        raise _refusal(log, f"The end version {end} is before the start version {start} (DELTA_INVALID_CDC_RANGE).")
    return start, end


def _first_since(log: DeltaLog, timestamp: datetime | int | None) -> int:
    """Return the first version committed at a time or later; one more than the latest if there is none."""
    try:
        return version_at_timestamp(log.update(), _milliseconds(timestamp) - 1) + 1
    except VersionNotFoundException as error:
        if error.earliest is None:
            raise
        return error.earliest


def _milliseconds(timestamp: Any) -> int:
    return to_milliseconds(timestamp)


def _refusal(log: DeltaLog, message: str) -> DeltaIllegalArgumentException:
    return log.error(DeltaIllegalArgumentException, f"{message} (table {log.uri})")


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
            check_can_read(protocol, log.uri, commit.version, catalog=log.catalog)
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


# -- commits ------------------------------------------------------------------------------------------------------------------


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

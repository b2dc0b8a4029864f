"""Time travel: finding the version for a point in time (Delta's DeltaHistoryManager).

Times of commit files may go backwards (clock skew, copied tables), so each counts as at least one millisecond after the one
before. Tables with in-commit timestamps record them in the commits, starting with the version that enabled them.

The commits of a table, newest first (Delta's DESCRIBE HISTORY).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow_delta.contract.delta_names import IN_COMMIT_TIMESTAMP_ENABLEMENT_TIMESTAMP, IN_COMMIT_TIMESTAMP_ENABLEMENT_VERSION
from airflow_delta.exceptions import DeltaIllegalArgumentException, VersionNotFoundException
from airflow_delta.log.actions.decode import read_commit_info, required_timestamp, timestamp_of_info
from airflow_delta.log.segment.segment import earliest_version, list_log
from airflow_delta.log.storage.base import UNKNOWN, FileStatus
from airflow_delta.log.storage.file_names import COMMIT_SUFFIX, LOG_DIRECTORY, commit_file, commit_version, version_prefix
from airflow_delta.log.storage.progress import tracked

if TYPE_CHECKING:
    from airflow_delta.log.segment.commit_files import CommitFiles
    from airflow_delta.log.snapshot import Snapshot
    from airflow_delta.log.storage.base import LogStore


def version_at_timestamp(latest: Snapshot, timestamp: datetime | int) -> int:
    """Return the last version committed at or before a time; the latest if the time is after it.

    This is the rule of all time travel here, that of Delta's RESTORE (``canReturnLastCommit``). Delta's reads refuse a time after
    the latest version; a Dag that asks for the end of its interval would then fail whenever nothing was committed since.

    :param latest: the table's latest version.
    :param timestamp: a datetime (naive: UTC), or milliseconds since the epoch.
    :raises VersionNotFoundException: if the time is before the earliest version that can be rebuilt.
    :raises MissingCommitTimestampException: if a commit lacks a required in-commit timestamp; or
        :class:`~airflow_delta.exceptions.MissingCommitInfoException`.
    """
    wanted = to_milliseconds(timestamp)
    log, last = latest.log, latest.segment.version
    listing = list_log(log.store)
    earliest = earliest_version(log.store, listing)
    versions = [version for version in sorted(listing.commits) if earliest is not None and earliest <= version <= last]
    times: Mapping[int, int]
    if not versions:  # only a checkpoint is left
        versions, times = [last], {last: latest.timestamp}
    else:
        times = _times(latest, versions, listing.commits.values())
    candidates = versions
    first_recorded = first_recorded_version(latest)
    if first_recorded is not None and versions[0] < first_recorded <= versions[-1]:
        # File times and recorded times need not be in order with each other; the metadata says when recording began.
        recorded = [version for version in versions if version >= first_recorded]
        since = latest.metadata.configuration.get(IN_COMMIT_TIMESTAMP_ENABLEMENT_TIMESTAMP, "")
        begins = int(since) if since.isdigit() else times[recorded[0]]
        candidates = recorded if wanted >= begins else versions[: len(versions) - len(recorded)]
    low, high = 0, len(candidates)
    while low < high:  # find the first version after the wanted time
        middle = (low + high) // 2
        if times[candidates[middle]] <= wanted:
            low = middle + 1
        else:
            high = middle
    if low == 0 and candidates[0] == versions[0]:
        raise _too_early(log, wanted, times[versions[0]], versions)
    return candidates[max(low - 1, 0)]


def to_milliseconds(timestamp: datetime | int) -> int:
    """Return a datetime (naive: UTC) or a number as milliseconds since the epoch."""
    if isinstance(timestamp, bool) or not isinstance(timestamp, (int, datetime)):
        raise DeltaIllegalArgumentException(f"timestamp must be a datetime or milliseconds since the epoch, got {timestamp!r}.")
    if isinstance(timestamp, int):
        return timestamp
    aware = timestamp if timestamp.tzinfo is not None else timestamp.replace(tzinfo=UTC)
    delta = aware - datetime(1970, 1, 1, tzinfo=UTC)
    return (delta.days * 86_400 + delta.seconds) * 1000 + delta.microseconds // 1000


def monotonic_timestamps(log: CommitFiles, versions: Sequence[int], statuses: Iterable[FileStatus]) -> dict[int, int]:
    """Return the times of commit files, each at least one millisecond after the one before."""
    listed = {version: status for status in statuses if (version := commit_version(status.name)) is not None}
    times: dict[int, int] = {}
    previous: int | None = None
    for version in versions:
        status: FileStatus | None = listed[version]
        if status is not None and status.modification_time == UNKNOWN:
            status = log.store.head(status.path)
        time = status.modification_time if status is not None else UNKNOWN
        previous = times[version] = time if previous is None or time > previous else previous + 1
    return times


def first_recorded_version(snapshot: Snapshot) -> int | None:
    """Return the first version with an in-commit timestamp, or ``None`` if the table does not have them."""
    if not snapshot.properties.enable_in_commit_timestamps:
        return None
    enabled_at = snapshot.metadata.configuration.get(IN_COMMIT_TIMESTAMP_ENABLEMENT_VERSION, "0")
    return int(enabled_at) if enabled_at.isdigit() else 0


def _times(snapshot: Snapshot, versions: Sequence[int], statuses: Iterable[FileStatus]) -> Mapping[int, int]:
    """Return the times of commits; in-commit timestamps are read on access."""
    first = first_recorded_version(snapshot)
    before = [version for version in versions if first is None or version < first]
    times = monotonic_timestamps(snapshot.log, before, statuses)
    return times if first is None else _RecordedTimes(snapshot.log, times)


class _RecordedTimes(dict[int, int]):
    def __init__(self, log: CommitFiles, file_times: Mapping[int, int]) -> None:
        super().__init__(file_times)
        self._log = log

    def __missing__(self, version: int) -> int:
        self[version] = required_timestamp(version, self._log.read_commit(version), table=self._log.uri)
        return self[version]


def _too_early(log: CommitFiles, wanted: int, time: int, versions: Sequence[int]) -> VersionNotFoundException:
    return log.error(
        VersionNotFoundException,
        f"The time {_text(wanted)} is before version {versions[0]} of table {log.uri}, committed at {_text(time)}. Ask for a "
        f"later time; the log can rebuild versions {versions[0]} to {versions[-1]}.",
        earliest=versions[0],
        latest=versions[-1],
        version=versions[0],
    )


def _text(milliseconds: int) -> str:
    try:
        return datetime.fromtimestamp(milliseconds / 1000, tz=UTC).isoformat(timespec="milliseconds")
    except (OverflowError, ValueError, OSError):
        return f"{milliseconds} ms"


_CHUNK = 64


@dataclass(frozen=True, slots=True)
class CommitRecord:
    """One commit of a table's history.

    :param timestamp: milliseconds since the epoch: the in-commit timestamp if the table has them, else the file's time.
    :param commit_info: ``commitInfo`` as in the log; empty if the commit has none.
    """

    version: int
    timestamp: int
    commit_info: dict[str, Any] = field(default_factory=dict)

    @property
    def operation(self) -> str | None:
        """Return the name of the operation."""
        return self.commit_info.get("operation")

    @property
    def operation_parameters(self) -> dict[str, Any]:
        """Return the parameters of the operation."""
        return self.commit_info.get("operationParameters") or {}

    @property
    def operation_metrics(self) -> dict[str, Any]:
        """Return the metrics of the operation, numbers as strings."""
        return self.commit_info.get("operationMetrics") or {}

    @property
    def read_version(self) -> int | None:
        """Return the version that the transaction read."""
        return self.commit_info.get("readVersion")

    @property
    def isolation_level(self) -> str | None:
        """Return the isolation level of the commit."""
        return self.commit_info.get("isolationLevel")

    @property
    def is_blind_append(self) -> bool | None:
        """Return whether the commit was a blind append: it added files and read none."""
        return self.commit_info.get("isBlindAppend")

    @property
    def user_metadata(self) -> str | None:
        """Return the user metadata of the commit."""
        return self.commit_info.get("userMetadata")

    @property
    def tags(self) -> dict[str, Any]:
        """Return the tags of the commit."""
        return self.commit_info.get("tags") or {}

    @property
    def engine_info(self) -> str | None:
        """Return the name of the engine that wrote the commit."""
        return self.commit_info.get("engineInfo")

    @property
    def txn_id(self) -> str | None:
        """Return the id of the transaction that wrote the commit."""
        return self.commit_info.get("txnId")


def read_history(latest: Snapshot, limit: int | None) -> list[CommitRecord]:
    """Return the commits that are still in the log, newest first.

    :param latest: the table's latest version.
    :param limit: maximum number of commits.
    """
    log = latest.log
    if limit is not None and limit < 0:
        raise log.error(DeltaIllegalArgumentException, f"The history limit of table {log.uri} must not be negative: {limit}")
    last = latest.segment.version
    lowest = 0 if limit is None else max(last - limit + 1, 0)
    # One commit more than requested: a commit's time is adjusted by the one before.
    listed = log.store.list_from(LOG_DIRECTORY, version_prefix(max(lowest - 1, 0)) + COMMIT_SUFFIX, stat=False)
    versions = sorted(version for status in listed if (version := commit_version(status.name)) is not None and version <= last)
    contiguous = _newest_run(versions)
    times = monotonic_timestamps(log, contiguous, listed)
    records: list[CommitRecord] = []
    first_recorded: int | None = None
    wanted = [version for version in reversed(contiguous) if version >= lowest]
    for start in tracked(range(0, len(wanted), _CHUNK), f"Reading the history of {log.uri}", len(wanted), "commits", _CHUNK):
        chunk = wanted[start : start + _CHUNK]
        contents = _read(log.store, chunk)
        infos = [read_commit_info(version, data, table=log.uri) for version, data in zip(chunk, contents, strict=False)]
        if first_recorded is None and any(info is not None and "inCommitTimestamp" in info for info in infos):
            # Only now look up in the metadata when in-commit timestamps began, which may read the whole log.
            first_recorded = first_recorded_version(latest)
        for version, info in zip(chunk, infos, strict=False):
            recorded = first_recorded is not None and version >= first_recorded
            time = timestamp_of_info(version, info, table=log.uri) if recorded else times[version]
            records.append(CommitRecord(version, time, info or {}))
        if len(contents) < len(chunk):
            break
    return records


def _read(store: LogStore, versions: list[int]) -> list[bytes]:
    """Return the contents of commits, newest first, up to those that were cleaned up meanwhile."""
    try:
        return store.read_many([commit_file(version) for version in versions])
    except FileNotFoundError:
        contents = []
        for version in versions:
            try:
                contents.append(store.read(commit_file(version)))
            except FileNotFoundError:  # older ones are gone as well
                break
        return contents


def _newest_run(versions: list[int]) -> list[int]:
    """Return the contiguous versions at the end; those before a gap are left over from a cleanup."""
    start = max(len(versions) - 1, 0)
    while start > 0 and versions[start - 1] == versions[start] - 1:
        start -= 1
    return versions[start:]

"""Time travel: finding the version for a point in time (Delta's DeltaHistoryManager).

Times of commit files may go backwards (clock skew, copied tables), so each counts as at least one millisecond after the one
before. Tables with in-commit timestamps record them in the commits, starting with the version that enabled them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from airflow_delta.contract.delta_names import IN_COMMIT_TIMESTAMP_ENABLEMENT_TIMESTAMP, IN_COMMIT_TIMESTAMP_ENABLEMENT_VERSION
from airflow_delta.exceptions import DeltaIllegalArgumentException, VersionNotFoundException
from airflow_delta.log.actions.decode import required_timestamp
from airflow_delta.log.segment.segment import earliest_version, list_log
from airflow_delta.log.storage.base import UNKNOWN, FileStatus
from airflow_delta.log.storage.file_names import commit_version

if TYPE_CHECKING:
    from airflow_delta.log.segment.commit_files import CommitFiles
    from airflow_delta.log.snapshot import Snapshot


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

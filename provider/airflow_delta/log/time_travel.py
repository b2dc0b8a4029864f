"""Which version a point in time means (Delta's DeltaHistoryManager).

Times of commit files may go back (clock skew, copied tables): each counts as at least one millisecond after the one before.
Tables with in-commit timestamps record them in the commits, from the version on that enabled them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow_delta.exceptions import DeltaIllegalArgumentException, VersionNotFoundException
from airflow_delta.log.commits import read_commit_info
from airflow_delta.log.file_names import commit_version
from airflow_delta.log.segment import earliest_version, list_log
from airflow_delta.log.store import UNKNOWN, FileStatus

if TYPE_CHECKING:
    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.log.snapshot import Snapshot

_ENABLEMENT_VERSION = "delta.inCommitTimestampEnablementVersion"


def version_at_timestamp(log: DeltaLog, timestamp: datetime | int) -> int:
    """Return the last version committed at a time or before it.

    :param timestamp: a datetime (naive: UTC), or milliseconds since the epoch.
    :raises VersionNotFoundException: the time is before the earliest version that can be rebuilt, or after the latest.
    """
    wanted = to_milliseconds(timestamp)
    snapshot = log.update()
    latest = snapshot.segment.version
    listing = list_log(log.store)
    earliest = earliest_version(log.store, listing)
    versions = [version for version in sorted(listing.commits) if earliest is not None and earliest <= version <= latest]
    if not versions:  # only a checkpoint is left
        versions, times = [latest], {latest: snapshot.timestamp}
    else:
        times = monotonic_timestamps(log, versions, listing.commits.values())
    first_recorded = _first_recorded(snapshot)
    if first_recorded is not None:
        times = _RecordedTimes(log, snapshot, times)
    low, high = 0, len(versions)
    while low < high:  # the first version that is later than wanted
        middle = (low + high) // 2
        if times[versions[middle]] <= wanted:
            low = middle + 1
        else:
            high = middle
    if low == 0:
        raise _outside(log, wanted, "before", versions[0], times[versions[0]], versions, hint="Ask for a later time")
    if low == len(versions) and wanted > times[versions[-1]]:
        raise _outside(log, wanted, "after", versions[-1], times[versions[-1]], versions, hint="Read the latest version")
    return versions[low - 1]


def to_milliseconds(timestamp: datetime | int) -> int:
    """Return milliseconds since the epoch of a datetime (naive: UTC) or of such a number."""
    if isinstance(timestamp, bool) or not isinstance(timestamp, (int, datetime)):
        raise DeltaIllegalArgumentException(f"A time is a datetime or milliseconds since the epoch, not {timestamp!r}.")
    if isinstance(timestamp, int):
        return timestamp
    aware = timestamp if timestamp.tzinfo is not None else timestamp.replace(tzinfo=UTC)
    delta = aware - datetime(1970, 1, 1, tzinfo=UTC)
    return (delta.days * 86_400 + delta.seconds) * 1000 + delta.microseconds // 1000


def monotonic_timestamps(log: DeltaLog, versions: Sequence[int], statuses: Iterable[FileStatus]) -> dict[int, int]:
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


def recorded_timestamp(snapshot: Snapshot, version: int, info: Mapping[str, Any]) -> int | None:
    """Return the in-commit timestamp of a commit, or ``None`` where the table does not have them at that version."""
    first = _first_recorded(snapshot)
    value = info.get("inCommitTimestamp")
    return value if first is not None and version >= first and isinstance(value, int) else None


def _first_recorded(snapshot: Snapshot) -> int | None:
    if not snapshot.properties.enable_in_commit_timestamps:
        return None
    enabled_at = snapshot.metadata.configuration.get(_ENABLEMENT_VERSION, "0")
    return int(enabled_at) if enabled_at.isdigit() else 0


class _RecordedTimes(dict[int, int]):
    """Times of versions, the recorded ones read from their commits when asked for."""

    def __init__(self, log: DeltaLog, snapshot: Snapshot, file_times: Mapping[int, int]) -> None:
        super().__init__()
        self._log = log
        self._snapshot = snapshot
        self._file_times = file_times

    def __missing__(self, version: int) -> int:
        info = read_commit_info(version, self._log.read_commit(version), table=self._log.uri) or {}
        recorded = recorded_timestamp(self._snapshot, version, info)
        self[version] = self._file_times[version] if recorded is None else recorded
        return self[version]


def _outside(
    log: DeltaLog, wanted: int, side: str, version: int, time: int, versions: Sequence[int], *, hint: str
) -> VersionNotFoundException:
    return VersionNotFoundException(
        f"The time {_text(wanted)} is {side} version {version} of table {log.uri}, committed at {_text(time)}. {hint}; "
        f"the log can rebuild versions {versions[0]} to {versions[-1]}.",
        earliest=versions[0],
        latest=versions[-1],
        table=log.uri,
        version=version,
    )


def _text(milliseconds: int) -> str:
    try:
        return datetime.fromtimestamp(milliseconds / 1000, tz=UTC).isoformat(timespec="milliseconds")
    except (OverflowError, ValueError, OSError):
        return f"{milliseconds} ms"

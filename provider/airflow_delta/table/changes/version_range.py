"""The version range of a read of the change data feed (Delta's ``CDCReader.getVersionForCDC``)."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from airflow_delta.exceptions import DeltaIllegalArgumentException, VersionNotFoundException
from airflow_delta.log.time_travel import to_milliseconds, version_at_timestamp

if TYPE_CHECKING:
    from airflow_delta.log import Snapshot
    from airflow_delta.log.delta_log import DeltaLog


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

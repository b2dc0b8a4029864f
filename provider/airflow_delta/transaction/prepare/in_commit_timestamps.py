"""Timestamps inside commits, strictly increasing from version to version (protocol, "In-Commit Timestamps").

A table that enables them later records the version and time at which it did, so that readers know up to which version the
modification times of the commit files count (Delta's ``InCommitTimestampUtils``).
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from airflow_delta.contract.delta_names import (
    ENABLE_IN_COMMIT_TIMESTAMPS,
    IN_COMMIT_TIMESTAMP_ENABLEMENT_TIMESTAMP,
    IN_COMMIT_TIMESTAMP_ENABLEMENT_VERSION,
)
from airflow_delta.log.actions.actions import Metadata

FEATURE = "inCommitTimestamp"


def uses_in_commit_timestamps(metadata: Metadata | None) -> bool:
    """Tell whether commits must carry a timestamp."""
    return metadata is not None and metadata.configuration.get(ENABLE_IN_COMMIT_TIMESTAMPS, "false").lower() == "true"


def first(now: int, read_snapshot_timestamp: int) -> int:
    """Return the timestamp of a first attempt.

    :param now: milliseconds since the epoch.
    :param read_snapshot_timestamp: of the version that was read; -1 if there was none.
    """
    return max(now, read_snapshot_timestamp + 1)


def rebase_timestamp(own: int, winning: int) -> int:
    """Return the timestamp after a winning commit with timestamp ``winning``."""
    return max(own, winning + 1)


def with_enablement(new: Metadata, read: Metadata | None, *, version: int, timestamp: int) -> Metadata:
    """Return the metadata that a commit writes, with the version and time at which timestamps were enabled.

    The first commit of a table needs neither. Metadata that replaces the table's own keeps what was recorded there.

    :param new: metadata with in-commit timestamps.
    :param read: metadata that was read; ``None`` if the table does not exist.
    :param version: version of the commit.
    :param timestamp: its in-commit timestamp.
    """
    if read is None or version == 0:
        return new
    if not uses_in_commit_timestamps(read):
        return _with(
            new, {IN_COMMIT_TIMESTAMP_ENABLEMENT_VERSION: str(version), IN_COMMIT_TIMESTAMP_ENABLEMENT_TIMESTAMP: str(timestamp)}
        )
    known = {
        key: read.configuration[key]
        for key in (IN_COMMIT_TIMESTAMP_ENABLEMENT_VERSION, IN_COMMIT_TIMESTAMP_ENABLEMENT_TIMESTAMP)
        if key in read.configuration
    }
    if known and not known.keys() <= new.configuration.keys():
        return _with(new, known)
    return new


def _with(metadata: Metadata, properties: Mapping[str, str]) -> Metadata:
    return msgspec.structs.replace(metadata, configuration={**metadata.configuration, **properties})

"""The ``commitInfo`` of a commit: always the first line, with every field that Delta writes (Delta's ``CommitInfo``).

Timestamps inside commits, strictly increasing from version to version (protocol, "In-Commit Timestamps").

A table that enables them later records the version and time at which it did, so that readers know up to which version the
modification times of the commit files count (Delta's ``InCommitTimestampUtils``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from airflow_delta.contract.delta_names import (
    ENABLE_IN_COMMIT_TIMESTAMPS,
    IN_COMMIT_TIMESTAMP_ENABLEMENT_TIMESTAMP,
    IN_COMMIT_TIMESTAMP_ENABLEMENT_VERSION,
)
from airflow_delta.log.actions.actions import Action, AddCDCFile, AddFile, CommitInfo, Metadata, RemoveFile
from airflow_delta.masking import masked, masked_values
from airflow_delta.transaction.operations import Operation
from airflow_delta.transaction.policy import check_user_metadata
from airflow_delta.transaction.prepare.isolation import IsolationLevel
from airflow_delta.version import __version__

ENGINE_INFO = f"airflow-provider-delta/{__version__}"


def changes_data(actions: Sequence[Action]) -> bool:
    """Tell whether any file action says ``dataChange=true``."""
    return any(isinstance(action, AddFile | RemoveFile | AddCDCFile) and action.data_change for action in actions)


def build_commit_info(
    actions: Sequence[Action],
    operation: Operation,
    *,
    read_version: int,
    isolation_level: IsolationLevel,
    is_blind_append: bool,
    timestamp: int,
    txn_id: str,
    tags: Mapping[str, Any] | None,
    user_metadata: str | None,
    metrics: Mapping[str, str] | None,
    large: bool,
) -> CommitInfo:
    """Return the ``commitInfo`` of a commit of ``actions``.

    :param timestamp: milliseconds since the epoch.
    :param tags: values become strings; the field is left out if there are none.
    :param metrics: ``operationMetrics``; an empty mapping is written, ``None`` is not.
    :param large: as ``commitLarge`` writes it: ``readVersion`` also when -1, no ``dataChange``.
    """
    check_user_metadata(user_metadata)
    return CommitInfo(
        timestamp=timestamp,
        operation=operation.name,
        # Whoever can read the table can read its log.
        operation_parameters=masked_values(operation.encoded_parameters()),
        read_version=read_version if large or read_version >= 0 else None,
        isolation_level=isolation_level.value,
        is_blind_append=is_blind_append,
        data_change=None if large else changes_data(actions),
        operation_metrics=dict(metrics) if metrics is not None else None,
        user_metadata=None if user_metadata is None else masked(user_metadata),
        tags={name: masked(str(value)) for name, value in tags.items()} if tags else None,
        engine_info=ENGINE_INFO,
        txn_id=txn_id,
    )


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

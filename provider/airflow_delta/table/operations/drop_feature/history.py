"""What the log still has of a feature, and how its history is cut off (Delta's ``historyContainsFeature``)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from airflow_delta.contract.delta_names import ENABLE_DELETION_VECTORS, ENABLE_TYPE_WIDENING, TYPE_CHANGES
from airflow_delta.log.actions.decode import decode_commit, read_commit_info
from airflow_delta.log.checkpoint_write.checkpoint_protection import protected_before
from airflow_delta.log.cleanup import MINUTE, clean_up_expired_logs
from airflow_delta.log.features import column_mapping
from airflow_delta.log.features.properties import TableProperties
from airflow_delta.log.segment.segment import LogListing
from airflow_delta.log.storage.file_names import LOG_DIRECTORY, version_prefix
from airflow_delta.table.state.find_commit import newest_first
from airflow_delta.transaction.prepare.feature_drop import OPERATION

if TYPE_CHECKING:
    from airflow_delta.log import AddFile, Snapshot
    from airflow_delta.log.actions.actions import Metadata, RemoveFile
    from airflow_delta.log.delta_log import DeltaLog


def truncate_history(snapshot: Snapshot, now: int) -> None:
    """Delete what is older than ``delta.dropFeatureTruncateHistory.retentionDuration``, to the minute.

    What an open publication of several tables needs stays, as in every cleanup of the log.

    :param now: milliseconds since the epoch.
    """
    retention = TableProperties(snapshot.metadata.configuration).get(RETENTION)
    clean_up_expired_logs(snapshot, now=now, retention=retention, granularity=MINUTE)


RETENTION = "delta.dropFeatureTruncateHistory.retentionDuration"


def first_version(log: DeltaLog) -> int:
    """Return the earliest version of which the log has a commit or a checkpoint."""
    listing = _listing(log)
    return min([*listing.commits, *listing.checkpoint_versions()], default=0)


def is_truncated(log: DeltaLog, snapshot: Snapshot) -> bool:
    """Return whether nothing is left of the versions that ``checkpointProtection`` protects."""
    return first_version(log) >= protected_before(snapshot)


def last_use(log: DeltaLog, snapshot: Snapshot, feature: str) -> int | None:
    """Return the latest version in the log whose commit or checkpoint uses a feature; ``None`` if none does.

    Tombstones in checkpoints do not count, nor does the protocol.
    """
    uses = _METADATA.get(feature)
    if uses is None:
        return None
    listing = _listing(log)
    if feature == "v2Checkpoint" and listing.v2:
        return max(listing.v2)
    oldest = snapshot.version + 1
    for commit in newest_first(log):
        if commit.version > snapshot.version:
            continue
        oldest = commit.version
        decoded = decode_commit(commit.version, commit.data, table=log.uri)
        if any(map(uses, decoded.metadata)) or _has_files(feature, [*decoded.adds, *decoded.removes]):
            return commit.version
    # What came before the oldest commit is in the checkpoint that the log begins with.
    first = min(listing.checkpoint_versions(), default=snapshot.version)
    if 0 < first < snapshot.version or oldest > 0:
        earliest = log.snapshot_at(min(first, snapshot.version))
        if uses(earliest.metadata) or (feature == _VECTORS and _has_files(feature, earliest.add_files())):
            return earliest.version
    return None


def dropped_at(log: DeltaLog, snapshot: Snapshot, feature: str) -> int | None:
    """Return the version that dropped a feature, if its commit is among the recent ones or is the protected one."""
    checkpoint = snapshot.segment.checkpoint
    since = 0 if checkpoint is None else checkpoint.version
    protected = protected_before(snapshot)
    candidates = [(commit.version, commit.data) for commit in newest_first(log, since)]
    if 0 < protected < since:
        with suppress(FileNotFoundError):
            candidates.append((protected, log.read_commit(protected)))
    for version, data in candidates:
        info = read_commit_info(version, data, table=log.uri) or {}
        parameters = info.get("operationParameters") or {}
        if info.get("operation") == OPERATION and parameters.get("featureName") == feature:
            return version
    return None


_VECTORS = "deletionVectors"


def _has_files(feature: str, files: Iterable[AddFile | RemoveFile]) -> bool:
    return feature == _VECTORS and any(file.deletion_vector is not None for file in files)


def _widens(metadata: Metadata) -> bool:
    return TYPE_CHANGES in metadata.schema_string or _is_set(metadata, ENABLE_TYPE_WIDENING)


def _is_set(metadata: Metadata, key: str) -> bool:
    return bool(TableProperties(metadata.configuration).get(key))


_METADATA: Mapping[str, Callable[[Metadata], bool]] = {
    _VECTORS: lambda metadata: _is_set(metadata, ENABLE_DELETION_VECTORS),
    "columnMapping": lambda metadata: column_mapping.mode(metadata.configuration) != "none",
    "typeWidening": _widens,
    "typeWidening-preview": _widens,
    "v2Checkpoint": lambda metadata: TableProperties(metadata.configuration).checkpoint_policy == "v2",
}
"""Whether metadata use a feature; features that only the protocol names are missing."""


def _listing(log: DeltaLog) -> LogListing:
    return LogListing.of(log.store.list_from(LOG_DIRECTORY, version_prefix(0)))

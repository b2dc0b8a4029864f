"""RESTORE: commit an earlier version as a new one."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from airflow_delta.contract.delta_names import (
    CLUSTERING_DOMAIN,
    IN_COMMIT_TIMESTAMP_ENABLEMENT_TIMESTAMP,
    IN_COMMIT_TIMESTAMP_ENABLEMENT_VERSION,
    PROTECTED_BEFORE,
)
from airflow_delta.contract.payloads import CommitResult, TransactionHandle
from airflow_delta.exceptions import (
    DeltaFileNotFoundException,
    DeltaIllegalArgumentException,
    DeltaUnsupportedOperationException,
)
from airflow_delta.log.actions.actions import DeletionVectorDescriptor
from airflow_delta.log.actions.deletion_vectors import vector_path
from airflow_delta.log.actions.reconciliation import canonical_path
from airflow_delta.log.arrow.arrays import array
from airflow_delta.log.checkpoint.file_columns import FILE_COLUMNS, to_add_files
from airflow_delta.log.features import clustering, protocol
from airflow_delta.log.features.identity_columns import identity_columns, with_high_water_marks
from airflow_delta.log.features.protocol import features
from airflow_delta.log.storage.progress import tracked
from airflow_delta.log.storage.table_paths import exists
from airflow_delta.log.table_definition import TableDefinition
from airflow_delta.log.time_travel import to_milliseconds, version_at_timestamp
from airflow_delta.table.run import run_large
from airflow_delta.transaction import Operation
from airflow_delta.transaction.prepare import in_commit_timestamps, row_tracking

if TYPE_CHECKING:
    from airflow_delta.log import Snapshot
    from airflow_delta.log.actions.actions import Action, AddFile, DomainMetadata, Metadata
    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.transaction import OptimisticTransaction

_Key = tuple[str, str | None]
_ROW_IDS = ("base_row_id", "default_row_commit_version")
_THREADS = 16
_NAMED = 10


def restore(
    log: DeltaLog,
    *,
    version: int | None = None,
    timestamp: datetime | str | int | None = None,
    ignore_missing_files: bool = False,
    protocol_downgrade_allowed: bool = False,
    **options: Any,
) -> CommitResult:
    """Restore a table to an earlier version: files, schema and properties; the protocol only grows.

    Restoring the latest version changes nothing but is still committed, so that a retry does not undo later commits of others.

    :param version: version to restore.
    :param timestamp: restores the last version committed at or before that time: a datetime or ISO 8601 string (naive: UTC), or
        milliseconds since the epoch.
    :param ignore_missing_files: restore even if files of that version are gone (``spark.sql.files.ignoreMissingFiles``).
    :param protocol_downgrade_allowed: restore the protocol too (``restore.protocolDowngradeAllowed``); versions in between
        may then no longer be readable.
    :param options: parameters of :func:`airflow_delta.table.run.run_large`, the identity among them.
    :raises DeltaIllegalArgumentException: if not exactly one of version and timestamp is given, or there is no such version.
    :raises VersionNotFoundException: if the log no longer holds the version, or the time is before the first that it holds.
    :raises DeltaUnsupportedOperationException: if the version is older than ``delta.deletedFileRetentionDuration``.
    :raises DeltaFileNotFoundException: if files of that version are gone.
    :raises ConcurrentWriteException: if another writer committed in the meantime, and no restart is left.
    """
    if (version is None) == (timestamp is None):
        raise log.error(DeltaIllegalArgumentException, "Give either a version or a timestamp to restore to.")
    time_wanted = None if timestamp is None else _milliseconds(timestamp, log.uri)

    def operate(_handle: TransactionHandle, txn: OptimisticTransaction) -> tuple[Sequence[Action], Operation] | None:
        return restore_actions(
            log,
            txn,
            version=version,
            timestamp=time_wanted,
            ignore_missing_files=ignore_missing_files,
            protocol_downgrade_allowed=protocol_downgrade_allowed,
        )

    def nothing() -> Operation:
        return Operation.restore(version, None if time_wanted is None else _timestamp_text(time_wanted))

    return run_large(log, operate, nothing=nothing, **{"create": False, **options})


def restore_actions(
    log: DeltaLog,
    txn: OptimisticTransaction,
    *,
    version: int | None = None,
    timestamp: int | None = None,
    ignore_missing_files: bool = False,
    protocol_downgrade_allowed: bool = False,
) -> tuple[list[Action], Operation] | None:
    """Return the actions that restore a version, and set the metadata on the transaction; ``None`` for the last version.

    :param timestamp: milliseconds since the epoch.
    """
    latest = txn.snapshot
    wanted = version_at_timestamp(log.update(), timestamp) if version is None and timestamp is not None else int(version or 0)
    if wanted == latest.version:
        return None
    if not 0 <= wanted < latest.version:
        raise log.error(
            DeltaIllegalArgumentException,
            f"Version {wanted} of table {log.uri} cannot be restored; its latest version is {latest.version} "
            "(DELTA_CANNOT_RESTORE_TABLE_VERSION).",
            version=wanted,
        )
    source = log.snapshot_at(wanted)
    _check_within_retention(latest, source)
    to_restore, present = (snapshot.files(columns=FILE_COLUMNS) for snapshot in (source, latest))
    restored_keys, present_keys = _keys(to_restore), _keys(present)
    kept = set(restored_keys) & set(present_keys)
    adds = [msgspec.structs.replace(add, data_change=True) for add in to_add_files(_without(to_restore, restored_keys, kept))]
    now = int(time.time() * 1000)
    removes = [add.remove(now) for add in to_add_files(_without(present, present_keys, kept))]
    if not ignore_missing_files:
        _check_files_exist(log, adds, wanted)
    # Its properties were checked when they were set; constraints, for one, can otherwise only be set by ALTER TABLE.
    restored = source.protocol if protocol_downgrade_allowed else protocol.upgraded(latest.protocol, source.protocol)
    tracked_rows = row_tracking.is_supported(source.protocol)
    mark = source.row_id_high_water_mark if tracked_rows else None
    txn.update_metadata_for_restore(continued(source.metadata, latest.metadata), restored, row_id_mark=mark)
    sizes = to_restore.column("size").to_pylist()
    adds_again = _numbered_otherwise(to_restore, restored_keys, present, present_keys) if tracked_rows else []
    metrics = {
        "tableSizeAfterRestore": sum(sizes),
        "numOfFilesAfterRestore": len(sizes),
        "numRemovedFiles": len(removes),
        "numRestoredFiles": len(adds),
        "removedFilesSize": sum(remove.size or 0 for remove in removes),
        "restoredFilesSize": sum(add.size for add in adds),
    }
    text = None if timestamp is None else _timestamp_text(timestamp)
    return [*adds, *adds_again, *removes, *_clustering(source, latest)], Operation.restore(version, text, metrics=metrics)


def _check_within_retention(latest: Snapshot, source: Snapshot) -> None:
    """Refuse a version whose files VACUUM may have deleted (Delta: time travel within ``delta.deletedFileRetentionDuration``)."""
    retention = latest.properties.deleted_file_retention
    # VACUUM keeps the files of a version until the next version is that old.
    if source.timestamp < int(time.time() * 1000) - retention:
        raise latest.log.error(
            DeltaUnsupportedOperationException,
            f"Version {source.version} of table {latest.log.uri} is older than delta.deletedFileRetentionDuration "
            f"({retention // 3_600_000} hours), so VACUUM may have deleted files of it "
            "(DELTA_UNSUPPORTED_TIME_TRAVEL_BEYOND_DELETED_FILE_RETENTION_DURATION). Raise the property if you are sure that "
            "no VACUUM has run.",
            version=source.version,
        )


def _keys(files: pa.Table) -> list[_Key]:
    """Return the key of the logical file in each row."""
    paths = [canonical_path(path) for path in files.column("path").to_pylist()]
    vectors = [
        None if vector is None else DeletionVectorDescriptor(**vector).unique_id
        for vector in files.column("deletion_vector").to_pylist()
    ]
    return list(zip(paths, vectors, strict=True))


def _without(files: pa.Table, keys: list[_Key], kept: set[_Key]) -> pa.Table:
    return files.filter(array([key not in kept for key in keys], pa.bool_()))


def _numbered_otherwise(
    to_restore: pa.Table, restored_keys: Sequence[_Key], present: pa.Table, present_keys: Sequence[_Key]
) -> list[AddFile]:
    """Return the files that the table still has, but with other row ids: the feature was dropped since, or is being dropped.

    Row ids of two times must not meet: one that had none, beside files that had some, gets new ones.
    """
    if to_restore.column("base_row_id").null_count == to_restore.num_rows:
        return []
    before, now = (
        dict(zip(keys, zip(*(files.column(name).to_pylist() for name in _ROW_IDS), strict=True), strict=True))
        for files, keys in ((to_restore, restored_keys), (present, present_keys))
    )
    differs = array([key in now and now[key] != before[key] for key in restored_keys], pa.bool_())
    return [msgspec.structs.replace(add, data_change=False) for add in to_add_files(to_restore.filter(differs))]


def _check_files_exist(log: DeltaLog, adds: Sequence[AddFile], version: int) -> None:
    paths = {add.path: add.path for add in adds}
    for add in adds:
        if add.deletion_vector is not None and add.deletion_vector.storage_type != "i":
            paths.setdefault(f"deletion vector {vector_path(log.store, add.deletion_vector)}", "")
    workers = 1 if log.store.local_root is not None else _THREADS

    def missing(name: str) -> bool:
        path = paths[name]
        return not exists(log.store, path if path else name.removeprefix("deletion vector "), encoded=bool(path))

    with ThreadPoolExecutor(workers) as pool:
        looked = tracked(pool.map(missing, paths), f"Looking for the files of version {version} of {log.uri}", len(paths))
        gone = [name for name, is_gone in zip(paths, looked, strict=True) if is_gone]
    if gone:
        more = f" and {len(gone) - _NAMED} more" if len(gone) > _NAMED else ""
        raise log.error(
            DeltaFileNotFoundException,
            f"Version {version} of table {log.uri} cannot be restored: {len(gone)} of its files are gone "
            f"({', '.join(sorted(gone)[:_NAMED])}{more}), deleted by hand or by VACUUM. Restore a later version, or pass "
            "ignore_missing_files=True to restore what is left of it (readers then fail on the missing files unless they ignore "
            "them too).",
            version=version,
        )


def continued(restored: Metadata, latest: Metadata) -> Metadata:
    """Return metadata of another version as those of the next one.

    Identity columns, in-commit timestamps and what ``checkpointProtection`` protects go on.
    """
    metadata = with_protection(_metadata_with_merged_marks(restored, latest), latest)
    if not (in_commit_timestamps.uses_in_commit_timestamps(metadata) and in_commit_timestamps.uses_in_commit_timestamps(latest)):
        return metadata
    # They may have been off in between: only the latest version knows since when every commit has a timestamp.
    keys = (
        IN_COMMIT_TIMESTAMP_ENABLEMENT_VERSION,
        IN_COMMIT_TIMESTAMP_ENABLEMENT_TIMESTAMP,
    )
    configuration = {key: value for key, value in metadata.configuration.items() if key not in keys}
    configuration |= {key: latest.configuration[key] for key in keys if key in latest.configuration}
    return msgspec.structs.replace(metadata, configuration=configuration)


def with_protection(metadata: Metadata, latest: Metadata) -> Metadata:
    """Return metadata with the versions that ``checkpointProtection`` protects in the latest ones: that is never taken back."""
    protected, restored = (_protected_before(some) for some in (latest, metadata))
    if protected <= restored:
        return metadata
    configuration = {**metadata.configuration, PROTECTED_BEFORE: str(protected)}
    return msgspec.structs.replace(metadata, configuration=configuration)


def _protected_before(metadata: Metadata) -> int:
    given = metadata.configuration.get(PROTECTED_BEFORE, "")
    return int(given) if given.isdigit() else 0


def _metadata_with_merged_marks(restored: Metadata, latest: Metadata) -> Metadata:
    """Return the restored metadata with identity columns that continue after the values assigned since."""
    before, after = TableDefinition.of(restored).schema, TableDefinition.of(latest).schema
    # By physical name: the column may have been renamed since.
    physical = {field.name: field.physical_name for field in after.fields}
    now = {physical[column.name]: column for column in identity_columns(after)}
    physical = {field.name: field.physical_name for field in before.fields}
    marks = {}
    for column in identity_columns(before):
        later = now.get(physical[column.name])
        if later is None or later.high_water_mark is None:
            continue
        if column.high_water_mark is None or column.is_beyond(later.high_water_mark):
            marks[column.name] = later.high_water_mark
    return with_high_water_marks(restored, marks)


def _clustering(source: Snapshot, latest: Snapshot) -> list[DomainMetadata]:
    """Return the clustering of the restored version, if the table has or had one."""
    domain = source.domain(CLUSTERING_DOMAIN) if "clustering" in features(source.protocol) else None
    if domain is not None:
        return [domain]
    return [clustering.unclustered()] if CLUSTERING_DOMAIN in latest.domain_metadata else []


def _milliseconds(timestamp: datetime | str | int, table: str) -> int:
    if isinstance(timestamp, str):
        try:
            timestamp = datetime.fromisoformat(timestamp.strip())
        except ValueError:
            raise DeltaIllegalArgumentException(
                f"The time {timestamp!r} to restore to is not ISO 8601, for example 2026-01-31T12:00:00+00:00.", table=table
            ) from None
    return to_milliseconds(timestamp)


def _timestamp_text(milliseconds: int) -> str:
    """Return a time as Delta's history shows it (``java.sql.Timestamp.toString``), in UTC."""
    moment = datetime.fromtimestamp(milliseconds / 1000, tz=UTC)
    fraction = f"{moment.microsecond // 1000:03}".rstrip("0") or "0"
    return f"{moment:%Y-%m-%d %H:%M:%S}.{fraction}"

"""SHALLOW CLONE: a table that starts as a version of another one and points to its files (Delta's ``CloneTableCommand``)."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from airflow_delta.contract.payloads import CommitResult, TransactionHandle
from airflow_delta.exceptions import (
    DeltaAnalysisException,
    DeltaIllegalArgumentException,
    DeltaIllegalStateException,
    DeltaTableNotFoundException,
)
from airflow_delta.log.actions.actions import Action, AddFile, DomainMetadata, Metadata
from airflow_delta.log.features import column_mapping, protocol
from airflow_delta.log.features.clustering import DOMAIN
from airflow_delta.log.features.properties import FEATURE_PREFIX, check_together, validate
from airflow_delta.log.features.protocol import features
from airflow_delta.log.features.registry import FEATURES
from airflow_delta.table.files.partitions import absolute_file_path, absolute_vector, qualified, url_encoded
from airflow_delta.table.run import run_large
from airflow_delta.transaction import Operation

if TYPE_CHECKING:
    from datetime import datetime

    from airflow_delta.log import Snapshot
    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.log.storage.base import LogStore
    from airflow_delta.transaction import OptimisticTransaction

_OF_THE_SOURCE = (
    # Columns that only files written by the clone have; row ids of the source are not kept.
    "delta.rowTracking.materializedRowIdColumnName",
    "delta.rowTracking.materializedRowCommitVersionColumnName",
    # A version and a time in the history of the source.
    "delta.inCommitTimestampEnablementVersion",
    "delta.inCommitTimestampEnablementTimestamp",
)


def clone_table(
    log: DeltaLog,
    source: DeltaLog,
    *,
    version: int | None = None,
    timestamp: datetime | int | None = None,
    properties: Mapping[str, str] | None = None,
    replace: bool = False,
    source_uri: str | None = None,
    **options: Any,
) -> CommitResult:
    """Make ``log`` a shallow clone of ``source``: its schema, properties, protocol, and the source's files in place.

    No file is copied, and the clone does not protect the source's files: once VACUUM deletes files of the cloned version, the
    clone can no longer be read.

    :param log: the clone: a location without a table, or, with ``replace``, a table without rows.
    :param version: version of the source; default: the latest.
    :param timestamp: instead of a version: the last one committed by then
        (:meth:`~airflow_delta.log.DeltaLog.snapshot_at_timestamp`).
    :param properties: table properties that override those of the source.
    :param replace: ``CREATE OR REPLACE``: an existing empty table becomes the clone and keeps its id.
    :param source_uri: URI of the source for readers of the clone, if it differs from the one that this process uses
        (``s3a://`` for Spark). Not URL-encoded.
    :param options: identity and commit options of :func:`airflow_delta.table.run.run_large`.
    :raises DeltaTableNotFoundException: if there is no table at the source.
    :raises VersionNotFoundException: if the source does not have the version yet, or no longer has it.
    :raises DeltaIllegalStateException: if there already is a table, or it has rows (Delta: DELTA_UNSUPPORTED_NON_EMPTY_CLONE).
    :raises DeltaAnalysisException: if a property would change the mode of column mapping.
    :raises ConcurrentWriteException: if another writer committed to the location in the meantime.
    """

    def operate(_handle: TransactionHandle, txn: OptimisticTransaction) -> tuple[Sequence[Action], Operation]:
        check_empty(txn, replace=replace)
        metadata = _metadata(txn, snapshot, dict(properties or {}))
        txn.update_metadata_for_clone(metadata, snapshot.protocol)
        root = url_encoded(uri)
        adds = [_absolute(file, root, source.store) for file in snapshot.add_files()]
        metrics = {
            "sourceTableSize": snapshot.size_in_bytes,
            "sourceNumOfFiles": len(adds),
            "numRemovedFiles": 0,
            "numCopiedFiles": 0,
            "removedFilesSize": 0,
            "copiedFilesSize": 0,
        }
        operation = Operation.clone(f"delta.`{uri}`", snapshot.version, metrics=metrics)
        return [*adds, *_domains(txn, snapshot)], operation

    snapshot = source_snapshot(source, version, timestamp)
    uri = qualified(source.store) if source_uri is None else source_uri.rstrip("/")
    if qualified(source.store) == qualified(log.store):
        raise log.error(DeltaIllegalArgumentException, f"Table {log.uri} cannot be a clone of itself.")
    return run_large(log, operate, **options)


def source_snapshot(source: DeltaLog, version: int | None, timestamp: datetime | int | None) -> Snapshot:
    """Return the version of the source to clone.

    :raises DeltaIllegalArgumentException: if both a version and a timestamp are given.
    :raises DeltaTableNotFoundException: if there is no table.
    """
    if version is not None and timestamp is not None:
        raise source.error(DeltaIllegalArgumentException, "Give a version or a timestamp of the source to clone, not both.")
    latest = source.update()
    if latest.version < 0:
        raise source.error(DeltaTableNotFoundException, f"There is no Delta table at {source.uri} to clone.")
    snapshot = latest
    if version is not None:
        snapshot = source.snapshot_at(version)
    elif timestamp is not None:
        snapshot = source.snapshot_at_timestamp(timestamp)
    protocol.check_can_read(snapshot.protocol, source.uri, snapshot.version, catalog=source.catalog)
    return snapshot


def check_empty(txn: OptimisticTransaction, *, replace: bool) -> None:
    """Check that a clone may replace what is at its location.

    :raises DeltaIllegalStateException: if there is a table, or it has rows.
    """
    table, version = txn.log.uri, txn.read_version
    if version < 0:
        return
    if not replace:
        raise DeltaIllegalStateException(
            f"There already is a table at {table} (version {version}), so a clone cannot be created there "
            "(DELTA_TABLE_ALREADY_EXISTS). Set replace=True to replace an empty table.",
            table=table,
            version=version,
        )
    if txn.filter_files().num_rows:
        raise DeltaIllegalStateException(
            f"Table {table} version {version} has rows, so it cannot become a clone (DELTA_UNSUPPORTED_NON_EMPTY_CLONE). "
            "TRUNCATE it first, or clone to another location.",
            table=table,
            version=version,
        )


# -- what the clone is --------------------------------------------------------------------------------------------------------


def _metadata(txn: OptimisticTransaction, source: Snapshot, properties: Mapping[str, str]) -> Metadata:
    own = txn.snapshot.metadata if txn.read_version >= 0 else None
    overrides = validate(properties, table=txn.log.uri, new_table=False)
    kept = {key: value for key, value in source.metadata.configuration.items() if key not in _OF_THE_SOURCE}
    configuration = {**kept, **_features_to_ask_for(source), **overrides}
    check_together(configuration, overrides, table=txn.log.uri)
    wanted = column_mapping.mode(configuration)
    for other in (source.metadata, own):
        if other is not None and column_mapping.mode(other.configuration) != wanted:
            raise txn.log.error(
                DeltaAnalysisException,
                f"The clone at {txn.log.uri} would have column mapping mode {wanted!r}, while "
                f"{'the table there' if other is own else f'its source {source.log.uri}'} has "
                f"{column_mapping.mode(other.configuration)!r} (DELTA_UNSUPPORTED_COLUMN_MAPPING_MODE_CHANGE). Leave the "
                "property as it is, and clone to a location without a table.",
            )
    return msgspec.structs.replace(
        source.metadata,
        id=str(uuid.uuid4()) if own is None else own.id,
        name=None if own is None else own.name,
        description=None if own is None else own.description,
        configuration=configuration,
    )


def _features_to_ask_for(source: Snapshot) -> dict[str, str]:
    """Return the properties for features that the metadata alone do not enable."""
    known = (FEATURES[name] for name in features(source.protocol) if name in FEATURES)
    return {f"{FEATURE_PREFIX}{f.name}": "supported" for f in known if f.settable and (f.by_name_only or not f.automatic)}


def _domains(txn: OptimisticTransaction, source: Snapshot) -> list[DomainMetadata]:
    """Return the clustering of the source, or the end of that of the table that the clone replaces."""
    cloned = source.domain_metadata.get(DOMAIN)
    if cloned is not None:
        return [cloned]
    own = txn.snapshot.domain_metadata.get(DOMAIN) if txn.read_version >= 0 else None
    return [] if own is None else [msgspec.structs.replace(own, removed=True)]


def _absolute(file: AddFile, root: str, store: LogStore) -> AddFile:
    """Return a file of the source as one of the clone: its path made absolute, no row ids."""
    return msgspec.structs.replace(
        file,
        path=absolute_file_path(file.path, root),
        data_change=True,
        deletion_vector=absolute_vector(file.deletion_vector, root, store),
        base_row_id=None,
        default_row_commit_version=None,
    )

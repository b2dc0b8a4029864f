"""CLONE: a table that starts as a version of another one.

A shallow one points to its files (Delta's ``CloneTableCommand``); of a deep one see
:mod:`airflow_delta.table.operations.deep_clone`.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from airflow_delta.contract.delta_names import (
    CLUSTERING_DOMAIN,
    FEATURE_PREFIX,
    IN_COMMIT_TIMESTAMP_ENABLEMENT_TIMESTAMP,
    IN_COMMIT_TIMESTAMP_ENABLEMENT_VERSION,
    MATERIALIZED_ROW_COMMIT_VERSION,
    MATERIALIZED_ROW_ID,
    PROTECTED_BEFORE,
)
from airflow_delta.contract.payloads import CommitResult, TransactionHandle
from airflow_delta.exceptions import (
    DeltaAnalysisException,
    DeltaIllegalArgumentException,
    DeltaIllegalStateException,
    DeltaTableNotFoundException,
    DeltaUnsupportedOperationException,
)
from airflow_delta.log.actions.actions import Action, AddFile, DomainMetadata, Metadata
from airflow_delta.log.actions.deletion_vectors import ABSOLUTE
from airflow_delta.log.features import column_mapping, protocol
from airflow_delta.log.features.properties import check_together, validate
from airflow_delta.log.features.protocol import features
from airflow_delta.log.features.registry import FEATURES
from airflow_delta.log.storage.place import store_place
from airflow_delta.table.files.partitions import absolute_file_path, absolute_vector, qualified, spelled_by_java, url_encoded
from airflow_delta.table.operations.deep_clone import ORIGIN, ClonedFiles, EarlierClone, Origin, earlier_clone, is_unchanged
from airflow_delta.table.operations.restore import continued, with_protection
from airflow_delta.table.positions.clone import positions_of_clone
from airflow_delta.table.run import run_large
from airflow_delta.transaction import CommitPolicy, Operation

if TYPE_CHECKING:
    from datetime import datetime

    from airflow_delta.log import Snapshot
    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.log.storage.base import LogStore
    from airflow_delta.transaction import OptimisticTransaction

_COLUMNS = (
    # Columns that only files written by the clone have; row ids of the source are not kept.
    MATERIALIZED_ROW_ID,
    MATERIALIZED_ROW_COMMIT_VERSION,
)
_OF_THE_SOURCE = (
    *_COLUMNS,
    *ORIGIN,
    # Versions and a time in the history of the source.
    PROTECTED_BEFORE,
    IN_COMMIT_TIMESTAMP_ENABLEMENT_VERSION,
    IN_COMMIT_TIMESTAMP_ENABLEMENT_TIMESTAMP,
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
    deep: bool = False,
    **options: Any,
) -> CommitResult:
    """Make ``log`` a clone of ``source``: its schema, properties, protocol, and the source's files.

    A shallow clone points to the files in place and does not protect them: once VACUUM deletes files of the cloned version, the
    clone can no longer be read. A deep clone has copies of them. Cloned again, it is brought up to date: what is new is copied.

    :param log: the clone: a location without a table; with ``replace``, a table without rows; or a deep clone of the source.
    :param version: version of the source; default: the latest.
    :param timestamp: instead of a version: the last one committed by then
        (:meth:`~airflow_delta.log.DeltaLog.snapshot_at_timestamp`).
    :param properties: table properties that override those of the source.
    :param replace: ``CREATE OR REPLACE``: an existing empty table becomes the clone and keeps its id; a deep clone loses what
        others have committed to it since.
    :param source_uri: URI of the source for readers of the clone, if it differs from the one that this process uses
        (``s3a://`` for Spark). Not URL-encoded.
    :param deep: copy the files.
    :param options: identity and commit options of :func:`airflow_delta.table.run.run_large`.
    :raises DeltaTableNotFoundException: if there is no table at the source.
    :raises VersionNotFoundException: if the source does not have the version yet, or no longer has it.
    :raises DeltaIllegalStateException: if there already is a table, or it has rows (Delta: DELTA_UNSUPPORTED_NON_EMPTY_CLONE); if
        a deep clone is one of another table, or has changed since.
    :raises DeltaFileNotFoundException: if a file to be copied is gone.
    :raises DeltaAnalysisException: if a property would change the mode of column mapping.
    :raises ConcurrentWriteException: if another writer committed to the location in the meantime.
    """

    def operate(handle: TransactionHandle, txn: OptimisticTransaction) -> tuple[Sequence[Action], Operation] | None:
        earlier = earlier_clone(txn, snapshot, replace=replace) if deep else None
        if earlier is None:
            check_empty(txn, replace=replace)
        metadata = _metadata(txn, snapshot, dict(properties or {}), earlier)
        more: list[Action] = [*_domains(txn, snapshot), *positions_of_clone(log, txn.snapshot, source, snapshot)]
        if not deep:
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
            return [*adds, *more], Operation.clone(f"delta.`{uri}`", snapshot.version, metrics=metrics)
        origin = Origin(snapshot.metadata.id or "", snapshot.version, metadata.id or "", txn.read_version + 1)
        metadata = msgspec.structs.replace(metadata, configuration={**metadata.configuration, **origin.properties})
        txn.update_metadata_for_clone(metadata, snapshot.protocol)
        files = ClonedFiles(txn, snapshot, handle.transaction_id, earlier)
        if earlier is not None and not files.actions and is_unchanged(txn.snapshot.metadata, txn.metadata):
            known = txn.snapshot.domain_metadata
            if all(isinstance(action, DomainMetadata) and known.get(action.domain) == action for action in more):
                return None
        operation = Operation.clone(f"delta.`{uri}`", snapshot.version, shallow=False, metrics=files.metrics)
        return [*files.actions, *more], operation

    snapshot = source_snapshot(source, version, timestamp)
    uri = qualified(source.store) if source_uri is None else source_uri.rstrip("/")
    if store_place(source.store).key == store_place(log.store).key:
        raise log.error(DeltaIllegalArgumentException, f"Table {log.uri} cannot be a clone of itself ({source.uri}).")
    if deep:  # it may add files again for new statistics, beside new ones
        policy = options.get("policy") or CommitPolicy()
        options["policy"] = dataclasses.replace(policy, consistent_data_change="off")
    return run_large(log, operate, stages=f"clone of {snapshot.metadata.id}" if deep else None, **options)


def source_snapshot(source: DeltaLog, version: int | None, timestamp: datetime | int | None) -> Snapshot:
    """Return the version of the source to clone.

    :raises DeltaIllegalArgumentException: if both a version and a timestamp are given.
    :raises DeltaTableNotFoundException: if there is no table.
    """
    if version is not None and timestamp is not None:
        raise source.error(DeltaIllegalArgumentException, "Give a version or a timestamp of the source to clone, not both.")
    if source.managed_as is not None:
        raise source.error(
            DeltaUnsupportedOperationException,
            f"Table {source.managed_as} ({source.uri}) is catalog-managed: a clone of it would be another table of the catalog, "
            "which also deletes files that a shallow clone needs. Copy its rows instead.",
        )
    latest = source.update()
    if latest.version < 0:
        raise source.error(DeltaTableNotFoundException, f"There is no Delta table at {source.uri} to clone.")
    snapshot = latest
    if version is not None:
        snapshot = source.snapshot_at(version)
    elif timestamp is not None:
        snapshot = source.snapshot_at_timestamp(timestamp)
    protocol.check_can_read(snapshot.protocol, source.uri, snapshot.version, provided=source.provided)
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


def _metadata(
    txn: OptimisticTransaction, source: Snapshot, properties: Mapping[str, str], earlier: EarlierClone | None
) -> Metadata:
    own = txn.snapshot.metadata if txn.read_version >= 0 else None
    overrides = validate(properties, table=txn.log.uri, new_table=False)
    kept = {key: value for key, value in source.metadata.configuration.items() if key not in _OF_THE_SOURCE}
    configuration = {**kept, **_features_to_ask_for(source), **overrides}
    check_together(configuration, overrides, table=txn.log.uri)
    wanted = column_mapping.mode(configuration)
    for other in (source.metadata, own if earlier is None else None):  # a deep clone follows its source
        if other is not None and column_mapping.mode(other.configuration) != wanted:
            raise txn.log.error(
                DeltaAnalysisException,
                f"The clone at {txn.log.uri} would have column mapping mode {wanted!r}, while "
                f"{'the table there' if other is own else f'its source {source.log.uri}'} has "
                f"{column_mapping.mode(other.configuration)!r} (DELTA_UNSUPPORTED_COLUMN_MAPPING_MODE_CHANGE). Leave the "
                "property as it is, and clone to a location without a table.",
            )
    metadata = msgspec.structs.replace(
        source.metadata,
        id=str(uuid.uuid4()) if own is None else own.id,
        name=None if own is None else own.name,
        description=None if own is None else own.description,
        configuration=configuration,
    )
    if own is None:
        return metadata
    if earlier is None:
        return with_protection(metadata, own)
    columns = {key: own.configuration[key] for key in _COLUMNS if key in own.configuration}
    return continued(msgspec.structs.replace(metadata, configuration={**configuration, **columns}), own)


def _features_to_ask_for(source: Snapshot) -> dict[str, str]:
    """Return the properties for features that the metadata alone do not enable."""
    known = (FEATURES[name] for name in features(source.protocol) if name in FEATURES)
    return {f"{FEATURE_PREFIX}{f.name}": "supported" for f in known if f.settable and (f.by_name_only or not f.automatic)}


def _domains(txn: OptimisticTransaction, source: Snapshot) -> list[DomainMetadata]:
    """Return the clustering of the source, or the end of that of the table that the clone replaces."""
    cloned = source.domain_metadata.get(CLUSTERING_DOMAIN)
    if cloned is not None:
        return [cloned]
    own = txn.snapshot.domain_metadata.get(CLUSTERING_DOMAIN) if txn.read_version >= 0 else None
    return [] if own is None else [msgspec.structs.replace(own, removed=True)]


def _absolute(file: AddFile, root: str, store: LogStore) -> AddFile:
    """Return a file of the source as one of the clone: its path made absolute, no row ids."""
    vector = absolute_vector(file.deletion_vector, root, store)
    if vector is not None and vector.storage_type == ABSOLUTE:
        vector = msgspec.structs.replace(vector, path_or_inline_dv=spelled_by_java(vector.path_or_inline_dv))
    return msgspec.structs.replace(
        file,
        path=spelled_by_java(absolute_file_path(file.path, root)),
        data_change=True,
        deletion_vector=vector,
        base_row_id=None,
        default_row_commit_version=None,
    )

"""ALTER TABLE of properties and of the features that they bring into the protocol, or that are dropped from it."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import msgspec

from airflow_delta.contract.changes import (
    AddConstraint,
    ClusterBy,
    DropConstraint,
    DropFeature,
    SetProperties,
    UnsetProperties,
    UpgradeProtocol,
)
from airflow_delta.contract.delta_names import (
    ENABLE_ROW_TRACKING,
    FEATURE_PREFIX,
    MATERIALIZED_ROW_COMMIT_VERSION,
    MATERIALIZED_ROW_ID,
    MIN_READER_VERSION,
    MIN_WRITER_VERSION,
    ROW_TRACKING_DOMAIN,
    ROW_TRACKING_SUSPENDED,
)
from airflow_delta.exceptions import DeltaUnsupportedOperationException, ProtocolDowngradeException
from airflow_delta.log.actions.actions import Metadata
from airflow_delta.log.features import protocol as table_protocol
from airflow_delta.log.features.properties import TableProperties, normalise_key
from airflow_delta.table.definition.alter_clustering import cluster_by
from airflow_delta.table.definition.alter_constraints import add_constraint, drop_constraint
from airflow_delta.table.definition.altered_table import AlteredTable, protocol_with
from airflow_delta.transaction import Operation
from airflow_delta.transaction.prepare import feature_drop

_COMMENT = "comment"


def set_properties(table: AlteredTable, change: SetProperties) -> AlteredTable:
    """Set properties; some bring a feature into the protocol."""
    given = {normalise_key(key): str(value) for key, value in change.properties.items()}
    metadata = msgspec.structs.replace(
        table.metadata,
        configuration={**table.metadata.configuration, **{k: v for k, v in given.items() if k != _COMMENT}},
        description=given.get(_COMMENT, table.metadata.description),
    )
    reads = False
    if _switches_on(table, given, ENABLE_ROW_TRACKING):
        _check_row_ids(table)
        reads = True  # a file added concurrently without row ids would never get any
        metadata = _with_row_tracking_names(table, metadata)
    operation = Operation.set_table_properties(given)
    altered = table.with_metadata(metadata, operation, look_at_files=True)
    return replace(altered, reads_table=altered.reads_table or reads)


def unset_properties(table: AlteredTable, change: UnsetProperties) -> AlteredTable:
    """Unset properties; their defaults apply again."""
    keys = [normalise_key(key) for key in change.keys]
    known = table.metadata.configuration
    missing = [key for key in keys if key not in known and key != _COMMENT]
    if missing and not change.if_exists:
        raise table.refuse(f"The properties {', '.join(missing)} are not set (DELTA_UNSET_NON_EXISTENT_PROPERTY). Use if_exists")
    metadata = msgspec.structs.replace(
        table.metadata,
        configuration={key: value for key, value in known.items() if key not in keys},
        description=None if _COMMENT in keys else table.metadata.description,
    )
    operation = Operation.unset_table_properties(keys, if_exists=change.if_exists)
    return table.with_metadata(metadata, operation, look_at_files=True)


def upgrade_protocol(table: AlteredTable, change: UpgradeProtocol) -> AlteredTable:
    """Upgrade the protocol, which Delta 4 records as SET TBLPROPERTIES; what the table already has changes nothing.

    :raises ProtocolDowngradeException: if the versions asked for are lower than the table's.
    """
    properties = {f"{FEATURE_PREFIX}{name}": "supported" for name in change.features}
    reader, writer = change.reader_version, change.writer_version
    known = table.protocol
    lower = (reader or known.min_reader_version) < known.min_reader_version or (
        writer or known.min_writer_version
    ) < known.min_writer_version
    if lower and known.min_writer_version < table_protocol.MAX_WRITER_VERSION:
        raise table.error(
            ProtocolDowngradeException,
            f"The protocol of table {table.table} version {table.version} is ({known.min_reader_version}, "
            f"{known.min_writer_version}) and cannot be lowered to ({reader}, {writer}). Drop features with DropFeature.",
        )
    if reader is not None:
        properties[MIN_READER_VERSION] = str(reader)
    if writer is not None:
        properties[MIN_WRITER_VERSION] = str(writer)
    if not properties:
        raise table.refuse("UpgradeProtocol needs versions or features")
    return set_properties(table, SetProperties(properties))


def drop_unused_feature(table: AlteredTable, change: DropFeature) -> AlteredTable:
    """Drop a feature that left no trace in the log, which older clients can then read.

    As in Delta, a table that loses a reader feature gets checkpointProtection: clients that do not know the feature must not
    write checkpoints of the versions that have it.
    """
    present = table_protocol.features(table.protocol)
    name = next((known for known in present if known.lower() == change.feature.lower()), None)
    if name is None:
        raise table.refuse(
            f"The table does not have the feature {change.feature} (DELTA_FEATURE_DROP_FEATURE_NOT_PRESENT); it has "
            f"{', '.join(sorted(present))}"
        )
    known = table_protocol.FEATURES.get(name)
    reader = known is not None and known.reader
    if known is None or (reader and not feature_drop.leaves_no_trace(name)) or name == feature_drop.CHECKPOINT_PROTECTION:
        raise table.error(
            DeltaUnsupportedOperationException,
            f"The feature {name} cannot be dropped from table {table.table} version {table.version} together with other changes: "
            "older clients would find it in the history of the table, which takes commits and checkpoints of its own. Run "
            "DeltaDropFeatureOperator instead, outside of a transaction.",
        )
    return without_feature(table, name, protects_history=reader)


def without_feature(
    table: AlteredTable, feature: str, *, protects_history: bool = False, truncate_history: bool = False
) -> AlteredTable:
    """Return the table without a feature that it no longer uses.

    :param protects_history: add checkpointProtection, for the versions before the next one.
    :param truncate_history: what ``commitInfo`` says.
    """
    added = {feature_drop.CHECKPOINT_PROTECTION} if protects_history else set()
    protocol = protocol_with(table_protocol.features(table.protocol) - {feature} | added)
    if table.snapshot is not None:
        feature_drop.check_drop(table.protocol, protocol, table.snapshot, table=table.table)
    domains, metadata = dict(table.domains), table.metadata
    if protects_history:
        metadata = feature_drop.with_history_protection(metadata, table.version + 1)
    if feature == "rowTracking":
        gone = {ENABLE_ROW_TRACKING, ROW_TRACKING_SUSPENDED, MATERIALIZED_ROW_ID, MATERIALIZED_ROW_COMMIT_VERSION}
        kept = {key: value for key, value in metadata.configuration.items() if key not in gone}
        metadata = msgspec.structs.replace(metadata, configuration=kept)
        known_domain = None if table.snapshot is None else table.snapshot.domain_metadata.get(ROW_TRACKING_DOMAIN)
        if known_domain is not None:
            domains[ROW_TRACKING_DOMAIN] = msgspec.structs.replace(known_domain, removed=True)
    operation = Operation.drop_feature(feature, truncate_history=truncate_history)
    return table.done(operation, metadata=metadata, protocol=protocol, domains=domains, sets_metadata=True)


# -- parts ----------------------------------------------------------------------------------------------------------------------


def _switches_on(table: AlteredTable, given: Mapping[str, str], key: str) -> bool:
    on = given.get(key, "").strip().lower() == "true"
    return on and not TableProperties(table.metadata.configuration).get(key)


def _check_row_ids(table: AlteredTable) -> None:
    """Check that every file has row ids; otherwise they would have to be committed again before."""
    if table.snapshot is None:
        return
    ids = table.snapshot.files(columns=["base_row_id"]).column("base_row_id")
    if ids.null_count:
        raise table.error(
            DeltaUnsupportedOperationException,
            f"Row tracking cannot be enabled for table {table.table} version {table.version} together with other changes: "
            f"{ids.null_count} of its files have no row ids, which takes commits of their own. Run "
            "DeltaEnableRowTrackingOperator instead, outside of a transaction.",
        )


def _with_row_tracking_names(table: AlteredTable, metadata: Metadata) -> Metadata:
    """Return the metadata with reproducible names for the columns of row tracking."""
    own = metadata.configuration
    names = {
        key: f"{prefix}{uuid.uuid5(uuid.NAMESPACE_OID, f'{table.seed}/{prefix}')}"
        for key, prefix in ((MATERIALIZED_ROW_ID, "_row-id-col-"), (MATERIALIZED_ROW_COMMIT_VERSION, "_row-commit-version-col-"))
    }
    return msgspec.structs.replace(metadata, configuration={**own, **{k: v for k, v in names.items() if k not in own}})


PROPERTY_CHANGES: Mapping[type, Callable[[AlteredTable, Any], AlteredTable]] = {
    SetProperties: set_properties,
    UnsetProperties: unset_properties,
    AddConstraint: add_constraint,
    DropConstraint: drop_constraint,
    UpgradeProtocol: upgrade_protocol,
    DropFeature: drop_unused_feature,
    ClusterBy: cluster_by,
}

"""From the metadata that a caller gives to the metadata that is committed: Delta's ``updateMetadata``, step by step.

Default properties, column mapping, types stored as other types, the protocol that the result needs, the names of row tracking's
columns, and finally the checks of :mod:`airflow_delta.log.features.schema_checks`.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping

import msgspec

from airflow_delta.contract.delta_names import (
    CHECKPOINT_POLICY,
    ENABLE_DELETION_VECTORS,
    ENABLE_ROW_TRACKING,
    FEATURE_PREFIX,
    IGNORE_PROTOCOL_DEFAULTS,
    MATERIALIZED_ROW_COMMIT_VERSION,
    MATERIALIZED_ROW_ID,
    MAX_COLUMN_ID,
    MIN_READER_VERSION,
    MIN_WRITER_VERSION,
    SYMLINK_MANIFEST,
)
from airflow_delta.exceptions import DeltaAnalysisException
from airflow_delta.light_dataclasses import dataclass
from airflow_delta.log.actions.actions import DomainMetadata, Metadata, Protocol
from airflow_delta.log.features import clustering, column_mapping
from airflow_delta.log.features import protocol as table_protocol
from airflow_delta.log.features.constraints import column_defaults, replace_char_varchar, without_exists_defaults
from airflow_delta.log.features.generated_columns import without_generation
from airflow_delta.log.features.identity_columns import without_identity
from airflow_delta.log.features.properties import PREFIX, TableProperties, check_together, normalise_key, validate
from airflow_delta.log.features.schema_checks import check_table_metadata
from airflow_delta.log.features.type_widening import with_type_changes
from airflow_delta.log.schema.types import StructType, to_json
from airflow_delta.log.table_definition import TableDefinition
from airflow_delta.transaction.prepare.prepare import TableState, check_defaults_supported, check_manual

_VERSIONS = (MIN_READER_VERSION, MIN_WRITER_VERSION)
_KEPT_IN_REPLACE = frozenset({ENABLE_DELETION_VECTORS, ENABLE_ROW_TRACKING, CHECKPOINT_POLICY})
# What the provider itself put into metadata that comes back to it, e.g. because files were staged with these names.
_KEPT_BY_FEATURE = {
    MAX_COLUMN_ID: "columnMapping",
    MATERIALIZED_ROW_ID: "rowTracking",
    MATERIALIZED_ROW_COMMIT_VERSION: "rowTracking",
}


@dataclass(frozen=True, slots=True)
class MetadataUpdate:
    """The metadata to commit, and the protocol to commit with it.

    :param protocol: ``None`` if the table's own stays.
    :param domains: metadata domains that must be committed as well.
    """

    metadata: Metadata
    protocol: Protocol | None
    domains: tuple[DomainMetadata, ...] = ()


def update_metadata(
    state: TableState,
    metadata: Metadata,
    *,
    creates_table: bool = False,
    overwrites_schema: bool = False,
    default_properties: Mapping[str, str] | None = None,
    ignore_default_properties: bool = False,
) -> MetadataUpdate:
    """Return what a transaction commits if a caller sets this metadata.

    :param state: the table as it was read.
    :param creates_table: CREATE, CONVERT, and REPLACE of an existing table.
    :param overwrites_schema: the commit replaces all rows of the table.
    :param default_properties: for tables that are created or replaced, see :func:`with_global_config_defaults`.
    :param ignore_default_properties: leave them out (a clone has its source's properties, even those that users may not set).
    """
    is_new = state.metadata is None
    if (is_new or creates_table) and not ignore_default_properties:
        metadata = with_global_config_defaults(metadata, default_properties or {})
    if creates_table and state.metadata is not None:
        metadata = _with_kept_properties(state.metadata, metadata)
    if not ignore_default_properties:
        metadata = _with_properties(state, metadata)
    metadata = column_mapping.assign(
        metadata,
        state.metadata,
        overwrites_schema=overwrites_schema,
        creates_table=creates_table,
        brings_files=ignore_default_properties,
    )
    schema = TableDefinition.of(metadata).schema
    stored = without_exists_defaults(replace_char_varchar(schema))
    if not is_new and not creates_table:
        stored = _as_protocol_allows(state, metadata, stored)
        stored = _with_type_changes(state, metadata, stored, overwrites_schema=overwrites_schema)
    if stored != schema:
        metadata = msgspec.structs.replace(metadata, schema_string=to_json(stored))
    check_manual(state, metadata, asked=table_protocol.asked_features(metadata.configuration))
    metadata, protocol = table_protocol.apply_feature_properties(metadata, state.protocol)
    _check_defaults(state, metadata, protocol, replaces_rows=creates_table or overwrites_schema)
    metadata = _with_row_tracking_names(state, metadata, protocol)
    check_table_metadata(metadata, state.metadata, table=state.table, version=state.read_version)
    _check_manifest(state, metadata)
    domains = _clustering(state, metadata, replaces_rows=creates_table or overwrites_schema)
    return MetadataUpdate(metadata, None if protocol == state.protocol else protocol, domains)


def with_global_config_defaults(metadata: Metadata, defaults: Mapping[str, str]) -> Metadata:
    """Return the metadata with the default properties that it does not set itself (Delta's method of this name).

    :param defaults: keys with or without the prefix ``delta.``, also ``feature.<name>``. Those that concern the protocol are left
        out if the metadata sets ``delta.ignoreProtocolDefaults``.
    """
    if not defaults:
        return metadata
    own = {normalise_key(key): value for key, value in metadata.configuration.items()}
    ignores = own.get(IGNORE_PROTOCOL_DEFAULTS, "false").strip().lower() == "true"
    merged: dict[str, str] = {}
    for given, value in defaults.items():
        key = normalise_key(given if given.lower().startswith(PREFIX) else PREFIX + given)
        concerns_protocol = key.startswith(FEATURE_PREFIX) or key in _VERSIONS
        if key not in own and not (ignores and concerns_protocol):
            merged[key] = value
    return msgspec.structs.replace(metadata, configuration={**merged, **own})


def _with_kept_properties(old: Metadata, metadata: Metadata) -> Metadata:
    """Return the metadata of a table that replaces another, with the properties that Delta keeps of the other."""
    own = {normalise_key(key) for key in metadata.configuration}
    kept = {key: value for key, value in old.configuration.items() if key in _KEPT_IN_REPLACE and key not in own}
    return msgspec.structs.replace(metadata, configuration={**kept, **metadata.configuration}) if kept else metadata


def _with_properties(state: TableState, metadata: Metadata) -> Metadata:
    """Return the metadata with property keys in Delta's spelling; checks every property that is set or changed."""
    old = {} if state.metadata is None else state.metadata.configuration
    given = metadata.configuration
    changed = {key: value for key, value in given.items() if old.get(key) != value}
    features = _features_meant(state, given)
    own = {key for key in changed if _KEPT_BY_FEATURE.get(key) in features}
    validated = validate(
        {key: value for key, value in changed.items() if key not in own}, table=state.table, new_table=state.metadata is None
    )
    kept = {key: value for key, value in given.items() if key not in changed and key not in validated}
    configuration = {**kept, **{key: changed[key] for key in own}, **validated}
    check_together(configuration, validated, table=state.table)
    if configuration == given:
        return metadata
    return msgspec.structs.replace(metadata, configuration=configuration)


def _features_meant(state: TableState, configuration: Mapping[str, str]) -> frozenset[str]:
    present = frozenset() if state.protocol is None else table_protocol.features(state.protocol)
    folded = {key.lower(): value.strip().lower() for key, value in configuration.items() if isinstance(value, str)}
    if folded.get("delta.columnmapping.mode", "none") != "none":
        present |= {"columnMapping"}
    if folded.get("delta.enablerowtracking") == "true" or "delta.feature.rowtracking" in folded:
        present |= {"rowTracking"}
    return present


def _as_protocol_allows(state: TableState, metadata: Metadata, schema: StructType) -> StructType:
    """Return the schema without expressions that the existing protocol does not support: the table is not upgraded for them.

    As in Delta: data copied from a table with generated columns does not give the target any.
    """
    if state.protocol is None:
        return schema
    asked = table_protocol.apply_feature_properties(_only_protocol_properties(metadata), state.protocol)[1]
    supported = table_protocol.features(asked)
    if "generatedColumns" not in supported:
        schema = StructType(tuple(without_generation(field) for field in schema.fields))
    if "identityColumns" not in supported:
        schema = StructType(tuple(without_identity(field) for field in schema.fields))
    return schema


def _only_protocol_properties(metadata: Metadata) -> Metadata:
    wanted = {k: v for k, v in metadata.configuration.items() if k in _VERSIONS or k.startswith(FEATURE_PREFIX)}
    return Metadata(id=metadata.id, schema_string='{"type":"struct","fields":[]}', configuration=wanted)


def _with_type_changes(state: TableState, metadata: Metadata, schema: StructType, *, overwrites_schema: bool) -> StructType:
    if overwrites_schema or state.metadata is None or not TableProperties(metadata.configuration).get("enableTypeWidening"):
        return schema
    return with_type_changes(schema, TableDefinition.of(state.metadata).schema)


def _check_defaults(state: TableState, metadata: Metadata, protocol: Protocol, *, replaces_rows: bool) -> None:
    """Check that columns only have default values if the table has that feature, and that no column is added with one.

    Existing rows would have to get the value, which files written before the column existed cannot give them.
    """
    defaults = column_defaults(TableDefinition.of(metadata).schema)
    if not defaults:
        return
    check_defaults_supported(state, defaults, protocol)
    if state.metadata is None or replaces_rows:
        return
    before = TableDefinition.of(state.metadata).schema
    added = [name for name in defaults if before.find(name) is None and not _is_renamed(metadata, name, before)]
    if added:
        raise state.error(
            DeltaAnalysisException,
            f"The column {added[0]} cannot be added to table {state.table} with a default value "
            "(WRONG_COLUMN_DEFAULTS_FOR_DELTA_ALTER_TABLE_ADD_COLUMN_NOT_SUPPORTED). Add it without one, then set the default.",
        )


def _is_renamed(metadata: Metadata, name: str, before: StructType) -> bool:
    field = TableDefinition.of(metadata).schema.find(name)
    return field is not None and field.physical_name in {f.physical_name for f in before.fields}


def _check_manifest(state: TableState, metadata: Metadata) -> None:
    """Check that manifests, whose readers ignore deletion vectors, are not enabled while files have some."""
    key = SYMLINK_MANIFEST
    if state.snapshot is None or state.metadata is None or state.protocol is None:
        return
    switched_on = TableProperties(metadata.configuration).get(key) and not TableProperties(state.metadata.configuration).get(key)
    if not switched_on or "deletionVectors" not in table_protocol.features(state.protocol):
        return
    vectors = state.snapshot.files(columns=["deletion_vector"]).column("deletion_vector")
    count = len(vectors) - vectors.null_count
    if count:
        error = "DELTA_VIOLATE_TABLE_PROPERTY_VALIDATION_FAILED"
        raise state.error(
            DeltaAnalysisException,
            f"{key} cannot be set for table {state.table}: {count} of its files have deletion vectors "
            f"({error}.EXISTING_DELETION_VECTORS_WITH_INCREMENTAL_MANIFEST_GENERATION). "
            "Purge them first: REORG TABLE ... APPLY (PURGE).",
        )


def _clustering(state: TableState, metadata: Metadata, *, replaces_rows: bool) -> tuple[DomainMetadata, ...]:
    """Check that a clustered table keeps its clustering columns, or return the domain that ends its clustering."""
    if state.snapshot is None or state.protocol is None or "clustering" not in table_protocol.features(state.protocol):
        return ()
    columns = clustering.clustering_columns(state.snapshot.domain_metadata)
    if replaces_rows:
        return (clustering.unclustered(),) if columns else ()
    clustering.check_clustering(metadata, columns)
    return ()


def _with_row_tracking_names(state: TableState, metadata: Metadata, protocol: Protocol) -> Metadata:
    """Return the metadata with the names of the columns in which rewritten files keep row ids and commit versions."""
    if "rowTracking" not in table_protocol.features(protocol):
        return metadata
    old = {} if state.metadata is None else state.metadata.configuration
    names = {
        key: old.get(key) or metadata.configuration.get(key) or f"{prefix}{uuid.uuid4()}"
        for key, prefix in ((MATERIALIZED_ROW_ID, "_row-id-col-"), (MATERIALIZED_ROW_COMMIT_VERSION, "_row-commit-version-col-"))
    }
    if names.items() <= metadata.configuration.items():
        return metadata
    return msgspec.structs.replace(metadata, configuration={**metadata.configuration, **names})

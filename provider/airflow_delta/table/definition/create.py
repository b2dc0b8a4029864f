"""The definition that CREATE and REPLACE TABLE give a table, from the plan to the commit.

It travels in the staged write of its stage (``StagedWrite.definition``). Stages that are planned on top of that one (``after=``)
work on the table as defined.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from airflow_delta.contract.delta_names import CLUSTERING_DOMAIN
from airflow_delta.contract.payloads import Json, StagedWrite, TransactionHandle
from airflow_delta.exceptions import (
    DeltaAnalysisException,
    DeltaIllegalArgumentException,
    StageConflictException,
)
from airflow_delta.log.actions.actions import DomainMetadata, Metadata
from airflow_delta.log.features import clustering, protocol
from airflow_delta.log.features.clustering import indexed_leaves, parse_column_list
from airflow_delta.log.features.properties import TableProperties, strip_protocol_properties
from airflow_delta.log.features.schema_merge import merge_schema, stored_otherwise, with_type_changes
from airflow_delta.log.schema.types import known_names, leaves, to_json
from airflow_delta.log.table_definition import TableDefinition
from airflow_delta.transaction import Operation
from airflow_delta.transaction.prepare.prepare import TableState

if TYPE_CHECKING:
    from airflow_delta.log import Snapshot
    from airflow_delta.log.actions.actions import AddFile, RemoveFile
    from airflow_delta.log.schema.types import Path, StructType

MAX_CLUSTERING_COLUMNS = 4
"""Delta: ``clustering.numColumns`` (DELTA_CLUSTER_BY_INVALID_NUM_COLUMNS)."""

OPERATIONS = {
    "create": "CREATE TABLE",
    "create_if_not_exists": "CREATE TABLE",
    "replace": "REPLACE TABLE",
    "create_or_replace": "CREATE OR REPLACE TABLE",
}
"""Operation by mode, as ``commitInfo`` records it; followed by ``AS SELECT`` if there are rows."""

_NOT_CLUSTERABLE = ("array", "map", "struct", "binary", "boolean", "variant")


def written(write: StagedWrite) -> TableDefinition:
    """Return the definition that the rows of a stage have by themselves."""
    return TableDefinition.of_rows(write.schema_string, write.partition_columns)


def define_table(
    handle: TransactionHandle,
    snapshot: Snapshot,
    *,
    mode: str,
    schema: str,
    partition_by: Sequence[str] = (),
    cluster_by: Sequence[str] = (),
    properties: Mapping[str, str] | None = None,
    description: str | None = None,
) -> Json:
    """Return the definition of a table, checked as the commit will check it.

    :param snapshot: version that the transaction reads.
    :param schema: Spark's JSON form.
    :raises DeltaAnalysisException: if schema, partitioning, clustering or an expression is not valid.
    :raises DeltaIllegalArgumentException: if a property is not valid.
    :raises DeltaUnsupportedTableFeatureException: if a column has a default and the table lacks that feature.
    """
    from airflow_delta.table.start.begin import DEFAULT_CONFIGURATION, with_required
    from airflow_delta.transaction.prepare.metadata_update import update_metadata

    exists = snapshot.version >= 0
    wanted = with_required({**DEFAULT_CONFIGURATION, **(properties or {})}, snapshot.log.store.committer, handle.table)
    given = {key: value for key, value in wanted.items() if value is not None}
    columns = TableDefinition.of_rows(schema).schema
    metadata = Metadata(
        id=str(uuid.uuid4()),
        description=description,
        schema_string=schema,
        partition_columns=_spelled(columns, partition_by, handle),
        configuration=given,
        created_time=int(time.time() * 1000),
    )
    state = TableState(
        table=handle.table,
        read_version=snapshot.version,
        metadata=snapshot.metadata if exists else None,
        protocol=snapshot.protocol if exists else None,
        snapshot=snapshot if exists else None,
        catalog=snapshot.log.catalog,
    )
    # As in Delta's REPLACE, columns that keep name and type keep the physical name.
    update = update_metadata(state, metadata, creates_table=True, overwrites_schema=exists)
    _check_clustering(handle, columns, cluster_by, metadata.partition_columns, update.metadata.configuration)
    if exists and metadata.partition_columns and clustering.clustering_columns(snapshot.domain_metadata):
        raise handle.error(
            DeltaAnalysisException,
            f"Table {handle.table} is clustered and cannot be replaced by a partitioned one "
            "(DELTA_CLUSTERING_REPLACE_TABLE_WITH_PARTITIONED_TABLE). Cluster the new one too, or write to another location.",
        )
    asked = {key: value for key, value in given.items() if key not in strip_protocol_properties(given)}
    defined = msgspec.structs.replace(update.metadata, configuration={**update.metadata.configuration, **asked})
    known = update.protocol if update.protocol is not None else snapshot.protocol
    clustered = {"clustering", "domainMetadata"} if cluster_by else set()
    return {
        "mode": mode,
        "clusterBy": list(cluster_by),
        "features": sorted(protocol.features(known) | clustered),
        "metaData": msgspec.to_builtins(defined),
    }


def as_defined(table: TableDefinition, definition: Mapping[str, Any]) -> TableDefinition:
    """Return what the table is once a stage has defined it."""
    metadata = definition["metaData"]
    return replace(
        table,
        schema_string=metadata["schemaString"],
        partition_columns=tuple(metadata.get("partitionColumns", ())),
        configuration=strip_protocol_properties(metadata.get("configuration", {})),
        features=frozenset(definition["features"]),
        description=metadata.get("description"),
    )


def builds_on(write: StagedWrite, others: Sequence[StagedWrite]) -> bool:
    """Return whether a stage was planned on top of all others."""
    return all(f"{other.stage}/{other.attempt}" in write.after for other in others)


def replaces_columns(write: StagedWrite, before: Sequence[StagedWrite]) -> bool:
    """Return whether the rows of a stage decide the columns, whatever the table and earlier stages have.

    :param before: those that come before it, beside it or under it.
    """
    return write.overwrite_schema and not write.definition and builds_on(write, before)


def definition_of(handle: TransactionHandle, writes: Sequence[StagedWrite]) -> Json | None:
    """Return the definition that a stage gives the table, if one does.

    :raises StageConflictException: if several stages do, or a stage was planned on the table as it was before.
    """
    defining = [write for write in writes if write.definition]
    if not defining:
        return None
    others = [write.stage for write in writes if write is not defining[0] and not builds_on(write, defining[:1])]
    if others or len(defining) > 1:
        what = "define" if len(defining) > 1 else "work on"
        named = ", ".join(write.stage for write in defining) if len(defining) > 1 else ", ".join(others)
        raise handle.error(
            StageConflictException,
            f"Stage {defining[0].stage} of transaction {handle.transaction_id} redefines table {handle.table} "
            f"({defining[0].operation}), while {named} also {what} it. Give every other stage after=<output of "
            f"{defining[0].stage}>.",
        )
    return defining[0].definition


def defined_metadata(handle: TransactionHandle, writes: Sequence[StagedWrite], definition: Mapping[str, Any]) -> Metadata:
    """Return the metadata to commit: those of the definition with the columns that later stages add."""
    metadata = msgspec.convert(definition["metaData"], Metadata)
    table = TableDefinition.of(metadata, table=handle.table, version=handle.read_version)
    schema = table.schema
    for write in writes:
        if not write.definition:
            schema = schema_with(table, schema, write)
    return msgspec.structs.replace(metadata, schema_string=to_json(schema))


def schema_with(table: TableDefinition, known: StructType, write: StagedWrite) -> StructType:
    """Return the schema that the table has after a stage, with the types that files have for a column recorded.

    :param known: after earlier stages.
    :raises SchemaMismatchException: if what the stage wrote does not fit.
    :raises StageConflictException: if readers do not take the type of a column for that of the table and earlier stages: files
        cannot be cast any more.
    """
    staged = written(write).schema
    widens = table.widens_types
    for column, given, wanted in stored_otherwise(known, staged, widening=write.merge_schema and widens):
        raise table.error(
            StageConflictException,
            f"Stage {write.stage} has written column {column} of table {table.table} as {given}, which the table or another "
            f"stage has as {wanted}: not every reader could read it. Cast it to the same type and "
            "clear the start task with everything downstream.",
        )
    merged = merge_schema(
        known,
        staged,
        merge=write.merge_schema,
        widen=write.merge_schema and widens,
        table=table.table,
        version=table.version,
    )
    # A column that the transaction adds may have files of each type.
    return with_type_changes(with_type_changes(merged, known), staged) if widens else merged


def clustering_domain(definition: Mapping[str, Any], metadata: Metadata) -> DomainMetadata:
    """Return the metadata domain that names the columns a new table is clustered by, by physical name."""
    table = TableDefinition.of(metadata)
    mapped = table.column_mapping != "none"
    known = {_folded(leaf.path): leaf for leaf in leaves(table.schema)}
    found = [known[_folded(parse_column_list(name)[0])] for name in definition["clusterBy"]]
    paths = [list(leaf.physical_path if mapped else leaf.path) for leaf in found]
    configuration = msgspec.json.encode({"clusteringColumns": paths, "domainName": CLUSTERING_DOMAIN}).decode()
    return DomainMetadata(domain=CLUSTERING_DOMAIN, configuration=configuration, removed=False)


def defined_operation(
    definition: Mapping[str, Any],
    metadata: Metadata,
    writes: Sequence[StagedWrite],
    adds: Sequence[AddFile],
    removes: Sequence[RemoveFile],
) -> Operation:
    """Return CREATE or REPLACE TABLE as ``commitInfo`` records it; ``AS SELECT`` if any stage has rows.

    :param writes: of all stages; the first defines the table.
    :param adds: files that the transaction adds in the end; so with ``removes``.
    """
    as_select = len(writes) > 1 or writes[0].operation.endswith("AS SELECT")
    mode = str(definition["mode"])
    options: dict[str, Any] = {
        "partition_by": metadata.partition_columns,
        "cluster_by": definition["clusterBy"],
        "properties": metadata.configuration,
        "description": metadata.description,
        "as_select": as_select,
    }
    if as_select:
        counts = [write.num_records for write in writes]
        metrics = {"numFiles": len(adds), "numOutputBytes": sum(add.size for add in adds)}
        if not any(count is None for count in counts):
            metrics["numOutputRows"] = sum(count or 0 for count in counts)
        if "replace" in mode:
            metrics["numRemovedFiles"] = len(removes)
            metrics["numRemovedBytes"] = sum(remove.size or 0 for remove in removes)
        options["metrics"] = metrics
    if "replace" in mode:
        return Operation.replace_table(**options, or_create=mode == "create_or_replace")
    return Operation.create_table(**options)


def _spelled(schema: StructType, names: Sequence[str], handle: TransactionHandle) -> list[str]:
    """Return columns as the schema spells them."""
    spelled = []
    for name in names:
        field = schema.find(name)
        if field is None:
            raise handle.error(
                DeltaAnalysisException,
                f"The partition column {name} is not among the columns ({', '.join(schema.names)}) of table {handle.table}.",
            )
        spelled.append(field.name)
    if spelled and len(spelled) == len(schema.fields):
        raise handle.error(
            DeltaAnalysisException,
            f"Table {handle.table} cannot be partitioned by all of its columns (ALL_PARTITION_COLUMNS_NOT_ALLOWED).",
        )
    return spelled


def _check_clustering(
    handle: TransactionHandle,
    schema: StructType,
    cluster_by: Sequence[str],
    partition_by: Sequence[str],
    properties: Mapping[str, str],
) -> None:
    if not cluster_by:
        return
    if partition_by:
        raise handle.error(
            DeltaAnalysisException,
            f"Table {handle.table} cannot be clustered and partitioned (DELTA_CLUSTER_BY_WITH_PARTITIONED_BY).",
        )
    if len(cluster_by) > MAX_CLUSTERING_COLUMNS:
        raise handle.error(
            DeltaAnalysisException,
            f"Table {handle.table} cannot be clustered by {len(cluster_by)} columns, {MAX_CLUSTERING_COLUMNS} are the most "
            "(DELTA_CLUSTER_BY_INVALID_NUM_COLUMNS).",
        )
    if (keyword := keyword_of([path for name in cluster_by for path in parse_column_list(name)], schema)) is not None:
        raise handle.error(DeltaAnalysisException, f"{keyword} (table {handle.table}).")
    known = {_folded(leaf.path): leaf for leaf in leaves(schema)}
    indexed = {_folded(leaf.path) for leaf in indexed_leaves(schema, (), TableProperties(dict(properties)))}
    for name in cluster_by:
        parsed = parse_column_list(name)
        leaf = known.get(_folded(parsed[0])) if len(parsed) == 1 else None
        if leaf is None:
            raise handle.error(
                DeltaIllegalArgumentException,
                f"There is no column {name} to cluster table {handle.table} by. {known_names(name, schema.names)}.",
            )
        if leaf.data_type.name in _NOT_CLUSTERABLE:
            raise handle.error(
                DeltaAnalysisException,
                f"Table {handle.table} cannot be clustered by {name}: files have no bounds of {leaf.data_type.name} columns "
                "(DELTA_CLUSTERING_COLUMNS_DATATYPE_NOT_SUPPORTED).",
            )
        if _folded(leaf.path) not in indexed:
            raise handle.error(
                DeltaAnalysisException,
                f"Table {handle.table} cannot be clustered by {name}, which has no statistics "
                "(DELTA_CLUSTERING_COLUMN_MISSING_STATS). Move it to the front of the columns, or raise "
                "delta.dataSkippingNumIndexedCols.",
            )


def keyword_of(columns: Sequence[Path], schema: StructType) -> str | None:
    """Return what is wrong with clustering columns that are the keyword of a statement; ``None`` if they are not."""
    names = [name.upper() for name in columns[0]] if len(columns) == 1 else []
    if names in (["AUTO"], ["NONE"]) and schema.find(columns[0][0]) is None:
        return {
            "AUTO": "CLUSTER BY AUTO is a service of Databricks, which neither Delta Lake nor this provider has. Name the "
            "columns to cluster by",
            "NONE": "The table has no column NONE. For CLUSTER BY NONE, name no columns",
        }[names[0]]
    return None


def _folded(path: Sequence[str]) -> tuple[str, ...]:
    return tuple(part.lower() for part in path)

"""The definition of a table that CREATE and REPLACE TABLE ask for, checked before anything is staged."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from airflow_delta.contract.delta_names import CLUSTERING_DOMAIN
from airflow_delta.contract.payloads import Json, TransactionHandle
from airflow_delta.exceptions import DeltaAnalysisException, DeltaIllegalArgumentException
from airflow_delta.log.actions.actions import DomainMetadata, Metadata
from airflow_delta.log.features import clustering, protocol
from airflow_delta.log.features.properties import TableProperties, strip_protocol_properties
from airflow_delta.log.features.stats_columns import indexed_leaves, parse_column_list
from airflow_delta.log.schema.suggestions import known_names
from airflow_delta.log.schema.types import leaves
from airflow_delta.log.table_definition import TableDefinition
from airflow_delta.transaction.prepare.prepare import TableState

if TYPE_CHECKING:
    from airflow_delta.log import Snapshot
    from airflow_delta.log.schema.types import StructType
    from airflow_delta.log.schema.walk import Path

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
    from airflow_delta.table.start.new_table import DEFAULT_CONFIGURATION, with_required
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
        provided=snapshot.log.provided,
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


def clustering_domain(definition: Mapping[str, Any], metadata: Metadata) -> DomainMetadata:
    """Return the metadata domain that names the columns a new table is clustered by, by physical name."""
    table = TableDefinition.of(metadata)
    mapped = table.column_mapping != "none"
    known = {_folded(leaf.path): leaf for leaf in leaves(table.schema)}
    found = [known[_folded(parse_column_list(name)[0])] for name in definition["clusterBy"]]
    paths = [list(leaf.physical_path if mapped else leaf.path) for leaf in found]
    configuration = msgspec.json.encode({"clusteringColumns": paths, "domainName": CLUSTERING_DOMAIN}).decode()
    return DomainMetadata(domain=CLUSTERING_DOMAIN, configuration=configuration, removed=False)


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

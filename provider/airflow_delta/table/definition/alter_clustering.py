"""ALTER TABLE ... CLUSTER BY."""

from __future__ import annotations

from typing import Any

import msgspec

from airflow_delta.contract.changes import ClusterBy
from airflow_delta.contract.delta_names import CLUSTERING_DOMAIN
from airflow_delta.contract.sql_types import parse_column_path
from airflow_delta.log.actions.actions import DomainMetadata
from airflow_delta.log.features import protocol as table_protocol
from airflow_delta.log.features.clustering import logical_columns, quoted_path
from airflow_delta.log.features.properties import TableProperties
from airflow_delta.log.features.stats_columns import indexed_leaves
from airflow_delta.log.schema.types import DataType, StructType
from airflow_delta.log.schema.walk import Path, dotted, folded
from airflow_delta.table.definition.altered_table import AlteredTable, protocol_with
from airflow_delta.table.definition.column_paths import missing_column
from airflow_delta.table.definition.create import MAX_CLUSTERING_COLUMNS, keyword_of
from airflow_delta.transaction import Operation


def cluster_by(table: AlteredTable, change: ClusterBy) -> AlteredTable:
    """Change the clustering columns; files are not touched until OPTIMIZE."""
    if table.metadata.partition_columns:
        raise table.refuse(
            "A partitioned table cannot be clustered (DELTA_ALTER_TABLE_CLUSTER_BY_ON_PARTITIONED_TABLE_NOT_ALLOWED)"
        )
    paths = [parse_column_path(column) for column in change.columns]
    if (keyword := keyword_of(paths, table.schema)) is not None:
        raise table.refuse(keyword)
    twice = sorted({dotted(path) for path in paths if [folded(p) for p in paths].count(folded(path)) > 1})
    if twice:
        raise table.refuse(f"Columns are listed twice: {', '.join(twice)} (DELTA_DUPLICATE_COLUMNS_FOUND.CLUSTER_BY)")
    if len(paths) > MAX_CLUSTERING_COLUMNS:
        raise table.refuse(
            f"A table can be clustered by at most {MAX_CLUSTERING_COLUMNS} columns, got {len(paths)} "
            "(DELTA_CLUSTER_BY_INVALID_NUM_COLUMNS)"
        )
    physical = [_clustering_column(table, path) for path in paths]
    old = logical_columns(table.schema, table.clustering or ())
    operation = Operation.cluster_by([quoted_path(path) for path in old], [quoted_path(path) for path in paths])
    configuration = msgspec.json.encode({"clusteringColumns": physical, "domainName": CLUSTERING_DOMAIN}).decode()
    domain = DomainMetadata(domain=CLUSTERING_DOMAIN, configuration=configuration, removed=False)
    changed: dict[str, Any] = {
        "domains": {**table.domains, CLUSTERING_DOMAIN: domain},
        "clustering": tuple(tuple(path) for path in physical),
    }
    features = table_protocol.features(table.protocol)
    if "clustering" not in features:
        if not paths:
            return table.done(operation, sets_metadata=True)
        changed |= {"protocol": protocol_with(features | {"clustering", "domainMetadata"}), "sets_metadata": True}
    return table.done(operation, **changed)


def _clustering_column(table: AlteredTable, path: Path) -> list[str]:
    at: DataType = table.schema
    physical: list[str] = []
    for name in path:
        found = at.find(name) if isinstance(at, StructType) else None
        if found is None:
            raise missing_column(table, path)
        physical.append(found.physical_name)
        at = found.data_type
    if at.name in ("struct", "array", "map", "boolean", "binary", "void", "variant"):
        raise table.refuse(
            f"A table cannot be clustered by {dotted(path)} of type {at}, which has no bounds "
            "(DELTA_CLUSTERING_COLUMNS_DATATYPE_NOT_SUPPORTED)"
        )
    indexed = indexed_leaves(table.schema, [], TableProperties(table.metadata.configuration))
    if folded(tuple(physical)) not in {folded(leaf.physical_path) for leaf in indexed}:
        raise table.refuse(
            f"A table cannot be clustered by {dotted(path)}, which has no statistics (DELTA_CLUSTERING_COLUMN_MISSING_STATS). "
            "Set delta.dataSkippingStatsColumns or delta.dataSkippingNumIndexedCols to collect them"
        )
    return physical

"""Clustered tables, for a writer that does not cluster (Delta protocol, "Clustered Table").

The clustering columns are in a metadata domain, by physical name; files may be added without ``clusteringProvider``.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from airflow_delta.exceptions import DeltaAnalysisException, DeltaLogCorruptedException
from airflow_delta.log.actions.actions import DomainMetadata, Metadata
from airflow_delta.log.schema.types import parse_schema
from airflow_delta.log.schema.walk import Path, dotted, folded

DOMAIN = "delta.clustering"


class _Clustering(msgspec.Struct, rename="camel"):
    clustering_columns: list[list[str]] = []


def clustering_columns(domains: Mapping[str, DomainMetadata]) -> list[Path]:
    """Return the physical paths of the columns that a table is clustered by.

    :param domains: metadata domains of a snapshot.
    :raises DeltaLogCorruptedException: if the domain is malformed.
    """
    domain = domains.get(DOMAIN)
    if domain is None or domain.removed:
        return []
    try:
        return [tuple(path) for path in msgspec.json.decode(domain.configuration, type=_Clustering).clustering_columns]
    except msgspec.DecodeError as error:
        raise DeltaLogCorruptedException(
            f"The metadata domain {DOMAIN} is malformed: {domain.configuration!r} ({error})"
        ) from error


def unclustered() -> DomainMetadata:
    """Return the action that removes the clustering columns, which Delta commits when the schema is overwritten."""
    return DomainMetadata(domain=DOMAIN, configuration='{"clusteringColumns":[],"domainName":"delta.clustering"}', removed=False)


def check_clustering(metadata: Metadata, columns: list[Path]) -> None:
    """Check that the clustering columns still exist, and that the table is not partitioned as well.

    :raises DeltaAnalysisException: if one is missing (Delta: DELTA_UNSUPPORTED_DROP_CLUSTERING_COLUMN), or it is partitioned.
    """
    from airflow_delta.log.features.column_mapping import physical_paths

    present = {folded(path) for path in physical_paths(parse_schema(metadata.schema_string))}
    gone = [path for path in columns if folded(path) not in present]
    if gone:
        raise DeltaAnalysisException(
            f"The table is clustered by {', '.join(map(dotted, gone))}, which cannot be dropped "
            "(DELTA_UNSUPPORTED_DROP_CLUSTERING_COLUMN). Change the clustering first: ALTER TABLE ... CLUSTER BY."
        )
    if columns and metadata.partition_columns:
        raise DeltaAnalysisException(
            f"The table is clustered by {', '.join(map(dotted, columns))} and cannot also be partitioned "
            "(DELTA_CLUSTER_BY_WITH_PARTITIONED_BY)."
        )

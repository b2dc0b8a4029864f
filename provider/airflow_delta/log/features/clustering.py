"""Clustered tables, for a writer that does not cluster (Delta protocol, "Clustered Table").

The clustering columns are in a metadata domain, by physical name; files may be added without ``clusteringProvider``.

Which columns have statistics (``delta.dataSkippingStatsColumns`` and ``delta.dataSkippingNumIndexedCols``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec

from airflow_delta.exceptions import DeltaAnalysisException, DeltaIllegalArgumentException, DeltaLogCorruptedException
from airflow_delta.log.actions.actions import DomainMetadata, Metadata
from airflow_delta.log.features.properties import TableProperties
from airflow_delta.log.schema.types import Leaf, Path, StructType, dotted, folded, leaves, parse_schema

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


_NAME = re.compile(r"\s*+(?:`((?:[^`]|``)[^`]*+(?:``[^`]*+)*)`(?!`)\s*+|([^`.,\s][^`.,]*+))([.,]|$)")


def parse_column_list(text: str) -> list[tuple[str, ...]]:
    """Return the columns of a list such as ``a, b.c, `d.e```.

    :raises DeltaIllegalArgumentException: if the text is not such a list.
    """
    result: list[tuple[str, ...]] = []
    path: list[str] = []
    at = 0
    while at < len(text):
        match = _NAME.match(text, at)
        if match is None:
            raise DeltaIllegalArgumentException(f"delta.dataSkippingStatsColumns must be a list of columns, got {text!r}")
        path.append(match[1].replace("``", "`") if match[1] else match[2].rstrip())
        if match[3] != ".":
            result.append(tuple(path))
            path = []
        at = match.end()
    if path:
        raise DeltaIllegalArgumentException(f"delta.dataSkippingStatsColumns must be a list of columns, got {text!r}")
    return result


def indexed_leaves(schema: StructType, partition_columns: Sequence[str], properties: TableProperties) -> list[Leaf]:
    """Return the leaf columns with statistics, in schema order. Partition columns have none and do not count."""
    candidates = leaves(schema.without(list(partition_columns)))
    listed = properties.data_skipping_stats_columns
    if listed is not None:
        wanted = [tuple(name.lower() for name in path) for path in parse_column_list(listed)]
        return [leaf for leaf in candidates if any(_starts(leaf.path, path) for path in wanted)]
    count = properties.data_skipping_num_indexed_cols
    return candidates if count < 0 else candidates[:count]


def _starts(path: tuple[str, ...], prefix: tuple[str, ...]) -> bool:
    return tuple(name.lower() for name in path[: len(prefix)]) == prefix

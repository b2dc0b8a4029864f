"""Clustered tables (Delta protocol, "Clustered Table").

The clustering columns are in a metadata domain, by physical name; files may be added without ``clusteringProvider``. OPTIMIZE
makes cubes: files with the same id, whose rows it has arranged together (Delta's ``ZCubeInfo``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from airflow_delta.contract.delta_names import CLUSTERING_DOMAIN
from airflow_delta.exceptions import DeltaAnalysisException, DeltaLogCorruptedException
from airflow_delta.lazy_patterns import lazy_pattern
from airflow_delta.log.actions.actions import DomainMetadata, Metadata
from airflow_delta.log.features.column_mapping import physical_paths
from airflow_delta.log.schema.types import StructType, parse_schema
from airflow_delta.log.schema.walk import Path, dotted, folded, walk_fields

PROVIDER = "liquid"
"""``clusteringProvider`` of the files that Delta Spark's OPTIMIZE clusters, and ours."""

_CUBE_ID, _CUBE_COLUMNS = "ZCUBE_ID", "ZCUBE_ZORDER_BY"
_UNQUOTED = lazy_pattern(r"[A-Za-z_][A-Za-z0-9_]*+")


class _Clustering(msgspec.Struct, rename="camel"):
    clustering_columns: list[list[str] | str] = []


def clustering_columns(domains: Mapping[str, DomainMetadata]) -> list[Path]:
    """Return the physical paths of the columns that a table is clustered by.

    :param domains: metadata domains of a snapshot.
    :raises DeltaLogCorruptedException: if the domain is malformed.
    """
    domain = domains.get(CLUSTERING_DOMAIN)
    if domain is None or domain.removed:
        return []
    try:
        columns = msgspec.json.decode(domain.configuration, type=_Clustering).clustering_columns
        # The protocol's example has names instead of paths.
        return [(path,) if isinstance(path, str) else tuple(path) for path in columns]
    except msgspec.DecodeError as error:
        raise DeltaLogCorruptedException(
            f"The metadata domain {CLUSTERING_DOMAIN} is malformed: {domain.configuration!r} ({error})"
        ) from error


def unclustered() -> DomainMetadata:
    """Return the action that removes the clustering columns, which Delta commits when the schema is overwritten."""
    return DomainMetadata(
        domain=CLUSTERING_DOMAIN, configuration='{"clusteringColumns":[],"domainName":"delta.clustering"}', removed=False
    )


def check_clustering(metadata: Metadata, columns: list[Path]) -> None:
    """Check that the clustering columns still exist, and that the table is not partitioned as well.

    :raises DeltaAnalysisException: if one is missing (Delta: DELTA_UNSUPPORTED_DROP_CLUSTERING_COLUMN), or it is partitioned.
    """
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


def logical_columns(schema: StructType, columns: Sequence[Path]) -> list[Path]:
    """Return clustering columns by the names in the schema; those that it lacks keep their physical names."""
    logical = dict(zip(map(folded, physical_paths(schema)), (path for path, _ in walk_fields(schema)), strict=True))
    return [logical.get(folded(path), path) for path in columns]


def quoted_path(path: Path) -> str:
    """Return a clustering column as Delta writes it to the log: names are quoted unless they are plain identifiers."""
    return ".".join(name if _UNQUOTED.fullmatch(name) else f"`{name.replace('`', '``')}`" for name in path)


class Cube(NamedTuple):
    """The mark of files that were clustered together.

    :param columns: the clustering columns (:func:`quoted_path`).
    """

    cube_id: str
    columns: tuple[str, ...]

    @property
    def tags(self) -> dict[str, str]:
        """Return the tags of its files."""
        columns = json.dumps(self.columns, ensure_ascii=False, separators=(",", ":"))
        return {_CUBE_ID: self.cube_id, _CUBE_COLUMNS: columns}


def cube_of(tags: Mapping[str, str | None] | None) -> Cube | None:
    """Return the cube that the tags of a file name; ``None`` if it belongs to none."""
    cube_id, columns = (tags or {}).get(_CUBE_ID), (tags or {}).get(_CUBE_COLUMNS)
    if cube_id is None or columns is None:
        return None
    try:
        return Cube(cube_id, msgspec.json.decode(columns, type=tuple[str, ...]))
    except msgspec.DecodeError:
        return None

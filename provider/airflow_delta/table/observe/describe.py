"""What a table is: location, schema, protocol, properties and size (Delta's DESCRIBE DETAIL)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_delta.contract.delta_names import CLUSTERING_DOMAIN
from airflow_delta.exceptions import (
    DeltaTableNotFoundException,
    DeltaUnsupportedTableFeatureException,
    InvalidProtocolVersionException,
)
from airflow_delta.log.features.clustering import clustering_columns, logical_columns
from airflow_delta.log.features.constraints import check_constraints
from airflow_delta.log.features.protocol import features
from airflow_delta.log.schema.walk import dotted
from airflow_delta.log.statistics.row_counts import live_records, num_records

if TYPE_CHECKING:
    from airflow_delta.log import Snapshot
    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.log.schema.types import StructField

COUNTED_FILES = 10_000
"""Largest number of files whose statistics are read to count rows."""


def describe(log: DeltaLog) -> dict[str, Any]:
    """Return a description of the latest version of a table, as plain JSON.

    It is read from the checksum or the newest commits; the list of files is read only if these lack number, size and rows. A
    table that this provider cannot read is described without its files.

    Keys: ``name``, ``id``, ``description``, ``location``, ``format``, ``version``, ``created_at`` and ``last_modified`` (both
    milliseconds since the epoch), ``partition_columns``, ``clustering_columns``, ``num_files`` and ``size_in_bytes`` (both
    ``None`` for a table that cannot be read), ``num_records`` (``None`` also without statistics, or above
    :data:`COUNTED_FILES` files), ``min_reader_version``, ``min_writer_version``, ``table_features``, ``properties``,
    ``check_constraints`` (expressions by name) and ``schema`` (a list of ``name``, ``type`` as Spark SQL writes it, ``nullable``,
    ``comment``).

    :raises DeltaTableNotFoundException: if there is no table.
    """
    snapshot = log.update()
    if snapshot.version < 0:
        raise log.error(
            DeltaTableNotFoundException,
            f"There is no Delta table at {log.uri}. Check the location: it has no _delta_log with a commit or a checkpoint.",
        )
    metadata, protocol = snapshot.metadata, snapshot.protocol
    readable = is_readable(snapshot)
    return {
        "name": metadata.name,
        "id": metadata.id,
        "description": metadata.description,
        "location": log.uri,
        "format": "delta",
        "version": snapshot.version,
        "created_at": metadata.created_time,
        "last_modified": snapshot.timestamp,
        "partition_columns": list(metadata.partition_columns),
        "clustering_columns": clustered_by(snapshot),
        "num_files": snapshot.num_files if readable else None,
        "size_in_bytes": snapshot.size_in_bytes if readable else None,
        "num_records": _num_records(snapshot) if readable else None,
        "min_reader_version": protocol.min_reader_version,
        "min_writer_version": protocol.min_writer_version,
        "table_features": sorted(features(protocol)),
        "properties": dict(metadata.configuration),
        "check_constraints": check_constraints(metadata),
        "schema": [_column(field) for field in snapshot.schema],
    }


def is_readable(snapshot: Snapshot) -> bool:
    """Return whether this provider can list the files of a version."""
    try:
        snapshot.check_readable()
    except (InvalidProtocolVersionException, DeltaUnsupportedTableFeatureException):
        return False
    return True


def _column(field: StructField) -> dict[str, Any]:
    return {
        "name": field.name,
        "type": str(field.data_type),
        "nullable": field.nullable,
        "comment": field.metadata.get("comment"),
    }


def clustered_by(snapshot: Snapshot) -> list[str]:
    """Return the clustering columns by their names in the schema."""
    if "clustering" not in features(snapshot.protocol):
        return []
    domain = snapshot.domain(CLUSTERING_DOMAIN)
    if domain is None:
        return []
    return [dotted(path) for path in logical_columns(snapshot.schema, clustering_columns({CLUSTERING_DOMAIN: domain}))]


def _num_records(snapshot: Snapshot) -> int | None:
    """Return the number of rows by the statistics of the files, without deleted rows."""
    totals = snapshot.derived_totals()
    if totals is not None and totals.files is not None:
        rows = [live_records(file) for file in totals.files.values()]
        return None if None in rows else sum(count or 0 for count in rows)
    if snapshot.num_files > COUNTED_FILES:
        return None
    files = snapshot.files(columns=["stats", "deletion_vector"])
    total = 0
    for stats, vector in zip(files.column("stats").to_pylist(), files.column("deletion_vector").to_pylist(), strict=True):
        count = num_records(stats)
        if count is None:
            return None
        total += count - (vector["cardinality"] if vector is not None else 0)
    return total

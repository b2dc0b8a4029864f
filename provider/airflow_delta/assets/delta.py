"""The asset that stands for a Delta table, and what its events say."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from airflow.sdk import Asset

if TYPE_CHECKING:
    from airflow_delta.staging.contract import CommitResult

_ALIASES = {"s3a": "s3", "s3n": "s3", "abfss": "abfs"}
_MAX_PARTITIONS_IN_EVENT = 100


def delta_asset_uri(table: str, delta_conn_id: str | None = None) -> str:
    """Return the asset URI of a table; the same for every spelling of its location that Airflow cannot tell apart.

    :param table: URI, absolute path, or a name below the connection's base path.
    :param delta_conn_id: connection that a relative name belongs to.
    """
    head, separator, tail = table.rstrip("/").partition("://")
    if separator:
        return f"{_ALIASES.get(head.lower(), head.lower())}://{tail}"
    if os.path.isabs(table):
        return f"file://{quote(os.path.normpath(table))}"
    return f"x-delta://{delta_conn_id or 'delta_default'}/{table.strip('/')}"


def delta_asset(table: str, delta_conn_id: str | None = None) -> Asset:
    """Return the asset that a commit to this table emits, for ``schedule=[delta_asset(...)]`` of the Dags that read it.

    :param table: as it was given to the transaction; not templated.
    :param delta_conn_id: connection of the transaction, needed for relative names.
    """
    return Asset(uri=delta_asset_uri(table, delta_conn_id))


def event_extra(result: CommitResult) -> dict[str, Any]:
    """Return the ``extra`` of the asset event of a commit. At most 100 partitions are listed."""
    return {
        "version": result.version,
        "read_version": result.read_version,
        "operation": result.operation,
        "timestamp": result.timestamp,
        "table": result.table,
        "transaction_id": result.transaction_id,
        "app_id": result.app_id,
        "txn_version": result.txn_version,
        "num_files": result.num_files,
        "num_removed_files": result.num_removed_files,
        "num_records": result.num_records,
        "num_bytes": result.num_bytes,
        "num_partitions": len(result.partitions),
        "partitions": [dict(partition) for partition in result.partitions[:_MAX_PARTITIONS_IN_EVENT]],
        "committed_before": result.committed_before,
    }

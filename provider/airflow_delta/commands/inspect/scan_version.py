"""Plan a read of a table at a version that somebody named, an event for example, outside of any transaction on it."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from airflow_delta.commands.stage.scan import plan_scan
from airflow_delta.staging.contract import ScanPlan, TransactionHandle
from airflow_delta.staging.paths import transaction_directory

if TYPE_CHECKING:
    from airflow_delta.log import DeltaLog


def plan_version_scan(
    log: DeltaLog, version: int, predicate: str | None = None, *, spark_table_uri: str | None = None
) -> ScanPlan:
    """Plan a read of a table as it was at a version; ``airflow_delta.spark.read.read_scan_plan`` makes a DataFrame of it.

    :param predicate: Spark SQL predicate: partitions are pruned and files skipped here, rows filtered by Spark.
    :param spark_table_uri: URI of the table as Spark reaches it, when it is not the worker's.
    :raises VersionNotFoundException: the log does not hold the version (any more, or yet).
    :raises PredicateException: the predicate does not parse or names an unknown column.
    """
    metadata = log.snapshot_at(version).metadata
    transaction_id = str(uuid.uuid4())
    handle = TransactionHandle(
        transaction_id=transaction_id,
        table=log.uri,
        table_id=metadata.id,
        read_version=version,
        schema_string=metadata.schema_string,
        partition_columns=tuple(metadata.partition_columns),
        configuration=dict(metadata.configuration),
        staging_path=f"{log.uri}/{transaction_directory(transaction_id)}",
        app_id="read",
        txn_version=0,
    )
    return plan_scan(log, handle, predicate, spark_table_uri=spark_table_uri)

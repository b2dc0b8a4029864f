"""Plan a read of a table at a given version, that of an event for example, outside of any transaction."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from airflow_delta.contract.payloads import ScanPlan
from airflow_delta.log.expressions.predicate import Predicate
from airflow_delta.table.stage.scan import scan_files

if TYPE_CHECKING:
    from airflow_delta.log.delta_log import DeltaLog


def plan_version_scan(
    log: DeltaLog, version: int, predicate: str | None = None, *, spark_table_uri: str | None = None
) -> ScanPlan:
    """Plan a read of a table as it was at a version; ``airflow_delta.spark.read.read_scan_plan`` makes a DataFrame of it.

    :param predicate: Spark SQL predicate: partitions are pruned and files skipped here; Spark filters the rows.
    :param spark_table_uri: URI of the table as Spark reaches it, when it is not the worker's.
    """
    snapshot = log.snapshot_at(version)
    metadata = snapshot.metadata
    parsed = (
        None
        if predicate is None
        else Predicate.parse(
            predicate, snapshot.schema, metadata.partition_columns, table=snapshot.log.uri, version=snapshot.version
        )
    )
    return scan_files(
        log,
        snapshot.add_files(parsed),
        transaction_id=str(uuid.uuid4()),
        version=version,
        table=snapshot.definition,
        predicate=parsed,
        spark_table_uri=spark_table_uri,
    )

"""Plan a read of a table at a given version, that of an event for example, outside of any transaction."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from airflow_delta.commands.stage.scan import scan_files
from airflow_delta.staging.contract import ScanPlan

if TYPE_CHECKING:
    from airflow_delta.log.delta_log import DeltaLog


def plan_version_scan(
    log: DeltaLog, version: int, predicate: str | None = None, *, spark_table_uri: str | None = None
) -> ScanPlan:
    """Plan a read of a table as it was at a version; ``airflow_delta.spark.read.read_scan_plan`` makes a DataFrame of it.

    :param predicate: Spark SQL predicate: partitions are pruned and files skipped here; Spark filters the rows.
    :param spark_table_uri: URI of the table as Spark reaches it, when it is not the worker's.
    :raises VersionNotFoundException: if the log does not hold the version yet, or no longer does.
    :raises PredicateException: if the predicate does not parse or names an unknown column.
    """
    from airflow_delta.log.expressions.predicate import Predicate

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
        schema_string=metadata.schema_string,
        partition_columns=metadata.partition_columns,
        configuration=metadata.configuration,
        predicate=parsed,
        spark_table_uri=spark_table_uri,
    )

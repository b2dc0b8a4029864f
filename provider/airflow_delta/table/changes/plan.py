"""Plan a read of the change data feed in the worker.

:func:`airflow_delta.spark.changes.read_change_plan` makes a DataFrame of it.
"""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import TYPE_CHECKING

from airflow_delta.contract.change_plan import ChangeCommit, ChangePlan
from airflow_delta.contract.payloads import ScanFile
from airflow_delta.table.changes.find import Changes, find_changes
from airflow_delta.table.stage.scan import scan_files

if TYPE_CHECKING:
    from airflow_delta.log import Snapshot
    from airflow_delta.log.delta_log import DeltaLog


def plan_changes(
    log: DeltaLog,
    *,
    starting_version: int | None = None,
    starting_timestamp: datetime | int | None = None,
    ending_version: int | None = None,
    ending_timestamp: datetime | int | None = None,
    spark_table_uri: str | None = None,
    snapshot: Snapshot | None = None,
    transaction_id: str | None = None,
) -> ChangePlan:
    """Plan a read of the changes between two versions, both included.

    :param spark_table_uri: URI of the table as Spark reaches it, when it is not the worker's.
    :param transaction_id: execution that reads; default: a new one.

    The other parameters and the errors are those of :func:`~airflow_delta.table.changes.find.find_changes`.
    """
    changes = find_changes(
        log,
        starting_version=starting_version,
        starting_timestamp=starting_timestamp,
        ending_version=ending_version,
        ending_timestamp=ending_timestamp,
        snapshot=snapshot,
    )
    return _plan(log, changes, spark_table_uri, transaction_id)


def _plan(log: DeltaLog, changes: Changes, spark_table_uri: str | None, transaction_id: str | None) -> ChangePlan:
    """Return the plan; deletion vectors are decoded for Spark, as for a scan."""
    scan = scan_files(
        log,
        [file for c in changes.commits for files in c.kinds().values() for file in files],
        transaction_id=transaction_id or str(uuid.uuid4()),
        version=changes.read.version,
        table=changes.read.definition,
        spark_table_uri=spark_table_uri,
    )
    scanned = iter(scan.files)
    planned = []
    for commit in changes.commits:
        kinds: dict[str, tuple[ScanFile, ...]] = {
            name: tuple(next(scanned) for _ in files) for name, files in commit.kinds().items()
        }
        planned.append(ChangeCommit(version=commit.version, timestamp=commit.timestamp, **kinds))
    return ChangePlan(
        transaction_id=scan.transaction_id,
        table=scan.table,
        starting_version=changes.start,
        ending_version=changes.end,
        schema_string=scan.schema_string,
        partition_columns=scan.partition_columns,
        column_mapping=scan.column_mapping,
        commits=tuple(planned),
        words=scan.deleted_rows,
    )

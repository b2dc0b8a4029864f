"""Dags that are backfilled: one small transaction for each interval."""

from __future__ import annotations

import os
from datetime import datetime, timedelta
from typing import Any

from airflow.sdk import CronDataIntervalTimetable, CronPartitionTimetable, dag

from airflow_delta import delta_transaction
from live.stages import RowsStageOperator

ROOT = os.environ["DELTA_EXAMPLES"]
MONTHLY = CronDataIntervalTimetable("0 0 1 * *", timezone="UTC")
MONTH = "{{ data_interval_start.strftime('%Y-%m') }}"
KEY_OF_INTERVAL = "sales/{{ data_interval_start | ds }}"
KEY_OF_PARTITION = "sales/{{ dag_run.partition_key }}"


def backfilled(dag_id: str, schedule: Any, *, month: str, pool: str | None = None, key: str | None = None, **stage: Any) -> None:
    @dag(
        dag_id=dag_id,
        schedule=schedule,
        start_date=datetime(2013, 1, 1),
        end_date=datetime(2014, 12, 31),
        catchup=False,
        is_paused_upon_creation=False,
        default_args={"retries": 3, "retry_delay": timedelta(seconds=1)},
    )
    def month_by_month():
        with delta_transaction(
            "txn",
            table=f"{ROOT}/{dag_id}",
            transaction_key=key,
            rerun_policy="{{ dag_run.conf.get('policy', 'skip') }}",
            partition_by=["month"],
            commit_kwargs={"pool": pool} if pool else None,
        ):
            RowsStageOperator(task_id="stage", month=month, **stage)

    month_by_month()


def overwrite(month: str) -> dict[str, Any]:
    return {"mode": "overwrite", "replace_where": f"month = '{month}'"}


# Reprocessing: a backfill each, since a Dag has one at a time.
for policy in ("skip", "replace", "append", "fail"):
    backfilled(f"reprocess_{policy}", MONTHLY, month=MONTH)

# New runs for the same interval, and for the same partition.
backfilled("interval", MONTHLY, month=MONTH)
backfilled("interval_overwritten", MONTHLY, month=MONTH, **overwrite(MONTH))
backfilled("interval_keyed", MONTHLY, month=MONTH, key=KEY_OF_INTERVAL)

PARTITIONS = CronPartitionTimetable("0 0 1 * *", timezone="UTC", key_format="%Y-%m")
backfilled("partition", PARTITIONS, month="{{ dag_run.partition_key }}")
for policy in ("skip", "replace", "append", "fail"):
    backfilled(f"partition_{policy}", PARTITIONS, month="{{ dag_run.partition_key }}", key=KEY_OF_PARTITION)

# Twenty at once: each its own month, and all the same one.
backfilled("months", MONTHLY, month=MONTH, pool="gate_months", **overwrite(MONTH))
backfilled(
    "same_month",
    CronDataIntervalTimetable("0 0 * * *", timezone="UTC"),
    month=MONTH,
    pool="gate_same_month",
    **overwrite(MONTH),
)

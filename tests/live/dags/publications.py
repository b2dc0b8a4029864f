"""Dags with a publication of three tables: one with faults in the run's ``conf``, one that is backfilled."""

from __future__ import annotations

import os
from datetime import datetime, timedelta
from typing import Any

from airflow.sdk import CronDataIntervalTimetable, dag, get_current_context, task

from airflow_delta import delta_publication, delta_transaction
from live import faults
from live.names import HOLDING_POOL
from live.stages import RowsStageOperator

faults.install()
NAMES = ("orders", "lines", "totals")
ROOT = os.environ["DELTA_EXAMPLES"]


def publishes(dag_id: str, tables: str, month: str, schedule: Any = None, **arguments: Any) -> None:
    @dag(
        dag_id=dag_id,
        schedule=schedule,
        start_date=datetime(2013, 1, 1),
        end_date=datetime(2014, 12, 31),
        catchup=False,
        is_paused_upon_creation=False,
        default_args={"retries": 3, "retry_delay": timedelta(seconds=1), **arguments},
    )
    def publish():
        with delta_publication("p", on_conflict="restart"):
            for name in NAMES:
                with delta_transaction(name, table=f"{tables}/{name}", partition_by=["month"]):
                    RowsStageOperator(task_id="stage", month=month)

            @task
            def audit():
                faults.strike("audit", get_current_context())

            audit()

    publish()


publishes("publish", "{{ dag_run.conf['tables'] }}", "2013-01", pool=HOLDING_POOL)
publishes(
    "published_months",
    f"{ROOT}/published_months",
    "{{ data_interval_start.strftime('%Y-%m') }}",
    CronDataIntervalTimetable("0 0 1 * *", timezone="UTC"),
)

"""Many mapped stages in one transaction, and a transaction for each index of a mapped group."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from airflow.sdk import dag, task, task_group

from airflow_delta import delta_transaction
from live import faults
from live.names import HOLDING_POOL
from live.stages import RowsStageOperator

faults.install()
TABLE = "{{ dag_run.conf['table'] }}"
POLICY = "{{ dag_run.conf.get('policy', 'skip') }}"
MANUAL: dict[str, Any] = {"start_date": datetime(2013, 1, 1), "is_paused_upon_creation": False}
RETRIED: dict[str, Any] = {"retries": 3, "retry_delay": timedelta(seconds=1)}


@task
def months(dag_run=None) -> list[str]:
    return [f"{2000 + number // 12}-{number % 12 + 1:02}" for number in range(dag_run.conf["stages"])]


@dag(schedule=None, **MANUAL, default_args=RETRIED)
def fan_in():
    with delta_transaction("txn", table=TABLE, partition_by=["month"]):
        RowsStageOperator.partial(task_id="stage").expand(month=months())


@dag(schedule=None, **MANUAL, default_args={**RETRIED, "pool": HOLDING_POOL})
def mapped():
    with delta_transaction("txn", table=TABLE, partition_by=["month"], rerun_policy=POLICY):
        RowsStageOperator.partial(task_id="stage", post_execute=faults.at("stage.staged")).expand(month=months())


@dag(schedule=None, **MANUAL, default_args={**RETRIED, "pool": HOLDING_POOL})
def groups():
    @task_group
    def of_month(month):
        with delta_transaction("txn", table=TABLE, partition_by=["month"], rerun_policy=POLICY):
            RowsStageOperator(task_id="stage", month=month)

    of_month.expand(month=months())


fan_in()
mapped()
groups()

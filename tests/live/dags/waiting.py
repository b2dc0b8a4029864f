"""Transactions that wait between stage and commit for another table, and sensors that wait in vain."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from airflow.sdk import dag

from airflow_delta import delta_transaction
from airflow_delta.sensors.delta import DeltaTableVersionSensor
from live.names import HOLDING_POOL
from live.stages import RowsStageOperator

AWAITED = "{{ dag_run.conf['awaited'] }}"
COMMON: dict[str, Any] = {"start_date": datetime(2013, 1, 1), "is_paused_upon_creation": False}
ARGUMENTS = {"pool": HOLDING_POOL, "retries": 3, "retry_delay": timedelta(seconds=1)}


def waits(dag_id: str, **how: Any) -> None:
    @dag(dag_id=dag_id, schedule=None, **COMMON, default_args=ARGUMENTS)
    def waiting():
        with delta_transaction("txn", table="{{ dag_run.conf['table'] }}", partition_by=["month"]):
            RowsStageOperator(task_id="stage") >> DeltaTableVersionSensor(task_id="wait", table=AWAITED, version=0, **how)

    waiting()


waits("waits_deferred", deferrable=True, poke_interval=1, timeout=600)
waits("waits_rescheduled", mode="reschedule", poke_interval=20, timeout=600)


@dag(schedule=None, **COMMON)
def in_vain():
    how: dict[str, Any] = {
        "table": AWAITED,
        "version": 0,
        "deferrable": True,
        "poke_interval": 1,
        "timeout": 4,
        "pool": HOLDING_POOL,
    }
    DeltaTableVersionSensor(task_id="fails", retries=2, retry_delay=timedelta(seconds=1), **how)
    DeltaTableVersionSensor(task_id="is_skipped", soft_fail=True, **how)


in_vain()

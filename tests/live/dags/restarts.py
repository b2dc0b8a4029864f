"""Transactions that begin again by themselves: overwrites that meet a conflict, and tasks that are cleared after an abort."""

from __future__ import annotations

import os
from datetime import datetime, timedelta

from airflow.sdk import dag

from airflow_delta import delta_transaction
from live import faults
from live.stages import RowsStageOperator

faults.install()

ROOT = os.environ["DELTA_EXAMPLES"]


@dag(
    schedule=None,
    start_date=datetime(2013, 1, 1),
    is_paused_upon_creation=False,
    default_args={"retries": 3, "retry_delay": timedelta(seconds=1)},
)
def restarts():
    with delta_transaction(
        "txn",
        table=f"{ROOT}/restarts",
        partition_by=["month"],
        on_conflict="restart",
        max_restarts=3,
        commit_kwargs={"pool": "gate_restart"},
    ):
        RowsStageOperator(task_id="stage", month="2013-01", mode="overwrite", replace_where="month = '2013-01'")


@dag(
    schedule=None,
    start_date=datetime(2013, 1, 1),
    is_paused_upon_creation=False,
    default_args={"retries": 3, "retry_delay": timedelta(seconds=1)},
)
def cleared():
    with delta_transaction("txn", table="{{ dag_run.conf['table'] }}", partition_by=["month"], outlets=[], on_clear="restart"):
        for name in ("stage", "other"):
            RowsStageOperator(task_id=name, pre_execute=faults.at(f"{name}.begin"))


cleared()
restarts()

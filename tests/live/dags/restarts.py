"""Overwrites of the same month that begin again when they meet a conflict."""

from __future__ import annotations

import os
from datetime import datetime, timedelta

from airflow.sdk import dag

from airflow_delta import delta_transaction
from live.stages import RowsStageOperator

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


restarts()

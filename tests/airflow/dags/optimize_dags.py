"""Dags of OPTIMIZE, REORG and auto compaction."""

from __future__ import annotations

import os
from datetime import datetime

from airflow.sdk import dag, task

from airflow_delta import delta_transaction
from airflow_delta.operators.optimize import DeltaAutoCompactOperator, DeltaOptimizeOperator, DeltaReorgOperator

ROOT = os.environ["DELTA_EXAMPLES"]


@dag(schedule=None, start_date=datetime(2026, 1, 1), catchup=False)
def optimize_alone():
    """Small files, then nothing left to do, then nothing to purge."""
    table = f"{ROOT}/optimize_alone"
    first = DeltaOptimizeOperator(task_id="first", table=table)
    again = DeltaOptimizeOperator(task_id="again", table=table, z_order_by="id", max_file_size="100000")
    purge = DeltaReorgOperator(task_id="purge", table=table)
    first >> again >> purge


@dag(schedule=None, start_date=datetime(2026, 1, 1), catchup=False)
def append_and_optimize():
    """Rows are appended and the table is compacted as one version, in a file of what was there and one of what came."""
    with delta_transaction("txn", table=f"{ROOT}/append_and_optimize") as txn:

        @task.delta_stage
        def more(spark):
            return spark.sql("SELECT 99L AS id, 0L AS v")

        added = more()
        DeltaOptimizeOperator(task_id="optimized", after=[added])
    compacted = DeltaAutoCompactOperator(task_id="compacted", table=f"{ROOT}/append_and_optimize", min_files=3)
    txn >> compacted


optimize_alone()
append_and_optimize()

"""Runs that bring the ids of their ``conf``, whose commits wait for each other."""

from __future__ import annotations

import os
from datetime import datetime, timedelta
from typing import Any

from airflow.sdk import dag, task

from airflow_delta import delta_transaction
from airflow_delta.operators.audit import DeltaAuditOperator


@dag(
    schedule=None,
    start_date=datetime(2026, 1, 1),
    is_paused_upon_creation=False,
    default_args={"retries": 3, "retry_delay": timedelta(seconds=1)},
)
def unique_ids():
    with delta_transaction("txn", table=f"{os.environ['DELTA_EXAMPLES']}/unique", commit_kwargs={"pool": "gate_unique"}):

        @task.delta_stage(engine="arrow")
        def stage(dag_run: Any = None) -> Any:
            import pyarrow as pa

            return pa.table({"id": pa.array(dag_run.conf["ids"], pa.int64())})

        DeltaAuditOperator(task_id="audit", staged=stage(), unique="id")


unique_ids()

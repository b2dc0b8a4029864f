"""Dags of which a test alters the XComs between two lives of a task."""

from __future__ import annotations

import os
from datetime import datetime

from airflow.sdk import dag, task

from airflow_delta.operators.transaction import DeltaCommitOperator, DeltaStartTransactionOperator

ROOT = os.environ["DELTA_EXAMPLES"]


def refused(table: str, row: int | None, **new):
    start = DeltaStartTransactionOperator(task_id="start", table=f"{ROOT}/{table}", **new)

    @task.delta_stage(engine="arrow", transaction=start.output)
    def stage():
        import pyarrow as pa

        return pa.table({"id": pa.array([row], pa.int64())})

    DeltaCommitOperator(task_id="commit", transaction=start.output, staged=stage())


@dag(schedule=None, start_date=datetime(2026, 1, 1), catchup=False)
def forged():
    """Stage a row that the table's CHECK constraint refuses."""
    refused("forged", -1)


@dag(schedule=None, start_date=datetime(2026, 1, 1), catchup=False)
def forged_new():
    """Stage a row that the schema of a new table refuses."""
    column = {"name": "id", "type": "long", "nullable": False, "metadata": {}}
    refused("forged_new", None, schema={"type": "struct", "fields": [column]})


forged()
forged_new()

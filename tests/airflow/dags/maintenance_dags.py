"""Dags of maintenance: a table that commits leave without checkpoints, and one that is not there."""

from __future__ import annotations

import os
from datetime import datetime

from airflow.sdk import dag, task

from airflow_delta import delta_transaction
from airflow_delta.operators.maintenance import DeltaMaintenanceOperator
from airflow_delta.operators.stage import DeltaStageFilesOperator

ROOT = os.environ["DELTA_EXAMPLES"]


@dag(schedule=None, start_date=datetime(2026, 1, 1), catchup=False)
def append_without_checkpoint():
    """Appends one file; its checkpoint is the business of maintenance."""
    table = f"{ROOT}/maintained"
    properties = {"delta.checkpointInterval": "3"}
    with delta_transaction("txn", table=table, properties=properties, commit_kwargs={"checkpoint": "off"}) as txn:

        @task
        def write(handle):
            import pyarrow as pa
            import pyarrow.parquet as pq

            path = os.path.join(handle["stagingPath"].removeprefix("file://"), "rows")
            os.makedirs(path, exist_ok=True)
            pq.write_table(pa.table({"id": pa.array([1, 2, 3], pa.int64())}), f"{path}/part-0.parquet")
            return "rows"

        DeltaStageFilesOperator(task_id="stage", path=write(txn.transaction))


@dag(schedule=None, start_date=datetime(2026, 1, 1), catchup=False)
def maintain_templated():
    """Tables and steps from templates and from another task."""

    @task
    def names():
        return [f"{ROOT}/maintained", f"{ROOT}/no_such_table"]

    DeltaMaintenanceOperator(task_id="both", tables=names(), steps="checkpoint")
    DeltaMaintenanceOperator(
        task_id="one", tables=ROOT + "/{{ 'maintained' }}", min_commits="{{ 1 }}", retention_hours="{{ 24 * 7 }}"
    )


append_without_checkpoint()
maintain_templated()

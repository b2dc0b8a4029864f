"""A person decides on the rows that a commit would change."""

from __future__ import annotations

import os
from datetime import datetime

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import dag, task

from airflow_delta import delta_transaction
from airflow_delta.operators.diff import DeltaDiffOperator
from airflow_delta.operators.stage import DeltaStageFilesOperator

ROOT = os.environ["DELTA_EXAMPLES"]


@dag(schedule=None, start_date=datetime(2026, 1, 1), catchup=False)
def previewed():
    with delta_transaction("txn", table=f"{ROOT}/previewed") as txn:

        @task
        def write(handle):
            import pyarrow as pa
            import pyarrow.parquet as pq

            path = os.path.join(handle["stagingPath"].removeprefix("file://"), "rows")
            os.makedirs(path, exist_ok=True)
            pq.write_table(pa.table({"id": [1, 2, 4], "name": ["a", "B", "d"]}), f"{path}/part-0.parquet")
            return "rows"

        stage = DeltaStageFilesOperator(task_id="stage", path=write(txn.transaction), mode="overwrite")
        diff = DeltaDiffOperator(task_id="diff", keys="id")
        body = "{{ ti.xcom_pull('txn.diff')['body'] }}"
        stage >> diff >> ApprovalOperator(task_id="approve", subject="Publish?", body=body)


previewed()

"""Dags with an audit between stages and commit: without Spark, with SQL in the worker's session, and submitted."""

from __future__ import annotations

import os
from datetime import datetime, timedelta

from airflow.sdk import dag, task

from airflow_delta import delta_transaction
from airflow_delta.operators.audit import DeltaAuditOperator
from airflow_delta.operators.stage import DeltaStageFilesOperator

ROOT = os.environ["DELTA_EXAMPLES"]
RETRIED = {"retries": 2, "retry_delay": timedelta(0)}


def write_parquet(handle: dict, directory: str, values: list[int]) -> str:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = os.path.join(handle["stagingPath"].removeprefix("file://"), directory)
    os.makedirs(path, exist_ok=True)
    pq.write_table(pa.table({"id": pa.array(values, pa.int64())}), f"{path}/part-0.parquet")
    return directory


@dag(schedule=None, start_date=datetime(2026, 1, 1), catchup=False, params={"least": 1})
def audited_files():
    """Statistics only; the verdict is final, whatever retries the Dag gives."""
    with delta_transaction("txn", table=f"{ROOT}/audited_files", default_args=RETRIED) as txn:

        @task
        def write(handle):
            return write_parquet(handle, "rows", [1, 2, 3])

        stage = DeltaStageFilesOperator(task_id="stage", path=write(txn.transaction))
        DeltaAuditOperator(
            task_id="audit",
            staged=stage.output,
            min_rows="{{ params.least }}",
            value_range={"id": {"min": 1}},
            rows_change={"min_ratio": 1},
        )


@dag(schedule=None, start_date=datetime(2026, 1, 1), catchup=False)
def audited_mapped():
    """All stages of the group, mapped ones too, without a word of them; a check that only warns."""
    with delta_transaction("txn", table=f"{ROOT}/audited_mapped") as txn:

        @task
        def write(handle, number):
            return write_parquet(handle, f"rows{number}", [number])

        paths = write.partial(handle=txn.transaction).expand(number=[1, 2, 3])
        DeltaStageFilesOperator.partial(task_id="stage").expand(path=paths)
        alone = DeltaStageFilesOperator(task_id="alone", path=write.override(task_id="write_alone")(txn.transaction, 4))
        DeltaAuditOperator(task_id="audit", min_rows=4, max_rows=4)
        DeltaAuditOperator(task_id="warning", staged=[alone.output], min_rows=99, on_failure="warn")


@dag(schedule=None, start_date=datetime(2026, 1, 1), catchup=False, params={"largest": 100, "submit": False})
def audited_sql():
    """Views of what is staged, of the table before, and of the table after the commit."""
    with delta_transaction("txn", table=f"{ROOT}/audited_sql"):

        @task.delta_stage(mode="overwrite", replace_where="id >= 10")
        def write(spark):
            return spark.range(10, 13)

        checks = {
            "not too large": "SELECT max(id) <= {{ params.largest }}, max(id) AS largest FROM staged",
            "nothing lost": "SELECT count(*) = (SELECT count(*) FROM before WHERE id < 10) FROM result WHERE id < 10",
            "broken, but only a warning": {"sql": "SELECT nothing FROM staged", "on_failure": "warn"},
        }
        staged = write()
        DeltaAuditOperator(task_id="audit", staged=staged, checks=checks)


@dag(schedule=None, start_date=datetime(2026, 1, 1), catchup=False)
def audited_submitted():
    """The same question, asked by an application that the task submits."""
    with delta_transaction("txn", table=f"{ROOT}/audited_submitted") as txn:

        @task
        def write(handle):
            return write_parquet(handle, "rows", [1, 2, 3])

        stage = DeltaStageFilesOperator(task_id="stage", path=write(txn.transaction))
        DeltaAuditOperator(
            task_id="audit",
            staged=stage.output,
            checks={"three": "SELECT count(*) = 3, sum(id) AS total FROM result"},
            spark_submit={"conf": {"spark.ui.enabled": "false"}},
        )


audited_files()
audited_mapped()
audited_sql()
audited_submitted()

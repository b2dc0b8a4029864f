"""Dags whose metrics are looked at: a commit that is killed once, and one that conflicts."""

from __future__ import annotations

import os
from datetime import datetime, timedelta

from airflow.sdk import dag, task

from airflow_delta import delta_transaction
from airflow_delta.operators.stage import DeltaStageFilesOperator

ROOT = os.environ["DELTA_EXAMPLES"]
AT_ONCE = {"retries": 1, "retry_delay": timedelta(0)}


def write_parquet(handle: dict, values: list[int]) -> str:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = os.path.join(handle["stagingPath"].removeprefix("file://"), "rows")
    os.makedirs(path, exist_ok=True)
    pq.write_table(pa.table({"id": pa.array(values, pa.int64())}), f"{path}/part-0.parquet")
    return "rows"


class KilledOnce:
    """Fails after ``execute`` of the first try, when the log entry is written: what a kill before the report looks like."""

    def __call__(self, context, result):
        if context["ti"].try_number == 1:
            raise RuntimeError(f"killed after version {result['version']} was written")


@dag(schedule=None, start_date=datetime(2026, 1, 1), catchup=False)
def observed_killed_commit():
    """The commit task dies after the put; its retry finds its own commit."""
    commit_kwargs = {**AT_ONCE, "post_execute": KilledOnce()}
    with delta_transaction("txn", table=f"{ROOT}/observed_killed_commit", commit_kwargs=commit_kwargs) as txn:

        @task
        def write(handle):
            return write_parquet(handle, [1, 2, 3])

        DeltaStageFilesOperator(task_id="stage", path=write(txn.transaction))


@dag(schedule=None, start_date=datetime(2026, 1, 1), catchup=False)
def observed_conflict():
    """Another writer deletes what an overwrite read, after the stage and before the commit."""
    with delta_transaction("txn", table=f"{ROOT}/observed_conflict") as txn:

        @task
        def write(handle):
            return write_parquet(handle, [7])

        stage = DeltaStageFilesOperator(task_id="stage", mode="overwrite", path=write(txn.transaction))

        @task
        def somebody_else(handle):
            import deltalake

            deltalake.DeltaTable(handle["table"].removeprefix("file://")).delete()

        stage >> somebody_else(txn.transaction)


observed_killed_commit()
observed_conflict()

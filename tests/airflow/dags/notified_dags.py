"""Dags that tell why nothing was published: by mail through Airflow's own notifier, and to a function that keeps it in a file."""

from __future__ import annotations

import json
import os
from datetime import datetime, timedelta

from airflow.providers.smtp.notifications.smtp import SmtpNotifier
from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import dag, task

from airflow_delta import delta_transaction
from airflow_delta.notifications.delta import DeltaNotifier
from airflow_delta.operators.audit import DeltaAuditOperator
from airflow_delta.operators.maintenance import DeltaMaintenanceOperator
from airflow_delta.operators.stage import DeltaStageFilesOperator
from airflow_delta.operators.vacuum import DeltaVacuumOperator

ROOT = os.environ["DELTA_EXAMPLES"]
NOTHING = {"retention_hours": 0, "retention_check": False, "transaction_timeout_hours": 0}


def keep(context):
    """Append the event to a file of the Dag."""
    event = context["delta_event"]
    with open(f"{ROOT}/{event['dag_id']}.events", "a") as file:
        file.write(json.dumps(event) + "\n")


def fail(context):
    raise RuntimeError("the pager is down")


MAIL = SmtpNotifier(
    from_email="airflow@example.com",
    to="lake@example.com",
    subject="{{ delta_event.title }}",
    html_content="<pre>{{ delta_event.message | e }}</pre>",
)
TELL = DeltaNotifier([fail, MAIL, keep])
TOLD = {"on_failure_callback": TELL, "on_success_callback": TELL}


def write_parquet(handle: dict, values: list[int]) -> str:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = os.path.join(handle["stagingPath"].removeprefix("file://"), "rows")
    os.makedirs(path, exist_ok=True)
    pq.write_table(pa.table({"id": pa.array(values, pa.int64())}), f"{path}/part-0.parquet")
    return "rows"


def stage(txn, **arguments):
    @task
    def write(handle):
        return write_parquet(handle, [1, 2, 3])

    return DeltaStageFilesOperator(task_id="stage", path=write(txn.transaction), **arguments)


@dag(schedule=None, start_date=datetime(2026, 1, 1), catchup=False)
def notified_conflict():
    """Another Dag run commits between the stage and the commit."""
    table = f"{ROOT}/notified_conflict"
    with delta_transaction("txn", table=table, default_args={**TOLD, "retries": 2}) as txn:

        @task
        def other():
            import pyarrow as pa
            import pyarrow.parquet as pq

            from airflow_delta.log import AddFile, DeltaLog
            from airflow_delta.transaction import Operation, OptimisticTransaction

            pq.write_table(pa.table({"id": pa.array([9], pa.int64())}), f"{table}/other.parquet")
            size = os.path.getsize(f"{table}/other.parquet")
            file = AddFile(path="other.parquet", partition_values={}, size=size, modification_time=1, data_change=True)
            tags = {"airflow.dagId": "billing", "airflow.runId": "run_of_billing", "airflow.taskId": "load"}
            OptimisticTransaction(DeltaLog.for_table(table)).commit([file], Operation.write("Append"), tags=tags)

        stage(txn, mode="overwrite") >> other()


@dag(schedule=None, start_date=datetime(2026, 1, 1), catchup=False, params={"refuses": "nobody"})
def notified_checks():
    """An audit, and a check of the author's own."""
    with delta_transaction("txn", table=f"{ROOT}/notified_checks", default_args=TOLD) as txn:

        @task
        def check(params):
            if params["refuses"] == "check":
                raise ValueError("no orders & no <rows>")

        least = "{{ 99 if params.refuses == 'audit' else 1 }}"
        stage(txn) >> check() >> DeltaAuditOperator(task_id="audit", min_rows=least)

    @task(on_failure_callback=TELL)
    def after():
        raise ValueError("not part of the transaction")

    after()


@dag(schedule=None, start_date=datetime(2026, 1, 1), catchup=False)
def notified_approval():
    """Somebody decides; a refusal is a success for Airflow."""
    with delta_transaction("txn", table=f"{ROOT}/notified_approval", default_args=TOLD) as txn:
        stage(txn) >> ApprovalOperator(task_id="approve", subject="Publish?", response_timeout=timedelta(days=1))


@dag(schedule=None, start_date=datetime(2026, 1, 1), catchup=False)
def notified_vacuum():
    """VACUUM tells of the transactions that it gives up."""
    for name, operator in (("a", DeltaVacuumOperator), ("b", DeltaMaintenanceOperator)):
        named = {"table": f"{ROOT}/given_up_{name}"} if name == "a" else {"tables": f"{ROOT}/given_up_{name}", "steps": "vacuum"}
        operator(task_id=name, on_success_callback=TELL, **named, **NOTHING)


notified_conflict()
notified_checks()
notified_approval()
notified_vacuum()

"""Dags whose transactions wait for somebody who looks at their page."""

from __future__ import annotations

import os

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import dag, task

from airflow_delta import delta_transaction
from airflow_delta.operators.audit import DeltaAuditOperator
from airflow_delta.operators.diff import DeltaDiffOperator
from ui.staged import MANUAL

ROOT = os.environ["UI_TABLES"]
HARM = "<script>document.title = 'harm'</script>"

FIRST = {"id": [1, 2, 3, 4], "region": ["eu", "eu", "us", None], "amount": [9.5, None, 1.0, 2.0]}
SECOND = {"id": [1, 2, 5], "region": ["eu", "eu", "us"], "amount": [9.5, 7.0, 3.0], "note": [None, "late", HARM]}


def reviewed(dag_id: str, table: str, *, preview: bool) -> None:
    @dag(dag_id, schedule=None, **MANUAL)
    def orders():
        with delta_transaction("txn", table=f"{ROOT}/{table}", partition_by=["region"], preview=preview) as txn:

            @task.delta_stage(engine="arrow", mode="overwrite", overwrite_schema=True)
            def write(**context):
                import pyarrow as pa

                return pa.table(FIRST if context["logical_date"].day == 1 else SECOND)

            audit = DeltaAuditOperator(task_id="audit", min_rows=1, max_null_fraction={"id": 0.0}, staged=write())
            audit >> ApprovalOperator(
                task_id="approve", subject="Publish the orders?", body=f"[What would be published]({txn.page})"
            )

    orders()


reviewed("reviewed_orders", "reviewed", preview=True)
reviewed("plain_orders", "plain", preview=False)
reviewed("hidden_orders", "hidden", preview=False)


@dag("watched_orders", schedule=None, **MANUAL)
def watched_orders():
    """Every kind of check before one commit, which names who has approved."""
    given = {
        "table": f"{ROOT}/watched",
        "preview": True,
        "commit_kwargs": {"record_approvals": True, "trigger_rule": "none_failed"},
    }
    with delta_transaction("txn", **given) as txn:

        @task.delta_stage(engine="arrow")
        def write(**context):
            import pyarrow as pa

            return pa.table({"id": range(context["dag_run"].conf["rows"])})

        @task
        def look(staged):
            return staged["numRecords"]

        @task.skip_if(lambda _: True)
        @task
        def seldom(staged): ...

        staged = write()
        audit = DeltaAuditOperator(
            task_id="audit", min_rows=3, max_rows="{{ dag_run.conf.most }}", rows_change={"max_ratio": 9}, on_failure="warn"
        )
        diff = DeltaDiffOperator(task_id="diff")
        approve = ApprovalOperator(task_id="approve", subject="Publish?", body=f"[What would be published]({txn.page})")
        staged >> [audit, diff] >> approve
        [look(staged), seldom(staged)]


watched_orders()

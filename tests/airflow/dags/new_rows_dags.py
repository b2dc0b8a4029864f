"""Dags that take the new rows of a table."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

from airflow.sdk import DAG, get_current_context, task

from airflow_delta import delta_transaction
from airflow_delta.operators.merge import DeltaMergeOperator, when_matched_update, when_not_matched_insert
from airflow_delta.operators.sql import DeltaStageSqlOperator
from airflow_delta.operators.stage import DeltaStageSparkSubmitOperator

TABLES = os.environ["DELTA_EXAMPLES"]
SOURCE = f"{TABLES}/new_rows_source"
BEGINS = datetime(2026, 1, 1, tzinfo=UTC)

with DAG("new_rows_arrow", schedule=None, start_date=BEGINS), delta_transaction("load", table=f"{TABLES}/new_rows_arrow"):

    @task.delta_stage(engine="arrow", retries=1, retry_delay=0)
    def rows(table, transaction):
        """Fail after reading, in the first try of a run that is told to: the second one finds more rows in the source."""
        found = table.new_rows(SOURCE)
        context = get_current_context()
        conf = context["dag_run"].conf or {}
        if conf.get("fails") and context["ti"].try_number == 1:
            import pyarrow as pa
            from deltalake import write_deltalake

            write_deltalake(SOURCE, pa.table({"id": pa.array([conf["fails"]], pa.int64())}), mode="append")
            raise RuntimeError("killed")
        return found

    rows()

with DAG("new_rows_skip", schedule=None, start_date=BEGINS), delta_transaction("load", table=f"{TABLES}/new_rows_skip"):

    @task.delta_stage(engine="arrow")
    def if_any(table):
        return table.new_rows(SOURCE, skip_if_none=True)

    if_any()

with DAG("new_rows_sql", schedule=None, start_date=BEGINS), delta_transaction("load", table=f"{TABLES}/new_rows_sql"):
    DeltaStageSqlOperator(
        task_id="rows",
        sql="SELECT id, '{{ ds }}' AS day FROM new_rows_source WHERE id >= 0",
        new_rows={SOURCE: {"consumer": "{{ dag.dag_id }}", "skip_change_commits": True}},
    )

with DAG("new_rows_merge", schedule=None, start_date=BEGINS):
    DeltaMergeOperator(
        task_id="merge",
        table=f"{TABLES}/new_rows_merge",
        source="SELECT id % 2 AS kind, count(*) AS found FROM new_rows_source GROUP BY 1",
        condition="target.kind = source.kind",
        clauses=[when_matched_update({"found": "target.found + source.found"}), when_not_matched_insert()],
        new_rows=SOURCE,
    )

with DAG("new_rows_pyspark", schedule=None, start_date=BEGINS), delta_transaction("load", table=f"{TABLES}/new_rows_pyspark"):

    @task.delta_stage
    def on_spark(spark, table):
        return table.new_rows(SOURCE, "id >= 1")

    on_spark()

with DAG("new_rows_submitted", schedule=None, start_date=BEGINS), delta_transaction("load", table=f"{TABLES}/new_rows_submitted"):
    DeltaStageSparkSubmitOperator(
        task_id="rows",
        application=str(Path(__file__).parents[1] / "jobs" / "new_rows.py"),
        application_args=[SOURCE],
        conf={"spark.ui.enabled": "false"},
        new_rows=SOURCE,
    )

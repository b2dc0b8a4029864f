"""Dags of ALTER TABLE: as a stage together with rows, and as a task of its own."""

from __future__ import annotations

import os
from datetime import datetime

from airflow.sdk import dag, task

from airflow_delta import delta_transaction
from airflow_delta.contract.changes import AddColumns, AddConstraint, Column
from airflow_delta.operators.alter import DeltaAlterTableOperator

ROOT = os.environ["DELTA_EXAMPLES"]


@dag(schedule=None, start_date=datetime(2026, 1, 1), catchup=False)
def alter_and_append():
    """A column, a constraint that Spark checks, and rows that have the column."""
    with delta_transaction("txn", table=f"{ROOT}/alter_and_append", create=False):
        altered = DeltaAlterTableOperator(
            task_id="altered",
            changes=[AddColumns([Column("c_{{ run_id[:6] }}", "INT")]), AddConstraint("known", "id >= 0")],
        )

        @task.delta_stage(after=[altered.output])
        def more(spark, run_id):
            return spark.sql(f"SELECT 77L AS id, 0L AS v, 5 AS c_{run_id[:6]}")

        more()


@dag(schedule=None, start_date=datetime(2026, 1, 1), catchup=False)
def alter_alone():
    """A transaction of its own; no Spark is needed."""
    DeltaAlterTableOperator(
        task_id="altered",
        table=f"{ROOT}/alter_alone",
        changes=[{"change": "SetProperties", "properties": {"owner": "{{ dag.dag_id }}"}}],
    )


alter_and_append()
alter_alone()

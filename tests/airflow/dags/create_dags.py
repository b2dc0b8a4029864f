"""Dags of CREATE TABLE: together with rows, alone, and from a query."""

from __future__ import annotations

import os
from datetime import datetime

from airflow.sdk import dag, task

from airflow_delta import delta_transaction
from airflow_delta.operators.create import DeltaCreateTableOperator

ROOT = os.environ["DELTA_EXAMPLES"]


@dag(schedule=None, start_date=datetime(2026, 1, 1), catchup=False)
def create_and_append():
    """A table with identity values and its first rows; then the rows are replaced by key."""
    with delta_transaction("txn", table=f"{ROOT}/create_and_append") as created:
        made = DeltaCreateTableOperator(
            task_id="made",
            schema="id BIGINT GENERATED ALWAYS AS IDENTITY, x BIGINT, p BIGINT GENERATED ALWAYS AS (x + 1)",
            mode="create_or_replace",
            partition_by="p",
            description="of {{ dag.dag_id }}",
        )

        @task.delta_stage(after=[made.output])
        def rows(spark):
            return spark.range(3).selectExpr("id AS x")

        rows()

    with delta_transaction("corrected", table=f"{ROOT}/create_and_append", create=False) as corrected:

        @task.delta_stage(mode="overwrite", replace_using="x", optimize_write=True)
        def corrections(spark):
            return spark.range(2, 4).selectExpr("id AS x")

        corrections()

    created >> corrected


@dag(schedule=None, start_date=datetime(2026, 1, 1), catchup=False)
def create_alone():
    """A transaction of its own that leaves a table that exists."""
    DeltaCreateTableOperator(
        task_id="made", table=f"{ROOT}/create_alone", schema="id BIGINT", mode="create_if_not_exists", cluster_by=["id"]
    )


create_and_append()
create_alone()

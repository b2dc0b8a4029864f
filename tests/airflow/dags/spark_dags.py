"""Dags with real Spark inside the worker."""

from __future__ import annotations

import os
from datetime import datetime, timedelta
from pathlib import Path

from airflow.sdk import dag, task

from airflow_delta import delta_transaction
from airflow_delta.operators.stage import DeltaStageSparkSubmitOperator

ROOT = os.environ["DELTA_EXAMPLES"]


@dag(schedule="@monthly", start_date=datetime(2013, 1, 1), catchup=False)
def flights():
    """The Dag of the design: a month's overwrite with an audit; its stage fails once after it has written."""
    with delta_transaction("flights", table=f"{ROOT}/design_flights", partition_by=["month"]):

        @task.delta_stage(
            mode="overwrite",
            replace_where="month = '{{ data_interval_start | ds }}'",
            retries=1,
            retry_delay=timedelta(0),
            post_execute=lambda context, result: 1 / (context["ti"].try_number - 1),
        )
        def transform(spark):
            return spark.range(5).selectExpr("id", "DATE'2013-01-01' AS month")

        @task
        def audit(staged):
            if not staged["numRecords"]:
                raise ValueError("no flights this month")

        audit(transform())


@dag(schedule=None, start_date=datetime(2026, 1, 1), catchup=False)
def read_and_write():
    """A stage that reads the table as the transaction sees it; its reads go into the conflict check."""
    with delta_transaction("txn", table=f"{ROOT}/read_and_write"):

        @task.delta_stage
        def more(offset, spark, table, *, transaction):
            first = table("id >= 0").count() if table.exists else 0
            assert transaction.read_version == (0 if table.exists else -1)
            return spark.range(first + offset, first + offset + 3)

        more(10)


@dag(schedule=None, start_date=datetime(2026, 1, 1), catchup=False)
def no_dataframe():
    """A stage that returns something other than a DataFrame."""
    with delta_transaction("txn", table=f"{ROOT}/no_dataframe"):

        @task.delta_stage
        def count(spark):
            return spark.range(3).count()

        count()


@dag(
    schedule=None,
    start_date=datetime(2026, 1, 1),
    catchup=False,
    default_args={"retries": 2, "retry_delay": timedelta(0)},
)
def wrong_rows():
    """Stages whose rows do not fit the table, in the worker's session and on the cluster, and one with a typo."""
    with delta_transaction("txn", table=f"{ROOT}/wrong_rows"):

        @task.delta_stage
        def here(spark):
            return spark.sql("SELECT 'many' AS id")

        @task.delta_stage
        def typo(spark):
            return spark.sql("SELECT idd FROM range(3)")

        here()
        typo()
        DeltaStageSparkSubmitOperator(
            task_id="submitted",
            application=str(Path(__file__).parents[1] / "jobs" / "wrong_rows.py"),
            conf={"spark.ui.enabled": "false"},
        )


flights()
wrong_rows()
read_and_write()
no_dataframe()

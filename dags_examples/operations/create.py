"""### CREATE TABLE: a table with its first rows, as one version

The table is defined as SQL defines it and appears together with the rows; a report beside it is made by a query alone (CREATE OR
REPLACE TABLE AS SELECT), new at every run, its history kept.
"""

import os
import tempfile
from datetime import datetime

from airflow.sdk import dag, task

from airflow_delta import delta_transaction
from airflow_delta.operators.create import DeltaCreateTableOperator

ROOT = os.environ.get("DELTA_EXAMPLES", f"{tempfile.gettempdir()}/delta-examples")
ORDERS, REPORT = f"{ROOT}/orders", f"{ROOT}/orders_report"


@dag(schedule=None, start_date=datetime(2026, 1, 1), catchup=False, doc_md=__doc__)
def delta_create():
    with delta_transaction("orders", table=ORDERS) as orders:
        created = DeltaCreateTableOperator(
            task_id="created",
            mode="create_or_replace",
            schema="""
                id BIGINT GENERATED ALWAYS AS IDENTITY COMMENT 'given by the table',
                ordered TIMESTAMP NOT NULL,
                day DATE GENERATED ALWAYS AS (CAST(ordered AS DATE)),
                state STRING DEFAULT 'new'
            """,
            partition_by="day",
            properties={"delta.feature.allowColumnDefaults": "supported"},
            description="Orders as they come in",
        )

        @task.delta_stage(after=[created.output])
        def first_orders(spark):
            return spark.range(10).selectExpr("TIMESTAMP'2026-01-01 10:00:00' + MAKE_DT_INTERVAL(0, id) AS ordered")

        first_orders()

    with delta_transaction("report", table=REPORT) as report:

        @task.delta_stage(create="create_or_replace", cluster_by="day", description="Orders a day")
        def orders_a_day(spark):
            return spark.sql("SELECT DATE'2026-01-01' AS day, 10 AS orders")

        orders_a_day()

    orders >> report


delta_create()

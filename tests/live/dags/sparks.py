"""A stage on a real Spark, in a session of its own with nothing set: its log is what a new user sees."""

from __future__ import annotations

import contextlib
import sys
from datetime import datetime

from airflow.sdk import dag, task

from airflow_delta import delta_transaction


@dag(schedule=None, start_date=datetime(2013, 1, 1), is_paused_upon_creation=False)
def spark_log():
    with delta_transaction("txn", table="{{ dag_run.conf['table'] }}"):

        @task.delta_stage(spark_conn_id="spark_plain")
        def stage(spark):
            spark._jvm.System.err.println("said by a library")
            print("said by the author", file=sys.stderr)
            with contextlib.suppress(Exception):  # an error that the author expects
                spark.sql("SELECT * FROM is_not_there")
            with contextlib.suppress(Exception):
                spark.range(1).selectExpr("is_not_there")
            return spark.range(0, 1000, 1, 4)

        stage()


spark_log()

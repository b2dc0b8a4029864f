"""### Quick start: append to a Delta table

One transaction, one stage. Needs nothing but Java: the table is made by the first commit, Spark runs inside the worker.
A retry, at whatever point, adds the rows once; clearing the run adds nothing.
"""

import os
import tempfile
from datetime import datetime

from airflow.sdk import dag, task

from airflow_delta import delta_transaction

TABLE = os.environ.get("DELTA_EXAMPLES", f"{tempfile.gettempdir()}/delta-examples") + "/events"


@dag(schedule="@daily", start_date=datetime(2026, 1, 1), catchup=False, doc_md=__doc__)
def delta_quick_start():
    with delta_transaction("events", table=TABLE, partition_by=["day"]):

        @task.delta_stage
        def new_events(spark, dag_run):
            day = dag_run.data_interval_start or dag_run.run_after  # whoever triggers a run may name no date
            return spark.range(100).selectExpr("id", f"DATE'{day:%Y-%m-%d}' AS day")

        new_events()


delta_quick_start()

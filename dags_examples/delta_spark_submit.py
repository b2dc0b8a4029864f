"""### A stage on a cluster: spark-submit

The application in `jobs/daily_totals.py` runs wherever the Spark connection points. Neither Airflow nor this provider has to be
installed there: the modules that it imports travel with the job.

Prerequisites: Java, and `spark-submit` on the worker's path (PySpark installs it). The connection below runs the job on the
worker; yours names the master of a cluster.
"""

import os
import tempfile
from datetime import datetime

from airflow.sdk import dag

from airflow_delta import delta_transaction
from airflow_delta.operators.stage import DeltaStageSparkSubmitOperator

TABLE = os.environ.get("DELTA_EXAMPLES", f"{tempfile.gettempdir()}/delta-examples") + "/daily_totals"
os.environ.setdefault("AIRFLOW_CONN_DELTA_EXAMPLE_SPARK", '{"conn_type": "spark", "host": "local[2]"}')


@dag(schedule="@daily", start_date=datetime(2026, 1, 1), catchup=False, doc_md=__doc__)
def delta_spark_submit():
    with delta_transaction("totals", table=TABLE, partition_by=["day"]):
        DeltaStageSparkSubmitOperator(
            task_id="daily_totals",
            application=f"{os.path.dirname(__file__)}/jobs/daily_totals.py",
            application_args=["{{ data_interval_start | ds }}"],
            mode="dynamic",
            spark_conn_id="delta_example_spark",
            driver_memory="512m",
        )


delta_spark_submit()

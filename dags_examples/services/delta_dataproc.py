"""### A DELETE on a Dataproc cluster

`max_failures_per_hour` has Dataproc start a driver again that has failed: the transaction publishes what one run has staged.

Prerequisites: `apache-airflow-providers-google`, connections `lake` of type `delta` and `google_cloud_default`, and the variables
`gcp_project`, `gcp_region` and `dataproc_cluster` (names).
"""

from datetime import datetime

from airflow.providers.google.cloud.operators.dataproc import DataprocSubmitJobOperator
from airflow.sdk import dag

from airflow_delta import delta_job, delta_transaction
from airflow_delta.operators.delete_update import DeltaDeleteOperator


@dag(schedule=None, start_date=datetime(2026, 1, 1), catchup=False, doc_md=__doc__)
def delta_dataproc():
    with delta_transaction("clean", table="orders", delta_conn_id="lake"):
        with delta_job("delete", DeltaDeleteOperator, predicate="cancelled") as job:
            DataprocSubmitJobOperator(
                task_id="run",
                project_id="{{ var.value.gcp_project }}",
                region="{{ var.value.gcp_region }}",
                job={
                    "placement": {"cluster_name": "{{ var.value.dataproc_cluster }}"},
                    "scheduling": {"max_failures_per_hour": 1},
                    "pyspark_job": {
                        "main_python_file_uri": job.application,
                        "args": job.arguments,
                        "properties": {"spark.sql.shuffle.partitions": "4"},
                    },
                },
                deferrable=True,
            )


delta_dataproc()

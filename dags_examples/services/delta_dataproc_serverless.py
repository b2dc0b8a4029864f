"""### A MERGE on Dataproc Serverless

The batch has a name of its own for each try, by `batch_id_prefix`: with a fixed one, a retry would meet the batch of the try
before.

Prerequisites: `apache-airflow-providers-google`, connections `lake` of type `delta` and `google_cloud_default`, and the variables
`gcp_project` and `gcp_region` (names).
"""

from datetime import datetime, timedelta

from airflow.providers.google.cloud.operators.dataproc import DataprocCreateBatchOperator
from airflow.sdk import dag

from airflow_delta import delta_job, delta_transaction
from airflow_delta.operators.merge import DeltaMergeOperator


@dag(schedule=None, start_date=datetime(2026, 1, 1), catchup=False, doc_md=__doc__)
def delta_dataproc_serverless():
    with delta_transaction("load", table="orders", delta_conn_id="lake"):
        with delta_job(
            "merge",
            DeltaMergeOperator,
            condition="target.id = source.id",
            source="SELECT 1L AS id, 7L AS amount, false AS cancelled UNION ALL SELECT 100L, 8L, false",
        ) as job:
            DataprocCreateBatchOperator(
                task_id="run",
                project_id="{{ var.value.gcp_project }}",
                region="{{ var.value.gcp_region }}",
                batch={
                    "pyspark_batch": {"main_python_file_uri": job.application, "args": job.arguments},
                    "runtime_config": {"properties": {"spark.sql.shuffle.partitions": "4"}},
                },
                batch_id_prefix="orders",
                deferrable=True,
                retries=1,
                retry_delay=timedelta(minutes=1),
            )


delta_dataproc_serverless()

"""### A MERGE on EMR Serverless

The operator defers: no worker waits for the job, and none needs Spark.

Prerequisites: `apache-airflow-providers-amazon`, a connection `lake` of type `delta`, and the variables `emr_application` (its
id) and `job_role` (an ARN).
"""

from datetime import datetime, timedelta

from airflow.providers.amazon.aws.operators.emr import EmrServerlessStartJobOperator
from airflow.sdk import dag

from airflow_delta import delta_job, delta_transaction
from airflow_delta.operators.merge import DeltaMergeOperator


@dag(schedule=None, start_date=datetime(2026, 1, 1), catchup=False, doc_md=__doc__)
def delta_emr_serverless():
    with delta_transaction("load", table="orders", delta_conn_id="lake"):
        with delta_job(
            "merge",
            DeltaMergeOperator,
            condition="target.id = source.id",
            source="SELECT 1L AS id, 7L AS amount, false AS cancelled UNION ALL SELECT 100L, 8L, false",
        ) as job:
            EmrServerlessStartJobOperator(
                task_id="run",
                application_id="{{ var.value.emr_application }}",
                execution_role_arn="{{ var.value.job_role }}",
                job_driver={
                    "sparkSubmit": {
                        "entryPoint": job.application,
                        "entryPointArguments": job.arguments,
                        "sparkSubmitParameters": "--conf spark.sql.shuffle.partitions=4",
                    }
                },
                deferrable=True,
                retries=1,
                retry_delay=timedelta(minutes=1),
            )


delta_emr_serverless()

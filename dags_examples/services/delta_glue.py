"""### An UPDATE on Glue

`update_config` has the Glue job run the program of this Dag run; `durable`, Airflow's default, has a retry go on with the run
of the Glue job that is there.

Prerequisites: `apache-airflow-providers-amazon`, a connection `lake` of type `delta`, and the variable `job_role` (an ARN).
"""

from datetime import datetime

from airflow.providers.amazon.aws.operators.glue import GlueJobOperator
from airflow.sdk import dag

from airflow_delta import delta_job, delta_transaction
from airflow_delta.operators.delete_update import DeltaUpdateOperator


@dag(schedule=None, start_date=datetime(2026, 1, 1), catchup=False, doc_md=__doc__)
def delta_glue():
    with delta_transaction("fix", table="orders", delta_conn_id="lake"):
        with delta_job("update", DeltaUpdateOperator, set={"amount": "amount + 1"}, predicate="id < 3") as job:
            GlueJobOperator(
                task_id="run",
                job_name="delta-glue-update",
                iam_role_arn="{{ var.value.job_role }}",
                script_location=job.application,
                script_args={"--delta-request": job.request, "--delta-package": job.package},
                create_job_kwargs={"GlueVersion": "5.0", "NumberOfWorkers": 2, "WorkerType": "G.1X"},
                update_config=True,
                deferrable=True,
            )


delta_glue()

"""### A DELETE as a step of an EMR cluster

Several stages of one transaction may be steps of one cluster.

Prerequisites: `apache-airflow-providers-amazon`, a connection `lake` of type `delta`, and the variable `emr_cluster` (its id).
"""

from datetime import datetime

from airflow.providers.amazon.aws.operators.emr import EmrAddStepsOperator
from airflow.sdk import dag

from airflow_delta import delta_job, delta_transaction
from airflow_delta.operators.delete_update import DeltaDeleteOperator


@dag(schedule=None, start_date=datetime(2026, 1, 1), catchup=False, doc_md=__doc__)
def delta_emr_steps():
    with delta_transaction("clean", table="orders", delta_conn_id="lake"):
        with delta_job("delete", DeltaDeleteOperator, predicate="cancelled") as job:
            command = ["spark-submit", "--conf", "spark.sql.shuffle.partitions=4", job.application]
            command += ["--delta-request", job.request, "--delta-package", job.package]
            EmrAddStepsOperator(
                task_id="run",
                job_flow_id="{{ var.value.emr_cluster }}",
                steps=[
                    {
                        "Name": "delete",
                        "ActionOnFailure": "CONTINUE",
                        "HadoopJarStep": {"Jar": "command-runner.jar", "Args": command},
                    }
                ],
                deferrable=True,
            )


delta_emr_steps()

"""### An OPTIMIZE on EMR on EKS

EKS may start the driver twice: the transaction publishes what one of them has staged.

Prerequisites: `apache-airflow-providers-amazon`, a connection `lake` of type `delta`, and the variables `emr_virtual_cluster`
(its id) and `job_role` (an ARN).
"""

from datetime import datetime

from airflow.providers.amazon.aws.operators.emr import EmrContainerOperator
from airflow.sdk import dag

from airflow_delta import delta_job, delta_transaction
from airflow_delta.operators.optimize import DeltaOptimizeOperator


@dag(schedule=None, start_date=datetime(2026, 1, 1), catchup=False, doc_md=__doc__)
def delta_emr_on_eks():
    with delta_transaction("compact", table="orders", delta_conn_id="lake"):
        with delta_job("optimize", DeltaOptimizeOperator) as job:
            EmrContainerOperator(
                task_id="run",
                name="orders-optimize",
                virtual_cluster_id="{{ var.value.emr_virtual_cluster }}",
                execution_role_arn="{{ var.value.job_role }}",
                release_label="emr-7.9.0-latest",
                job_driver={
                    "sparkSubmitJobDriver": {
                        "entryPoint": job.application,
                        "entryPointArguments": job.arguments,
                        "sparkSubmitParameters": "--conf spark.executor.instances=2",
                    }
                },
                job_retry_max_attempts=2,
                deferrable=True,
            )


delta_emr_on_eks()

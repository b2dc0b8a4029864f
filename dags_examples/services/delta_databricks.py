"""### An OPTIMIZE on Databricks

`max_retries` has Databricks start a driver again that has failed: the transaction publishes what one run has staged.

Prerequisites: `apache-airflow-providers-databricks`, connections `lake` of type `delta` and `databricks_default`, and the
variable `databricks_cluster` (the id of a cluster that reads and writes the table by its path).
"""

from datetime import datetime

from airflow.providers.databricks.operators.databricks import DatabricksSubmitRunOperator
from airflow.sdk import dag

from airflow_delta import delta_job, delta_transaction
from airflow_delta.operators.optimize import DeltaOptimizeOperator


@dag(schedule=None, start_date=datetime(2026, 1, 1), catchup=False, doc_md=__doc__)
def delta_databricks():
    with delta_transaction("compact", table="orders", delta_conn_id="lake"):
        with delta_job("optimize", DeltaOptimizeOperator) as job:
            DatabricksSubmitRunOperator(
                task_id="run",
                tasks=[
                    {
                        "task_key": "optimize",
                        "existing_cluster_id": "{{ var.value.databricks_cluster }}",
                        "spark_python_task": {"python_file": job.application, "parameters": job.arguments},
                        "max_retries": 1,
                    }
                ],
                deferrable=True,
            )


delta_databricks()

"""### An UPDATE by Livy

For HDInsight, Cloudera, EMR on EC2 and clusters of your own. The triggerer waits for the batch. Livy leaves the program to
Spark, which opens it by Hadoop's scheme (`s3a://`): `job.spark_application`.

Prerequisites: `apache-airflow-providers-apache-livy`, a connection `lake` of type `delta`, and `livy_default`.
"""

from datetime import datetime

from airflow.providers.apache.livy.operators.livy import LivyOperator
from airflow.sdk import dag

from airflow_delta import delta_job, delta_transaction
from airflow_delta.operators.delete_update import DeltaUpdateOperator


@dag(schedule=None, start_date=datetime(2026, 1, 1), catchup=False, doc_md=__doc__)
def delta_livy():
    with delta_transaction("fix", table="orders", delta_conn_id="lake"):
        with delta_job("update", DeltaUpdateOperator, set={"amount": "amount + 1"}, predicate="id < 3") as job:
            LivyOperator(
                task_id="run",
                file=job.spark_application,
                args=job.arguments,
                conf={"spark.sql.shuffle.partitions": "4"},
                polling_interval=30,
                deferrable=True,
            )


delta_livy()

"""### A DELETE by the Spark operator of Kubernetes

The operator leaves the program to Spark, which opens it by Hadoop's scheme (`s3a://`): `job.spark_application`. It may start the
driver again (`onFailureRetries`): the transaction publishes what one run has staged.

Prerequisites: `apache-airflow-providers-cncf-kubernetes`, connections `lake` of type `delta` and `kubernetes_default`, the
variable `spark_image` (an image with the connector to the table's store), and in the namespace `spark` a service account of that
name.
"""

from datetime import datetime

from airflow.providers.cncf.kubernetes.operators.spark_kubernetes import SparkKubernetesOperator
from airflow.sdk import dag

from airflow_delta import delta_job, delta_transaction
from airflow_delta.operators.delete_update import DeltaDeleteOperator


@dag(schedule=None, start_date=datetime(2026, 1, 1), catchup=False, doc_md=__doc__)
def delta_spark_operator():
    with delta_transaction("clean", table="orders", delta_conn_id="lake"):
        with delta_job("delete", DeltaDeleteOperator, predicate="cancelled") as job:
            SparkKubernetesOperator(
                task_id="run",
                namespace="spark",
                name="orders-delete",
                template_spec={
                    "apiVersion": "sparkoperator.k8s.io/v1beta2",
                    "kind": "SparkApplication",
                    "spec": {
                        "type": "Python",
                        "mode": "cluster",
                        "sparkVersion": "4.0.1",
                        "image": "{{ var.value.spark_image }}",
                        "mainApplicationFile": job.spark_application,
                        "arguments": job.arguments,
                        "sparkConf": {"spark.sql.shuffle.partitions": "4"},
                        "driver": {"cores": 1, "memory": "1g", "serviceAccount": "spark"},
                        "executor": {"cores": 1, "memory": "1g", "instances": 2},
                        "restartPolicy": {"type": "OnFailure", "onFailureRetries": 1, "onFailureRetryInterval": 10},
                    },
                },
                deferrable=True,
            )


delta_spark_operator()

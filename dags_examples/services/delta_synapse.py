"""### An UPDATE on Azure Synapse

The operator has no templates in its `payload`, and cannot be deferred. The class here has them.

Prerequisites: `apache-airflow-providers-microsoft-azure`, connections `lake` of type `delta` (whose host begins with `abfss://`)
and `azure_synapse_default`, and the variable `synapse_pool` (its name).
"""

from datetime import datetime

from airflow.providers.microsoft.azure.operators.synapse import AzureSynapseRunSparkBatchOperator
from airflow.sdk import dag
from azure.synapse.spark.models import SparkBatchJobOptions

from airflow_delta import delta_job, delta_transaction
from airflow_delta.operators.delete_update import DeltaUpdateOperator


class SynapseSparkBatch(AzureSynapseRunSparkBatchOperator):
    template_fields = (*AzureSynapseRunSparkBatchOperator.template_fields, "payload")

    def execute(self, context):
        self.payload = SparkBatchJobOptions(**self.payload)
        return super().execute(context)


@dag(schedule=None, start_date=datetime(2026, 1, 1), catchup=False, doc_md=__doc__)
def delta_synapse():
    with delta_transaction("fix", table="orders", delta_conn_id="lake"):
        with delta_job("update", DeltaUpdateOperator, set={"amount": "amount + 1"}, predicate="id < 3") as job:
            SynapseSparkBatch(
                task_id="run",
                spark_pool="{{ var.value.synapse_pool }}",
                payload={
                    "name": "orders-update",
                    "file": job.application,
                    "arguments": job.arguments,
                    "configuration": {"spark.sql.shuffle.partitions": "4"},
                },
            )


delta_synapse()

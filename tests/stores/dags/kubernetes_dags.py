"""Dags of the tests on Kubernetes, by operators of others: the connections ``lake`` and ``cluster``, and ``CLUSTER_CONF``."""

from __future__ import annotations

import json
import os
from datetime import datetime

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import dag

from airflow_delta import delta_transaction
from airflow_delta.job_groups import delta_job
from airflow_delta.operators.delete_update import DeltaDeleteOperator


@dag(schedule=None, start_date=datetime(2026, 1, 1), catchup=False)
def job_by_spark_submit():
    """A DELETE as a job; its operator knows nothing of this provider."""
    with (
        delta_transaction("forget", table="t", delta_conn_id="lake"),
        delta_job("delete", DeltaDeleteOperator, predicate="id < 4", retries=0) as job,
    ):
        SparkSubmitOperator(
            task_id="run",
            conn_id="cluster",
            application=job.spark_application,
            application_args=job.arguments,
            conf=json.loads(os.environ.get("CLUSTER_CONF", "{}")),
            retries=0,
        )


job_by_spark_submit()

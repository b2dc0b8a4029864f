"""### Write, audit, publish

The audit reads the staged rows themselves, which no reader of the table can see yet. When it fails, nothing is published and the
teardown deletes what was staged; `reject_above` lets you try that.

Prerequisites: Java.
"""

import os
import tempfile
from datetime import datetime

from airflow.sdk import Param, dag, task

from airflow_delta import delta_transaction

TABLE = os.environ.get("DELTA_EXAMPLES", f"{tempfile.gettempdir()}/delta-examples") + "/measurements"


@dag(
    schedule=None,
    start_date=datetime(2026, 1, 1),
    catchup=False,
    doc_md=__doc__,
    params={"reject_above": Param(100, type="integer", description="Largest value that the audit lets through.")},
)
def delta_write_audit_publish():
    with delta_transaction("measurements", table=TABLE):

        @task.delta_stage(mode="overwrite")
        def write(spark):
            return spark.range(100).selectExpr("id AS sensor", "CAST(id AS INT) AS value")

        @task
        def audit(staged, params):
            """Statistics of the staged files tell without Spark what the largest value is."""
            import json

            largest = max(json.loads(action["add"]["stats"])["maxValues"]["value"] for action in staged["actions"])
            if largest > params["reject_above"]:
                raise ValueError(f"{staged['numRecords']} rows staged, the largest value is {largest}: not published")

        audit(write())


delta_write_audit_publish()

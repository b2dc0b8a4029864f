"""### Write, audit, publish

The audit judges what the stages have written, which no reader of the table can see yet, and the table as the commit would leave
it. When it fails, nothing is published and the teardown deletes what was staged; `reject_above` lets you try that.

All checks but the one in SQL go by row counts and statistics of the staged files; without `checks` the audit starts no Spark.

Prerequisites: Java.
"""

import os
import tempfile
from datetime import datetime

from airflow.sdk import Param, dag, task

from airflow_delta import delta_transaction
from airflow_delta.operators.audit import DeltaAuditOperator

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

        DeltaAuditOperator(
            task_id="audit",
            staged=write(),
            min_rows=1,
            rows_change={"min_ratio": 0.5, "max_ratio": 2},
            max_null_fraction={"sensor": 0, "value": 0.01},
            value_range={"value": {"min": 0, "max": "{{ params.reject_above }}"}},
            checks={"one row for each sensor": "SELECT count(*) = count(DISTINCT sensor) FROM result"},
        )


delta_write_audit_publish()

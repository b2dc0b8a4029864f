"""### Maintenance: the nightly round of two tables

What a table needs from time to time, in one task for each table: a checkpoint when enough commits have come since the last one,
small files compacted, files deleted that no version of the last seven days needs (with the staged files of transactions that were
given up), and the part of the log cut off that nobody can travel back to. A step that fails stops no other.

The Dags that write these tables may run meanwhile. With `commit_kwargs={"checkpoint": "off"}` their commit tasks leave the
checkpoints to this Dag.
"""

import os
import tempfile
from datetime import datetime, timedelta

from airflow.sdk import dag

from airflow_delta.operators.maintenance import DeltaMaintenanceOperator

ROOT = os.environ.get("DELTA_EXAMPLES", f"{tempfile.gettempdir()}/delta-examples")


@dag(
    schedule="@daily",
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=1,
    doc_md=__doc__,
    default_args={"retries": 2, "retry_delay": timedelta(minutes=10)},
)
def delta_maintenance():
    # [START howto_operator_delta_maintenance]
    DeltaMaintenanceOperator.partial(
        task_id="maintain",
        steps=["checkpoint", "optimize", "vacuum", "log_cleanup"],
        retention_hours=7 * 24,
        max_active_tis_per_dag=1,
    ).expand(tables=[f"{ROOT}/maintained_orders", f"{ROOT}/maintained_customers"])
    # [END howto_operator_delta_maintenance]


delta_maintenance()

"""### A model of dbt as a Delta table

The project `jobs/orders_dbt` has one external model, which dbt-duckdb writes as Parquet files below the staging path. If one of
dbt's tests fails, so does the task, and nothing is published.

Prerequisites: dbt-duckdb, whose `dbt` is on the worker's path (in production: in a container), and the file `source/dbt.csv`
beside the table.
"""

import os
import tempfile
from datetime import datetime

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import dag

from airflow_delta import delta_transaction, staging_path
from airflow_delta.operators.create import DeltaCreateTableOperator
from airflow_delta.operators.stage import DeltaStageFilesOperator

EXAMPLES = os.environ.get("DELTA_EXAMPLES", f"{tempfile.gettempdir()}/delta-examples")
PROJECT = f"{os.path.dirname(os.path.abspath(__file__))}/jobs/orders_dbt"

with_staging_path = {"staging_path": staging_path}


@dag(schedule=None, start_date=datetime(2026, 1, 1), catchup=False, user_defined_macros=with_staging_path, doc_md=__doc__)
def delta_dbt():
    with delta_transaction("orders", table=f"{EXAMPLES}/dbt_orders"):
        table = DeltaCreateTableOperator(
            task_id="table",
            mode="create_if_not_exists",
            schema="id BIGINT, amount DECIMAL(10, 2), ordered_at TIMESTAMP, day DATE",
            partition_by="day",
        )
        model = BashOperator(
            task_id="model",
            # DuckDB makes a directory on local disks, but none above it; dbt's own files stay in the task's.
            bash_command='mkdir -p "${DESTINATION#file://}" && '
            f"dbt build --project-dir '{PROJECT}' --profiles-dir '{PROJECT}' --target-path \"$PWD/target\" --log-path \"$PWD\"",
            env={"SOURCE": f"{EXAMPLES}/source/dbt.csv", "DESTINATION": "{{ staging_path(ti.xcom_pull('orders.start'), ti) }}"},
            append_env=True,
            do_xcom_push=False,
        )
        DeltaStageFilesOperator(task_id="files", path=model.output["staging_path"], after=[table.output])


delta_dbt()

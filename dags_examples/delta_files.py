"""### Files of programs without Spark: pandas, Polars and DuckDB

Each program of `jobs/` writes the orders of a shop as Parquet files, into a directory that belongs to its try alone. The commit
publishes those of the tries that succeeded, as one version. A program answers with the number of its rows; the audit compares.

Here the programs are processes of the worker. In production each is the command of a container: `docs/how-to/files.md`.

Prerequisites: pandas, Polars and DuckDB for the worker's `python`, and the files `north.csv`, `west.csv` and `south.csv` in
`source` beside the table.
"""

import os
import tempfile
from datetime import datetime

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import dag

from airflow_delta import delta_transaction, staging_path
from airflow_delta.operators.audit import DeltaAuditOperator
from airflow_delta.operators.create import DeltaCreateTableOperator
from airflow_delta.operators.stage import DeltaStageFilesOperator

EXAMPLES = os.environ.get("DELTA_EXAMPLES", f"{tempfile.gettempdir()}/delta-examples")
JOBS = f"{os.path.dirname(os.path.abspath(__file__))}/jobs"
SHOPS = {"north": "orders_pandas.py", "west": "orders_polars.py", "south": "orders_duckdb.py"}

with_staging_path = {"staging_path": staging_path}


@dag(schedule=None, start_date=datetime(2026, 1, 1), catchup=False, user_defined_macros=with_staging_path, doc_md=__doc__)
def delta_files():
    with delta_transaction("orders", table=f"{EXAMPLES}/shop_orders"):
        table = DeltaCreateTableOperator(
            task_id="table",
            mode="create_if_not_exists",
            # No file tells the type of a partition column: without this one it would be STRING.
            schema="id BIGINT, amount DECIMAL(10, 2), ordered_at TIMESTAMP, day DATE",
            partition_by="day",
        )
        for shop, program in SHOPS.items():
            job = BashOperator(
                task_id=shop,
                bash_command=f"python '{JOBS}/{program}' '{EXAMPLES}/source/{shop}.csv' "
                "'{{ staging_path(ti.xcom_pull('orders.start'), ti) }}'",
            )
            DeltaStageFilesOperator(task_id=f"{shop}_files", path=job.output["staging_path"], after=[table.output])
        answers = [f"orders.{shop}" for shop in SHOPS]
        said = f"{{{{ ti.xcom_pull({answers}) | map('int') | sum }}}}"
        DeltaAuditOperator(task_id="all_rows", min_rows=said, max_rows=said)


delta_files()

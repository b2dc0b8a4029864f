"""### COPY INTO: the files of a directory, each once

Each run loads what the table does not have yet, in the worker, without Spark: Parquet by COPY INTO, CSV by a function that reads
the new files with a library of its choice. The first task makes the table if there is none.
"""

import os
import tempfile
from datetime import datetime

from airflow.sdk import dag, task

from airflow_delta import delta_transaction
from airflow_delta.operators.copy_into import DeltaCopyIntoOperator
from airflow_delta.operators.create import DeltaCreateTableOperator

ROOT = os.environ.get("DELTA_EXAMPLES", f"{tempfile.gettempdir()}/delta-examples")
TABLE = f"{ROOT}/sales"


@dag(schedule="@hourly", start_date=datetime(2026, 1, 1), catchup=False, doc_md=__doc__)
def delta_copy_into():
    table = DeltaCreateTableOperator(task_id="table", table=TABLE, mode="create_if_not_exists", schema="id BIGINT, amount DOUBLE")
    load = DeltaCopyIntoOperator(
        task_id="load",
        table=TABLE,
        source=f"{ROOT}/source/sales/*.parquet",
        format="parquet",
        engine="arrow",
        skip_if_none=True,
    )

    with delta_transaction("refunds", table=TABLE) as refunds:

        @task.delta_stage(engine="arrow", new_files={f"{ROOT}/source/refunds/*.csv": {"skip_if_none": True}})
        def read(new_files):
            import polars as pl

            return pl.concat(pl.read_csv(file.open()) for file in new_files)

        read()

    table >> [load, refunds]


delta_copy_into()

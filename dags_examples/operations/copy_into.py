"""### COPY INTO: the files of a directory, each once

Each run loads what the table does not have yet, in the worker, without Spark. The first task makes the table if there is none.
"""

import os
import tempfile
from datetime import datetime

from airflow.sdk import dag

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
        source=f"{ROOT}/source/sales-*.csv",
        format="csv",
        format_options={"header": True},
        engine="arrow",
        skip_if_none=True,
    )
    table >> load


delta_copy_into()

"""### CONVERT TO DELTA: Parquet files become a table where they are

Reads the footers and writes the first log entry. Where it is a table already, the task does nothing.
"""

import os
import tempfile
from datetime import datetime

from airflow.sdk import dag

from airflow_delta.operators.convert import DeltaConvertOperator

TABLE = os.environ.get("DELTA_EXAMPLES", f"{tempfile.gettempdir()}/delta-examples") + "/parquet_events"


@dag(schedule=None, start_date=datetime(2026, 1, 1), catchup=False, doc_md=__doc__)
def delta_convert():
    DeltaConvertOperator(task_id="convert", table=TABLE, partition_schema={"country": "STRING", "day": "DATE"})


delta_convert()

"""### VACUUM: delete old files

Every night: files that no version of the last seven days needs. Transactions that are being staged lose nothing.
"""

import os
import tempfile
from datetime import datetime

from airflow.sdk import dag

from airflow_delta.operators.vacuum import DeltaVacuumOperator

TABLE = os.environ.get("DELTA_EXAMPLES", f"{tempfile.gettempdir()}/delta-examples") + "/events"


@dag(schedule="@daily", start_date=datetime(2026, 1, 1), catchup=False, doc_md=__doc__)
def delta_vacuum():
    DeltaVacuumOperator(task_id="vacuum", table=TABLE, retention_hours=7 * 24)


delta_vacuum()

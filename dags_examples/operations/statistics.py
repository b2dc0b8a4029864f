"""### COMPUTE STATS: what readers skip files by

Fills in what the statistics of files do not tell, out of their footers. Nothing is committed when they tell everything.
"""

import os
import tempfile
from datetime import datetime

from airflow.sdk import dag

from airflow_delta.operators.statistics import DeltaComputeStatisticsOperator

TABLE = os.environ.get("DELTA_EXAMPLES", f"{tempfile.gettempdir()}/delta-examples") + "/events"


@dag(schedule="@weekly", start_date=datetime(2026, 1, 1), catchup=False, doc_md=__doc__)
def delta_compute_statistics():
    DeltaComputeStatisticsOperator(task_id="statistics", table=TABLE, only_missing=True)


delta_compute_statistics()

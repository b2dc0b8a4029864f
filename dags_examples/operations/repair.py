"""### FSCK and GENERATE: after files were lost, and for readers that do not know the log

The first task only reports files that the table has and the storage has not; the second takes them out of the table, with their
rows, unless more than half are missing. The third lists the files that are left for engines such as Presto and Athena.
"""

import os
import tempfile
from datetime import datetime

from airflow.sdk import dag

from airflow_delta.operators.generate import DeltaGenerateOperator
from airflow_delta.operators.repair import DeltaRepairTableOperator

TABLE = os.environ.get("DELTA_EXAMPLES", f"{tempfile.gettempdir()}/delta-examples") + "/events"


@dag(schedule=None, start_date=datetime(2026, 1, 1), catchup=False, doc_md=__doc__)
def delta_repair():
    missing = DeltaRepairTableOperator(task_id="missing", table=TABLE)
    repair = DeltaRepairTableOperator(task_id="repair", table=TABLE, dry_run=False, max_missing_share=0.5)
    missing >> repair >> DeltaGenerateOperator(task_id="manifests", table=TABLE)


delta_repair()

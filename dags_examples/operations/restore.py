"""### RESTORE: take back what was written

Triggered by hand with the version to go back to. The versions in between stay readable.
"""

import os
import tempfile
from datetime import datetime

from airflow.sdk import Param, dag

from airflow_delta.operators.restore import DeltaRestoreOperator

TABLE = os.environ.get("DELTA_EXAMPLES", f"{tempfile.gettempdir()}/delta-examples") + "/events"


@dag(
    schedule=None,
    start_date=datetime(2026, 1, 1),
    catchup=False,
    doc_md=__doc__,
    params={"version": Param(0, type="integer", minimum=0)},
)
def delta_restore():
    DeltaRestoreOperator(task_id="restore", table=TABLE, version="{{ params.version }}")


delta_restore()

"""### CLONE: a sandbox for one run

A shallow clone points to the files of its source: it costs a log entry, and what is tried in it never touches the source.
"""

import os
import tempfile
from datetime import datetime

from airflow.sdk import dag

from airflow_delta.operators.clone import DeltaCloneOperator
from airflow_delta.operators.delete_update import DeltaDeleteOperator

TABLES = os.environ.get("DELTA_EXAMPLES", f"{tempfile.gettempdir()}/delta-examples")


@dag(schedule=None, start_date=datetime(2026, 1, 1), catchup=False, doc_md=__doc__)
def delta_clone():
    sandbox = f"{TABLES}/sandboxes/{{{{ ts_nodash }}}}"
    clone = DeltaCloneOperator(task_id="clone", table=sandbox, source=f"{TABLES}/users", properties={"purpose": "sandbox"})
    clone >> DeltaDeleteOperator(task_id="try_it", table=sandbox, predicate="user_id > 10")


delta_clone()

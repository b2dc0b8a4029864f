"""### DELETE: forget a user

A transaction of its own: the task deletes the rows and commits that, once for each run. Where the table has deletion vectors,
only marks are written.
"""

import os
import tempfile
from datetime import datetime

from airflow.sdk import Param, dag

from airflow_delta.operators.delete_update import DeltaDeleteOperator

TABLE = os.environ.get("DELTA_EXAMPLES", f"{tempfile.gettempdir()}/delta-examples") + "/users"


@dag(
    schedule=None,
    start_date=datetime(2026, 1, 1),
    catchup=False,
    doc_md=__doc__,
    params={"user_id": Param(1, type="integer")},
)
def delta_delete():
    DeltaDeleteOperator(
        task_id="forget",
        table=TABLE,
        predicate="user_id = :user",
        parameters={"user": "{{ params.user_id }}"},
        max_restarts=3,
    )


delta_delete()

"""### Ids that are unique stay so, whoever commits meanwhile

The audit refuses an id that is staged twice, or that the table has. The commit compares the ids again with those that others
have added since: of two runs at once with the same ids one publishes, and the other fails and says which ids, and which version
has them. Neither reads more of the table than the ids of files that may hold one of these.

Try it: trigger two runs at the same time, then one with `first` = 101. Prerequisites: none.
"""

import os
import tempfile
from datetime import datetime

from airflow.sdk import Param, dag, task

from airflow_delta import delta_transaction
from airflow_delta.operators.audit import DeltaAuditOperator

TABLE = os.environ.get("DELTA_EXAMPLES", f"{tempfile.gettempdir()}/delta-examples") + "/members"


@dag(
    schedule=None,
    start_date=datetime(2026, 1, 1),
    catchup=False,
    doc_md=__doc__,
    params={"first": Param(1, type="integer", description="The first of a hundred ids.")},
)
def delta_unique_ids():
    with delta_transaction("members", table=TABLE):

        @task.delta_stage(engine="arrow")
        def load(params):
            import pyarrow as pa

            ids = range(params["first"], params["first"] + 100)
            return pa.table({"id": ids, "name": [f"member {number}" for number in ids]})

        DeltaAuditOperator(task_id="audit", staged=load(), unique="id")


delta_unique_ids()

"""### UPDATE: two changes as one version

Old rows are anonymised and the rest of the table is marked, in one transaction: readers see both or neither. The second task is
planned on top of the first.
"""

import os
import tempfile
from datetime import datetime

from airflow.sdk import dag

from airflow_delta import delta_transaction
from airflow_delta.operators.delete_update import DeltaUpdateOperator

TABLE = os.environ.get("DELTA_EXAMPLES", f"{tempfile.gettempdir()}/delta-examples") + "/users"


@dag(schedule="@daily", start_date=datetime(2026, 1, 1), catchup=False, doc_md=__doc__)
def delta_update():
    with delta_transaction("retention", table=TABLE, create=False):
        anonymised = DeltaUpdateOperator(
            task_id="anonymise", set={"email": "sha2(email, 256)"}, predicate="last_seen < '{{ macros.ds_add(ds, -365) }}'"
        )
        DeltaUpdateOperator(
            task_id="mark",
            set={"state": "'old'"},
            predicate="last_seen < '{{ macros.ds_add(ds, -30) }}'",
            after=[anonymised.output],
        )


delta_update()

"""### A slowly changing dimension: every version of a row, from a snapshot of each day

Every day brings all employees as they are. Who has another department gets a new version from that day on, who is not there any
more has none. The table is created by the first run, in a task of its own.
"""

import os
import tempfile
from datetime import datetime

from airflow.sdk import dag

from airflow_delta.operators.create import DeltaCreateTableOperator
from airflow_delta.operators.scd2 import DeltaScd2MergeOperator

ROOT = os.environ.get("DELTA_EXAMPLES", f"{tempfile.gettempdir()}/delta-examples")
TABLE = f"{ROOT}/employees"


@dag(schedule="@daily", start_date=datetime(2026, 1, 1), catchup=False, max_active_runs=1, doc_md=__doc__)
def delta_scd2():
    created = DeltaCreateTableOperator(
        task_id="created",
        table=TABLE,
        mode="create_if_not_exists",
        schema="id BIGINT NOT NULL, department STRING, valid_from DATE, valid_to DATE, is_current BOOLEAN",
    )
    merged = DeltaScd2MergeOperator(
        task_id="merged",
        table=TABLE,
        source=f"SELECT * FROM json.`{ROOT}/source/employees-{{{{ ds }}}}.json`",
        keys="id",
        effective_at="DATE'{{ ds }}'",
        full_snapshot=True,
    )
    created >> merged


delta_scd2()

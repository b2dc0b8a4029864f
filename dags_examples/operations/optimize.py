"""### OPTIMIZE, ZORDER BY and REORG: the nightly round

Small files of yesterday's partition become few and are ordered by what people ask for; once a week, files with deleted rows or
dropped columns are rewritten without them. Neither task has an identity in the log: run again, it does what is left.
"""

import os
import tempfile
from datetime import datetime

from airflow.sdk import Param, dag

from airflow_delta.operators.optimize import DeltaOptimizeOperator, DeltaReorgOperator

TABLE = os.environ.get("DELTA_EXAMPLES", f"{tempfile.gettempdir()}/delta-examples") + "/trips"


@dag(
    schedule=None,
    start_date=datetime(2026, 1, 1),
    catchup=False,
    doc_md=__doc__,
    params={"day": Param("2026-01-01", type="string", format="date")},
)
def delta_optimize():
    compact = DeltaOptimizeOperator(
        task_id="compact",
        table=TABLE,
        where="day = :day",
        parameters={"day": "{{ params.day }}"},
        z_order_by=["pickup_zone", "vendor"],
        max_file_size=256 << 20,
    )
    purge = DeltaReorgOperator(task_id="purge", table=TABLE, batch_size=10 << 30)
    compact >> purge


delta_optimize()

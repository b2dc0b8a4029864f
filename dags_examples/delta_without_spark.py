"""### A small table without Spark: stage, check, commit, then upsert, delete and compact

All work on rows is done by the worker (`engine="arrow"`): it needs neither Spark nor Java, and no extra of the provider.

The first transaction publishes the orders of a day once they are checked. Then corrections are merged, cancelled orders deleted
and the files of the three commits joined into one: each task is a transaction of its own. Whatever is retried, cleared or run
again for the same day, the table has the same rows.
"""

import os
import tempfile
from datetime import datetime

from airflow.sdk import dag, task

from airflow_delta import delta_transaction
from airflow_delta.operators.delete_update import DeltaDeleteOperator
from airflow_delta.operators.optimize import DeltaOptimizeOperator

TABLE = os.environ.get("DELTA_EXAMPLES", f"{tempfile.gettempdir()}/delta-examples") + "/small_orders"


def day_of(dag_run) -> str:
    return f"{dag_run.data_interval_start or dag_run.run_after:%Y-%m-%d}"  # whoever triggers a run may name no date


@dag(schedule="@daily", start_date=datetime(2026, 1, 1), catchup=False, max_active_runs=1, doc_md=__doc__)
def delta_without_spark():
    key = "small_orders/{{ (dag_run.data_interval_start or dag_run.run_after) | ds }}"  # a day is published once
    with delta_transaction("orders", table=TABLE, transaction_key=key) as published:

        @task.delta_stage(engine="arrow")
        def new_orders(dag_run):
            import pyarrow as pa

            day, numbers = day_of(dag_run), range(100)
            return pa.table(
                {
                    "id": [f"{day}/{number}" for number in numbers],
                    "day": [day for _ in numbers],
                    "cents": [100 * number for number in numbers],
                    "state": ["cancelled" if number % 10 == 9 else "paid" for number in numbers],
                }
            )

        @task
        def check(staged):
            if staged["numRecords"] != 100:
                raise ValueError(f"{staged['numRecords']} orders are staged instead of 100")

        check(new_orders())

    @task.delta_merge(table=TABLE, condition="target.id = source.id", engine="arrow")
    def corrections(dag_run):
        """One order of the day has another price, and one came late."""
        import pyarrow as pa

        day = day_of(dag_run)
        return pa.table({"id": [f"{day}/1", f"{day}/100"], "day": [day, day], "cents": [150, 7], "state": ["paid", "paid"]})

    cancelled = DeltaDeleteOperator(
        task_id="cancelled", table=TABLE, predicate="state = :state", parameters={"state": "cancelled"}, engine="arrow"
    )
    compact = DeltaOptimizeOperator(task_id="compact", table=TABLE, engine="arrow")
    published >> corrections() >> cancelled >> compact


delta_without_spark()

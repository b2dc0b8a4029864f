"""Writers of the same rows in a pool with one slot: what a pool keeps apart is tasks, not the transactions of a group."""

from __future__ import annotations

import os
from datetime import datetime

from airflow.sdk import dag

from airflow_delta import delta_transaction
from airflow_delta.operators.delete_update import DeltaTruncateOperator
from live.names import ONE_SLOT
from live.stages import RowsStageOperator

ROOT = os.environ["DELTA_EXAMPLES"]


def queued(dag_id: str, **limits) -> None:
    @dag(dag_id=dag_id, schedule=None, start_date=datetime(2013, 1, 1), is_paused_upon_creation=False, **limits)
    def writer():
        with delta_transaction("txn", table=f"{ROOT}/{dag_id}", partition_by=["month"]):
            RowsStageOperator(task_id="stage", month="2013-01", mode="overwrite")

    writer()


queued("queued_by_pool", default_args={"pool": ONE_SLOT[0]})
# Its runs come one after the other: behind the tasks of all other scenarios, each of them would wait for a slot.
queued("queued_by_runs", max_active_runs=1, default_args={"priority_weight": 100})


@dag(schedule=None, start_date=datetime(2013, 1, 1), is_paused_upon_creation=False)
def queued_alone():
    """A transaction that is one task."""
    DeltaTruncateOperator(task_id="truncate", table="{{ dag_run.conf['table'] }}", pool=ONE_SLOT[1])


queued_alone()

"""Dags with deadlines that wait for partitions of a table, or write it."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta

from airflow.sdk import AsyncCallback, DeadlineAlert, DeadlineReference, dag, task

from airflow_delta import delta_transaction
from airflow_delta.assets.deadline import LastCommitDeadline
from airflow_delta.sensors.delta import DeltaTableVersionSensor
from ui.staged import MANUAL

ROOT = os.environ["UI_TABLES"]
AHEAD = datetime(2100, 1, 1, tzinfo=UTC)


def by(reference) -> DeadlineAlert:
    return DeadlineAlert(reference=reference, interval=timedelta(hours=7), callback=AsyncCallback("ui.staged.missed"))


def awaited(dag_id: str, reference, schedule: str | None = None) -> None:
    """Wait for the partition of the run's day, or for that of the table in its ``conf``."""

    @dag(dag_id, schedule=schedule, deadline=by(reference), is_paused_upon_creation=False, **MANUAL)
    def partition_of_the_day():
        DeltaTableVersionSensor(
            task_id="there",
            table="{{ dag_run.conf.get('awaited', '" + ROOT + "/days') }}",
            partitions="day = :day",
            parameters={"day": "{{ ds }}"},
            after_version=-1,
            mode="reschedule",
            poke_interval=0,
        )

    partition_of_the_day()


awaited("awaited_ahead", DeadlineReference.FIXED_DATETIME(AHEAD))
awaited("awaited_late", DeadlineReference.DAGRUN_LOGICAL_DATE)
awaited("awaited_daily", DeadlineReference.DAGRUN_LOGICAL_DATE, "0 0 * * *")
awaited("hidden_awaited", DeadlineReference.DAGRUN_LOGICAL_DATE)


@dag(schedule=None, deadline=by(DeadlineReference.FIXED_DATETIME(AHEAD)), **MANUAL)
def written_by_seven():
    with delta_transaction("txn", table=f"{ROOT}/written"):

        @task.delta_stage(engine="arrow")
        def rows():
            import pyarrow as pa

            return pa.table({"id": [1, 2]})

        rows()


@dag(schedule=None, deadline=by(LastCommitDeadline(f"{ROOT}/written")), **MANUAL)
def awaited_since_the_last():
    DeltaTableVersionSensor(task_id="next", table=f"{ROOT}/written", version=1, mode="reschedule", poke_interval=0)


written_by_seven()
awaited_since_the_last()

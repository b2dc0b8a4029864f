"""Dags that wait for a partition or a commit, and call their author if it is late."""

from __future__ import annotations

import os
from datetime import datetime, timedelta

from airflow.sdk import AsyncCallback, DeadlineAlert, DeadlineReference, dag, task

from airflow_delta import delta_transaction
from airflow_delta.assets.deadline import LastCommitDeadline
from airflow_delta.sensors.delta import DeltaTableVersionSensor
from live.lateness import missed

ROOT = os.environ["DELTA_EXAMPLES"]
COMMITTED = f"{ROOT}/late_commits"
BY_HAND = {"start_date": datetime(2013, 1, 1), "is_paused_upon_creation": False}


def within_20_seconds(reference, name: str) -> DeadlineAlert:
    called = AsyncCallback(missed, kwargs={"path": f"{ROOT}/{name}.called"})
    return DeadlineAlert(reference=reference, interval=timedelta(seconds=20), callback=called)


@dag(schedule=None, deadline=within_20_seconds(DeadlineReference.DAGRUN_QUEUED_AT, "lateness"), **BY_HAND)
def late_partition():
    DeltaTableVersionSensor(
        task_id="there",
        table="{{ dag_run.conf['awaited'] }}",
        partitions="month = '2013-02'",
        after_version=-1,
        poke_interval=1,
        deferrable=True,
    )


late_partition()


@dag(schedule=None, **BY_HAND)
def late_commit_writer():
    with delta_transaction("txn", table=COMMITTED):

        @task.delta_stage(engine="arrow")
        def rows():
            import pyarrow as pa

            return pa.table({"id": [1]})

        rows()


@dag(schedule=None, deadline=within_20_seconds(LastCommitDeadline(COMMITTED), "late_commit"), **BY_HAND)
def late_commit():
    DeltaTableVersionSensor(task_id="next", table=COMMITTED, version=1, poke_interval=1, deferrable=True)


late_commit_writer()
late_commit()

"""A Dag that waits for a partition, and calls its author if it is late."""

from __future__ import annotations

import os
from datetime import datetime, timedelta

from airflow.sdk import AsyncCallback, DeadlineAlert, DeadlineReference, dag

from airflow_delta.sensors.delta import DeltaTableVersionSensor
from live.lateness import missed

CALLED = f"{os.environ['DELTA_EXAMPLES']}/lateness.called"
late = DeadlineAlert(
    reference=DeadlineReference.DAGRUN_QUEUED_AT,
    interval=timedelta(seconds=20),
    callback=AsyncCallback(missed, kwargs={"path": CALLED}),
)


@dag(schedule=None, start_date=datetime(2013, 1, 1), is_paused_upon_creation=False, deadline=late)
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

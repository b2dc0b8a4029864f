"""### Partitions: a late correction runs again what depends on it, and nothing else

`raw` is partitioned by day. Its commit emits an event for each day whose rows changed. For each of these, the daily Dag
writes the day's summary again. Its events start the monthly Dag, which sums up the days that are there.

The last Dag watches `raw` for commits of others (Spark, delta-rs, a stream) and emits the same events for the days that they
changed, each commit once.

Prerequisites: for the last Dag a running triggerer. The tables are made by the first commits.
"""

import os
import tempfile
from datetime import date, datetime, timedelta

from airflow.sdk import (
    IdentityMapper,
    MinimumCount,
    MonthWindow,
    Param,
    PartitionedAssetTimetable,
    RollupMapper,
    StartOfMonthMapper,
    dag,
    task,
)

from airflow_delta import delta_transaction
from airflow_delta.assets.delta import delta_asset
from airflow_delta.hooks.delta import DeltaHook
from airflow_delta.sensors.partitions import DeltaPartitionSensor

ROOT = os.environ.get("DELTA_EXAMPLES", f"{tempfile.gettempdir()}/delta-examples")
RAW, DAILY, MONTHLY = (f"{ROOT}/partitions_{name}" for name in ("raw", "daily", "monthly"))

raw, daily = delta_asset(RAW), delta_asset(DAILY)

each_day = PartitionedAssetTimetable(assets=raw, default_partition_mapper=IdentityMapper())
# With WaitForAll, the default, a correction of one day would wait for events of all other days of the month.
month_of_day = RollupMapper(
    upstream_mapper=StartOfMonthMapper(input_format="%Y-%m-%d"), window=MonthWindow(), wait_policy=MinimumCount(1)
)
# Two runs of one month may overlap: the one that commits second starts over, on what is there by then (on_conflict="restart").
each_month = PartitionedAssetTimetable(assets=daily, default_partition_mapper=month_of_day)

PARAMS = {"day": Param("2026-03-01", type="string"), "days": Param(3, type="integer"), "amount": Param(10, type="integer")}


@dag(schedule=None, start_date=datetime(2026, 1, 1), params=PARAMS, doc_md=__doc__)
def delta_partitions_raw():
    with delta_transaction("raw", table=RAW, partition_by="day", partition_events=True):

        @task.delta_stage(engine="arrow", mode="dynamic")
        def load(params):
            import pyarrow as pa

            first, days = date.fromisoformat(params["day"]), params["days"]
            return pa.table({"day": [first + timedelta(n) for n in range(days)], "amount": [params["amount"]] * days})

        load()


@dag(schedule=each_day, start_date=datetime(2026, 1, 1), doc_md=__doc__)
def delta_partitions_daily():
    day = "day = DATE '{{ dag_run.partition_key }}'"
    with delta_transaction("daily", table=DAILY, partition_by="day", partition_events=True, on_conflict="restart"):

        @task.delta_stage(engine="arrow", mode="overwrite", replace_where=day)
        def summarise(dag_run):
            import pyarrow as pa
            import pyarrow.compute as pc

            rows = DeltaHook().get_df(RAW, where=f"day = DATE '{dag_run.partition_key}'")
            total = pc.sum(rows.column("amount")).as_py() or 0
            return pa.table({"day": [date.fromisoformat(dag_run.partition_key)], "total": pa.array([total], pa.int64())})

        summarise()


@dag(schedule=each_month, start_date=datetime(2026, 1, 1), doc_md=__doc__)
def delta_partitions_monthly():
    month = "month = '{{ dag_run.partition_key }}'"
    with delta_transaction("monthly", table=MONTHLY, partition_by="month", on_conflict="restart"):

        @task.delta_stage(engine="arrow", mode="overwrite", replace_where=month)
        def summarise(dag_run):
            import pyarrow as pa
            import pyarrow.compute as pc

            first = date.fromisoformat(f"{dag_run.partition_key}-01")
            following = (first + timedelta(31)).replace(day=1)
            days = DeltaHook().get_df(DAILY, where=f"day >= DATE '{first}' AND day < DATE '{following}'")
            totals = {"days": [days.num_rows], "total": pa.array([pc.sum(days.column("total")).as_py() or 0], pa.int64())}
            return pa.table({"month": [dag_run.partition_key], **totals})

        summarise()


@dag(schedule="@continuous", max_active_runs=1, start_date=datetime(2026, 1, 1), doc_md=__doc__)
def delta_partitions_of_others():
    DeltaPartitionSensor(task_id="changed", table=RAW, changed_since=-1, poke_interval=5, deferrable=True)


delta_partitions_raw()
delta_partitions_daily()
delta_partitions_monthly()
delta_partitions_of_others()

"""A producer, a consumer that its commits start, and a Dag that a watched table starts."""

from __future__ import annotations

import os
from datetime import datetime, timedelta

from airflow.sdk import Asset, AssetWatcher, dag, task

from airflow_delta import delta_transaction
from airflow_delta.assets.delta import commits_of_events, delta_asset, delta_asset_uri
from airflow_delta.triggers.delta import DeltaTableVersionTrigger
from live import faults
from live.names import HOLDING_POOL
from live.stages import RowsStageOperator

faults.install()
ROOT = os.environ["DELTA_EXAMPLES"]
PRODUCED, CONSUMED, WATCHED = f"{ROOT}/produced", f"{ROOT}/consumed", f"{ROOT}/watched"
COMMON = {
    "start_date": datetime(2013, 1, 1),
    "is_paused_upon_creation": False,
    "default_args": {"pool": HOLDING_POOL, "retries": 3, "retry_delay": timedelta(seconds=1)},
}
produced = delta_asset(PRODUCED)
trigger = DeltaTableVersionTrigger(WATCHED, after_version=-1, poll_interval=1)
watched = Asset(uri=delta_asset_uri(WATCHED), watchers=[AssetWatcher(name="watched", trigger=trigger)])


@dag(schedule=None, **COMMON)
def producer():
    with delta_transaction("txn", table=PRODUCED, partition_by=["month"]):
        RowsStageOperator(task_id="stage", month="{{ dag_run.conf['month'] }}")


@dag(schedule=[produced], **COMMON)
def consumer():
    """Reads what exactly the versions of its events added; its run has no logical date."""

    @task
    def read(triggering_asset_events) -> list[dict]:
        import json

        found = []
        for commit in commits_of_events(triggering_asset_events[produced]):
            with open(f"{PRODUCED}/_delta_log/{commit['version']:020}.json") as lines:
                added = [action["add"]["partitionValues"]["month"] for action in map(json.loads, lines) if "add" in action]
            found.append({"version": commit["version"], "months": added})
        return found

    with delta_transaction("txn", table=CONSUMED, partition_by=["month"]) as txn:
        RowsStageOperator(task_id="stage", month="2013-01")
    read() >> txn


@dag(schedule=[watched], max_active_runs=1, **COMMON)
def watcher():
    @task
    def seen(triggering_asset_events) -> list[int]:
        return [commit["version"] for commit in commits_of_events(triggering_asset_events[watched])]

    seen()


producer()
consumer()
watcher()

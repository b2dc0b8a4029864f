"""### Events: read exactly the versions that were committed

A producer commits to a table; its commit task emits an asset event that says which version it wrote. The consumer is scheduled on
that asset. It reads the changes of exactly the versions in its events, one transaction for each, and uses the identity of the
version (`dedupe_key`) as transaction key: an event that comes twice, a cleared run or a retry adds nothing.

The third Dag watches a table that others write (a streaming job, another team, any engine): a trigger looks at its log, and each
new version becomes an event.

Prerequisites: Java; for the watcher a running triggerer. The tables are made by the first commits.
"""

import os
import tempfile
from datetime import datetime

from airflow.sdk import Asset, AssetWatcher, dag, task, task_group

from airflow_delta import delta_transaction
from airflow_delta.assets.delta import commits_of_events, delta_asset, delta_asset_uri
from airflow_delta.triggers.delta import DeltaTableVersionTrigger

ROOT = os.environ.get("DELTA_EXAMPLES", f"{tempfile.gettempdir()}/delta-examples")
ORDERS, ORDER_CHANGES, LANDING = f"{ROOT}/orders", f"{ROOT}/order_changes", f"{ROOT}/landing"

orders = delta_asset(ORDERS)
landing = Asset(
    uri=delta_asset_uri(LANDING),
    watchers=[
        AssetWatcher(
            name="landing",
            trigger=DeltaTableVersionTrigger(LANDING, operation=["WRITE", "STREAMING UPDATE"], poll_interval=30),
        )
    ],
)


@dag(schedule=None, start_date=datetime(2026, 1, 1), catchup=False, doc_md=__doc__)
def delta_events_producer():
    with delta_transaction("orders", table=ORDERS, properties={"delta.enableChangeDataFeed": "true"}):

        @task.delta_stage
        def new_orders(spark, dag_run=None):
            first = int(dag_run.run_after.timestamp())
            return spark.range(first, first + 10).selectExpr("id", "id % 7 AS amount")

        new_orders()


@dag(schedule=[orders], start_date=datetime(2026, 1, 1), catchup=False, doc_md=__doc__)
def delta_events_consumer():
    @task
    def versions(triggering_asset_events) -> list[str]:
        """One key for each version: the events of a run may be several, and the same one may come twice."""
        return [f"order_changes/{commit['dedupe_key']}" for commit in commits_of_events(triggering_asset_events[orders])]

    @task_group
    def copy(key):
        with delta_transaction("version", table=ORDER_CHANGES, transaction_key=key, key_check="off"):

            @task.delta_stage
            def changes(spark, key):
                from airflow_delta.hooks.delta import DeltaHook
                from airflow_delta.spark.changes import read_change_plan
                from airflow_delta.table import plan_changes

                version = int(key.rpartition("/")[2])
                plan = plan_changes(DeltaHook().get_log(ORDERS), starting_version=version, ending_version=version)
                return read_change_plan(spark, plan).selectExpr(
                    "id", "amount", "_change_type AS change", f"{version}L AS version"
                )

            changes(key)

    copy.expand(key=versions())


@dag(schedule=[landing], start_date=datetime(2026, 1, 1), catchup=False, doc_md=__doc__)
def delta_events_watcher():
    @task
    def announce(triggering_asset_events) -> list[int]:
        commits = commits_of_events(triggering_asset_events[landing])
        for commit in commits:
            print(f"Version {commit['version']}: {commit['operation']}, {commit['num_records']} rows, {commit['partitions']}")
        return [commit["version"] for commit in commits]

    announce()


delta_events_producer()
delta_events_consumer()
delta_events_watcher()

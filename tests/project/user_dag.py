"""A Dag as a user with a strict type checker writes it; test_distribution.py checks it against the installed package."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import Context, dag, task

from airflow_delta import delta_transaction
from airflow_delta.assets.delta import delta_asset
from airflow_delta.decorators.delta_merge import delta_merge_task
from airflow_delta.decorators.delta_stage import delta_stage_task
from airflow_delta.decorators.delta_stream import delta_stream_task
from airflow_delta.hooks.delta import DeltaHook
from airflow_delta.operators.delete_update import DeltaDeleteOperator
from airflow_delta.operators.vacuum import DeltaVacuumOperator
from airflow_delta.sensors.delta import DeltaTableVersionSensor

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TABLE = delta_asset("orders", "lake")


def report(context: Context) -> None:
    """Report a failure."""


@dag(schedule=None, start_date=datetime(2026, 1, 1))
def orders() -> None:
    """Stages of several kinds, called, mapped and configured."""
    with delta_transaction("orders", table="orders", delta_conn_id="lake", partition_by=["day"]) as txn:
        gone = DeltaDeleteOperator(task_id="gone", predicate="cancelled")

        @delta_stage_task
        def plain(spark: SparkSession) -> DataFrame:
            return spark.range(1).toDF("id")

        @delta_stage_task(mode="overwrite", replace_where="day = '{{ ds }}'", retries=3)
        def added(spark: SparkSession, day: str, table: Callable[[str], DataFrame]) -> DataFrame:
            return table(f"day = '{day}'")

        @delta_merge_task(condition="target.id = source.id")
        def merged(spark: SparkSession) -> DataFrame:
            return spark.range(1).toDF("id")

        gone >> plain() >> added(day="2026-01-01") >> merged()
        added.override(task_id="mapped").expand(day=["2026-01-02", "2026-01-03"])

    @delta_stream_task(table="clicks", checkpoint_location="s3://lake/checkpoints/clicks")
    def clicks(spark: SparkSession) -> DataFrame:
        return spark.readStream.format("rate").load()

    @task
    def tell(result: Any) -> int:
        version: int = DeltaHook("lake").get_log("orders").snapshot_at(result["version"]).version
        return version

    came = DeltaTableVersionSensor(
        task_id="came", table="clicks", after_version="{{ params.version }}", poke_interval=30, mode="reschedule", soft_fail=True
    )
    cleaned = DeltaVacuumOperator(
        task_id="cleaned",
        table="clicks",
        retention_hours=timedelta(days=3),
        dry_run=True,
        max_commit_attempts="5",
        outlets=[],
        trigger_rule="all_done",
        retry_delay=30.0,
        on_failure_callback=report,
        task_display_name="Clean up",
    )
    by_table = DeltaDeleteOperator.partial(task_id="by_table", predicate="cancelled").expand(table=["orders", "returns"])
    came >> cleaned >> by_table
    tell(txn.result) >> clicks()


orders()

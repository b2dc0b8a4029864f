"""A streaming query as a task: takes what has arrived, and ends."""

from __future__ import annotations

import os
from datetime import datetime

from airflow.sdk import Asset, dag, task

TABLES = os.environ["DELTA_EXAMPLES"]


@dag(schedule=None, start_date=datetime(2026, 1, 1), catchup=False)
def stream():
    @task
    def arrive(dag_run=None):
        import pyarrow as pa
        import pyarrow.parquet as pq

        os.makedirs(f"{TABLES}/stream_source", exist_ok=True)
        day = dag_run.logical_date.day
        pq.write_table(pa.table({"id": [day * 10, day * 10 + 1]}), f"{TABLES}/stream_source/{day}.parquet")

    @task.delta_stream(
        table=f"{TABLES}/stream",
        checkpoint_location=f"{TABLES}/stream_checkpoint",
        outlets=[Asset("stream", uri=f"file://{TABLES}/stream")],
    )
    def events(spark, columns):
        return spark.readStream.schema("id LONG").parquet(f"{TABLES}/stream_source").selectExpr(*columns)

    arrive() >> events(["id", "id * 2 AS twice"])


stream()

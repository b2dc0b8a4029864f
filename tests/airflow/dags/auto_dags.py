"""Dags whose tasks choose their engine by the size of the work."""

from __future__ import annotations

import os
from datetime import datetime

from airflow.sdk import dag

from airflow_delta import delta_transaction
from airflow_delta.operators.delete_update import DeltaDeleteOperator, DeltaUpdateOperator
from airflow_delta.operators.merge import DeltaMergeOperator
from airflow_delta.operators.optimize import DeltaAutoCompactOperator, DeltaOptimizeOperator, DeltaReorgOperator

ROOT = os.environ["DELTA_EXAMPLES"]


@dag(schedule=None, start_date=datetime(2026, 1, 1), catchup=False)
def auto_engine():
    """Rows go and change, of which the worker cannot do the one, and what is left is compacted, ordered and purged."""
    table = f"{ROOT}/auto_engine"
    with delta_transaction("txn", table=table) as txn:
        DeltaDeleteOperator(task_id="gone", predicate="id = 1", engine="auto", max_memory="1 GiB")
    changed = DeltaUpdateOperator(
        task_id="changed", table=table, set={"v": "pmod(xxhash64(id), 7)"}, predicate="id = 2", engine="auto"
    )
    due = DeltaAutoCompactOperator(task_id="due", table=table, min_files=2, engine="auto")
    ordered = DeltaOptimizeOperator(task_id="ordered", table=table, z_order_by="id", engine="auto")
    alone = DeltaDeleteOperator(task_id="alone", table=table, predicate="id = 5", engine="auto")
    merge = {"table": table, "condition": "target.id = source.id", "engine": "auto"}
    merged = DeltaMergeOperator(task_id="merged", source="SELECT id, v + 10 AS v FROM {{ table }} WHERE id = 8", **merge)
    counted = DeltaMergeOperator(task_id="counted", source="SELECT max(id) AS id, max(v) + 1 AS v FROM {{ table }}", **merge)
    purge = DeltaReorgOperator(task_id="purge", table=table, engine="auto")
    txn >> changed >> merged >> counted >> due >> ordered >> alone >> purge


@dag(schedule=None, start_date=datetime(2026, 1, 1), catchup=False)
def auto_submitted():
    """What is too large for the worker is submitted."""
    DeltaDeleteOperator(
        task_id="submitted",
        table=f"{ROOT}/auto_submitted",
        predicate="id IN (1, 2)",
        engine="auto",
        spark_submit={"conf": {"spark.ui.enabled": "false"}},
    )


auto_engine()
auto_submitted()

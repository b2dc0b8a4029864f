"""Dags of MERGE: from a function, and submitted, with a source whose options are those of a connection."""

from __future__ import annotations

import os
from datetime import datetime

from airflow.sdk import dag, task

from airflow_delta.operators.merge import DeltaMergeOperator, when_matched_update, when_not_matched_insert

ROOT = os.environ["DELTA_EXAMPLES"]


@dag(schedule=None, start_date=datetime(2026, 1, 1), catchup=False)
def merges():
    table = f"{ROOT}/merges"

    @task.delta_merge(table=table, condition="t.id = s.id", target_alias="t", source_alias="s")
    def doubled(spark, table, low):
        assert spark is not None
        return table(f"id >= {low}").selectExpr("id", "v * 2 AS v")

    submitted = DeltaMergeOperator(
        task_id="submitted",
        table=table,
        source={
            "format": "csv",
            "path": f"{ROOT}/merges-{{{{ 40 + 2 }}}}.csv",
            "options": {"header": "true", "inferSchema": "true"},
            "conn_id": "landing",
        },
        condition="target.id = source.id",
        clauses=[when_matched_update({"v": "source.v"}), when_not_matched_insert()],
        spark_submit={"conf": {"spark.ui.enabled": "false"}},
    )
    doubled(low=8) >> submitted


merges()

"""Dags of table operations: several in one transaction, and each as a task of its own."""

from __future__ import annotations

import os
from datetime import datetime

from airflow.sdk import dag, task

from airflow_delta import delta_transaction
from airflow_delta.operators.delete_update import DeltaDeleteOperator, DeltaUpdateOperator
from airflow_delta.operators.merge import DeltaMergeOperator

ROOT = os.environ["DELTA_EXAMPLES"]
UPSERT = [
    {"kind": "matched", "action": "update", "set": {"v": "source.v"}},
    {"kind": "notMatched", "action": "insert", "set": None},
]


@dag(schedule=None, start_date=datetime(2026, 1, 1), catchup=False)
def delete_append_merge():
    """Three operations that see each other's work and become one version."""
    with delta_transaction("txn", table=f"{ROOT}/delete_append_merge", create=False):
        gone = DeltaDeleteOperator(task_id="gone", predicate="id % 2 = 0")

        @task.delta_stage(after=[gone.output])
        def more(spark, table):
            assert {row.id for row in table().collect()} == {1, 3, 5, 7, 9}
            return spark.sql("SELECT id, 0L AS v FROM range(20, 23)")

        added = more()
        DeltaMergeOperator(
            task_id="merged",
            after=[gone.output, added],
            source="SELECT id, 100L AS v FROM VALUES (1L), (2L), (20L) AS t(id)",
            condition="target.id = source.id",
            clauses=UPSERT,
        )


@dag(schedule=None, start_date=datetime(2026, 1, 1), catchup=False)
def delete_and_update():
    """The same rows deleted and updated, and nothing says which comes first."""
    with delta_transaction("txn", table=f"{ROOT}/delete_and_update", create=False):
        DeltaDeleteOperator(task_id="gone", predicate="id % 2 = 0")
        DeltaUpdateOperator(task_id="changed", predicate="id < 5", set={"v": "0"})


@dag(schedule=None, start_date=datetime(2026, 1, 1), catchup=False)
def delete_alone():
    """A task that begins, stages and commits; submitted to Spark with the application that the provider ships."""
    table = f"{ROOT}/delete_alone"
    here = DeltaDeleteOperator(task_id="here", table=table, predicate="id = 1")
    submitted = DeltaDeleteOperator(
        task_id="submitted", table=table, predicate="id = 2", spark_submit={"conf": {"spark.ui.enabled": "false"}}
    )
    here >> submitted


@dag(schedule=None, start_date=datetime(2026, 1, 1), catchup=False)
def mapped_operations():
    """A DELETE for each partition that goes and a MERGE for each that changes, on top of these: one version."""
    with delta_transaction("txn", table=f"{ROOT}/mapped_operations", create=False):
        gone = DeltaDeleteOperator.partial(task_id="gone").expand(predicate=["part = 0", "part = 1"])
        DeltaMergeOperator.partial(task_id="merged", after=[gone.output], clauses=UPSERT[:1]).expand_kwargs(
            [
                {
                    "source": f"SELECT {part + 4}L AS id, 100L AS v",
                    "condition": f"target.part = {part} AND target.id = source.id",
                }
                for part in (2, 3)
            ]
        )


delete_append_merge()
delete_and_update()
mapped_operations()
delete_alone()

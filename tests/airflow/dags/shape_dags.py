"""Dags whose tasks hand on outputs in unusual ways."""

from __future__ import annotations

import os
from datetime import datetime

import pyarrow as pa
from airflow.sdk import dag, task

from airflow_delta import delta_transaction
from airflow_delta.operators.transaction import DeltaCommitOperator, DeltaStartTransactionOperator

ROOT = os.environ["DELTA_EXAMPLES"]


@task.delta_stage(engine="arrow")
def one(number):
    return pa.table({"id": pa.array([number], pa.int64())})


def combined(name, combine):
    """Return a Dag whose commit gets what a function makes of the outputs of two mapped stages."""

    @dag(f"combined_{name}", schedule=None, start_date=datetime(2026, 1, 1), catchup=False)
    def combined_outputs():
        start = DeltaStartTransactionOperator(task_id="start", table=f"{ROOT}/combined_{name}")
        first, second = (
            one.override(task_id=task_id, transaction=start.output).expand(number=numbers)
            for task_id, numbers in (("first", [1, 2]), ("second", [3]))
        )
        DeltaCommitOperator(task_id="commit", transaction=start.output, staged=combine(first, second))

    return combined_outputs()


combined("concat", lambda first, second: first.concat(second))
combined("zip", lambda first, second: first.zip(second, fillvalue=None))
combined("map", lambda first, second: [first.map(lambda report: {**report}), second])
combined("lost", lambda first, second: [first.map(lambda report: report if report["mapIndex"] else None), second])


@dag(schedule=None, start_date=datetime(2026, 1, 1), catchup=False)
def combined_after():
    """A stage that builds on two mapped ones."""
    with delta_transaction("txn", table=f"{ROOT}/combined_after"):
        first, second = one.override(task_id="first").expand(number=[1, 2]), one.override(task_id="second").expand(number=[3])
        one.override(task_id="last", mode="overwrite", after=first.concat(second))(9)


@dag(schedule=None, start_date=datetime(2026, 1, 1), catchup=False)
def wrong_outputs():
    """Tasks that get something other than they need."""
    start = DeltaStartTransactionOperator(task_id="start", table=f"{ROOT}/wrong_outputs")

    @task
    def something():
        return {"rows": 1}

    one.override(task_id="text", transaction="{{ ti.xcom_pull('start') }}")(1).operator.set_upstream(start)
    DeltaCommitOperator(task_id="commit", transaction=start.output, staged=something())

    with delta_transaction("txn", table=f"{ROOT}/wrong_outputs"):

        @task.delta_stage(engine="arrow", retries=1)
        def dated(ds):
            return pa.table({"day": [ds]})

        dated()


combined_after()
wrong_outputs()

"""Dags that the tests of this folder run."""

from __future__ import annotations

import os
from datetime import datetime

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import CronDataIntervalTimetable, dag, task

from airflow_delta import delta_transaction
from airflow_delta.operators.stage import DeltaStageFilesOperator

ONCE = {"start_date": datetime(2026, 1, 1), "params": {"values": [1, 2, 3]}}


def stage(txn, **arguments):
    @task
    def write(handle, params):
        import pyarrow as pa
        import pyarrow.parquet as pq

        path = os.path.join(handle["stagingPath"].removeprefix("file://"), "rows")
        os.makedirs(path, exist_ok=True)
        pq.write_table(pa.table({"id": pa.array(params["values"], pa.int64())}), f"{path}/part-0.parquet")
        return "rows"

    return DeltaStageFilesOperator(task_id="stage", path=write(txn.transaction), **arguments)


@dag(schedule=None, **ONCE)
def appended():
    with delta_transaction("txn", table="numbers", default_args={"retries": 1}) as txn:
        stage(txn)


@dag(schedule=None, **ONCE)
def not_retried():
    with delta_transaction("txn", table="numbers") as txn:
        stage(txn)


@dag(schedule=None, **ONCE)
def doubled():
    """Not exactly once: what a test should find."""

    @task(retries=1)
    def write():
        import pyarrow as pa
        from deltalake import write_deltalake

        write_deltalake(f"{os.environ['LAKE']}/numbers", pa.table({"id": pa.array([1], pa.int64())}), mode="append")

    write()


@dag(schedule=CronDataIntervalTimetable("@monthly", timezone="UTC"), **ONCE)
def monthly():
    @task
    def refuse(data_interval_start):
        raise ValueError(f"no rows of {data_interval_start:%Y-%m-%d}")

    refuse()


@dag(schedule=None, **ONCE)
def approved():
    with delta_transaction("txn", table="numbers") as txn:
        stage(txn) >> ApprovalOperator(task_id="approve", subject="Publish?")


@dag(schedule=None, **ONCE)
def mapped():
    @task(retries=1)
    def echo(value):
        return value * 10

    echo.expand(value=[1, 2])


@dag(schedule=None, **ONCE)
def handed_on():
    @task(multiple_outputs=False)
    def give():
        return {"pair": (1, 2), "text": '{"a": 1}'}

    @task
    def text():
        return '{"a": 1}'

    give()
    text()


appended()
not_retried()
doubled()
monthly()
approved()
mapped()
handed_on()

"""Dags on a table of a catalog: the same operators as on any other, only the table's name differs."""

from __future__ import annotations

import os
from datetime import datetime

import pyarrow as pa
from airflow.sdk import DAG, task

from airflow_delta import delta_transaction
from airflow_delta.contract.changes import AddColumns, Column, SetProperties
from airflow_delta.operators.alter import DeltaAlterTableOperator
from airflow_delta.operators.create import DeltaCreateTableOperator
from airflow_delta.operators.sql import DeltaStageSqlOperator
from airflow_delta.operators.vacuum import DeltaVacuumOperator

TABLE = os.environ.get("CATALOG_TABLE", "main.s.t")
GIVEN = {"table": TABLE, "delta_conn_id": "unity"}

with DAG("catalog_create", start_date=datetime(2026, 1, 1), schedule=None):
    DeltaCreateTableOperator(
        task_id="create",
        schema="id BIGINT, day DATE",
        partition_by=["day"],
        mode="create_if_not_exists",
        properties={"delta.enableChangeDataFeed": "true"},
        **GIVEN,
    )

RETRIED = {"default_args": {"retries": 1}}

with DAG("catalog_append", start_date=datetime(2026, 1, 1), schedule=None, **RETRIED), delta_transaction("load", **GIVEN):

    @task.delta_stage(engine="arrow")
    def first():
        return pa.table({"id": [1, 2], "day": pa.array([datetime(2026, 1, 1).date()] * 2)})

    @task.delta_stage(engine="arrow")
    def second(table):
        assert table.read().num_rows == 0
        return pa.table({"id": [3], "day": pa.array([datetime(2026, 1, 2).date()])})

    first()
    second()

with DAG("catalog_alter", start_date=datetime(2026, 1, 1), schedule=None, **RETRIED):
    alter = DeltaAlterTableOperator(
        task_id="alter", changes=[AddColumns([Column("country", "STRING")]), SetProperties({"team": "sales"})], **GIVEN
    )

    with delta_transaction("more", **GIVEN) as more:

        @task.delta_stage(engine="arrow", merge_schema=True)
        def amounts():
            return pa.table({"id": [4], "amount": [1.5]})

        amounts()

    alter >> more

with DAG("catalog_vacuum", start_date=datetime(2026, 1, 1), schedule=None):
    DeltaVacuumOperator(task_id="vacuum", **GIVEN)

NEW = {"partition_by": "day", "properties": {"delta.enableChangeDataFeed": "true"}, **GIVEN}

with DAG("catalog_new", start_date=datetime(2026, 1, 1), schedule=None, **RETRIED), delta_transaction("load", **NEW):

    @task.delta_stage(engine="arrow", task_id="first")
    def first_of_new():
        return pa.table({"id": [1, 2], "day": pa.array([datetime(2026, 1, 1).date()] * 2)})

    @task.delta_stage(engine="arrow", task_id="second")
    def second_of_new():
        return pa.table({"id": [3], "day": pa.array([datetime(2026, 1, 2).date()])})

    first_of_new()
    second_of_new()

with DAG("catalog_new_by_spark", start_date=datetime(2026, 1, 1), schedule=None), delta_transaction("load", **NEW):
    DeltaStageSqlOperator(task_id="rows", sql="SELECT id, DATE'2026-01-02' AS day FROM range(1, 4)")

with DAG("catalog_missing", start_date=datetime(2026, 1, 1), schedule=None), delta_transaction("load", create=False, **GIVEN):

    @task.delta_stage(engine="arrow")
    def rows():
        return pa.table({"id": [1]})

    rows()

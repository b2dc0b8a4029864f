"""Dags whose stages are SQL: a file, mapped tasks, and a MERGE of a file that reads the table."""

from __future__ import annotations

import os
from datetime import datetime

from airflow.sdk import dag

from airflow_delta import delta_transaction
from airflow_delta.operators.merge import DeltaMergeOperator
from airflow_delta.operators.sql import DeltaStageSqlOperator

ROOT = os.environ["DELTA_EXAMPLES"]


@dag(schedule=None, start_date=datetime(2026, 1, 1), catchup=False)
def sql_file():
    """The table is read at the version of the transaction; its rows decide the new ones."""
    with delta_transaction("txn", table=f"{ROOT}/sql_file", create=False):
        DeltaStageSqlOperator(task_id="daily", sql="sql/daily.sql", parameters={"rows": 3})


@dag(schedule=None, start_date=datetime(2026, 1, 1), catchup=False)
def sql_mapped():
    """A query for each part; the file is among them, and alone in reading the table, or neither could come first."""
    with delta_transaction("txn", table=f"{ROOT}/sql_mapped", create=False):
        DeltaStageSqlOperator.partial(task_id="parts", parameters={"rows": 1}).expand(
            sql=["sql/daily.sql", "SELECT 100L + :rows AS id, DATE'2026-01-01' AS day, 'new' AS note"]
        )


@dag(schedule=None, start_date=datetime(2026, 1, 1), catchup=False)
def sql_merge():
    """The source of a MERGE is a file that reads the table."""
    DeltaMergeOperator(
        task_id="merged", table=f"{ROOT}/sql_merge", source="sql/merge_source.sql", condition="target.id = source.id"
    )


sql_file()
sql_mapped()
sql_merge()

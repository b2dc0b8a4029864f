"""Dags that give the pages something to show: appends, a race that was won, a conflict, and a transaction that is left open."""

from __future__ import annotations

import os

from airflow.sdk import dag, task

from airflow_delta import delta_transaction
from airflow_delta.operators.stage import DeltaStageFilesOperator
from airflow_delta.operators.transaction import DeltaStartTransactionOperator
from ui.staged import MANUAL, write_parquet

ROOT = os.environ["UI_TABLES"]


def transaction(name: str, meanwhile: str | None = None, mode: str = "append") -> None:
    """Stage some rows of a table and commit them.

    :param meanwhile: what another writer does before the commit: ``append`` or ``delete``.
    """
    with delta_transaction("txn", table=f"{ROOT}/{name}") as txn:

        @task
        def write(handle, **context):
            return write_parquet(handle, "rows", 1000 * (1 + context["logical_date"].day % 7))

        stage = DeltaStageFilesOperator(task_id="stage", mode=mode, path=write(txn.transaction))
        if meanwhile:

            @task
            def somebody_else(handle, what):
                import deltalake
                import pyarrow as pa

                path = handle["table"].removeprefix("file://")
                if what == "delete":
                    deltalake.DeltaTable(path).delete()
                    return
                for _ in range(3):
                    deltalake.write_deltalake(path, pa.table({"id": pa.array([1], pa.int64())}), mode="append")

            stage >> somebody_else(txn.transaction, meanwhile)


@dag(schedule=None, **MANUAL)
def sales():
    """Append some rows."""
    transaction("sales")


@dag(schedule=None, **MANUAL)
def raced():
    """Append while others do."""
    transaction("sales", "append")


@dag(schedule=None, **MANUAL)
def conflict():
    """Overwrite what another writer deletes meanwhile."""
    transaction("sales", "delete", mode="overwrite")


@dag(schedule=None, **MANUAL)
def hidden_costs():
    """A Dag that only administrators may see."""
    transaction("costs")


@dag(schedule=None, **MANUAL)
def left_open():
    """Stage and never commit."""
    start = DeltaStartTransactionOperator(task_id="start", table=f"{ROOT}/sales")

    @task
    def write(handle):
        return write_parquet(handle, "rows", 50_000)

    write(start.output)


sales()
raced()
conflict()
hidden_costs()
left_open()

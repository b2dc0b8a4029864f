"""Table operations in whole Dag runs: several as one version, each as a transaction of its own."""

from __future__ import annotations

import gc
from pathlib import Path

import deltalake
import pytest

from support.table import Table

pytestmark = [pytest.mark.airflow, pytest.mark.spark]


def made(tables: str, name: str, spark, rows: str = "SELECT id, id AS v FROM range(10)") -> Table:
    table = Table(Path(tables) / name, spark)
    table.write(rows)
    return table


def test_delete_append_and_merge_are_one_version(run_dag, tables, spark):
    table = made(tables, "delete_append_merge", spark)
    run = run_dag("delete_append_merge")
    assert run.state == "success"
    result = run.xcom("txn.commit")
    assert (result["version"], result["readVersion"], result["operation"]) == (1, 0, "WRITE")
    kept = [(3, 3), (5, 5), (7, 7), (9, 9)]
    assert table.rows() == sorted([*kept, (1, 100), (2, 100), (20, 100), (21, 0), (22, 0)], key=repr)
    # What one stage wrote and a later one replaced never got into the log.
    actions = table.actions(1)
    staged = {str(path.relative_to(table.path)) for path in table.path.rglob("staged/**/*.parquet")}
    assert {action["path"] for action in actions["add"]} < staged
    assert {action["path"] for action in actions["remove"]} == {action["path"] for action in table.actions(0)["add"]}


@pytest.mark.slow
def test_stages_that_touch_the_same_rows_are_refused(run_dag, tables, spark):
    table = made(tables, "delete_and_update", spark)
    run = run_dag("delete_and_update")
    assert run.state == "failed"
    assert run.state_of("txn.commit") == "failed"
    assert len(table.versions()) == 1
    assert deltalake.DeltaTable(table.path).version() == 0


@pytest.mark.slow
def test_mapped_operations_are_one_version(run_dag, tables, spark):
    table = Table(Path(tables) / "mapped_operations", spark)
    table.write("SELECT id, id AS v, CAST(id % 4 AS INT) AS part FROM range(8)", begin={"partition_by": ["part"]})
    run = run_dag("mapped_operations")
    assert run.state == "success", run.tasks
    assert [run.xcom("txn.merged", index)["after"] for index in range(2)] == [
        [f"{gone['stage']}/{gone['attempt']}" for gone in (run.xcom("txn.gone", index) for index in range(2))]
    ] * 2
    assert table.rows() == [(2, 2, 2), (3, 3, 3), (6, 100, 2), (7, 100, 3)]
    assert len(table.versions()) == 2


# The garbage collector warns of a pipe that is still open, as Airflow's SparkSubmitHook leaves it.
@pytest.mark.slow
def test_a_task_that_is_a_transaction_of_its_own(run_dag, tables, spark):
    table = made(tables, "delete_alone", spark)
    run = run_dag("delete_alone")
    gc.collect()
    assert run.state == "success"
    assert [run.xcom(task)["version"] for task in ("here", "submitted")] == [1, 2]
    assert [row[0] for row in table.rows()] == [0, 3, 4, 5, 6, 7, 8, 9]
    again = run_dag("delete_alone")  # the same run, as after clearing it
    gc.collect()
    assert again.state == "success"
    assert again.xcom("submitted")["committedBefore"]
    assert len(table.versions()) == 3

"""OPTIMIZE, REORG and auto compaction in whole Dag runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.table import Table

pytestmark = [pytest.mark.airflow, pytest.mark.spark]


def made(tables: str, name: str, spark) -> Table:
    table = Table(Path(tables) / name, spark)
    for n in range(3):
        table.write(f"SELECT {n}L AS id, 0L AS v")
    return table


@pytest.mark.slow
def test_without_an_identity(run_dag, tables, spark):
    table = made(tables, "optimize_alone", spark)
    run = run_dag("optimize_alone")
    assert run.state == "success"
    first, again, purge = (run.xcom(task) for task in ("first", "again", "purge"))
    assert (first["version"], first["metrics"]["numRemovedFiles"], first["commits"][0]["appId"]) == (3, 3, None)
    assert (again["version"], again["numBins"]) == (4, 1)
    assert (purge["version"], purge["commits"], purge["numConsidered"]) == (None, [], 1)
    assert table.info(3)["tags"]["airflow.taskId"] == "first"
    assert [row[0] for row in table.rows()] == [0, 1, 2]


def test_as_a_stage_and_nothing_to_compact_afterwards(run_dag, tables, spark):
    table = made(tables, "append_and_optimize", spark)
    run = run_dag("append_and_optimize")
    assert run.state == "success"
    assert (run.xcom("txn.commit")["version"], run.xcom("txn.commit")["numRemovedFiles"]) == (3, 3)
    assert run.xcom("compacted") is None
    assert [row[0] for row in table.rows()] == [0, 1, 2, 99]

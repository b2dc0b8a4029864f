"""MERGE in a whole Dag run: ``@task.delta_merge``, and a submitted one."""

from __future__ import annotations

from pathlib import Path

import pytest

from commands.flow import Table

pytestmark = [pytest.mark.airflow, pytest.mark.spark]


def test_merges_of_a_function_and_of_sql(run_dag, tables, spark):
    table = Table(Path(tables) / "merges", spark)
    table.write("SELECT id, id AS v FROM range(10)")
    run = run_dag("merges")
    assert run.state == "success"
    assert [run.xcom(name)["version"] for name in ("doubled", "submitted")] == [1, 2]
    assert run.xcom("submitted")["operation"] == "MERGE"
    assert table.rows() == sorted([*((i, i) for i in range(8)), (8, 16), (9, 42), (10, 42)], key=repr)

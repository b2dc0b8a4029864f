"""MERGE in a whole Dag run: ``@task.delta_merge``, and a submitted one."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from airflow_delta.operators.merge import DeltaMergeOperator
from commands.flow import Table

pytestmark = [pytest.mark.airflow, pytest.mark.spark]


# Airflow's SparkSubmitHook leaves the pipe of spark-submit to the garbage collector, which is why that runs here.
@pytest.mark.filterwarnings("ignore:unclosed file <_io.TextIOWrapper:ResourceWarning")
def test_merges_of_a_function_and_of_sql(run_dag, tables, spark):
    table = Table(Path(tables) / "merges", spark)
    table.write("SELECT id, id AS v FROM range(10)")
    run = run_dag("merges")
    gc.collect()
    assert run.state == "success"
    assert [run.xcom(name)["version"] for name in ("doubled", "submitted")] == [1, 2]
    assert run.xcom("submitted")["operation"] == "MERGE"
    assert table.rows() == sorted([*((i, i) for i in range(8)), (8, 16), (9, 42), (10, 42)], key=repr)


def test_a_function_as_source(spark):
    """Airflow calls what it finds in a template field: the function must not be in one."""
    operator = DeltaMergeOperator(task_id="merged", table="t", condition="true", source=lambda session: session.range(1))
    operator.render_template_fields({})
    assert operator.source(spark).collect() == [(0,)]

"""DeltaAlterTableOperator in whole Dag runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.table import Table

pytestmark = [pytest.mark.airflow, pytest.mark.spark]


def made(tables: str, name: str, spark) -> Table:
    table = Table(Path(tables) / name, spark)
    table.write("SELECT id, id AS v FROM range(3)")
    return table


def test_changes_and_rows_are_one_version(run_dag, tables, spark):
    table = made(tables, "alter_and_append", spark)
    run = run_dag("alter_and_append")
    assert run.state == "success"
    assert run.xcom("txn.altered")["mode"] == "alter"
    assert run.xcom("txn.commit")["version"] == 1
    name = table.log().update().schema.names[-1]
    assert name == f"c_{run.run_id[:6]}" if hasattr(run, "run_id") else name.startswith("c_")
    assert table.rows() == [(0, 0, None), (1, 1, None), (2, 2, None), (77, 0, 5)]
    assert table.log().update().metadata.configuration["delta.constraints.known"] == "id >= 0"


@pytest.mark.slow
def test_a_change_of_its_own_is_made_once(run_dag, tables, spark):
    table = made(tables, "alter_alone", spark)
    assert run_dag("alter_alone").xcom("altered")["operation"] == "SET TBLPROPERTIES"
    again = run_dag("alter_alone")
    assert again.xcom("altered")["committedBefore"]
    assert table.log().update().metadata.configuration["owner"] == "alter_alone"
    assert len(table.versions()) == 2

"""DeltaCreateTableOperator and options of stages in whole Dag runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.table import Table

pytestmark = [pytest.mark.airflow, pytest.mark.spark]


def test_a_table_and_its_rows_are_one_version(run_dag, tables):
    table = Table(Path(tables) / "create_and_append")
    run = run_dag("create_and_append")
    assert run.state == "success"
    assert run.xcom("txn.commit")["operation"] == "CREATE OR REPLACE TABLE AS SELECT"
    assert run.xcom("corrected.commit")["version"] == 1
    assert sorted(row[1:] for row in table.rows()) == [(0, 1), (1, 2), (2, 3), (3, 4)]
    assert len({row[0] for row in table.rows()}) == 4
    assert table.log().update().metadata.description == "of create_and_append"


@pytest.mark.slow
def test_a_table_that_exists_is_left_alone(run_dag, tables):
    table = Table(Path(tables) / "create_alone")
    assert run_dag("create_alone").xcom("made")["operation"] == "CREATE TABLE"
    again = run_dag("create_alone").xcom("made")
    assert (again["version"], again["committedBefore"]) == (0, True)
    assert len(table.versions()) == 1

"""Stages whose Spark work is a job of the author's choice, in whole Dag runs.

The Spark of a job may be another than the worker's (:mod:`support.job_spark`).
"""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from support.job_spark import spark_version
from support.table import Table

pytestmark = [pytest.mark.airflow, pytest.mark.spark]


def made(tables: str, name: str, spark) -> Table:
    table = Table(Path(tables) / name, spark)
    for n in range(3):
        table.write(f"SELECT {n}L AS id, 0L AS v")
    return table


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Airflow's hook leaves a pipe open
def test_operations_on_top_of_each_other_by_jobs(run_dag, tables, spark):
    table = made(tables, "job_operations", spark)
    run = run_dag("job_operations")
    assert run.state == "success"
    assert run.xcom("txn.commit")["version"] == 3
    assert table.rows() == [(1, 1), (2, 20), (3, 30)]


@pytest.mark.slow
def test_a_program_that_a_service_runs_twice_at_once_stages_once(run_dag, tables, spark):
    table = made(tables, "job_program", spark)
    run = run_dag("job_program")
    assert run.state == "success"
    assert run.xcom("txn.load.collect")["numRecords"] == 3
    assert table.rows() == [(10, 0), (11, 0), (12, 0)]
    footers = [pq.read_metadata(table.path / path).metadata[b"org.apache.spark.version"] for path in table.live()]
    assert {text.decode() for text in footers} == {spark_version()}


@pytest.mark.slow
def test_without_work_the_job_is_skipped(run_dag, tables, spark):
    table = made(tables, "job_for_nothing", spark)
    run = run_dag("job_for_nothing")
    assert run.state == "success"
    assert run.state_of("txn.delete.plan") == run.state_of("txn.delete.run") == "skipped"
    assert run.state_of("txn.delete.collect") == run.state_of("txn.compact.run") == "success"
    assert run.xcom("txn.commit")["numRemovedFiles"] == 3
    assert table.rows() == [(0, 0), (1, 0), (2, 0)]


def test_a_job_that_ran_nothing_is_told(run_dag, tables, spark, capfd, caplog):
    table = made(tables, "job_without_work", spark)
    run = run_dag("job_without_work")
    assert run.state == "failed"
    assert run.state_of("txn.delete.collect") == "failed"
    assert "ended without staging anything" in capfd.readouterr().out + caplog.text
    assert table.versions() == [0, 1, 2]

"""Stages whose Spark work is a job of the author's choice, in whole Dag runs.

The Spark of a job may be another than the worker's (:mod:`support.job_spark`).
"""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from airflow_delta.contract.check_records import checks_of
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
def test_a_history_and_its_audit_by_jobs(run_dag, tables, spark):
    """The commit waits for the audit's last task, whose report is what its log entry says of the check."""
    table = Table(Path(tables) / "job_history", spark)
    since, until = date(2026, 1, 1), date(2026, 1, 5)
    row = f"SELECT {{}}L AS id, 'a' AS v, DATE'{since}' AS valid_from, CAST(NULL AS DATE) AS valid_to, true AS is_current"
    table.write(f"{row.format(1)} UNION ALL {row.format(2)}")
    run = run_dag("job_history")
    assert run.state == "success", run.tasks
    assert {row[:4] for row in table.rows()} == {
        (key, *version) for key in (1, 2) for version in (("a", since, until), ("a!", until, None))
    }
    report = run.xcom("txn.audit.collect")
    assert [check["name"] for check in report["checks"]] == ["rows_change", "one is current"]
    records = {each.task_id: each for each in checks_of(table.info(1)["tags"]).checks}
    assert (records["txn.audit.collect"].kind, records["txn.audit.collect"].result) == ("audit", "passed")
    assert (records["txn.audit.collect"].version, records["txn.audit.collect"].definition) == (0, report["definition"])
    assert records["txn.audit.collect"].held == ("rows_change",)
    assert {name for name, each in records.items() if each.kind == "task"} == {"txn.audit.plan", "txn.audit.run"}


@pytest.mark.slow
def test_rows_of_a_query_and_of_files_by_jobs(run_dag, tables, spark):
    table = made(tables, "job_sources", spark)
    files = Path(tables) / "job_source_files"
    files.mkdir()
    (files / "a.csv").write_text("id,v\n20,5\n")
    run = run_dag("job_sources")
    assert run.state == "success", run.tasks
    assert table.rows() == [(0, 0), (1, 0), (12, 0), (2, 0), (20, 5)]
    assert run.xcom("txn.files.collect")["loads"]


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
    assert "left no report at" in capfd.readouterr().out + caplog.text
    assert table.versions() == [0, 1, 2]

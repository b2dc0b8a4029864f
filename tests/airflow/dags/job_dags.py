"""Dags whose Spark work is done by a job of the author's choice, here spark-submit in a function."""

from __future__ import annotations

import os
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import dag, task

from airflow_delta import delta_job, delta_transaction
from airflow_delta.operators.audit import DeltaAuditOperator
from airflow_delta.operators.copy_into import DeltaCopyIntoOperator
from airflow_delta.operators.delete_update import DeltaDeleteOperator, DeltaUpdateOperator
from airflow_delta.operators.merge import DeltaMergeOperator
from airflow_delta.operators.optimize import DeltaOptimizeOperator
from airflow_delta.operators.scd2 import DeltaScd2MergeOperator
from airflow_delta.operators.sql import DeltaStageSqlOperator
from support.job_spark import job_environment, spark_home

ROOT = os.environ["DELTA_EXAMPLES"]
PROGRAM = str(Path(__file__).parents[1] / "jobs" / "with_package.py")


def submit(application, arguments, *more):
    """Run a program as a service does: with Python and PySpark, and none of this process's modules."""
    command = [spark_home() / "bin" / "spark-submit", "--master", "local[1]", "--conf", "spark.ui.enabled=false"]
    with tempfile.TemporaryDirectory() as home:
        subprocess.run(
            [*command, *more, application, *arguments], env=job_environment(Path(home)), cwd=home, check=True, timeout=600
        )


@dag(schedule=None, start_date=datetime(2026, 1, 1), catchup=False)
def job_operations():
    """Four stages of one transaction by four jobs: the last one by an operator of Airflow's, one after the other's stage."""
    with delta_transaction("txn", table=f"{ROOT}/job_operations"):
        with delta_job("delete", DeltaDeleteOperator, predicate="id = 0") as delete:
            task(submit, task_id="run")(delete.application, delete.arguments)
        with delta_job("update", DeltaUpdateOperator, set={"v": "v + 1"}, predicate="id = 1", after=[delete.staged]) as update:
            task(submit, task_id="run")(update.application, update.arguments)
        delete.collect >> update.plan
        with delta_job(
            "merge",
            DeltaMergeOperator,
            condition="target.id = source.id",
            source="SELECT 2L AS id, 20L AS v UNION ALL SELECT 3L, 30L",
            after=[delete.staged, update.staged],
        ) as merge:
            SparkSubmitOperator(
                task_id="run",
                conn_id="spark_default",
                application=merge.application,
                application_args=merge.arguments,
                conf={"spark.ui.enabled": "false"},
            )
        update.collect >> merge.plan


@dag(schedule=None, start_date=datetime(2026, 1, 1), catchup=False)
def job_program():
    """A program of the author's reads the table, and a service runs it twice at once."""
    with (
        delta_transaction("txn", table=f"{ROOT}/job_program"),
        delta_job("load", mode="overwrite", read=True) as job,
    ):

        @task
        def run(arguments):
            with ThreadPoolExecutor() as pool:
                list(pool.map(lambda _: submit(PROGRAM, arguments), range(2)))

        run(job.arguments)


@dag(schedule=None, start_date=datetime(2026, 1, 1), catchup=False)
def job_for_nothing():
    """Nothing to delete: the job is skipped, and the transaction commits what another stage has."""
    with delta_transaction("txn", table=f"{ROOT}/job_for_nothing"):
        with delta_job("delete", DeltaDeleteOperator, predicate="id > 1000") as delete:
            task(submit, task_id="run")(delete.application, delete.arguments)
        with delta_job("compact", DeltaOptimizeOperator) as compact:
            task(submit, task_id="run")(compact.application, compact.arguments)


@dag(schedule=None, start_date=datetime(2026, 1, 1), catchup=False)
def job_without_work():
    """The operator ends well, and has run nothing."""
    with delta_transaction("txn", table=f"{ROOT}/job_without_work"), delta_job("delete", DeltaDeleteOperator, predicate="id = 0"):

        @task
        def run():
            pass

        run()


@dag(schedule=None, start_date=datetime(2026, 1, 1), catchup=False)
def job_history():
    """Versions of a source that reads the table, and an audit of them by another job."""
    with delta_transaction("txn", table=f"{ROOT}/job_history"):
        with delta_job(
            "versions",
            DeltaScd2MergeOperator,
            source="SELECT id, v || '!' AS v, DATE'2026-01-05' AS at FROM {{ table }}",
            keys="id",
            effective_at="at",
        ) as versions:
            task(submit, task_id="run")(versions.application, versions.arguments)
        with delta_job(
            "audit",
            DeltaAuditOperator,
            checks={"one is current": "SELECT count(*) = 2, count(*) AS n FROM result WHERE is_current"},
            rows_change={"max_ratio": 2},
        ) as audit:
            task(submit, task_id="run")(audit.application, audit.arguments)


@dag(schedule=None, start_date=datetime(2026, 1, 1), catchup=False)
def job_sources():
    """Rows of a query, and of files."""
    with delta_transaction("txn", table=f"{ROOT}/job_sources"):
        with delta_job("query", DeltaStageSqlOperator, sql="SELECT id + 10 AS id, v FROM {{ table }}", where="id > 1") as query:
            task(submit, task_id="run")(query.application, query.arguments)
        with delta_job(
            "files", DeltaCopyIntoOperator, source=f"{ROOT}/job_source_files", format="csv", format_options={"header": "true"}
        ) as files:
            task(submit, task_id="run")(files.application, files.arguments)


job_operations()
job_history()
job_sources()
job_program()
job_for_nothing()
job_without_work()

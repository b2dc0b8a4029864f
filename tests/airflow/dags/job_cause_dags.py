"""Jobs on a service that does what a test says, by files beside the table; its drivers run in the tests' own Spark session.

The row that a driver stages is its number.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.providers.standard.triggers.temporal import TimeDeltaTrigger
from airflow.sdk import BaseOperator, ResumableJobMixin, TriggerRule, dag, task, task_group

from airflow_delta import delta_job, delta_transaction
from airflow_delta.operators.delete_update import DeltaDeleteOperator

ROOT = os.environ["DELTA_EXAMPLES"]
TABLE = "{{ dag_run.conf['table'] }}"


def driver(arguments: list[str], table: str, *, column: str = "id") -> None:
    from pyspark.sql import SparkSession

    from airflow_delta.spark import delta_stage

    number = one_more(table, "drivers")
    spark, hook = SparkSession.builder.getOrCreate(), sys.excepthook
    try:
        stage = delta_stage(spark, arguments[arguments.index("--delta-request") + 1])
        stage.write(spark.sql(f"SELECT {number}L AS {column}"))
    finally:
        sys.excepthook = hook


def service(arguments: list[str], table: str) -> None:
    """Run a job as the next line of what is to do says; by default, as it should be."""
    todo = Path(f"{table}.todo")
    what, *later = json.loads(todo.read_text()) if todo.exists() else ["stages"]
    todo.write_text(json.dumps(later or ["stages"]))
    if what in ("fails", "fails unnoticed"):
        try:
            driver(arguments, table, column="other")
        except Exception:
            if what == "fails":
                raise RuntimeError("the job ended as FAILED: see the console") from None
    elif what != "crashes" and what != "runs nothing":
        driver(arguments, table)
    if what == "twice":
        driver(arguments, table)
    if what in ("crashes", "loses the worker"):
        raise RuntimeError("the job could not be followed")


def one_more(table: str, name: str) -> int:
    path = Path(f"{table}.{name}")
    number = 1 + (int(path.read_text()) if path.exists() else 0)
    path.write_text(str(number))
    return number


@task(task_id="run")
def run_job(arguments, _=None, dag_run=None):
    service(arguments, dag_run.conf["table"])


def jobs(dag_id: str, run: Callable[[Any], Any], **transaction: Any) -> None:
    @dag(dag_id=dag_id, schedule=None, start_date=datetime(2026, 1, 1), catchup=False)
    def made():
        with delta_transaction("txn", table=TABLE, **transaction), delta_job("load") as job:
            run(job)

    made()


class DeferredJob(BaseOperator):
    """Waits for its job in a trigger."""

    template_fields = ("arguments", "table")

    def __init__(self, *, arguments: Any, table: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.arguments, self.table = arguments, table

    def execute(self, context: Any) -> None:
        self.defer(trigger=TimeDeltaTrigger(timedelta(0)), method_name="resume")

    def resume(self, context: Any, event: Any = None) -> None:
        service(self.arguments, self.table)


class DurableJob(ResumableJobMixin, DeferredJob):
    """Keeps the id of its job in the task's state store, and reconnects to it in a later try."""

    def execute(self, context: Any) -> Any:
        return self.execute_resumable(context)

    def submit_job(self, context: Any) -> str:
        number = one_more(self.table, "submitted")
        Path(f"{self.table}.job-{number}").write_text(json.dumps(self.arguments))
        return str(number)

    def get_job_status(self, external_id: Any, context: Any) -> str:
        return "DONE" if Path(f"{self.table}.job-{external_id}.done").exists() else "RUNNING"

    def is_job_active(self, status: str) -> bool:
        return status == "RUNNING"

    def is_job_succeeded(self, status: str) -> bool:
        return status == "DONE"

    def poll_until_complete(self, external_id: Any, context: Any) -> None:
        if one_more(self.table, "polled") == 1:
            raise RuntimeError("the worker was lost")
        service(json.loads(Path(f"{self.table}.job-{external_id}").read_text()), self.table)
        Path(f"{self.table}.job-{external_id}.done").touch()

    def get_job_result(self, external_id: Any, context: Any) -> str:
        return str(external_id)


def with_cleanup(job: Any) -> None:
    run_job(job.arguments) >> EmptyOperator(task_id="clean_up", trigger_rule=TriggerRule.ALL_DONE)


RETRIED = {"retries": 1, "retry_delay": timedelta(0)}

jobs("job_causes", lambda job: run_job(job.arguments), rerun_policy="replace")
jobs("job_retried", lambda job: run_job.override(**RETRIED)(job.arguments))
jobs("job_deferred", lambda job: DeferredJob(task_id="run", arguments=job.arguments, table=TABLE))
jobs("job_durable", lambda job: DurableJob(task_id="run", arguments=job.arguments, table=TABLE, **RETRIED))
jobs("job_with_cleanup", with_cleanup)
jobs("job_mapped_inside", lambda job: run_job.partial(arguments=job.arguments).expand(_=[1, 2]))


@dag(schedule=None, start_date=datetime(2026, 1, 1), catchup=False)
def job_in_mapped_group():
    """The stages of one transaction, by one job for each index."""
    with delta_transaction("txn", table=TABLE):

        @task_group
        def of_day(day):
            with delta_job("load", mode="append", write_options={"maxRecordsPerFile": day}) as job:
                run_job(job.arguments)

        of_day.expand(day=[10, 20])


@dag(schedule=None, start_date=datetime(2026, 1, 1), catchup=False)
def job_in_mapped_transaction():
    """A transaction of its own for each index."""

    @task_group
    def of_day(day):
        with delta_transaction("txn", table=TABLE, transaction_key=day), delta_job("load") as job:
            run_job(job.arguments)

    of_day.expand(day=["2026-01-01", "2026-01-02"])


@dag(schedule=None, start_date=datetime(2026, 1, 1), catchup=False)
def job_of_branch():
    """A branch before the jobs: one of two runs."""
    allowed = {"commit_kwargs": {"allow_skipped": True, "trigger_rule": "none_failed"}}
    with delta_transaction("txn", table=TABLE, **allowed):

        @task.branch
        def choose(dag_run=None):
            return Path(f"{dag_run.conf['table']}.choice").read_text()

        chosen = choose()
        with delta_job("load") as load:
            run_job(load.arguments)
        with delta_job("delete", DeltaDeleteOperator, predicate="true") as delete:
            run_job(delete.arguments)
        chosen >> [load.plan, delete.plan]


job_in_mapped_group()
job_in_mapped_transaction()
job_of_branch()

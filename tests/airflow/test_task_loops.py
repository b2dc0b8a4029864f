"""Task loops (Airflow 3.4): a task of a transaction is refused inside of one, everything else goes on."""

from __future__ import annotations

from pathlib import Path

import pytest
from airflow.sdk import task_group

from airflow_delta.dag_checks import dag_problems
from support.readers import rows

HAS_LOOPS = hasattr(type(task_group(group_id="any")(print)), "loop")

pytestmark = [
    pytest.mark.airflow,
    pytest.mark.skipif(not HAS_LOOPS, reason="task loops came with Airflow 3.4"),
    pytest.mark.usefixtures("airflow_database"),
]

HEAD = """
from datetime import datetime
import pyarrow as pa
from airflow.sdk import DAG, task, task_group
from airflow_delta import delta_transaction
from airflow_delta.operators.audit import DeltaAuditOperator
from airflow_delta.operators.delete_update import DeltaDeleteOperator
from airflow_delta.tasks.stage.staging_path import staging_path
from airflow_delta.operators.transaction import DeltaStartTransactionOperator
from airflow_delta.operators.vacuum import DeltaVacuumOperator
from airflow_delta.sensors.delta import DeltaTableVersionSensor

TABLE = {table!r}

@task.delta_stage(engine="arrow")
def rows(n=0):
    return pa.table({{"id": [n]}})

with DAG({dag_id!r}, schedule=None, start_date=datetime(2026, 1, 1)):
"""

IN_A_LOOP = {
    "a transaction": """
@task_group
def body():
    with delta_transaction("txn", table=TABLE):
        rows()
body.loop(max_iterations=2)
""",
    "a stage": """
with delta_transaction("txn", table=TABLE):
    @task_group
    def body():
        rows()
    body.loop(max_iterations=2)
""",
    "a mapped stage in a group": """
with delta_transaction("txn", table=TABLE):
    @task_group
    def inner():
        rows.expand(n=[1, 2])
    @task_group
    def body():
        inner()
    body.loop(max_iterations=2)
""",
    "an operation of its own": """
@task_group
def body():
    DeltaDeleteOperator(task_id="delete", table=TABLE, predicate="id = 1", transaction_key="{{ run_id }}/{{ loop.index }}")
body.loop(max_iterations=2)
""",
    "maintenance": """
@task_group
def body():
    DeltaVacuumOperator(task_id="vacuum", table=TABLE)
body.loop(max_iterations=2)
""",
}

OUTSIDE = """
with delta_transaction("txn", table=TABLE):
    @task_group
    def body():
        @task
        def compute(*, loop):
            return loop.index
        compute()
    @task.delta_stage(engine="arrow")
    def write(*, ti):
        return pa.table({"id": list(ti.xcom_pull("txn.body.compute"))})
    body.loop(max_iterations=3) >> write()
"""

JOBS = """
start = DeltaStartTransactionOperator(task_id="start", table=TABLE)
@task_group
def body():
    @task
    def job(handle, *, ti):
        staging_path(handle, ti)
    job(start.output)
body.loop(max_iterations=2)
"""


def bag_of(folder: Path, table: str, body: str, dag_id: str = "looped"):
    from airflow.dag_processing.bundles.manager import DagBundlesManager
    from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db

    path = folder / "looped.py"
    lines = "\n".join(f"    {line}" for line in body.strip().splitlines())
    path.write_text(HEAD.format(table=table, dag_id=dag_id) + lines + "\n")
    bag = DagBag(dag_folder=str(path))
    DagBundlesManager().sync_bundles_to_db()
    sync_bag_to_db(bag, "tests", None)
    return bag


@pytest.mark.parametrize("body", IN_A_LOOP.values(), ids=IN_A_LOOP)
def test_the_dag_file_is_refused(tmp_path, body):
    bag = bag_of(tmp_path, str(tmp_path / "t"), body)
    assert not bag.dags
    (error,) = bag.import_errors.values()
    assert "is inside the task loop" in error, error
    assert "Let the loop return what is to be written" in error


def test_a_loop_beside_the_stages_runs(tmp_path, run_dag):
    table = str(tmp_path / "t")
    bag = bag_of(tmp_path, table, OUTSIDE)
    assert not bag.import_errors
    assert dag_problems(bag.dags["looped"]) == []
    assert run_dag("looped", bag=bag).state == "success"
    assert sorted(row["id"] for row in rows(table)) == [0, 1, 2]


def test_a_job_gets_no_staging_path_in_an_iteration(tmp_path, run_dag):
    bag = bag_of(tmp_path, str(tmp_path / "t"), JOBS, "looped_job")
    assert not bag.import_errors
    run = run_dag("looped_job", bag=bag)
    assert (run.state, run.state_of("start")) == ("failed", "success")


def test_a_running_task_refuses_whatever_the_dag_file_showed(tmp_path, run_dag, monkeypatch):
    monkeypatch.setattr("airflow_delta.dag_checks.loop_problem", lambda _: None)
    table = str(tmp_path / "t")
    for number, body in enumerate(IN_A_LOOP.values()):
        bag = bag_of(tmp_path, table, body, f"looped_{number}")
        assert not bag.import_errors
        assert run_dag(f"looped_{number}", bag=bag).state == "failed"
    assert not (tmp_path / "t/_delta_log").exists()

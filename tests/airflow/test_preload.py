"""What Airflow's processes import in advance is there in what they fork: the real Dag processor and the real scheduler."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

pytestmark = pytest.mark.airflow

SECONDS = 500
HEAVY = ("pyspark", "py4j", "pyarrow", "numpy", "pandas", "sqlglot", "obstore")
DAG_FILE = """
import json, os, sys
from pathlib import Path

with Path({found!r}).open("a") as file:
    file.write(json.dumps({{"pid": os.getpid(), "parent": os.getppid(), "modules": sorted(sys.modules)}}) + "\\n")

from datetime import datetime
from airflow.sdk import dag, task
from airflow_delta import delta_transaction

@dag(schedule=None, start_date=datetime(2026, 1, 1))
def orders():
    with delta_transaction("orders", table="file:///lake/orders"):
        @task.delta_stage(mode="append")
        def rows(spark):
            return spark.range(10)
        rows()
orders()
"""
# What the forks of a process have, without a word from Airflow: the listener of another plugin that looks at each of them.
AT_FORK = """
import json, os, sys, threading
from pathlib import Path
from airflow.listeners import hookimpl
from airflow.sdk.plugins_manager import AirflowPlugin

def note():
    noted = {{"pid": os.getpid(), "threads": threading.active_count(), "modules": sorted(sys.modules)}}
    with Path({found!r}).open("a") as file:
        file.write(json.dumps(noted) + "\\n")

class Listener:
    @hookimpl(trylast=True)
    def on_starting(self, component):
        os.register_at_fork(after_in_child=note)

class LooksAtForks(AirflowPlugin):
    name = "looks_at_forks"
    listeners = [Listener()]
"""


@pytest.fixture(scope="module")
def database(tmp_path_factory) -> Path:
    """A new database of Airflow."""
    home = tmp_path_factory.mktemp("airflow")
    airflow(home, "db", "migrate")
    return home / "airflow.db"


@pytest.fixture
def home(tmp_path, database) -> Path:
    (tmp_path / "dags").mkdir()
    (tmp_path / "plugins").mkdir()
    shutil.copy(database, tmp_path / "airflow.db")
    return tmp_path


def airflow(home: Path, *command: str) -> str:
    """Run a command of Airflow in a home of its own, and return what it says."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW__")} | {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
        "AIRFLOW__CORE__PARALLELISM": "2",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db",
        "PYTHONWARNINGS": "ignore",
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }
    argv = [sys.executable, "-m", "airflow", *command]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout + done.stderr


def noted(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_process_of_a_dag_file_has_our_modules_from_the_dag_processor(home):
    found = home / "found.jsonl"
    (home / "dags" / "orders.py").write_text(DAG_FILE.format(found=str(found)))
    airflow(home, "dag-processor", "--num-runs", "1")
    (process,) = noted(found)
    modules = set(process["modules"])
    assert {
        "airflow_delta.task_groups",
        "airflow_delta.decorators.delta_stage",
        "airflow_delta.operators.transaction",
        "airflow_delta.sensors.delta",
    } <= modules
    assert sorted(modules & set(HEAVY)) == []
    # What tasks do on a table is none of a Dag file's business.
    assert [
        name for name in modules if name.startswith(("airflow_delta.table.commit.", "airflow_delta.transaction.commit."))
    ] == []
    with closing(sqlite3.connect(home / "airflow.db")) as connection:
        assert connection.execute("SELECT dag_id FROM dag").fetchall() == [("orders",)]


def test_workers_of_a_local_executor_have_the_modules_of_tasks(home):
    found = home / "found.jsonl"
    (home / "plugins" / "looks_at_forks.py").write_text(AT_FORK.format(found=str(found)))
    airflow(home, "scheduler", "--num-runs", "1", "--skip-serve-logs")
    processes = noted(found)
    assert len(processes) >= 2
    for process in processes:
        modules = set(process["modules"])
        assert {
            "airflow_delta.operators.transaction",
            "airflow_delta.table.start.begin",
            "airflow_delta.table.commit.publish",
            "airflow_delta.plugins.on_worker",
        } <= modules
        assert sorted(modules & set(HEAVY)) == []
        assert process["threads"] == 1


@pytest.mark.parametrize(
    ("executor", "forks"),
    [
        ("LocalExecutor", True),
        ("airflow.executors.local_executor.LocalExecutor", True),
        ("CeleryExecutor,LocalExecutor", True),
        ("CeleryExecutor", False),
        ("KubernetesExecutor", False),
    ],
)
def test_only_schedulers_whose_own_forks_run_tasks_import_in_advance(monkeypatch, executor, forks):
    import airflow.jobs.scheduler_job_runner  # noqa: F401 - as its command does
    from airflow.jobs.job import Job

    from airflow_delta.airflow_internals.components import forks_tasks

    monkeypatch.setenv("AIRFLOW__CORE__EXECUTOR", executor)
    assert forks_tasks(Job()) is forks
    assert not forks_tasks(object())  # what Airflow gives when a task starts, in a fork that knows the scheduler's modules


def test_a_module_that_cannot_be_imported_keeps_nothing_from_starting(home):
    (home / "plugins" / "broken.py").write_text(
        "import sys\nsys.modules['airflow_delta.operators.merge'] = None\nsys.modules['airflow_delta.plugins.preload'] = None\n"
    )
    said = airflow(home, "dag-processor", "--num-runs", "1")
    assert "Could not import in advance" in said

"""One Airflow for all tests of this folder: its own home, its own SQLite database, the examples and the test Dags as bundles."""

from __future__ import annotations

import atexit
import functools
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest

from support.dag_runs import Run, only_its_file, run_to_end, scheduler_dag

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent

_home = tempfile.mkdtemp(prefix="airflow-delta-tests-")
atexit.register(shutil.rmtree, _home, ignore_errors=True)

# Before the first import of Airflow: it reads its configuration once.
os.environ.update(
    AIRFLOW_HOME=_home,
    AIRFLOW__CORE__LOAD_EXAMPLES="False",
    AIRFLOW__CORE__UNIT_TEST_MODE="False",
    AIRFLOW__DATABASE__SQL_ALCHEMY_CONN=f"sqlite:///{_home}/airflow.db",
    AIRFLOW__LOGGING__LOGGING_LEVEL="WARNING",
    AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST=json.dumps(
        [
            {"name": name, "classpath": "airflow.dag_processing.bundles.local.LocalDagBundle", "kwargs": {"path": str(path)}}
            for name, path in (("examples", ROOT / "dags_examples"), ("tests", HERE / "dags"))
        ]
    ),
    AIRFLOW_CONN_SPARK_DEFAULT=json.dumps(
        {
            "conn_type": "spark",
            "host": "local[2]",
            "extra": {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2", "spark.driver.host": "127.0.0.1"},
        }
    ),
    DELTA_EXAMPLES=f"{_home}/tables",
    PATH=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
)


@pytest.fixture(scope="session")
def airflow_database() -> Iterator[None]:
    """The metadata database of the run, made once; the in-process API server is built once, too."""
    from airflow.sdk.execution_time import supervisor
    from airflow.utils.db import initdb

    initdb()
    original = supervisor.in_process_api_server
    supervisor.in_process_api_server = functools.cache(original)
    yield
    supervisor.in_process_api_server = original


@pytest.fixture(scope="session")
def dag_bags(airflow_database):
    from airflow.dag_processing.dagbag import DagBag

    return [DagBag(dag_folder=str(folder)) for folder in (ROOT / "dags_examples", HERE / "dags")]


@pytest.fixture(scope="session")
def run_dag(dag_bags) -> Callable[..., Run]:
    """Run a Dag once with ``dag.test()``: the real execution API and task runner, in this process, one task after the other."""

    def run(dag_id: str, logical_date: datetime | None = datetime(2026, 1, 1, tzinfo=UTC), *, bag=None, **conf) -> Run:
        dag = next(found.dags[dag_id] for found in ([bag] if bag else dag_bags) if dag_id in found.dags)
        # The run id is made of run_after: the same date again is the same run again, as after clearing it.
        with only_its_file(dag):
            return Run(dag.test(logical_date=logical_date, run_after=logical_date, run_conf=conf or None))

    return run


@pytest.fixture(scope="session")
def clear_and_run(dag_bags) -> Callable[..., Run]:
    """Clear tasks of a finished run, as Airflow does, and run what is to be run again, as ``dag.test()`` does.

    ``bag`` holds the Dag as its file is by now: the run gets the tasks that are new, as from the scheduler.
    """

    def again(run: Run, *task_ids: str, bag=None, **conf) -> Run:
        from airflow.models.dag_version import DagVersion
        from airflow.models.dagrun import DagRun
        from airflow.models.taskinstance import clear_task_instances
        from airflow.utils.session import create_session
        from airflow.utils.state import TaskInstanceState
        from sqlalchemy import select

        dag = next(found.dags[run.dag_id] for found in ([bag] if bag else dag_bags) if run.dag_id in found.dags)
        with create_session() as session:
            dag_run = session.scalar(select(DagRun).where(DagRun.dag_id == run.dag_id, DagRun.run_id == run.run_id))
            dag_run.dag = scheduler_dag(dag)
            dag_run.conf = {**dag_run.conf, **conf}
            cleared = [ti for ti in dag_run.get_task_instances(session=session) if ti.task_id in task_ids]
            clear_task_instances([ti for ti in cleared if ti.state != TaskInstanceState.REMOVED], session)
            if bag is not None:
                version = DagVersion.get_latest_version(run.dag_id, session=session)
                dag_run.verify_integrity(session=session, dag_version_id=version.id)
            run_to_end(dag_run, dag, session)
        return Run(dag_run)

    return again


@pytest.fixture(scope="session")
def tables() -> str:
    """Directory of the tables of the examples and test Dags."""
    return os.environ["DELTA_EXAMPLES"]


@pytest.fixture
def s3_lake(monkeypatch):
    """A bucket ``lake`` on a real HTTP server, and the connection ``lake`` to it."""
    import boto3

    from stores.locked_moto import s3_server

    with s3_server() as endpoint:
        keys = {"aws_access_key_id": "the-key", "aws_secret_access_key": "very-secret", "region_name": "us-east-1"}
        client = boto3.client("s3", endpoint_url=endpoint, **keys)
        client.create_bucket(Bucket="lake")

        def define(**extra):
            connection = {"conn_type": "delta", "host": "s3://lake", "login": "the-key", "password": "very-secret"}
            options = {"AWS_ENDPOINT_URL": endpoint, "AWS_REGION": "us-east-1"}
            monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps({**connection, "extra": {"storage_options": options, **extra}}))

        define()
        yield SimpleNamespace(endpoint=endpoint, client=client, define=define)
        client.close()

"""Services that run Spark, on loopback, and Airflow with their providers. What is not installed is an error, never a skip.

Run by the Python of ``.cache/services/airflow`` (``make test-services``), whose Airflow has a home and a database of its own.
"""

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

import pytest

from services.install import AIRFLOW, CONNECTORS, SPARKS
from support.dag_runs import Run, only_its_file

HERE = Path(__file__).parent

IS_HERE = Path(sys.prefix).resolve() == AIRFLOW.resolve()
"""Whether this is the Python of these tests: another suite, which looks at all tests, has an Airflow of its own."""

# It imports the clients of services, which only that Python has.
collect_ignore = [] if IS_HERE else ["test_other_services.py"]


def _new_home() -> str:
    """Make AIRFLOW_HOME, before the first import of Airflow, which reads its configuration once."""
    home = tempfile.mkdtemp(prefix="airflow-delta-services-")
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    bundle = {
        "name": "services",
        "classpath": "airflow.dag_processing.bundles.local.LocalDagBundle",
        "kwargs": {"path": f"{home}/dags"},
    }
    os.environ.update(
        AIRFLOW_HOME=home,
        AIRFLOW__CORE__LOAD_EXAMPLES="False",
        AIRFLOW__CORE__UNIT_TEST_MODE="False",
        AIRFLOW__CORE__DAGBAG_IMPORT_TIMEOUT="300",  # on a busy machine, Kubernetes' client takes long to import
        AIRFLOW__DATABASE__SQL_ALCHEMY_CONN=f"sqlite:///{home}/airflow.db",
        AIRFLOW__LOGGING__LOGGING_LEVEL="WARNING",
        AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST=json.dumps([bundle]),
    )
    return home


_home = _new_home() if IS_HERE else ""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.services)


@pytest.fixture(scope="session")
def installed() -> None:
    missing = [str(place) for place in (AIRFLOW, *SPARKS.values(), *CONNECTORS.values()) if not place.exists()]
    if missing or not IS_HERE:
        there = f"not installed: {', '.join(missing)}" if missing else f"this is the Python of {sys.prefix}"
        pytest.fail(f"Run these tests by make test-services ({there})", pytrace=False)


@pytest.fixture(scope="session")
def _airflow(installed: None) -> Iterator[None]:
    """The metadata database, made once; the in-process API server is built once, too."""
    from airflow.sdk.execution_time import supervisor
    from airflow.utils.db import initdb

    initdb()
    original = supervisor.in_process_api_server
    supervisor.in_process_api_server = functools.cache(original)
    yield
    supervisor.in_process_api_server = original


@pytest.fixture(scope="session")
def run_dag(_airflow: None) -> Callable[..., Run]:
    """Run the only Dag of a file once with ``dag.test()``: its tasks and triggers, one after the other, in this process."""
    from airflow.dag_processing.dagbag import DagBag

    def run(source: Path | str, name: str) -> Run:
        """:param source: a file, or the text of one. :param name: of the file in Airflow's folder of Dags."""
        path = Path(_home, "dags", f"{name}.py")
        path.parent.mkdir(exist_ok=True)
        path.write_text(source.read_text() if isinstance(source, Path) else source)
        bag = DagBag(dag_folder=str(path))
        assert not bag.import_errors, bag.import_errors
        [dag] = bag.dags.values()
        date = datetime(2026, 1, 1, tzinfo=UTC)
        with only_its_file(dag):
            return Run(dag.test(logical_date=date, run_after=date))

    return run

"""Services of ``docs/how-to/services.md`` beside those of AWS: each block as printed, and each example, on stand-ins."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Protocol

import pytest

from services.aws import Aws
from services.databricks_server import Databricks
from services.dataproc_server import PROJECT, Dataproc
from services.drivers import ServiceSpark
from services.livy_server import START, Livy
from services.page import AWS, BLOCKS, EXAMPLES, FOLDER, Orders, OrdersOnS3, block_of, dag_of
from services.spark_operator import SparkOperator
from services.synapse_server import POOL, Identity, Synapse

pytestmark = [
    pytest.mark.usefixtures("installed", "impatient"),
    pytest.mark.filterwarnings("default"),  # providers use what Airflow and other packages deprecate
]

VARIABLES = {
    "gcp_project": PROJECT,
    "gcp_region": "europe-west1",
    "dataproc_cluster": "spark",
    "databricks_cluster": "1129-200000-abcdefgh",
    "synapse_pool": POOL,
    "spark_image": "example.org/spark:tests",
}


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever looks at a job every ten seconds does so every half second."""
    sleep, async_sleep = time.sleep, asyncio.sleep
    monkeypatch.setattr(time, "sleep", lambda seconds: sleep(min(seconds, 0.5)))

    async def shorter(delay: float, result: Any = None) -> Any:
        return await async_sleep(min(delay, 0.5), result)

    monkeypatch.setattr(asyncio, "sleep", shorter)


@pytest.fixture(scope="module")
def aws(installed: None) -> Iterator[Aws]:
    with Aws() as account:
        yield account


@pytest.fixture
def orders(service: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Any]:
    """The table of the page: on S3, where the service leaves the program to Spark, which knows no ``s3://``."""
    on_s3 = service in OPENED_BY_SPARK
    made = OrdersOnS3(request.getfixturevalue("aws"), tmp_path) if on_s3 else Orders(tmp_path)
    connect(monkeypatch, **made.connections)
    for name, value in VARIABLES.items():
        monkeypatch.setenv(f"AIRFLOW_VAR_{name.upper()}", value)
    yield made
    if isinstance(made, OrdersOnS3):
        made.aws.empty()


def connect(monkeypatch: pytest.MonkeyPatch, **connections: dict[str, Any]) -> None:
    for name, connection in connections.items():
        monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}", json.dumps(connection))


class Runs(Protocol):
    """What a service was told to run."""

    @property
    def started(self) -> list[Any]:
        """All that it has run."""

    @property
    def told(self) -> str:
        """What came of it."""


@contextmanager
def databricks(directory: Path, spark: ServiceSpark, monkeypatch: pytest.MonkeyPatch) -> Iterator[Runs]:
    with Databricks(spark) as service:
        connect(monkeypatch, databricks_default=service.connection)
        yield service.drivers


@contextmanager
def dataproc(directory: Path, spark: ServiceSpark, monkeypatch: pytest.MonkeyPatch) -> Iterator[Runs]:
    with Dataproc(spark) as service:
        connect(monkeypatch, google_cloud_default=service.connection)
        for name, value in service.environment.items():
            monkeypatch.setenv(name, value)
        yield service.drivers


@contextmanager
def synapse(directory: Path, spark: ServiceSpark, monkeypatch: pytest.MonkeyPatch) -> Iterator[Runs]:
    with Synapse(directory, spark) as service, Identity() as identity:
        connect(monkeypatch, azure_synapse_default=service.connection)
        for name, value in identity.environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(service.certificate.path))
        yield service.drivers


@contextmanager
def spark_operator(directory: Path, spark: ServiceSpark, monkeypatch: pytest.MonkeyPatch) -> Iterator[Runs]:
    with SparkOperator(spark) as service:
        connect(monkeypatch, kubernetes_default=service.connection)
        yield service.drivers


@contextmanager
def livy(directory: Path, spark: ServiceSpark, monkeypatch: pytest.MonkeyPatch) -> Iterator[Runs]:
    service = Livy(directory, spark).start(START)
    try:
        connect(monkeypatch, livy_default=service.connection)
        yield service
    finally:
        service.stop()


SERVICES = {
    "Livy": livy,
    "Dataproc": dataproc,
    "Dataproc Serverless": dataproc,
    "Databricks": databricks,
    "Spark operator": spark_operator,
    "Synapse": synapse,
}
"""What stands in for a service."""

OPENED_BY_SPARK = ("Livy", "Spark operator")
"""They have ``spark-submit`` run what they are given; others have a way of their own to the store."""

OTHERS = [service for service in BLOCKS if service not in AWS]
VERSIONS = ("3.5", "4")


def running(
    service: str, version: str, orders: Orders | OrdersOnS3, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> AbstractContextManager[Any]:
    """Start what stands in for a service.

    :param version: of the Spark by which it runs what is submitted.
    """
    if isinstance(orders, OrdersOnS3):
        return SERVICES[service](directory, orders.aws.spark(version, directory, is_amazons=False), monkeypatch)
    return SERVICES[service](directory, ServiceSpark(version, directory), monkeypatch)


@pytest.mark.parametrize(("service", "version"), [(service, VERSIONS[n % 2]) for n, service in enumerate(OTHERS)])
def test_the_block_of_a_service_as_printed(
    service: str, version: str, orders: Any, run_dag: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = service.lower().replace(" ", "_")
    with running(service, version, orders, tmp_path, monkeypatch) as runs:
        run = run_dag(dag_of(block_of(service), name), name)
        assert run.state == "success", runs.told
        assert len(runs.started) == 1
    assert orders.version == orders.made + 1
    assert orders.rows() == BLOCKS[service]


@pytest.mark.parametrize(("service", "version"), [(service, VERSIONS[~n % 2]) for n, service in enumerate(OTHERS)])
def test_the_example_of_a_service(
    service: str, version: str, orders: Any, run_dag: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits in the triggerer, but for Synapse's, whose operator cannot."""
    name, rows = EXAMPLES[service]
    with running(service, version, orders, tmp_path, monkeypatch) as runs:
        run = run_dag(FOLDER / f"{name}.py", name)
        assert run.state == "success", runs.told
        assert len(runs.started) == 1
    assert orders.version == orders.made + 1
    assert orders.rows() == rows


@pytest.mark.parametrize(
    ("service", "before", "after"),
    [
        ("Databricks", '"task_key": "delete",', '"task_key": "delete", "max_retries": 1,'),
        ("Dataproc", '"placement"', '"scheduling": {"max_failures_per_hour": 1}, "placement"'),
        ("Spark operator", '{"type": "Never"}', '{"type": "OnFailure", "onFailureRetries": 1, "onFailureRetryInterval": 1}'),
    ],
)
def test_a_driver_that_the_service_starts_again(
    service: str, before: str, after: str, orders: Any, run_dag: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    block = block_of(service).replace(before, after)
    assert block != block_of(service)
    name = f"{service.lower().replace(' ', '_')}_again"
    with running(service, "3.5", orders, tmp_path, monkeypatch) as runs:
        runs.again = lambda run: run == 1  # it has done all, and its end got lost
        run = run_dag(dag_of(block, name), name)
        assert run.state == "success", runs.told
        first, second = runs.started
        assert first == second
    assert orders.version == orders.made + 1
    assert orders.rows() == BLOCKS[service]


@pytest.mark.parametrize(
    ("service", "before", "after"),
    [
        ("Databricks", '"python_file"', '"python_files"'),
        ("Databricks", "job.arguments", "job.request"),
        ("Dataproc", '"args"', '"arguments"'),
        ("Dataproc Serverless", '"args"', '"arguments"'),
        ("Spark operator", '"mainApplicationFile"', '"mainApplication"'),
        ("Spark operator", "job.arguments", "job.request"),
        ("Synapse", "job.arguments", "job.request"),
    ],
)
def test_what_is_not_in_the_schema_of_a_service_runs_nothing(
    service: str, before: str, after: str, orders: Any, run_dag: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What stands in for a service is no yes-man."""
    block = block_of(service).replace(before, after)
    assert block != block_of(service)
    name = f"{service.lower().replace(' ', '_')}_refused"
    with running(service, "3.5", orders, tmp_path, monkeypatch) as runs:
        run = run_dag(dag_of(block, name), name)
        assert not runs.started
    assert run.state == "failed"
    assert orders.version == orders.made

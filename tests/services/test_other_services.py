"""Services of ``docs/how-to/services.md`` beside those of AWS: each block as printed, on what stands in for the service."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from services.databricks_server import Databricks
from services.dataproc_server import PROJECT, Dataproc
from services.drivers import ServiceSpark
from services.livy_server import START, Livy
from services.page import DELETED, MERGED, ORDERS, UPDATED, Orders, block_of, dag_of
from services.spark_operator import SparkOperator
from services.synapse_server import POOL, Identity, Synapse
from support import readers

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


@pytest.fixture
def orders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Orders:
    made = Orders(tmp_path)
    connect(monkeypatch, lake=made.connection)
    for name, value in VARIABLES.items():
        monkeypatch.setenv(f"AIRFLOW_VAR_{name.upper()}", value)
    return made


def connect(monkeypatch: pytest.MonkeyPatch, **connections: dict[str, Any]) -> None:
    for name, connection in connections.items():
        monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}", json.dumps(connection))


@contextmanager
def databricks(directory: Path, spark: ServiceSpark, monkeypatch: pytest.MonkeyPatch) -> Iterator[Databricks]:
    with Databricks(spark) as service:
        connect(monkeypatch, databricks_default=service.connection)
        yield service


@contextmanager
def dataproc(directory: Path, spark: ServiceSpark, monkeypatch: pytest.MonkeyPatch) -> Iterator[Dataproc]:
    with Dataproc(spark) as service:
        connect(monkeypatch, google_cloud_default=service.connection)
        for name, value in service.environment.items():
            monkeypatch.setenv(name, value)
        yield service


@contextmanager
def synapse(directory: Path, spark: ServiceSpark, monkeypatch: pytest.MonkeyPatch) -> Iterator[Synapse]:
    with Synapse(directory, spark) as service, Identity() as identity:
        connect(monkeypatch, azure_synapse_default=service.connection)
        for name, value in identity.environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(service.certificate.path))
        yield service


@contextmanager
def spark_operator(directory: Path, spark: ServiceSpark, monkeypatch: pytest.MonkeyPatch) -> Iterator[SparkOperator]:
    with SparkOperator(spark) as service:
        connect(monkeypatch, kubernetes_default=service.connection)
        yield service


SERVICES = {
    "Databricks": (databricks, DELETED),
    "Dataproc": (dataproc, MERGED),
    "Dataproc Serverless": (dataproc, UPDATED),
    "Spark operator": (spark_operator, MERGED),
    "Synapse": (synapse, ORDERS),
}
"""What stands in for a service, and what the table has after its block."""

WAITS = {
    "Databricks": ("3.5", "4"),
    "Dataproc": ("4", "3.5"),
    "Dataproc Serverless": ("3.5", "4"),
    "Spark operator": ("4", "3.5"),
}
"""The Spark by which a service runs while the operator waits, and while the triggerer does. Synapse's cannot wait there."""

RUNS = [(service, wait[deferrable], bool(deferrable)) for service, wait in WAITS.items() for deferrable in (0, 1)]
RUNS += [("Synapse", version, False) for version in ("3.5", "4")]


@pytest.mark.parametrize(("service", "version", "deferrable"), RUNS)
def test_the_block_of_a_service_as_printed(
    service: str, version: str, deferrable: bool, orders: Orders, run_dag: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, rows = SERVICES[service]
    name = service.lower().replace(" ", "_")
    with start(tmp_path, ServiceSpark(version, tmp_path), monkeypatch) as running:
        run = run_dag(dag_of(block_of(service), name, deferrable=deferrable), name)
        assert run.state == "success", running.drivers.told
        assert len(running.drivers.started) == 1
    assert orders.version == orders.made + 1
    assert sorted(tuple(row.values()) for row in readers.rows(orders.path)) == rows


@pytest.mark.parametrize(("version", "deferrable"), [("3.5", False), ("4", True)])
def test_the_block_of_livy_as_printed_on_livys_own_server(
    version: str, deferrable: bool, orders: Orders, run_dag: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Livy(tmp_path, ServiceSpark(version, tmp_path), orders.root)
    server.start(START)
    try:
        connect(monkeypatch, livy_default=server.connection)
        run = run_dag(dag_of(block_of("Livy"), "livy", deferrable=deferrable), "livy")
        assert [batch["state"] for batch in server.batches] == ["success"], server.log.read_text(errors="replace")[-5000:]
        assert run.state == "success"
    finally:
        server.stop()
    [command] = server.commands()
    assert "/application.py' '--delta-request' 'file:/" in command
    assert orders.version == orders.made + 1
    assert sorted(tuple(row.values()) for row in readers.rows(orders.path)) == DELETED


@pytest.mark.parametrize(
    ("service", "before", "after"),
    [
        ("Databricks", '"task_key": "delete",', '"task_key": "delete", "max_retries": 1,'),
        ("Dataproc", '"placement"', '"scheduling": {"max_failures_per_hour": 1}, "placement"'),
        ("Spark operator", '{"type": "Never"}', '{"type": "OnFailure", "onFailureRetries": 1, "onFailureRetryInterval": 1}'),
    ],
)
def test_a_driver_that_the_service_starts_again(
    service: str, before: str, after: str, orders: Orders, run_dag: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, rows = SERVICES[service]
    block = block_of(service).replace(before, after)
    assert block != block_of(service)
    name = f"{service.lower().replace(' ', '_')}_again"
    with start(tmp_path, ServiceSpark("3.5", tmp_path), monkeypatch) as running:
        running.drivers.again = lambda run: run == 1  # it has done all, and its end got lost
        run = run_dag(dag_of(block, name), name)
        assert run.state == "success", running.drivers.told
        first, second = running.drivers.started
        assert first == second
    assert orders.version == orders.made + 1
    assert sorted(tuple(row.values()) for row in readers.rows(orders.path)) == rows


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
    service: str, before: str, after: str, orders: Orders, run_dag: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What stands in for a service is no yes-man."""
    start, _ = SERVICES[service]
    block = block_of(service).replace(before, after)
    assert block != block_of(service)
    name = f"{service.lower().replace(' ', '_')}_refused"
    with start(tmp_path, ServiceSpark("3.5", tmp_path), monkeypatch) as running:
        run = run_dag(dag_of(block, name), name)
        assert not running.drivers.started
    assert run.state == "failed"
    assert orders.version == orders.made

"""Object stores and clusters, each a process on loopback. What is not installed is an error of every test here, never a skip."""

from __future__ import annotations

import fcntl
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from stores.install import PROGRAMS
from stores.proxy import FaultProxy
from stores.servers import STORES, Versitygw

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.clusters if "cluster" in item.path.stem else pytest.mark.stores)


@pytest.fixture(scope="session")
def installed() -> None:
    missing = sorted(name for name, path in PROGRAMS.items() if not path.exists())
    if missing:
        pytest.fail(f"Not installed: {', '.join(missing)}. Run python tests/stores/install.py", pytrace=False)


@pytest.fixture(scope="session")
def all_stores(installed: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    with ExitStack() as running:
        yield {name: running.enter_context(make(tmp_path_factory.mktemp(name))) for name, make in STORES.items()}


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, all_stores: dict[str, Any]) -> Any:
    """Each of the object stores in turn."""
    return all_stores[request.param]


@pytest.fixture
def versitygw(all_stores: dict[str, Any]) -> Versitygw:
    return all_stores["s3"]  # type: ignore[no-any-return]


@pytest.fixture
def proxy(versitygw: Versitygw, tmp_path: Path) -> Iterator[FaultProxy]:
    """What stands between the client and the S3 store, and fails on request."""
    with FaultProxy(versitygw.url, tmp_path) as between:
        yield between


@pytest.fixture(scope="session")
def spark(all_stores: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A small local Spark that reaches all stores."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    if SparkContext._active_spark_context is not None:
        pytest.fail("A Spark without the stores' JARs runs in this process: run tests/stores on its own", pytrace=False)
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    directory = tmp_path_factory.mktemp("spark")
    configuration = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.sql.shuffle.partitions": "2",
        "spark.default.parallelism": "2",
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.local.dir": str(directory / "local"),
    }
    for name in ("spark.jars.packages", "spark.jars"):
        configuration[name] = ",".join(store.spark[name] for store in all_stores.values() if name in store.spark)
    for store in all_stores.values():
        configuration |= {f"spark.hadoop.{key}": value for key, value in store.hadoop.items()}
    builder = SparkSession.builder.master("local[2]").appName("airflow-delta-stores")
    for key, value in configuration.items():
        builder = builder.config(key, value)
    # Ivy's cache is not made for several writers.
    with (Path(tempfile.gettempdir()) / "airflow-delta-tests-ivy.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()

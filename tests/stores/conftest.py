"""Object stores and clusters, each a process on loopback. What is not installed is an error of every test here, never a skip."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from stores.airflow_home import AirflowHome
from stores.install import PROGRAMS
from stores.proxy import FaultProxy
from stores.servers import STORES, Versitygw
from support.programs import pyspark_environment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            kubernetes, clusters = "kubernetes" in item.path.stem, "cluster" in item.path.stem
            item.add_marker(getattr(pytest.mark, "kubernetes" if kubernetes else "clusters" if clusters else "stores"))
            if clusters or kubernetes:  # whole applications, one after the other, on a machine that may be busy
                item.add_marker(pytest.mark.timeout(1800))


@pytest.fixture(scope="session")
def installed() -> None:
    missing = sorted(name for name, path in PROGRAMS.items() if not path.exists())
    if missing:
        pytest.fail(f"Not installed: {', '.join(missing)}. Run python tests/stores/install.py", pytrace=False)


class Running(Mapping[str, Any]):
    """The stores, each started when it is first asked for."""

    def __init__(self, directory: Callable[[str], Path], stack: ExitStack) -> None:
        self._directory, self._stack = directory, stack
        self._started: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._started:
            self._started[name] = self._stack.enter_context(STORES[name](self._directory(name)))
        return self._started[name]

    def __iter__(self) -> Iterator[str]:
        return iter(STORES)

    def __len__(self) -> int:
        return len(STORES)


@pytest.fixture(scope="session")
def stores(installed: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with ExitStack() as stack:
        yield Running(tmp_path_factory.mktemp, stack)


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, stores: Running) -> Any:
    """Each of the object stores in turn."""
    return stores[request.param]


@pytest.fixture(scope="session")
def versitygw(stores: Running) -> Versitygw:
    return stores["s3"]  # type: ignore[no-any-return]


@pytest.fixture(scope="session")
def _airflow_home(tmp_path_factory: pytest.TempPathFactory) -> AirflowHome:
    return AirflowHome(tmp_path_factory.mktemp("airflow"))


@pytest.fixture
def airflow(installed: None, _airflow_home: AirflowHome, tmp_path: Path) -> Iterator[AirflowHome]:
    """An Airflow that has run nothing."""
    home = tmp_path / "airflow"
    home.mkdir()
    airflow = AirflowHome(home, _airflow_home)
    yield airflow
    airflow.close()


@pytest.fixture(scope="session")
def _proxy(versitygw: Versitygw, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultProxy]:
    with FaultProxy(versitygw.url, tmp_path_factory.mktemp("proxy")) as between:
        yield between


@pytest.fixture
def proxy(_proxy: FaultProxy) -> FaultProxy:
    """What stands between the client and the S3 store, and fails on request; at first without rules."""
    _proxy.set()
    return _proxy


@pytest.fixture(scope="session")
def spark(stores: Running, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A small local Spark with the JARs of all stores, and no credentials: those come from Airflow's connections."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    if SparkContext._active_spark_context is not None:
        pytest.fail("A Spark without the stores' JARs runs in this process: run tests/stores on its own", pytrace=False)
    os.environ.update(pyspark_environment())
    directory = tmp_path_factory.mktemp("spark")
    configuration = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "1g",
        # Code that runs a few times is not worth a second compiler.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=512m -XX:+UseSerialGC",
        "spark.sql.shuffle.partitions": "2",
        "spark.default.parallelism": "2",
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.local.dir": str(directory / "local"),
    }
    for name in ("spark.jars.packages", "spark.jars"):
        configuration[name] = ",".join(store.spark[name] for store in stores.values() if name in store.spark)
    for store in stores.values():
        configuration |= {f"spark.hadoop.{key}": value for key, value in store.emulator.items()}
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

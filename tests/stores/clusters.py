"""Clusters of the tests, on loopback: Spark standalone from the PySpark wheel, Hadoop's mini clusters from its test JARs."""

from __future__ import annotations

import json
import os
import sys
import urllib.request
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import pyspark

from stores.install import AWS_JARS, HADOOP_JARS, PYTHON
from stores.process import LOOPBACK, Service, free_port, listens

HERE = Path(__file__).parent
SPARK_HOME = Path(pyspark.__file__).parent
CLUSTER_PYTHON = PYTHON / "bin" / "python"
"""Python of the clusters: it has neither Airflow nor this project nor PySpark, only what Spark brings."""

ENVIRONMENT = {
    "SPARK_HOME": str(SPARK_HOME),
    "SPARK_LOCAL_IP": LOOPBACK,
    "SPARK_DAEMON_MEMORY": "256m",
    "SPARK_DAEMON_JAVA_OPTS": "-XX:+UseSerialGC",
    "PYSPARK_PYTHON": str(CLUSTER_PYTHON),
    "PATH": f"{CLUSTER_PYTHON.parent}{os.pathsep}{os.environ['PATH']}",
    # Else Spark puts a Connect client, or a foreign configuration, into every process.
    "SPARK_REMOTE": None,
    "SPARK_CONF_DIR": None,
    "HADOOP_CONF_DIR": None,
}


SMALL = {
    "spark.ui.enabled": "false",
    "spark.driver.bindAddress": LOOPBACK,
    "spark.driver.host": LOOPBACK,
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.sql.shuffle.partitions": "2",
    # Code that runs a few times is not worth a second compiler.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
"""Properties of small applications."""

WITH_S3 = dict.fromkeys(("spark.driver.extraClassPath", "spark.executor.extraClassPath"), f"{AWS_JARS}/*")
"""S3's connector as on a cluster whose machines have it: nothing is copied for each application."""


class StandaloneCluster:
    """A master and workers, each with a work directory of its own.

    :param directory: an existing directory.
    :param workers: how many.
    :param cores: of each worker.
    :param memory: of each worker, for its executors.
    :param spark_home: another Spark.
    """

    def __init__(
        self, directory: Path, *, workers: int = 2, cores: int = 1, memory: str = "1g", spark_home: Path = SPARK_HOME
    ) -> None:
        self.port, self._page = free_port(), free_port()
        self.url = f"spark://{LOOPBACK}:{self.port}"
        self._spark_class = spark_home / "bin" / "spark-class"
        self._environment = {**ENVIRONMENT, "SPARK_HOME": str(spark_home)}
        argv = [
            self._spark_class, "org.apache.spark.deploy.master.Master",
            "--host", LOOPBACK, "--port", self.port, "--webui-port", self._page,
        ]  # fmt: skip
        self.master = Service("spark-master", argv, directory, lambda: self.state["status"] == "ALIVE", self._environment)
        self.workers = [self._worker(directory, number, cores, memory) for number in range(workers)]
        self.startup_seconds = 0.0
        self._running = ExitStack()

    def _worker(self, directory: Path, number: int, cores: int, memory: str) -> Service:
        port, work = free_port(), directory / f"work-{number}"
        work.mkdir(exist_ok=True)
        argv = [
            self._spark_class, "org.apache.spark.deploy.worker.Worker", "--host", LOOPBACK, "--port", port,
            "--webui-port", free_port(), "--cores", cores, "--memory", memory, "--work-dir", work, self.url,
        ]  # fmt: skip
        return Service(f"spark-worker-{number}", argv, directory, lambda: port in self.alive, self._environment)

    @property
    def state(self) -> dict[str, Any]:
        """What the master says of itself, its workers and applications."""
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(f"http://{LOOPBACK}:{self._page}/json/", timeout=5) as answer:
                return dict(json.load(answer))
        except (OSError, ValueError):  # its pages are there before their content
            return {"status": "", "workers": []}

    @property
    def alive(self) -> list[int]:
        """The ports of the workers that the master counts on."""
        return [worker["port"] for worker in self.state["workers"] if worker["state"] == "ALIVE"]

    @property
    def applications(self) -> int:
        """How many applications have registered."""
        return len(self.state["activeapps"]) + len(self.state["completedapps"])

    @property
    def memory(self) -> int:
        """Resident bytes of all processes."""
        return sum(service.memory for service in (self.master, *self.workers))

    def __enter__(self) -> Self:
        with ExitStack() as running:
            for service in (self.master, *self.workers):
                running.enter_context(service)
                self.startup_seconds += service.startup_seconds
            self._running = running.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()


class MiniCluster(Service):
    """One of Hadoop's mini clusters: ``hdfs`` or ``yarn``. :attr:`configuration` is a directory for HADOOP_CONF_DIR."""

    def __init__(self, kind: str, directory: Path) -> None:
        self.configuration = directory / "conf"
        self.configuration.mkdir(exist_ok=True)
        written = self.configuration / {"hdfs": "core-site.xml", "yarn": "yarn-site.xml"}[kind]
        argv = [sys.executable, HERE / "hadoop.py", kind, HADOOP_JARS, directory, written]
        super().__init__(f"mini-{kind}", argv, directory, written.exists, ENVIRONMENT)

    def start(self, timeout: float = 240.0) -> Self:
        """Start the cluster."""
        return super().start(timeout)

    def applications(self) -> dict[str, str]:
        """Return the state of YARN's applications by id."""
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(
            f"http://{self.setting('yarn.resourcemanager.webapp.address')}/ws/v1/cluster/apps", timeout=30
        ) as answer:
            found = json.load(answer)["apps"] or {"app": []}
        return {app["id"]: app["state"] for app in found["app"]}

    def setting(self, name: str) -> str:
        """Return a setting of the running cluster."""
        from xml.etree import ElementTree

        for path in self.configuration.glob("*-site.xml"):
            for entry in ElementTree.parse(path).getroot().iter("property"):
                if entry.findtext("name") == name:
                    return entry.findtext("value") or ""
        raise KeyError(name)


class ConnectServer(Service):
    """A Spark Connect server with a small Spark of its own.

    :param properties: of Spark.
    """

    def __init__(self, directory: Path, properties: Mapping[str, str], *, spark_home: Path = SPARK_HOME) -> None:
        self.port = free_port()
        settings = {
            **SMALL,
            "spark.connect.grpc.binding.address": LOOPBACK,
            "spark.connect.grpc.binding.port": str(self.port),
            "spark.sql.warehouse.dir": str(directory / "warehouse"),
            **properties,
        }
        argv = [
            spark_home / "bin" / "spark-submit", "--class", "org.apache.spark.sql.connect.service.SparkConnectServer",
            "--master", "local[2]", *(part for name, value in settings.items() for part in ("--conf", f"{name}={value}")),
        ]  # fmt: skip
        environment = {**ENVIRONMENT, "SPARK_HOME": str(spark_home), "SPARK_DAEMON_MEMORY": "768m"}
        super().__init__("spark-connect", argv, directory, lambda: listens(self.port), environment)

    @property
    def connection(self) -> dict[str, Any]:
        """The connection as a user writes it."""
        return {"conn_type": "spark_connect", "host": f"sc://{LOOPBACK}", "port": self.port}

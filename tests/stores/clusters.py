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

from stores.install import HADOOP_JARS
from stores.process import LOOPBACK, Service, free_port

HERE = Path(__file__).parent
SPARK_HOME = Path(pyspark.__file__).parent
ENVIRONMENT = {
    "SPARK_HOME": str(SPARK_HOME),
    "SPARK_LOCAL_IP": LOOPBACK,
    "SPARK_DAEMON_MEMORY": "256m",
    "SPARK_DAEMON_JAVA_OPTS": "-XX:+UseSerialGC",
    "PYSPARK_PYTHON": sys.executable,
    # Else Spark puts a Connect client, or a foreign configuration, into every process.
    "SPARK_REMOTE": None,
    "SPARK_CONF_DIR": None,
    "HADOOP_CONF_DIR": None,
}


class StandaloneCluster:
    """A master and workers, each with a work directory of its own.

    :param directory: an existing directory.
    :param workers: how many.
    :param cores: of each worker.
    :param memory: of each worker, for its executors.
    """

    def __init__(self, directory: Path, *, workers: int = 2, cores: int = 1, memory: str = "1g") -> None:
        self.port, self._page = free_port(), free_port()
        self.url = f"spark://{LOOPBACK}:{self.port}"
        argv = [
            SPARK_HOME / "bin" / "spark-class", "org.apache.spark.deploy.master.Master",
            "--host", LOOPBACK, "--port", self.port, "--webui-port", self._page,
        ]  # fmt: skip
        self.master = Service("spark-master", argv, directory, lambda: self.state["status"] == "ALIVE", ENVIRONMENT)
        self.workers = [self._worker(directory, number, cores, memory) for number in range(workers)]
        self.startup_seconds = 0.0
        self._running = ExitStack()

    def _worker(self, directory: Path, number: int, cores: int, memory: str) -> Service:
        port, work = free_port(), directory / f"work-{number}"
        work.mkdir(exist_ok=True)
        argv = [
            SPARK_HOME / "bin" / "spark-class", "org.apache.spark.deploy.worker.Worker", "--host", LOOPBACK, "--port", port,
            "--webui-port", free_port(), "--cores", cores, "--memory", memory, "--work-dir", work, self.url,
        ]  # fmt: skip
        return Service(f"spark-worker-{number}", argv, directory, lambda: port in self.alive, ENVIRONMENT)

    @property
    def state(self) -> dict[str, Any]:
        """What the master says of itself, its workers and applications."""
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(f"http://{LOOPBACK}:{self._page}/json/", timeout=5) as answer:
                return dict(json.load(answer))
        except OSError:
            return {"status": "", "workers": []}

    @property
    def alive(self) -> list[int]:
        """The ports of the workers that the master counts on."""
        return [worker["port"] for worker in self.state["workers"] if worker["state"] == "ALIVE"]

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

    def setting(self, name: str) -> str:
        """Return a setting of the running cluster."""
        from xml.etree import ElementTree

        for path in self.configuration.glob("*-site.xml"):
            for entry in ElementTree.parse(path).getroot().iter("property"):
                if entry.findtext("name") == name:
                    return entry.findtext("value") or ""
        raise KeyError(name)


def submit_environment(**more: str) -> dict[str, str]:
    """Return the environment of ``spark-submit``."""
    merged: Mapping[str, str | None] = {**os.environ, **ENVIRONMENT, **more}
    return {key: value for key, value in merged.items() if value is not None}

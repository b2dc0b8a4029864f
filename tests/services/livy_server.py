"""Livy's own server, which runs what is submitted by a service's ``spark-submit``."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from services.drivers import ServiceSpark
from services.install import LIVY
from stores.process import LOOPBACK, Service, answers, free_port

START = 300.0
"""Seconds that the server may take to start: it asks ``spark-submit`` for its version first."""

_LOG = """
log4j.rootCategory=INFO, console
log4j.appender.console=org.apache.log4j.ConsoleAppender
log4j.appender.console.layout=org.apache.log4j.PatternLayout
log4j.appender.console.layout.ConversionPattern=%d %p %c: %m%n
"""


class Livy(Service):
    """A Livy server.

    :param directory: an existing directory.
    :param spark: what it submits to.
    """

    def __init__(self, directory: Path, spark: ServiceSpark) -> None:
        self.port = free_port()
        self.url = f"http://{LOOPBACK}:{self.port}"
        for name in ("livy", "livy/conf", "livy/logs"):
            (directory / name).mkdir()
        settings = {
            "livy.server.host": LOOPBACK,
            "livy.server.port": self.port,
            "livy.spark.master": "local[1]",
        }
        lines = [f"{name} = {value}\n" for name, value in settings.items()]
        (directory / "livy" / "conf" / "livy.conf").write_text("".join(lines))
        (directory / "livy" / "conf" / "log4j.properties").write_text(_LOG)
        java = os.path.join(os.environ["JAVA_HOME"], "bin", "java") if "JAVA_HOME" in os.environ else "java"
        command = [java, "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", f"{directory}/livy/conf:{LIVY}/*"]
        # Nothing of this process's environment, as for the drivers of other services.
        super().__init__(
            "livy",
            [*command, "org.apache.livy.server.LivyServer"],
            directory,
            lambda: answers(f"{self.url}/version"),
            {**dict.fromkeys(os.environ), **spark.machine(directory / "user"), "LIVY_HOME": str(directory / "livy")},
        )

    @property
    def connection(self) -> dict[str, Any]:
        """A connection of Airflow to the server."""
        return {"conn_type": "livy", "host": self.url}

    @property
    def started(self) -> list[str]:
        """The commands that the server has run."""
        return re.findall(r"SparkProcessBuilder: Running (.*)", self.log.read_text(errors="replace"))

    @property
    def told(self) -> str:
        """Its log."""
        return self.log.read_text(errors="replace")[-20_000:]
